"""What a kernel is to the tuner: its contract, its configs, its search space, and where kernels are found."""

from tuner.kernel.spec import Inputs, Invariance, KernelSpec

__all__ = ["Inputs", "Invariance", "KernelSpec"]
