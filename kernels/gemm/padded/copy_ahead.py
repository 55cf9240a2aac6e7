"""Copies operands in chunks along K while the product that reads them runs: the launch, and when it is possible."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tuner.hardware.device import Device, multiprocessors
from tuner.kernel.config import Config, Value
from tuner.kernels.base.operands import Operands
from tuner.kernels.gemm.hopper import resources, warp_specialized
from tuner.kernels.gemm.hopper.arrivals import MOST_CHUNKS, Arrivals, arrivals
from tuner.kernels.gemm.padded import copy as padding
from tuner.kernels.gemm.padded import copy_jit
from tuner.kernels.space import refinements
from tuner.launch.launch import Launch
from tuner.problem import Problem, dtype

CHUNK_SIZE_K = "CHUNK_SIZE_K"
"""The option of `padded` for a chunk's elements along K. Without it, the product starts when the copy has ended."""
_CHUNK_BYTES = 512
"""Bytes of a row in a chunk. Twice as many gained nothing for 15 unaligned shapes on an H200 in November 2026.

The next two constants come from the same measurement (docs/lessons.md, Products beside their copies).
"""
_MOST_WAVES = 2
_SMALLEST_TILE = 64 * 128
_TILE_BYTES = 8192
"""Bytes that a program copies at a time: 64 bytes per thread, which fill its registers if they are shifted."""
_PROGRAMS = 4
"""Programs of the copy on a multiprocessor. They take half of its registers, and a product with one multiplying
warpgroup takes the other half."""
_OPTIONS = {"num_warps": 4, "num_stages": 1, "maxnreg": 64, "enable_fp_fusion": True}
_RESERVED_BYTES = 1024
"""Shared memory that the system reserves for each program (CUDA C++ Programming Guide, compute capability 9.0)."""
_STAGED_BYTES = 128 * 128 + 256
"""Shared memory besides the ring for a product that stores through pointers, 128 bytes per thread at a time (compiled
for sm_90)."""
_MOST_COLUMNS, _MOST_SUMS = 128, 128
"""The most columns, and the most sums per thread, of a product that takes half of the registers: see
`warp_specialized`."""


def pad_ahead(operands: Operands, chosen: str, chunk: int) -> tuple[Operands, tuple[Launch, ...], Arrivals | None]:
    """`copy.pad`, with a copy that runs concurrently with the product, and the `Arrivals` for the product.

    Args:
        operands: the operands, with any strides. Unless all rows to copy run along K, the copy runs before the product,
            and there are no `Arrivals`.
        chosen: one of `copy.CHOICES`.
        chunk: elements of a chunk along K.
    """
    aligned, copies = padding.copies_of(operands, chosen)
    if not copies or not all(_along_k(name, copy) for name, copy in copies.items()):
        return aligned, padding.launches_of(copies), None
    first, second = (*copies.values(), None)[:2]
    assert first is not None
    block_rows = _TILE_BYTES // (chunk * first.stored.element_size())
    tiles = sum(-(-copy.stored.shape[0] // block_rows) for copy in copies.values())
    arriving = arrivals(tiles, chunk, operands.a.device)
    (_, columns), (_, lead) = first.stored.shape, first.target.shape
    arguments = (
        *(first.stored, first.target, *((second.stored, second.target) if second else (None, None))),
        *(arriving.counters, columns, lead, first.stored.shape[0], first.stored.stride(0)),
        *((second.stored.shape[0], second.stored.stride(0)) if second else (None, None)),
    )
    constants = {**padding.widths(first, second), "BLOCK_ROWS": block_rows, "BLOCK_COLUMNS": chunk}
    on_device = operands.a.device.index if operands.a.is_cuda else None
    grid = (min(tiles * -(-lead // chunk), _PROGRAMS * multiprocessors(on_device)),)
    launch = Launch(copy_jit.copy_ahead_kernel, grid, arguments, constants, _OPTIONS, concurrent=True)
    return aligned, (launch,), arriving


def _along_k(name: str, copy: padding.Copy) -> bool:
    return copy.transposed == (name == "b") and copy.stored.stride(1) == 1


def rejection(chunk: Value, inner: Config, problem: Problem, device: Device, *, by_pointers: bool) -> str | None:
    """Why a product cannot run concurrently with the copy of its operands, or None.

    Args:
        chunk: elements of a chunk along K.
        inner: the product's config.
        problem: the problem as the product sees it, aligned.
        device: the device.
        by_pointers: whether the output is stored through pointers.
    """
    if inner.kernel != warp_specialized.SPEC.name:
        return f"{inner.kernel} waits for whole copies, {warp_specialized.SPEC.name} alone for chunks"
    if problem.layout != "nt":
        return f"layout {problem.layout}: chunks are columns of operands that run along K"
    size = dtype.ITEMSIZE[problem.a_dtype]
    if isinstance(chunk, (bool, str)) or chunk * size != _CHUNK_BYTES:
        return f"{chunk!r}: expected {_CHUNK_BYTES // size}, or none"
    if -(-problem.k // chunk) > MOST_CHUNKS:
        return f"{-(-problem.k // chunk)} chunks, {MOST_CHUNKS} are counted"
    return _crowded(inner, problem, device, by_pointers)


def _crowded(inner: Config, problem: Problem, device: Device, by_pointers: bool) -> str | None:
    if refinements.NUM_CTAS in inner or not inner.get("launch_pdl", False):
        return "it takes launch_pdl and single blocks"
    tile, computed = resources.as_computed(inner, problem)
    sums = resources.held_sums(tile, computed)
    if resources.warpgroups(inner) > 1 or sums > _MOST_SUMS or tile.integer("BLOCK_SIZE_N") > _MOST_COLUMNS:
        return "the product leaves no registers: it takes 4 warps, 128 columns and 128 sums a thread at most"
    held, most = resources.shared_bytes(inner, problem, device), device.shared_bytes - _PROGRAMS * _RESERVED_BYTES
    if by_pointers:
        held -= max(0, resources.shared_bytes(inner.replace(num_stages=0), problem, device) - _STAGED_BYTES)
    return f"{held} bytes of shared memory, {most} the copy leaves" if held > most else None


def with_chunks(inner: Config, problem: Problem, device: Device, *, by_pointers: bool) -> Iterator[tuple[Config, int]]:
    """Yield the config, with its chunk, whose ring is the deepest that leaves room for the copy, if there is one.

    The arguments are those of `rejection`.
    """
    chunk = _CHUNK_BYTES // dtype.ITEMSIZE[problem.a_dtype]
    rings = (inner.replace(num_stages=stages) for stages in range(inner.integer("num_stages"), 2, -1))
    fitting = (one for one in rings if rejection(chunk, one, problem, device, by_pointers=by_pointers) is None)
    yield from ((one, chunk) for one in itertools.islice(fitting, 1))


def why_no_gain(inner: Config, problem: Problem, device: Device) -> str | None:
    """Why a product would gain nothing from running concurrently with the copy, or None."""
    tile, computed = resources.as_computed(inner, problem)
    count = resources.tiles(tile, computed)
    if count > _MOST_WAVES * device.sm_count:
        return f"{count} tiles for {device.sm_count} multiprocessors: the copy is over in the first wave"
    if tile.integer("BLOCK_SIZE_M") * resources.width(tile) < _SMALLEST_TILE:
        return "a smaller tile than 64x128: after the copy it is as fast"
    chunks = problem.k * dtype.ITEMSIZE[problem.a_dtype] // _CHUNK_BYTES
    return f"K is {problem.k}: the copy is over when the product has begun" if chunks < 4 else None
