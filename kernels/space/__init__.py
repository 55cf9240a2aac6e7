"""Rules and axes that the search spaces of several kernels share."""
