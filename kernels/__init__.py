"""Triton kernels of the op `matmul`."""
