"""The cost model: how long a config takes, estimated before anything is compiled."""
