"""A Hugging Face model's GEMMs: found from its config, and run on tuned kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["accelerate", "restore"]

if TYPE_CHECKING:
    from tuner.models.accelerate_model import accelerate, restore
else:

    def __getattr__(name: str) -> object:
        """Import torch when a name that needs it is first used: finding a model's GEMMs does not."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from tuner.models import accelerate_model

        return globals().setdefault(name, getattr(accelerate_model, name))
