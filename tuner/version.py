"""The version of triton-tuner."""

__version__ = "0.1.0"
