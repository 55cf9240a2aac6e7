"""Operands copied before a launch into rows that TMA reads at full speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from tuner.kernels.base.operands import ROW_BYTES, VECTOR_BYTES, Operands, padded_extent, placement, row_alignment
from tuner.kernels.base.workspace import scratch
from tuner.kernels.gemm.padded import copy_jit as padding_kernel
from tuner.launch.launch import Launch

CHOICES = ("none", "a", "b", "ab")
"""Operands that may be chosen."""
_BLOCK_ROWS = 2
_ROW_BYTES = 2048
"""Bytes of each row that a program copies: the fastest of the block sizes tried on an H200 in November 2026."""
_OPTIONS = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": True}
_OVERLAPPED = {**_OPTIONS, "launch_pdl": True}
_WORD = {1: torch.int8, 2: torch.int16, 4: torch.int32}
"""Copied as bits: operands of two dtypes of one size go into one launch."""


def pad(operands: Operands, chosen: str, *, overlapped: bool = False) -> tuple[Operands, tuple[Launch, ...]]:
    """Operands that TMA can read, and the launch that fills the copies among them, if there are any.

    Copied is what TMA cannot read; and of the chosen operands also what it reads slowly, because its rows are no
    multiple of 128 bytes. The copies' memory comes from torch's allocator, which reuses it in the order of the current
    stream, or of the graph that is being captured.

    Args:
        operands: any strides.
        chosen: one of `CHOICES`.
        overlapped: by programmatic dependent launch, see `blocks.await_predecessor`.
    """
    aligned, copies = copies_of(operands, chosen)
    return aligned, launches_of(copies, overlapped=overlapped)


@dataclass(frozen=True, slots=True)
class Copy:
    """One matrix to copy.

    Attributes:
        stored: [rows, columns], the columns contiguous where either dimension is; as integers of its dtype's size.
        target: [rows, lead], contiguous.
        matrix: what was copied, as it now lies in `target`.
        vector: elements that one load may take.
        shifted: whether whole words are read and shifted into place, see `padding_kernel.copy_shifted`.
        transposed: whether `stored` is the matrix' transpose.
    """

    stored: torch.Tensor
    target: torch.Tensor
    matrix: torch.Tensor
    vector: int
    shifted: bool
    transposed: bool

    @property
    def tiles(self) -> int:
        """Programs that copy it."""
        rows, lead = self.target.shape
        count: int = -(-rows // _BLOCK_ROWS) * -(-lead * self.target.element_size() // _ROW_BYTES)
        return count

    @property
    def sizes(self) -> tuple[int, ...]:
        """Integer arguments of the kernel."""
        return (*self.stored.shape, *self.stored.stride(), self.target.shape[1])


def copies_of(operands: Operands, chosen: str) -> tuple[Operands, dict[str, Copy]]:
    """Operands as `pad` gives them, and by name what must be copied to make them so."""
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
    """Places for the copies, side by side in one allocation."""
    placed = [placement(matrix) for matrix in matrices]
    stored = [matrix.t() if place.transposed else matrix for matrix, place in zip(matrices, placed, strict=True)]
    shapes = [(one.shape[0], padded_extent(one.shape[1], one.element_size())) for one in stored]
    sizes = [rows * lead * one.element_size() for (rows, lead), one in zip(shapes, stored, strict=True)]
    rooms = scratch(sum(sizes), matrices[0].device).split(sizes)
    copies = []
    for one, place, shape, room in zip(stored, placed, shapes, rooms, strict=True):
        word = _WORD[one.element_size()]
        target = room.view(word).view(shape)
        matrix = target.view(one.dtype)[:, : one.shape[1]]
        shifted = one.stride(1) == 1 and place.vector * one.element_size() < VECTOR_BYTES
        matrix = matrix.t() if place.transposed else matrix
        copies.append(Copy(one.view(word), target, matrix, place.vector, shifted, place.transposed))
    return copies


def widths(first: Copy, second: Copy | None) -> dict[str, int | bool]:
    """How each is loaded, constants of the kernels that copy."""
    return {
        "FIRST_VECTOR": first.vector,
        "SECOND_VECTOR": second.vector if second else 1,
        "FIRST_SHIFTED": first.shifted,
        "SECOND_SHIFTED": second is not None and second.shifted,
    }


def launches_of(copies: Mapping[str, Copy], *, overlapped: bool = False) -> tuple[Launch, ...]:
    """The launch that fills copies, if there are any."""
    if not copies:
        return ()
    first, second = (*copies.values(), None)[:2]
    assert first is not None
    tensors = (first.stored, first.target, *((second.stored, second.target) if second else (None, None)))
    constants = {
        **widths(first, second),
        "BLOCK_ROWS": _BLOCK_ROWS,
        "BLOCK_COLUMNS": _ROW_BYTES // first.stored.element_size(),
        "PDL": overlapped,
    }
    grid = (sum(copy.tiles for copy in copies.values()),)
    arguments = (*tensors, *first.sizes, *(second.sizes if second else (None,) * 5))
    options = _OVERLAPPED if overlapped else _OPTIONS
    return (Launch(padding_kernel.copy_kernel, grid, arguments, constants, options),)
