"""Triton kernels of the ops `matmul`, `bmm` and `grouped_mm`, and the ops themselves."""

from __future__ import annotations

from tuner.kernels.bmm import bmm
from tuner.kernels.grouped_mm import grouped_mm
from tuner.kernels.matmul import matmul
from tuner.kernels.padding import pad_weight

__all__ = ["bmm", "grouped_mm", "matmul", "pad_weight"]
