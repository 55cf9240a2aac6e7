"""Kernels of the op `bmm`."""
