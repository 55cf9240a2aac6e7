"""The tables that come with triton-tuner: the last source that a lookup asks. benchmarks/fit/shipped.py makes them."""
