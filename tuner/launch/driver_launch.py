"""Launches by NVIDIA's driver itself, without Triton's driver module, which a C compiler would have to build first."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from typing import Any

from triton import knobs

from tuner.launch import compat, cuda
from tuner.launch.bounded_cache import MOST, BoundedCache
from tuner.launch.packed import Frame, Packer, packer_of

NOT_BUILT = (RuntimeError, OSError, AssertionError, subprocess.CalledProcessError)
"""Raised where Triton's module, or a launcher of Triton 3.6, cannot be built."""


class DriverLauncher:
    """Launches a kernel; it is called as Triton's own launchers are."""

    def __init__(self, src: Any, metadata: Any, packer: Packer) -> None:
        self._packer, self._launch = packer, cuda.launcher()
        kinds = [(at, kind) for at, kind in enumerate(src.signature.values()) if kind != "constexpr"]
        self._taken = [at for at, _ in kinds]
        self._pointers = [here for here, (_, kind) in enumerate(kinds) if kind[0] == "*"]
        described = [here for here, (_, kind) in enumerate(kinds) if kind.startswith("tensordesc")]
        self._described = [*zip(described, metadata.tensordesc_meta or (), strict=True)][::-1]
        self._handle = ctypes.c_void_p()
        self._scratch = metadata.global_scratch_size * metadata.num_ctas, metadata.global_scratch_align
        self._addresses = BoundedCache(cuda.device_address, MOST)
        self._frames: list[Frame] = []

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
            values.append(scratch.data_ptr() if scratch else 0)
            try:
                frame = self._frames.pop()
            except IndexError:
                frame = self._packer.frame()
            self._packer.fill(frame, (x, y, z), stream, values)
            configuration, parameters = frame.arguments
            assert self._launch is not None
            if self._handle.value != function:
                self._handle = ctypes.c_void_p(function)
            self._launch(configuration, self._handle, parameters, None)
            self._frames.append(frame)
        if leave is not None:
            leave(launch_metadata)

    def _values(self, arguments: Sequence[Any]) -> list[Any]:
        """The arguments as the device takes them."""
        values = [arguments[at] for at in self._taken]
        for at in self._pointers:
            given = values[at]
            values[at] = self._addresses[given.data_ptr() if hasattr(given, "data_ptr") else given or 0]
        for at, meta in self._described:  # from the last on: each becomes several
            given = values[at]
            encoded = cuda.tensor_map_encoder(meta, given)(given.base.data_ptr())
            values[at : at + 1] = encoded, *given.shape, *given.strides
        return values


class DriverKernel(compat.CompiledKernel):  # type: ignore[misc]
    """A CompiledKernel that is loaded and launched without Triton's module, wherever `packer_of` knows its arguments.

    It overrides what CompiledKernel calls before its first use in Triton 3.6 to 3.9. Where a Triton calls something
    else, it is launched as any kernel is.

    Attributes:
        is_for_triton: Whether Triton's own launcher is wanted, which costs a launch less. It is built at the kernel's
            first use, where that can be done.
    """

    _run: Any
    is_for_triton = False

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
        loaded = cuda.load(self.name, self.kernel, metadata.shared, device)
        _check(metadata.num_warps * metadata.target.warp_size, loaded.threads, "threads")
        self.n_regs, self.n_spills, self.n_max_threads = loaded.registers, loaded.spilled, loaded.threads
        self.module, self.function = loaded.module, loaded.function
        launcher = self._tritons() if self.is_for_triton else None
        self._run = launcher or DriverLauncher(self.src, metadata, packer)  # last: another thread launches by it
        if launcher is not None:
            # Each launch calls it: no line of ours is to be left there.
            self._init_handles = super()._init_handles  # type: ignore[method-assign]
        self._tell(knobs.runtime.kernel_load_end_hook)

    def _tritons(self) -> Any:
        """Triton's own launcher; None where it cannot be built."""
        try:
            if isinstance(compat.driver.active.utils, compat.CudaUtils):
                return compat.CudaLauncher(self.src, self.metadata)
        except NOT_BUILT:
            pass
        return None

    def _tell(self, hook: Any) -> None:
        if hook is not None:
            hook(self.module, self.function, self.name, self.metadata_group, self.hash)


def _check(needed: int, there: int, of: str) -> None:
    if needed > there:
        raise compat.OutOfResources(needed, there, of)
