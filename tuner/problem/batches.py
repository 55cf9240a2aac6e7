"""Batches: which of a range are tuned, and what problems have in common that differ in their batch."""

from __future__ import annotations

from tuner.errors import ProblemError
from tuner.problem.gemm_fields import check_size
from tuner.problem.problem import Problem

Batches = tuple[int, int]
"""The first and the last of a range of batches."""
Key = tuple[object, ...]
"""`Problem.family` without the batch."""


def batch_of(problem: Problem) -> int | None:
    """The batch of a problem; None where its op has none."""
    for name, value in problem.extras:
        if name == "batch" and type(value) is int:
            return value
    return None


def split(problem: Problem) -> tuple[Key, int]:
    """What a problem has in common with those that differ in M and batch, and its batch; 0 where its op has none."""
    batch = batch_of(problem) if problem.extras else None
    if batch is None:
        return problem.family, 0
    # A lookup does this for each new M: a batch is mostly the only one of the extras.
    others = () if len(problem.extras) == 1 else tuple(extra for extra in problem.extras if extra[0] != "batch")
    return (*problem.family[:-1], others), batch


def with_batch(problem: Problem, batch: int | None) -> Problem:
    """The same problem with another batch; None and a problem without one leave it as it is."""
    if batch is None or batch_of(problem) is None:
        return problem
    fields = problem.fields()
    return Problem.from_fields(fields | {"extras": fields["extras"] | {"batch": batch}})


def check(problem: Problem, batches: Batches) -> None:
    """Check the batches that a family of a problem is to serve.

    Raises:
        ProblemError: the problem has no batch, or they are no range that ends with its own.
    """
    batch = batch_of(problem)
    if batch is None:
        raise ProblemError(f"{problem.op} has no batch: only a family of bmm serves a range of batches")
    first, last = (check_size("batch", each) for each in batches)
    if first > last:
        raise ProblemError(f"the batches {first}-{last} are no range: the first is beyond the last")
    if last > batch:
        raise ProblemError(f"the batches {first}-{last} are served from below, by batch {batch}: expected one above")


def shown(said: str, problem: Problem, batches: Batches | None) -> str:
    """A problem's words, in which the batches stand for its own."""
    return said if batches is None else said.replace(f" batch={batch_of(problem)}", f" batch={_text(batches)}", 1)


def _text(batches: Batches) -> str:
    first, last = batches
    return str(first) if first == last else f"{first}-{last}"


def rungs(first: int, last: int) -> list[tuple[int, int]]:
    """Return the batches that are tuned for a range: powers of two, their halves, and both ends.

    A batch between two of them is served by the one above, whose config has been measured with more tiles.
    benchmarks/claims/batch_ranges.py has what that loses by the cost model.

    Returns:
        Each with the first batch that it serves before it, ascending.
    """
    steps = {size << power for power in range(31) for size in (1, 3)}
    tuned = sorted({first, last, *(size for size in steps if first <= size <= last)})
    return list(zip([first, *(below + 1 for below in tuned)], tuned, strict=False))


def is_anchor(batch: int) -> bool:
    """Whether a batch is a power of four: every rung between two of them can learn from one."""
    return batch & (batch - 1) == 0 and batch.bit_length() % 2 == 1
