"""For a problem whose operands are padded: the problem that is then computed, and the operands that are copied."""

from __future__ import annotations

import functools

from tuner.kernels.base.operands import ROW_BYTES, VECTOR_BYTES, make_operands, row_alignment
from tuner.kernels.space import odd_rows
from tuner.problem import Problem, dtype
from tuner.problem.gemm_fields import MAX_SIZE

_UNIT = 16
"""A multiple of this is aligned in every dtype, and a size rounded up to one takes the same tiles as before."""


@functools.lru_cache(maxsize=4096)
def padded_problem(problem: Problem) -> Problem:
    """The problem that the inner kernel computes: aligned, each size rounded up to a multiple of a unit.

    K is rounded up to whole sectors, as padded rows are, so that rows of 8-bit elements do not count as slow for TMA.
    """
    m, n, k = _padded_shape(problem)
    return Problem.from_fields({**problem.fields(), "m": m, "n": n, "k": k, "aligned": True})


def cannot_pad(problem: Problem) -> str | None:
    """Why the sizes of a problem cannot be rounded up, or None."""
    return f"padded sizes would exceed {MAX_SIZE}" if max(_padded_shape(problem)) > MAX_SIZE else None


def _padded_shape(problem: Problem) -> tuple[int, ...]:
    along_k = max(_UNIT, odd_rows.SECTOR_BYTES // dtype.ITEMSIZE[problem.a_dtype])
    return tuple(-(-size // unit) * unit for size, unit in zip(problem.shape, (_UNIT, _UNIT, along_k), strict=True))


@functools.lru_cache(maxsize=4096)
def _alignments(problem: Problem) -> dict[str, int]:
    """The alignment of the rows of A and of B as `make_operands` lays them out (`operands.row_alignment`)."""
    # Sizes that differ by whole cache lines are aligned alike; torch refuses a tensor of 2^63 bytes even on meta.
    m, n, k = (size if size <= ROW_BYTES else ROW_BYTES + size % ROW_BYTES for size in problem.shape)
    operands = make_operands(problem.with_shape(m, n, k), "meta", 0)
    return {"a": row_alignment(operands.a), "b": row_alignment(operands.b)}


def copied_operands(problem: Problem, chosen: str) -> str:
    """The operands that are copied for a choice of PAD, as a value of PAD."""
    alignments = _alignments(problem)
    needed = {name: ROW_BYTES if name in chosen else VECTOR_BYTES for name in alignments}
    return "".join(name for name, found in alignments.items() if found < needed[name]) or "none"


def stored_by_tma(problem: Problem) -> bool:
    """Whether TMA can write the output, which is otherwise stored through pointers."""
    return problem.n * dtype.ITEMSIZE[problem.out_dtype] % VECTOR_BYTES == 0
