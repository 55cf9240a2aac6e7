"""Operands copied before a launch so that they run along K (K-major), as wgmma reads them in shared memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from tuner.kernels.base.operands import VECTOR_BYTES, Operands, placement, row_alignment
from tuner.kernels.gemm.k_major import copy_jit, problem
from tuner.kernels.gemm.padded.copy import padded_rows
from tuner.launch.launch import Launch

_TILES = {1: (64, 128), 4: (64, 64)}
"""Rows and columns of a program's tile of a matrix as it is stored, by an element's bytes.

Of up to nine tiles in 4 or 8 warps nearly the fastest on an H200: large matrices are read and written at 3.7 TB/s of
float32, at 3.4 of 8 bits (by hand, not kept)."""
_OPTIONS = {"num_warps": 8, "num_stages": 1, "enable_fp_fusion": True}


class Copy(NamedTuple):
    """One matrix to copy.

    Attributes:
        stored: the source as it is stored, as integers of its dtype's size; columns are contiguous if any dimension is.
            So operands of two dtypes share one launch.
        target: [extent, lead], contiguous.
        vector: elements of one load.
        across: whether the rows of `stored` lie along K.
    """

    stored: torch.Tensor
    target: torch.Tensor
    vector: int
    across: bool

    @property
    def sizes(self) -> tuple[int, ...]:
        """The kernel's integer arguments."""
        return (*self.stored.shape, *self.stored.stride(), self.target.shape[1])

    @property
    def tiles(self) -> int:
        """Number of tiles, each of which a program copies."""
        (rows, columns), (down, across) = self.stored.shape, self.tile
        count: int = -(-rows // down) * -(-columns // across)
        return count

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a tile."""
        return _TILES[self.stored.element_size()]


def along_k(operands: Operands, inner: str) -> tuple[Operands, tuple[Launch, ...]]:
    """Operands of an inner kernel, and the launch that fills the copies among them, if any.

    An operand is copied if TMA cannot read it, or if it does not run along K and does in the problem that configs are
    made for (`problem.computed`). That says of an unaligned problem that neither is readable; here one may be.

    The copies' memory comes from torch's allocator, which reuses it in the order of the current stream, or of the graph
    that is being captured.
    """
    matrices = {"a": operands.a, "b": operands.b.t()}
    layout = problem.computed(inner, operands.problem).layout
    wanted = (layout[0] == "n", layout[1] == "t")
    a, b = (
        not _is_read(matrix) or (along and not _is_along_k(matrix))
        for matrix, along in zip(matrices.values(), wanted, strict=True)
    )
    chosen = dict(itertools.compress(matrices.items(), (a, b)))
    if not chosen:
        return operands, ()
    copies = _copies(list(chosen.values()))
    views = {
        name: copy.target.view(matrix.dtype)[:, : matrix.shape[1]]
        for (name, matrix), copy in zip(chosen.items(), copies, strict=True)
    }
    fields = {name: view.t() if name == "b" else view for name, view in views.items()}
    return replace(operands, **fields, problem=problem.along_k(operands.problem, (a, b))), (_launch(copies),)


def _is_along_k(matrix: torch.Tensor) -> bool:
    """Whether a matrix [extent, K] has contiguous rows, and none that also counts as a column."""
    return bool(matrix.stride(1) == 1 != matrix.stride(0))


def _is_read(matrix: torch.Tensor) -> bool:
    """Whether TMA can read a matrix's rows or columns."""
    return row_alignment(matrix) >= VECTOR_BYTES


def _copies(matrices: Sequence[torch.Tensor]) -> list[Copy]:
    """Describe the copies of matrices [extent, K]."""
    copies = []
    for one, target in zip(matrices, padded_rows(matrices), strict=True):
        place = placement(one)
        stored = one.t() if place.transposed else one
        copies.append(Copy(stored.view(target.dtype), target, place.vector, place.transposed))
    return copies


def _launch(copies: Sequence[Copy]) -> Launch:
    """The launch that fills copies."""
    first, second = (*copies, None)[:2]
    assert first is not None
    constants = {
        "FIRST_VECTOR": first.vector,
        "FIRST_ACROSS": first.across,
        "SECOND_VECTOR": second.vector if second else 1,
        "SECOND_ACROSS": second is not None and second.across,
        "BLOCK_ROWS": first.tile[0],
        "BLOCK_COLUMNS": first.tile[1],
    }
    tensors = (first.stored, first.target, *((second.stored, second.target) if second else (None, None)))
    arguments = (*tensors, *first.sizes, *(second.sizes if second else (None,) * 5))
    return Launch(copy_jit.copy_kernel, (sum(copy.tiles for copy in copies),), arguments, constants, _OPTIONS)
