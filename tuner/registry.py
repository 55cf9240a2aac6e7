"""The public names of `tuner.kernel.registry`, for code outside this package."""

from tuner.kernel.registry import add, default_config, find, forget, references, serving, specs

__all__ = ["add", "default_config", "find", "forget", "references", "serving", "specs"]
