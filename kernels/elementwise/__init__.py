"""Kernels that only move memory, and the op `vector_add`."""
