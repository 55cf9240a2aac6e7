"""The GEMM kernel that loads through pointers: any strides, any device."""
