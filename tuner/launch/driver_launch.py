"""Launches by NVIDIA's driver itself, without Triton's driver module, which a C compiler would have to build first."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import copysign
from typing import Any

from triton import knobs

from tuner.launch import compat, cuda
from tuner.launch.arguments import MOST, BoundedCache
from tuner.launch.packed import Packed, Packer, packer_of


class DriverLauncher:
    """Launches a kernel; it is called as Triton's own launchers are. Launches with equal arguments are packed once."""

    def __init__(self, src: Any, metadata: Any, packer: Packer) -> None:
        self._packer, self._launch = packer, cuda.launcher()
        kinds = [(at, kind[0]) for at, kind in enumerate(src.signature.values()) if kind != "constexpr"]
        self._kinds = [(at, letter == "*", letter == "t") for at, letter in kinds]  # pointers, tensordesc
        self._has_floats = any(letter in "fb" for _, letter in kinds)
        self._metas = metadata.tensordesc_meta or ()
        self._scratch = metadata.global_scratch_size * metadata.num_ctas, metadata.global_scratch_align
        self._packed = BoundedCache(self._pack, MOST)

    def __call__(self, *given: Any) -> None:
        """Launch, between a profiler's hooks if there are any."""
        x, y, z, stream, function, _packed, launch_metadata, enter, leave, *arguments = given
        if enter is not None:
            enter(launch_metadata)
        programs = x * y * z
        if programs > 0:
            size, alignment = self._scratch
            scratch = compat.allocator.get()(programs * size, alignment, stream) if size else None
            values = self._values(arguments)
            # 0.0 and -0.0 would be one key.
            signs = tuple([copysign(1, value) for value in values if value == 0]) if self._has_floats else ()
            key = (x, y, z, stream, function, scratch and scratch.data_ptr(), signs, *values)
            assert self._launch is not None
            self._launch(*self._packed[key])
        if leave is not None:
            leave(launch_metadata)

    def _values(self, arguments: Sequence[Any]) -> list[Any]:
        """The arguments as the device takes them."""
        values: list[Any] = []
        metas = iter(self._metas)
        for at, is_pointer, is_described in self._kinds:
            argument = arguments[at]
            if is_pointer:
                values.append(argument.data_ptr() if hasattr(argument, "data_ptr") else argument or 0)
            elif is_described:
                encoded = cuda.tensor_map(next(metas), argument, argument.base.data_ptr())
                values += [encoded, *argument.shape, *argument.strides]
            else:
                values.append(argument)
        return values

    def _pack(self, key: tuple[Any, ...]) -> Packed:
        cuda.ensure_context()
        x, y, z, stream, function, scratch, _signs, *values = key
        for at in self._packer.pointers:
            values[at] = cuda.device_address(values[at])
        return self._packer.pack(ctypes.c_void_p(function), (x, y, z), stream, values, scratch or 0)


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
