"""GEMM kernels for few rows of A."""
