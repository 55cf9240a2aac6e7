"""Kernels of the op `grouped_mm`."""
