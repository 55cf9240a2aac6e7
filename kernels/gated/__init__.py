"""The kernels of the op `gated_linear`: activation(x @ gate.T) * (x @ up.T)."""
