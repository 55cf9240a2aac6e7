"""Which problems are those of linear layers, whose weights are stored [N, K], and of ops made of several of them."""

from __future__ import annotations

from collections.abc import Collection

from tuner.problem import Problem

DTYPES = ("float32", "float16", "bfloat16")


def obstacle(problem: Problem, extras: Collection[str] = ()) -> str | None:
    """Why a problem is none of linear layers that have one dtype, or None.

    Args:
        problem: The problem.
        extras: The names of the extras that its op has.
    """
    if problem.a_dtype not in DTYPES:
        return f"no {problem.a_dtype}: it takes {', '.join(DTYPES)}"
    if not problem.a_dtype == problem.b_dtype == problem.out_dtype:
        return f"no {problem.dtype_label}: x, all weights and the output are of one dtype"
    if problem.layout != "nt":
        return f"no layout {problem.layout}: expected nt, weights stored [N, K]"
    if others := [name for name, _ in problem.extras if name not in extras]:
        return f"no extras {', '.join(others)}: leave them out"
    return None
