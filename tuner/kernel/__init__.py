"""What a kernel is to the tuner: its contract, its configs, its search space, and where kernels are found."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["Inputs", "Invariance", "KernelSpec"]
if TYPE_CHECKING:
    from tuner.kernel.spec import Inputs, Invariance, KernelSpec
else:
    import importlib

    def __getattr__(name: str) -> object:
        """Import the contract when it is first asked for: a process whose launches ship ready asks no kernel."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals().setdefault(name, getattr(importlib.import_module(f"{__name__}.spec"), name))
