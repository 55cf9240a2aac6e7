"""The public names of `tuner.kernel.space`, for code outside this package."""

from tuner.kernel.space import Rule, SearchSpace

__all__ = ["Rule", "SearchSpace"]
