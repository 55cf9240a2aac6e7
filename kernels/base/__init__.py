"""What all kernels stand on: operands, numerics, workspaces, pieces of device code."""
