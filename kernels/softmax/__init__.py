"""Kernels of the op `softmax`."""
