"""The contract of a kernel: what the search, the runtime and the tests ask of one implementation of an op."""

from tuner.kernel.spec import Inputs, KernelSpec

__all__ = ["Inputs", "KernelSpec"]
