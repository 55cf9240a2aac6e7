"""A launch as NVIDIA's driver takes it: its parameters, attributes and configuration, in one piece of memory."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tuner.launch import cuda

DESCRIPTOR = "nvTmaDesc"
"""Triton's name for the type of an encoded TMA descriptor."""
Packed = tuple[Any, ...]
"""The arguments of `cuda.launcher`; they hold the memory that they point into."""

_KINDS = "i8 i16 i1 i32 i64 u8 u16 u1 u32 u64 fp16 bf16 fp32 f32 fp64"
_FORMATS = {DESCRIPTOR: f"{cuda.MAP_BYTES}s", **dict(zip(_KINDS.split(), "bhiiqBHIIQeHffd", strict=True))}
"""The letters of `struct` for Triton's types."""
_TILED = re.compile(r"tensordesc<[^[>]*\[([^]]*)\]")
# CUlaunchAttributeID, of which each attribute has 64 bytes for its value.
_COOPERATIVE, _CLUSTER, _CLUSTER_POLICY, _SERIALIZATION = 2, 4, 5, 6
_SPREAD = 1
_ATTRIBUTE = struct.Struct("=I4x3I52x")
_CONFIGURATION = "=7I4xQQI4x"


def device_kinds(signature: Mapping[str, Any], tensordesc_meta: Sequence[Any] | None) -> list[str] | None:
    """The types of a kernel's arguments as the device takes them: without constexprs, descriptors encoded.

    None where an argument is none of the types that are known here: a tuple, or a descriptor that the host does not
    encode as tiles.
    """
    kinds: list[str] = []
    described = 0
    for kind in signature.values():
        if not isinstance(kind, str):
            return None
        tiled = _TILED.match(kind)
        if tiled:
            described += 1
            rank = tiled[1].count(",") + 1
            kinds += [DESCRIPTOR, *["i32"] * rank, *["i64"] * rank]
        elif kind[0] == "*" or kind in _FORMATS:
            kinds.append(kind)
        elif kind != "constexpr":
            return None
    metas = tensordesc_meta or ()
    return kinds if len(metas) == described and not any(meta.get("is_im2col") for meta in metas) else None


def packer_of(signature: Mapping[str, Any], metadata: Any) -> Packer | None:
    """The packer of a compiled kernel's launches; None where only Triton's own launcher knows how to launch it.

    Args:
        signature: The arguments' types by name, as Triton writes them.
        metadata: The compiled kernel's metadata.
    """
    if metadata.target.backend != "cuda" or not hasattr(metadata, "tensordesc_meta") or cuda.launcher() is None:
        return None
    if metadata.profile_scratch_size or getattr(metadata, "instrumentation_mode", ""):
        return None  # a profiler's or a sanitizer's kernel has memory and arguments of theirs
    kinds = device_kinds(signature, metadata.tensordesc_meta)
    return None if kinds is None else Packer(kinds, metadata)


class Packer:
    """Packs the launches of one kernel.

    Triton gives each kernel two more parameters, memory for its own use and for profilers, which a kernel without need
    of it ignores.

    Attributes:
        pointers: The places of addresses among the arguments.
    """

    def __init__(self, kinds: Sequence[str], metadata: Any) -> None:
        """Lay out the memory.

        Args:
            kinds: The arguments' types, as `device_kinds` gives them.
            metadata: The compiled kernel's metadata.
        """
        attributes = b"".join(_attributes(metadata))
        self.pointers = [at for at, kind in enumerate(kinds) if kind[0] == "*"]
        self._converted = [(at, _CONVERTERS[kind]) for at, kind in enumerate(kinds) if kind in _CONVERTERS]
        layout, self._offsets = _layout([*kinds, "u64", "u64"])
        head = f"{layout}{len(self._offsets)}Q{len(attributes)}s"
        self._pointers = struct.calcsize(layout)
        self._configuration = struct.calcsize(head)
        self._struct = struct.Struct(head + _CONFIGURATION[1:])
        self._memory = ctypes.c_char * (self._struct.size + cuda.MAP_ALIGNMENT)
        self._attributes = attributes
        self._clusters = metadata.num_ctas
        self._fixed = (32 * metadata.num_warps, 1, 1, metadata.shared)

    def pack(
        self, function: ctypes.c_void_p, grid: Sequence[int], stream: int, values: Sequence[Any], scratch: int = 0
    ) -> Packed:
        """Pack one launch.

        Args:
            function: The function's handle.
            grid: The number of programs along three axes; clusters are counted along the first.
            stream: The stream's handle.
            values: The arguments as the device takes them: addresses, numbers and encoded descriptors.
            scratch: The address of the memory that the kernel needs for itself.
        """
        if self._converted:
            values = [*values]
            for at, converted in self._converted:
                values[at] = converted(values[at])
        memory = self._memory()
        at = ctypes.addressof(memory)
        start = -at % cuda.MAP_ALIGNMENT
        base = at + start
        x, y, z = grid
        self._struct.pack_into(
            *(memory, start, *values, scratch, 0, *[base + offset for offset in self._offsets], self._attributes),
            *(x * self._clusters, y, z, *self._fixed, stream),
            *(base + self._configuration - len(self._attributes), len(self._attributes) // _ATTRIBUTE.size),
        )
        configuration = ctypes.byref(memory, start + self._configuration)
        return configuration, function, ctypes.byref(memory, start + self._pointers), None


def _layout(kinds: Sequence[str]) -> tuple[str, list[int]]:
    """The format of values that lie as C aligns them, to be followed by pointers, and each value's offset."""
    layout, offsets = "=", []
    for kind in kinds:
        code = "Q" if kind[0] == "*" else _FORMATS[kind]
        alignment = cuda.MAP_ALIGNMENT if kind == DESCRIPTOR else struct.calcsize(f"={code}")
        layout += f"{-struct.calcsize(layout) % alignment}x"
        offsets.append(struct.calcsize(layout))
        layout += code
    return layout, offsets


def _attributes(metadata: Any) -> Iterator[bytes]:
    if metadata.launch_pdl:
        yield _ATTRIBUTE.pack(_SERIALIZATION, 1, 0, 0)
    if metadata.launch_cooperative_grid:
        yield _ATTRIBUTE.pack(_COOPERATIVE, 1, 0, 0)
    if metadata.num_ctas != 1:
        yield _ATTRIBUTE.pack(_CLUSTER, metadata.num_ctas, 1, 1)
        yield _ATTRIBUTE.pack(_CLUSTER_POLICY, _SPREAD, 0, 0)


def _single(number: float) -> float:
    return ctypes.c_float(number).value  # infinity where it is too large, which `struct` refuses


def _bfloat16(number: float) -> int:
    upper: int = struct.unpack("=I", struct.pack("=f", _single(number)))[0] >> 16  # cut off, as Triton does
    return upper


_CONVERTERS: Mapping[str, Callable[[Any], Any]] = {"bf16": _bfloat16, "fp32": _single, "f32": _single}
