"""GEMM kernels that load and store through descriptors of the tensor memory accelerator."""
