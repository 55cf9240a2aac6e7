"""A launch as NVIDIA's driver takes it: its parameters, attributes and configuration, in one piece of memory."""

from __future__ import annotations

import ctypes
import functools
import re
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from tuner.launch import cuda

DESCRIPTOR = "nvTmaDesc"
"""Triton's name for the type of an encoded TMA descriptor."""
STREAM_AT, ADDRESSES_AT = 32, 64
"""Where the stream, and the addresses of a call, stand in a frame."""

_KINDS = "i8 i16 i1 i32 i64 u8 u16 u1 u32 u64 fp16 bf16 fp32 f32 fp64"
_FORMATS = {DESCRIPTOR: f"{cuda.MAP_BYTES}s", **dict(zip(_KINDS.split(), "bhiiqBHIIQeHffd", strict=True))}
"""The letters of `struct` for Triton's types."""
_TILED = re.compile(r"tensordesc<[^[>]*\[([^]]*)\]")
# CUlaunchAttributeID, of which each attribute has 64 bytes for its value.
_COOPERATIVE, _CLUSTER, _CLUSTER_POLICY, _SERIALIZATION = 2, 4, 5, 6
_SPREAD = 1
_ATTRIBUTE = struct.Struct("=I4x3I52x")
_CONFIGURATION = "=7I4xQQI4x"
"""CUlaunchConfig."""


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


class Frame(NamedTuple):
    """The memory of one launch: its configuration, addresses of the call, the arguments, pointers to them, attributes.

    The driver copies all of it before a launch returns, so a frame serves one launch after the other, on one thread at
    a time.

    Attributes:
        memory: All of it.
        start: Where it begins in `memory`, aligned.
        arguments_at: Where the arguments begin in `memory`.
        pack: Writes the configuration and the arguments.
        tail: The end of a configuration: the address of the attributes and how many there are.
        arguments: What `cuda.launcher` is given besides the function, in order.
    """

    memory: Any
    start: int
    arguments_at: int
    pack: Callable[..., None]
    tail: tuple[int, int]
    arguments: tuple[Any, Any]


class Packer:
    """Packs the launches of one kernel.

    Triton gives each kernel two more parameters, memory for its own use and for profilers, which a kernel without need
    of it ignores.

    Attributes:
        offsets: The place of each argument among the arguments' memory, in bytes.
    """

    def __init__(self, kinds: Sequence[str], metadata: Any) -> None:
        """Lay out the arguments.

        Args:
            kinds: Their types, as `device_kinds` gives them.
            metadata: The compiled kernel's metadata.
        """
        self._bfloat16_at = [at for at, kind in enumerate(kinds) if kind == "bf16"]
        self._float32_at = [at for at, kind in enumerate(kinds) if kind in ("fp32", "f32")]
        self._layout, self.offsets = _layout([*kinds, "u64", "u64"])
        self._wholes: dict[int, struct.Struct] = {}
        self._attributes = b"".join(_attributes(metadata))
        self._clusters = metadata.num_ctas
        self._fixed = (32 * metadata.num_warps, 1, 1, metadata.shared)

    def frame(self, addresses: int = 0, from_addresses: Mapping[int, int] = MappingProxyType({})) -> Frame:
        """Make the memory of a launch.

        Args:
            addresses: How many addresses of a call stand after the configuration.
            from_addresses: The arguments that are one of these addresses, by their index.
        """
        first, whole = _arguments_offset(addresses), self._whole(addresses)
        pointers = whole.size
        attributes = pointers + 8 * len(self.offsets)
        memory = (ctypes.c_char * (attributes + len(self._attributes) + cuda.MAP_ALIGNMENT))()
        start = -ctypes.addressof(memory) % cuda.MAP_ALIGNMENT
        base = ctypes.addressof(memory) + start
        places = [
            base + (ADDRESSES_AT + 8 * from_addresses[at] if at in from_addresses else first + offset)
            for at, offset in enumerate(self.offsets)
        ]
        struct.pack_into(f"={len(places)}Q", memory, start + pointers, *places)
        ctypes.memmove(base + attributes, self._attributes, len(self._attributes))
        given = ctypes.byref(memory, start), ctypes.byref(memory, start + pointers)
        tail = base + attributes, len(self._attributes) // _ATTRIBUTE.size
        return Frame(memory, start, start + first, functools.partial(whole.pack_into, memory, start), tail, given)

    def _whole(self, addresses: int) -> struct.Struct:
        """The configuration and the arguments, between which a call's addresses stand."""
        if addresses not in self._wholes:
            between = _arguments_offset(addresses) - struct.calcsize(_CONFIGURATION)
            self._wholes[addresses] = struct.Struct(f"{_CONFIGURATION}{between}x{self._layout[1:]}")
        return self._wholes[addresses]

    def fill(self, frame: Frame, grid: Sequence[int], stream: int, values: list[Any]) -> None:
        """Write a launch into its memory.

        Args:
            frame: What `frame` made.
            grid: The number of programs along three axes; clusters are counted along the first.
            stream: The stream's handle.
            values: The arguments as the device takes them, numbers, addresses and encoded descriptors; then the
                address of the memory that the kernel needs for itself.
        """
        for at in self._bfloat16_at:
            values[at] = _bfloat16(values[at])
        x, y, z = grid
        head = x * self._clusters, y, z, *self._fixed, stream, *frame.tail
        try:
            frame.pack(*head, *values, 0)
        except OverflowError:  # as in C, a float32 becomes infinite
            for at in self._float32_at:
                values[at] = ctypes.c_float(values[at]).value
            frame.pack(*head, *values, 0)

    def set_programs(self, frame: Frame, programs: int) -> None:
        """Write how many programs are launched along the first axis into a frame that `fill` has written."""
        struct.pack_into("=I", frame.memory, frame.start, programs * self._clusters)


def _arguments_offset(addresses: int) -> int:
    """Where the arguments begin in a frame with this number of addresses."""
    end = ADDRESSES_AT + 8 * addresses
    return end + -end % cuda.MAP_ALIGNMENT


def _layout(kinds: Sequence[str]) -> tuple[str, list[int]]:
    """The format of values that lie as C aligns them, and the offset of each."""
    layout, offsets = "=", []
    for kind in kinds:
        code = "Q" if kind[0] == "*" else _FORMATS[kind]
        alignment = cuda.MAP_ALIGNMENT if kind == DESCRIPTOR else struct.calcsize(f"={code}")
        layout += f"{-struct.calcsize(layout) % alignment}x"
        offsets.append(struct.calcsize(layout))
        layout += code
    return layout + f"{-struct.calcsize(layout) % 8}x", offsets


def _attributes(metadata: Any) -> Iterator[bytes]:
    if metadata.launch_pdl:
        yield _ATTRIBUTE.pack(_SERIALIZATION, 1, 0, 0)
    if metadata.launch_cooperative_grid:
        yield _ATTRIBUTE.pack(_COOPERATIVE, 1, 0, 0)
    if metadata.num_ctas != 1:
        yield _ATTRIBUTE.pack(_CLUSTER, metadata.num_ctas, 1, 1)
        yield _ATTRIBUTE.pack(_CLUSTER_POLICY, _SPREAD, 0, 0)


def _bfloat16(number: float) -> int:
    """The upper half of a float32; the rest is cut off, as by Triton."""
    return int.from_bytes(bytes(ctypes.c_float(number))[2:], sys.byteorder)
