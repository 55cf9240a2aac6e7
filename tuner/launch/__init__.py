"""Launching compiled kernels: calls seen before, plans, shipped binaries, the compile cache."""
