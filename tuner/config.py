"""The public names of `tuner.kernel.config`, for code outside this package."""

from tuner.kernel.config import Config, Value

__all__ = ["Config", "Value"]
