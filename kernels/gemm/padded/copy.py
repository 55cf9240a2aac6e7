"""Operands copied before a launch into rows that TMA reads at full speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from tuner.kernels.base.operands import ROW_BYTES, VECTOR_BYTES, Operands, padded_extent, placement, row_alignment
from tuner.kernels.base.workspace import scratch
from tuner.kernels.gemm.padded import copy_jit as padding_kernel
from tuner.kernels.space.tile_resources import next_power_of_two
from tuner.launch.launch import Launch

CHOICES = ("none", "a", "b", "ab")
"""Choices of operands to pad."""
_TILE_BYTES, _ROW_BYTES = 4096, 2048
"""Bytes that a program copies, and of each row at most, the fastest of the sizes that were measured on an H200 in
November 2026; of shorter rows it copies as many more."""
_OPTIONS = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": True}
_WORD = {1: torch.int8, 2: torch.int16, 4: torch.int32}
"""The integer type as which elements are copied, by their size, so that operands of two dtypes share one launch."""


def pad(operands: Operands, chosen: str) -> tuple[Operands, tuple[Launch, ...]]:
    """Operands that TMA can read, and the launch that fills the copies among them, if there are any.

    An operand is copied if TMA cannot read it, or if it is chosen and its rows, being no multiple of 128 bytes, are
    slow to read. The copies' memory comes from torch's allocator, which reuses it in the order of the current stream,
    or of the graph that is being captured.

    Args:
        operands: the operands, with any strides.
        chosen: one of `CHOICES`.
    """
    aligned, copies = copies_of(operands, chosen)
    return aligned, launches_of(copies)


@dataclass(frozen=True, slots=True)
class Copy:
    """One matrix to copy.

    Attributes:
        stored: the source [rows, columns] as integers of its dtype's size; columns are contiguous if any dimension is.
        target: [rows, lead], contiguous.
        matrix: the operand as a view of `target`.
        vector: elements of one load.
        shifted: whether whole words are read and shifted into place, see `copy_jit.copy_shifted`.
        transposed: whether `stored` is the operand's transpose.
    """

    stored: torch.Tensor
    target: torch.Tensor
    matrix: torch.Tensor
    vector: int
    shifted: bool
    transposed: bool

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns of a tile, which a program copies."""
        size = self.target.element_size()
        row_bytes = min(_ROW_BYTES, next_power_of_two(self.target.shape[1] * size))
        return _TILE_BYTES // row_bytes, row_bytes // size

    @property
    def tiles(self) -> int:
        """Number of tiles."""
        (rows, lead), (block_rows, block_columns) = self.target.shape, self.block
        count: int = -(-rows // block_rows) * -(-lead // block_columns)
        return count

    @property
    def sizes(self) -> tuple[int, ...]:
        """The kernel's integer arguments."""
        return (*self.stored.shape, *self.stored.stride(), self.target.shape[1])


def copies_of(operands: Operands, chosen: str) -> tuple[Operands, dict[str, Copy]]:
    """Operands as `pad` returns them, and the necessary copies by operand name."""
    matrices = {
        name: matrix
        for name, matrix in (("a", operands.a), ("b", operands.b))
        if row_alignment(matrix) < (ROW_BYTES if name in chosen else VECTOR_BYTES)
    }
    if not matrices:
        return operands, {}
    copies = dict(zip(matrices, _copies(list(matrices.values())), strict=True))
    return replace(operands, **{name: copy.matrix for name, copy in copies.items()}), copies


def _copies(matrices: Sequence[torch.Tensor]) -> list[Copy]:
    """Describe the copies of matrices, side by side in one allocation."""
    placed = [placement(matrix) for matrix in matrices]
    stored = [matrix.t() if place.transposed else matrix for matrix, place in zip(matrices, placed, strict=True)]
    copies = []
    for one, place, target in zip(stored, placed, padded_rows(stored), strict=True):
        matrix = target.view(one.dtype)[:, : one.shape[1]]
        shifted = one.stride(1) == 1 and place.vector * one.element_size() < VECTOR_BYTES
        matrix = matrix.t() if place.transposed else matrix
        copies.append(Copy(one.view(target.dtype), target, matrix, place.vector, shifted, place.transposed))
    return copies


def padded_rows(matrices: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Scratch memory for copies of matrices [rows, columns], side by side in one allocation.

    Each is [rows, lead], its rows padded to a multiple of 128 bytes, of the integers as which elements are copied.
    """
    shapes = [(one.shape[0], padded_extent(one.shape[1], one.element_size())) for one in matrices]
    sizes = [rows * lead * one.element_size() for (rows, lead), one in zip(shapes, matrices, strict=True)]
    rooms = scratch(sum(sizes), matrices[0].device).split(sizes)
    words = [_WORD[one.element_size()] for one in matrices]
    return [room.view(word).view(shape) for room, word, shape in zip(rooms, words, shapes, strict=True)]


def widths(first: Copy, second: Copy | None) -> dict[str, int | bool]:
    """The constexprs of the copy kernels that say how each matrix is loaded."""
    return {
        "FIRST_VECTOR": first.vector,
        "SECOND_VECTOR": second.vector if second else 1,
        "FIRST_SHIFTED": first.shifted,
        "SECOND_SHIFTED": second is not None and second.shifted,
    }


def launches_of(copies: Mapping[str, Copy]) -> tuple[Launch, ...]:
    """The launch that fills copies, or none if there are no copies."""
    if not copies:
        return ()
    first, second = (*copies.values(), None)[:2]
    assert first is not None
    tensors = (first.stored, first.target, *((second.stored, second.target) if second else (None, None)))
    constants = {**widths(first, second), **_block("FIRST", first), **_block("SECOND", second or first)}
    grid = (sum(copy.tiles for copy in copies.values()),)
    arguments = (*tensors, *first.sizes, *(second.sizes if second else (None,) * 5))
    return (Launch(padding_kernel.copy_kernel, grid, arguments, constants, _OPTIONS),)


def _block(name: str, copy: Copy) -> dict[str, int]:
    rows, columns = copy.block
    return {f"{name}_BLOCK_ROWS": rows, f"{name}_BLOCK_COLUMNS": columns}
