"""The public names of `tuner.hardware.device`, for code outside this package."""

from tuner.hardware.device import INTERPRETER, KNOWN, Device, Environment, current

__all__ = ["INTERPRETER", "KNOWN", "Device", "Environment", "current"]
