"""How times that hide each other in part add up."""

from __future__ import annotations


def norm(p: int, *values: float) -> float:
    """The p-norm of times that hide each other in part: nearly the longest for a large p, their sum for 1."""
    total: float = sum(value**p for value in values) ** (1 / p)
    return total
