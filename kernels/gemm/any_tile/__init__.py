"""GEMM kernels for Hopper whose tiles have any multiple of 8 rows or columns, written in Gluon."""
