"""GEMM kernels for Hopper (sm_90), written in Gluon."""
