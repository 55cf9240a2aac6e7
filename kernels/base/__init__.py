"""What all kernels build on: operands, numerics, workspaces, shared device code."""
