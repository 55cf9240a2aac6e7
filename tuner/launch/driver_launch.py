"""Launches by NVIDIA's driver itself, without Triton's driver module, which a C compiler would have to build first."""

from __future__ import annotations

import ctypes
from typing import Any

from triton import knobs

from tuner.launch import compat, cuda
from tuner.launch.packed import Packer, packer_of


class DriverLauncher:
    """Launches a kernel; it is called as Triton's own launchers are."""

    def __init__(self, src: Any, metadata: Any, packer: Packer) -> None:
        self._packer, self._launch = packer, cuda.launcher()
        self._kinds, self._metas = [*src.signature.values()], metadata.tensordesc_meta or ()
        self._scratch = metadata.global_scratch_size * metadata.num_ctas, metadata.global_scratch_align

    def __call__(self, *given: Any) -> None:
        """Launch, between a profiler's hooks if there are any."""
        x, y, z, stream, function, _packed, launch_metadata, enter, leave, *arguments = given
        cuda.ensure_context()
        if enter is not None:
            enter(launch_metadata)
        values = self._values(arguments)
        if x * y * z > 0:
            size, alignment = self._scratch
            scratch = compat.allocator.get()(x * y * z * size, alignment, stream) if size else None
            assert self._launch is not None
            handle, memory = ctypes.c_void_p(function), cuda.device_address(scratch)
            self._launch(*self._packer.pack(handle, (x, y, z), stream, values, memory))
        if leave is not None:
            leave(launch_metadata)

    def _values(self, arguments: list[Any]) -> list[Any]:
        values: list[Any] = []
        metas = iter(self._metas)
        for kind, argument in zip(self._kinds, arguments, strict=True):
            if kind[0] == "*":
                values.append(cuda.device_address(argument))
            elif kind.startswith("tensordesc"):
                encoded = cuda.tensor_map(next(metas), argument, argument.base.data_ptr())
                values += [encoded, *argument.shape, *argument.strides]
            elif kind != "constexpr":
                values.append(argument)
        return values


class DriverKernel(compat.CompiledKernel):  # type: ignore[misc]
    """A CompiledKernel that is loaded and launched without Triton's module, wherever `packer_of` knows its arguments.

    It overrides what CompiledKernel calls before its first use in Triton 3.6 to 3.9. Where a Triton calls something
    else, it is launched as any kernel is.
    """

    _run: Any

    def _init_handles(self) -> None:
        if self._run is not None:
            return
        metadata = self.metadata
        packer = packer_of(self.src.signature, metadata)
        if packer is None:
            super()._init_handles()
            return
        device = compat.driver.active.get_current_device()
        _check(metadata.shared, cuda.properties(device)["max_shared_mem"], "shared memory")
        self._tell(knobs.runtime.kernel_load_start_hook)
        loaded = cuda.load(self.name, self.kernel, metadata.shared, device, metadata.num_ctas)
        _check(metadata.num_warps * metadata.target.warp_size, loaded.threads, "threads")
        self.n_regs, self.n_spills, self.n_max_threads = loaded.registers, loaded.spilled, loaded.threads
        self.module, self.function = loaded.module, loaded.function
        self._run = DriverLauncher(self.src, metadata, packer)  # last: another thread launches when it is there
        self._tell(knobs.runtime.kernel_load_end_hook)

    def _tell(self, hook: Any) -> None:
        if hook is not None:
            hook(self.module, self.function, self.name, self.metadata_group, self.hash)


def _check(needed: int, there: int, of: str) -> None:
    if needed > there:
        raise compat.OutOfResources(needed, there, of)
