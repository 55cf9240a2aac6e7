"""Many GPUs and hosts at work on one list of problems: a queue, a ledger on the driver, and Ray to start the nodes."""
