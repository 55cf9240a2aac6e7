"""NVIDIA's driver, called through ctypes: binaries are loaded, TMA descriptors encoded and kernels launched.

Triton's own driver module does the same in C, and a C compiler builds it where Triton's cache is empty. Nothing here
has to be built. Where a function of the driver is wrapped, its arguments are those of Triton's module.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from ctypes import byref
from typing import Any, NamedTuple

from tuner.launch import compat

MAP_BYTES = 128
"""The size of an encoded descriptor, CUtensorMap."""
MAP_ALIGNMENT = 64
_SHARED_BYTES = 49_152
"""Shared memory of a program that need not be asked for."""
_TF32 = 11
"""CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, into which TMA rounds float32."""
_HOST_KINDS = {8: 10, 9: 8, 10: 9}
"""CUtensorMapDataType by the number that PTX has for a kind of element (`tensormap.replace`); all others are equal."""
_FLOAT16, _SWIZZLE_128B = 6, 3
_L2_PROMOTION_128B = 2
_NAN_FILL = 1
_SOME_ADDRESSES = 0x10, 0x7F00_0000_0000, 0x2AAA_AAAA_AAA0, 0x5555_5555_5550, 0x7FFF_FFFF_FFF0
_FIXED_IN = 13_010
"""The last driver that marks descriptors of less than 128 KiB wrongly; CUTLASS and Triton clear the mark."""
_SMALL_BYTES = 128 * 1024
_MARK_BYTE, _UNMARKED = 10, 0xFF ^ 1 << 5
# CUresult, CUfunction_attribute, CUdevice_attribute and CUpointer_attribute of the driver API.
_INVALID_VALUE, _INVALID_CONTEXT = 1, 201
_MAX_THREADS, _STATIC_SHARED, _LOCAL, _REGISTERS, _DYNAMIC_SHARED, _CARVEOUT, _ANY_CLUSTER = 0, 1, 3, 4, 8, 9, 14
_PROPERTIES = {
    "max_shared_mem": 97,
    "max_num_regs": 12,
    "multiprocessor_count": 16,
    "warpSize": 10,
    "sm_clock_rate": 13,
    "mem_clock_rate": 36,
    "mem_bus_width": 37,
}
_DEVICE_POINTER = 3
_PREFER_SHARED = 1
_RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED."""
_ALL = 100
"""Per cent: all of the memory that can be shared memory."""
_asked: weakref.WeakSet[Any] = weakref.WeakSet()
_buffers: list[tuple[memoryview, Any, Any]] = []
"""Memory to encode descriptors into, and for the address. A thread takes one out, so that no two write it."""


class Loaded(NamedTuple):
    """A function of a loaded binary: its handles and resources, and the threads that a program of it may have."""

    module: int
    function: int
    registers: int
    spilled: int
    threads: int


@functools.cache
def library() -> ctypes.CDLL | None:
    """The driver's library; None where there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


@functools.cache
def launcher() -> Callable[..., None] | None:
    """cuLaunchKernelEx, to be given ctypes objects alone; None where there is no such driver.

    Called with objects it takes half the time that it takes with integers. A thread without a context gets the current
    device's, as by Triton.
    """
    found = library()
    return None if found is None or not hasattr(found, "cuLaunchKernelEx") else _function("cuLaunchKernelEx")


@functools.cache
def _function(name: str) -> Callable[..., None]:
    """A function of the driver that raises what Triton raises."""
    function: Callable[..., None] = library()[name]  # type: ignore[index]
    function.errcheck = _checked  # type: ignore[attr-defined]
    return function


def _checked(code: int, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    if code == _INVALID_CONTEXT and ensure_context():
        function(*arguments)
    elif code:
        check(code)


def check(code: int) -> None:
    """Raise what Triton raises where the driver refuses."""
    if code:
        text = ctypes.c_char_p()
        _call("cuGetErrorString", code, byref(text))
        raise RuntimeError(f"Triton Error [CUDA]: {(text.value or b'unknown error').decode()}")


def _call(name: str, *arguments: Any) -> int:
    found: int = getattr(library(), name)(*arguments)
    return found


def ensure_context() -> bool:
    """Make the current device's context this thread's where it has none; whether that was so."""
    context = ctypes.c_void_p()
    check(_call("cuCtxGetCurrent", byref(context)))
    if context:
        return False
    check(_call("cuDevicePrimaryCtxRetain", byref(context), current_device()))
    check(_call("cuCtxSetCurrent", context))
    return True


def current_device() -> int:
    """The index of the current device, as torch says it; Triton's driver in a program without torch."""
    asked = compat.cuda_get_device if "torch" in sys.modules else None
    return int(asked() if asked is not None else compat.driver.active.get_current_device())


@functools.cache
def properties(device: int) -> dict[str, int]:
    """What Triton's module says of a device."""
    found = {}
    for name, attribute in _PROPERTIES.items():
        value = ctypes.c_int()
        check(_call("cuDeviceGetAttribute", byref(value), attribute, device))
        found[name] = value.value
    return found


def load(name: str, binary: bytes, shared: int, device: int) -> Loaded:
    """Load a function of a binary; it may have the shared memory that it needs, and clusters of any size.

    Args:
        name: The function's name.
        binary: The cubin, which must outlive the function.
        shared: The bytes of shared memory that a launch will ask for.
        device: The index of the current device.
    """
    ensure_context()
    with _allowed_in_captures():
        return _loaded(name, binary, shared, device)


def _loaded(name: str, binary: bytes, shared: int, device: int) -> Loaded:
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    check(_call("cuModuleLoadData", byref(module), binary))
    check(_call("cuModuleGetFunction", byref(function), module, name.encode()))

    def attribute(which: int) -> int:
        found = ctypes.c_int()
        check(_call("cuFuncGetAttribute", byref(found), which, function))
        return found.value

    most = properties(device)["max_shared_mem"]
    if shared > _SHARED_BYTES and most > _SHARED_BYTES:
        check(_call("cuFuncSetCacheConfig", function, _PREFER_SHARED))
        check(_call("cuFuncSetAttribute", function, _DYNAMIC_SHARED, most - attribute(_STATIC_SHARED)))
    _call("cuFuncSetAttribute", function, _ANY_CLUSTER, 1)  # more than 8 programs; refused where there are no clusters
    resources = attribute(_REGISTERS), attribute(_LOCAL) // 4, attribute(_MAX_THREADS)
    return Loaded(module.value or 0, function.value or 0, *resources)


@contextlib.contextmanager
def _allowed_in_captures() -> Iterator[None]:
    """Let this thread do what a driver may refuse while a stream is captured, in this thread or another."""
    mode = ctypes.c_int(_RELAXED)
    check(_call("cuThreadExchangeStreamCaptureMode", byref(mode)))
    try:
        yield
    finally:
        check(_call("cuThreadExchangeStreamCaptureMode", byref(mode)))


def unload(module: int) -> None:
    """Give back the memory of a binary."""
    check(_call("cuModuleUnload", ctypes.c_void_p(module)))


def ask_for_shared(kernel: Any) -> None:
    """Let multiprocessors give a kernel all shared memory from its next launch on: a hint, which may fail.

    The driver divides a multiprocessor's memory between the L1 and shared memory as a kernel asks, and divides it anew
    only when nothing runs there: programs of a kernel without shared memory keep those of one that fills it from
    starting beside them. Triton has no option for it.

    Args:
        kernel: a CompiledKernel that has been launched; None, of the interpreter, is passed over.
    """
    if kernel is None or kernel in _asked:
        return
    _asked.add(kernel)
    if kernel.metadata.target.backend == "cuda" and library() is not None:
        _call("cuFuncSetAttribute", ctypes.c_void_p(kernel.function), _CARVEOUT, _ALL)


def device_address(at: int) -> int:
    """The address by which the device reaches memory; 0 stays 0.

    Raises:
        ValueError: The device cannot reach it.
    """
    if at == 0:
        return 0
    ensure_context()
    found = ctypes.c_uint64()
    code = _call("cuPointerGetAttribute", byref(found), _DEVICE_POINTER, ctypes.c_uint64(at))
    if code == _INVALID_VALUE:
        raise ValueError("Pointer argument cannot be accessed from Triton (cpu tensor?)")
    check(code)
    return found.value


def tensor_map_encoder(meta: Mapping[str, Any], descriptor: Any) -> TensorMapEncoder:
    """The encoder of a TMA descriptor; the plans of calls that differ elsewhere share it.

    Args:
        meta: What Triton compiled the kernel for: swizzle, size and type of an element, block.
        descriptor: Triton's TensorDescriptor, or whatever has its attributes except `base`.
    """
    sizes, strides = [*descriptor.shape], [*descriptor.strides]
    if meta["fp4_padded"]:
        sizes[-1] *= 2
    rounds = getattr(descriptor, "round_f32_to_tf32", False)
    kind = _TF32 if rounds else _HOST_KINDS.get(meta["elem_type"], meta["elem_type"])
    element = meta["elem_size"]
    steps = [element * stride for stride in strides[-2::-1]]  # bytes from row to row; the innermost axis has none
    modes = 0, meta["swizzle"], _L2_PROMOTION_128B, _NAN_FILL if descriptor.padding == "nan" else 0
    return _encoder((kind, element), (*sizes[::-1],), (*steps,), (*meta["block_size"][::-1],), modes)


@functools.cache
def address_in_map() -> int | None:
    """Where an encoded TMA descriptor has its tensor's address, in bytes; None where that is not all it changes.

    PTX lets a kernel exchange the address alone (`tensormap.replace`), so it has a place of its own. Where that is, a
    comparison of what the driver encodes for several addresses says.
    """
    rows, columns, size = 64, 64, 2
    modes = 0, _SWIZZLE_128B, _L2_PROMOTION_128B, 0
    encode = _encoder((_FLOAT16, size), (columns, rows), (columns * size,), (columns, rows), modes)
    try:
        maps = {at: encode(at) for at in _SOME_ADDRESSES}
    except RuntimeError:
        return None  # it wants the tensor's own
    for place in range(0, MAP_BYTES, 8):
        rest = {(each[:place], each[place + 8 :]) for each in maps.values()}
        if len(rest) == 1 and all(each[place : place + 8] == at.to_bytes(8, "little") for at, each in maps.items()):
            return place
    return None


class TensorMapEncoder:
    """Encodes a TMA descriptor for one address after the other; what else the driver is given is prepared once."""

    def __init__(
        self, element: tuple[int, int], sizes: Sequence[int], steps: Sequence[int], given: tuple[Any, Any, Any]
    ) -> None:
        """Keep what does not change.

        Args:
            element: The driver's kind of an element, and its size in bytes.
            sizes: The tensor's extents, the innermost first.
            steps: Bytes from row to row, and so on outwards.
            given: The driver's arguments before the address, the type of the extents, and the arguments after these.
        """
        self._element, self._sizes, self._steps, self._given = element, sizes, steps, given
        self._encode = _function("cuTensorMapEncodeTiled")
        self._before, of_sizes, after = given
        self._after = of_sizes(*sizes), *after
        reach = 1 + sum((extent - 1) * step for extent, step in zip(sizes, (element[1], *steps), strict=True))
        self._is_marked = reach < _SMALL_BYTES and driver_version() <= _FIXED_IN

    def resized(self, axes: Collection[int], extent: int) -> TensorMapEncoder:
        """The encoder of the same tensor with another extent of some axes, which are counted from the outermost."""
        sizes = [*self._sizes]
        for axis in axes:
            sizes[-1 - axis] = extent
        return TensorMapEncoder(self._element, sizes, self._steps, self._given)

    def __call__(self, at: int) -> bytes:
        """The descriptor of a tensor at an address."""
        try:
            view, memory, address = _buffers.pop()
        except IndexError:
            whole = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)
            start = -ctypes.addressof(whole) % MAP_ALIGNMENT
            view = memoryview(whole).cast("B")[start : start + MAP_BYTES]
            memory, address = byref(whole, start), ctypes.c_void_p()
        address.value = at
        self._encode(memory, *self._before, address, *self._after)
        if self._is_marked:
            view[_MARK_BYTE] &= _UNMARKED
        encoded = bytes(view)
        _buffers.append((view, memory, address))
        return encoded

    @functools.cached_property
    def template(self) -> bytes:
        """The descriptor of some address."""
        return self(_SOME_ADDRESSES[-1])


@functools.lru_cache(maxsize=1024)
def _encoder(
    element: tuple[int, int],
    sizes: tuple[int, ...],
    steps: tuple[int, ...],
    block: tuple[int, ...],
    modes: tuple[int, ...],
) -> TensorMapEncoder:
    """The encoder for elements of a kind and size; the rest as cuTensorMapEncodeTiled takes it, innermost first."""
    rank, number = len(block), ctypes.c_uint32
    axes, many = number * rank, ctypes.c_uint64 * rank
    before, after = (number(element[0]), number(rank)), (many(*steps), axes(*block), axes(*[1] * rank))
    return TensorMapEncoder(element, sizes, steps, (before, many, (*after, *map(number, modes))))


@functools.cache
def driver_version() -> int:
    """The driver's version, 13010 for CUDA 13.1."""
    found = ctypes.c_int()
    check(_call("cuDriverGetVersion", byref(found)))
    return found.value
