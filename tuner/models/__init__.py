"""Finds the GEMMs of a Hugging Face model from its config, and runs the model on tuned kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["accelerate", "restore"]

if TYPE_CHECKING:
    from tuner.models.accelerate_model import accelerate, restore
else:

    def __getattr__(name: str) -> object:
        """Import torch only when a name that needs it is used, because some modules of this package do without it."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from tuner.models import accelerate_model

        return globals().setdefault(name, getattr(accelerate_model, name))
