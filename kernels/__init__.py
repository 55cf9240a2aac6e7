"""Triton kernels of the op `matmul`, and the op itself."""

from __future__ import annotations

from tuner.kernels.matmul import matmul

__all__ = ["matmul"]
