"""Kernels of the op `matmul`."""
