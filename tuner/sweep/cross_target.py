"""Compiles for any GPU without having one: a Triton driver that names a target and owns no device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tuner.errors import DeviceError
from tuner.launch import compat

_known: list[Any] = []
"""Targets that were active in this process; the position of each is its device's index."""


def activate(arch: str) -> None:
    """Make Triton compile for `arch` from here on, in this process.

    Kernels then compile through `warmup`, with Triton's real specialization rules and its real cache key, but they
    cannot be launched. This is meant for child processes that only compile. An architecture is named as `Device.arch`
    names it.

    Raises:
        DeviceError: no compiler serves an architecture of that name.
    """
    if arch.startswith("sm_") and arch[3:].isdigit():
        target = compat.GPUTarget("cuda", int(arch[3:]), 32)
    elif arch.startswith("gfx9"):
        target = compat.GPUTarget("hip", arch, 64)
    else:
        raise DeviceError(f"cannot compile for {arch!r}: expected an architecture such as sm_90 or gfx942")
    compat.driver.set_active(_target_only_driver(target))


def _target_only_driver(target: Any) -> Any:
    if target not in _known:
        _known.append(target)
    index = _known.index(target)  # jit functions keep their binaries by device index

    class TargetOnly(compat.DriverBase):  # type: ignore[misc]  # Triton carries no types
        """The part of a driver that `JITFunction.warmup` uses."""

        @classmethod
        def is_active(cls) -> bool:
            return True

        def map_python_to_cpp_type(self, ty: str) -> str:
            return ty

        def get_current_target(self) -> Any:
            return target

        def get_active_torch_device(self) -> Any:
            import torch

            return torch.device("meta")

        def get_current_device(self) -> int:
            return index

        def get_current_stream(self, device: int = 0) -> int:
            return device * 0

        def get_benchmarker(self) -> Callable[..., Any]:
            raise NotImplementedError("this driver has no device to measure on")

    return TargetOnly()
