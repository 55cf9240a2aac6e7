"""The ops and their kernels: `matmul`, `bmm`, `grouped_mm`, `fused_experts`, `gated_linear`, three bound by memory.

Each op's module is imported when the op is first accessed, so a program that only multiplies matrices does not import
softmax.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "bmm",
    "fused_experts",
    "gated_linear",
    "grouped_mm",
    "matmul",
    "pad_weight",
    "rms_norm",
    "softmax",
    "vector_add",
]

if TYPE_CHECKING:
    from tuner.kernels.ops.bmm import bmm
    from tuner.kernels.ops.fused_experts import fused_experts
    from tuner.kernels.ops.gated_linear import gated_linear
    from tuner.kernels.ops.grouped_mm import grouped_mm
    from tuner.kernels.ops.matmul import matmul
    from tuner.kernels.ops.pad_weight import pad_weight
    from tuner.kernels.ops.rms_norm import rms_norm
    from tuner.kernels.ops.softmax import softmax
    from tuner.kernels.ops.vector_add import vector_add
else:
    import importlib

    # The first import of a package that has an op's name binds that name here. Importing and unbinding it now leaves
    # `tuner.kernels.softmax` to the op.
    for package in ("softmax", "rms_norm"):
        importlib.import_module(f"{__name__}.{package}")
        del globals()[package]
    del package

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals().setdefault(name, getattr(importlib.import_module(f"{__name__}.ops.{name}"), name))

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
