"""Triton kernels of the ops `matmul`, `bmm`, `grouped_mm`, `vector_add` and `softmax`, and the ops themselves."""

from __future__ import annotations

from tuner.kernels.bmm import bmm
from tuner.kernels.grouped_mm import grouped_mm
from tuner.kernels.matmul import matmul
from tuner.kernels.padding import pad_weight
from tuner.kernels.softmax import softmax
from tuner.kernels.vector_add import vector_add

__all__ = ["bmm", "grouped_mm", "matmul", "pad_weight", "softmax", "vector_add"]
