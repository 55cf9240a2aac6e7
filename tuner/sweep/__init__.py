"""The offline tuner: search, compile, measure, verify."""
