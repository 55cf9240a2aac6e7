"""Triton's driver of NVIDIA's GPUs, but for its module, which a C compiler builds: it may wait, or be left out.

Triton builds the module when a process first asks which device is current. This driver builds it for the first kernel
that no table ships, or that an adopted library launches. Where that fails, for want of a compiler, such kernels are
launched by `DriverLauncher` too.
"""

from __future__ import annotations

import functools
from typing import Any

from tuner.errors import KernelError
from tuner.launch import compat, cuda
from tuner.launch.driver_launch import NOT_BUILT, DriverLauncher
from tuner.launch.packed import packer_of


class NvidiaDriver(compat.CudaDriver):  # type: ignore[misc]
    """Triton's driver of NVIDIA's GPUs, but for its module: that is built when it is first needed.

    Attributes:
        launcher_cls: Makes Triton's launchers, and a `DriverLauncher` where they cannot be built.
    """

    def __init__(self) -> None:
        super(compat.CudaDriver, self).__init__()  # CudaDriver's own builds the module
        self.launcher_cls = _launcher

    @functools.cached_property
    def utils(self) -> Any:
        """Triton's module; where it cannot be built, what loads kernels in its place."""
        try:
            return compat.CudaUtils()
        except NOT_BUILT as e:
            return _DriverUtils(e)


class _DriverUtils:
    """The part of Triton's module that a CompiledKernel uses."""

    def __init__(self, why: Exception) -> None:
        self._why = why
        self.get_device_properties = cuda.properties
        self.load_binary, self.unload_module = cuda.load, cuda.unload

    def __getattr__(self, name: str) -> Any:
        raise self._why


def _launcher(src: Any, metadata: Any) -> Any:
    try:
        return compat.CudaLauncher(src, metadata)
    except NOT_BUILT as e:
        packer = packer_of(src.signature, metadata)
        if packer is None:
            raise KernelError(
                f"{src.fn.__name__} cannot be launched: {e} Its arguments need Triton's driver module: install a C "
                "compiler and Python's headers, or give it numbers and tensors alone"
            ) from e
        return DriverLauncher(src, metadata, packer)
