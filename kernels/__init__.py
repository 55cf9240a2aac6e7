"""Triton kernels of the op `matmul`, and the op itself."""

from __future__ import annotations

from tuner.kernels.matmul import matmul
from tuner.kernels.padding import pad_weight

__all__ = ["matmul", "pad_weight"]
