"""GPUs: what a device is, and what its architecture can do."""
