"""Right results where Triton's interpreter has none.

Under TRITON_INTERPRET=1 a bfloat16 `tl.dot` multiplies raw bits, a cast to bfloat16 truncates and a cast to an 8-bit
float is off by up to 50%, all silently (Triton 3.6 to 3.9). There the host widens bfloat16 operands to float32, the
kernel writes float32, and torch casts. Every other dtype goes through as it is.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tuner.kernel.config import Config
from tuner.kernels.base.epilogue import saturated
from tuner.problem import Problem, dtype

_CAST_WRONG = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


def launch_interpreted(operands: Any, config: Config, run: Callable[[Any, Config], None]) -> None:
    """Run a kernel under the interpreter by way of float32, where it would be wrong otherwise.

    Args:
        operands: as for a GPU: a dataclass with `a`, `b`, `out`, `bias` and `problem`.
        config: passed on.
        run: launches the kernel itself.
    """
    out = stand_in(operands.out)
    bias = None if operands.bias is None else widened(operands.bias)
    changed = {"a": widened(operands.a), "b": widened(operands.b), "bias": bias, "out": out}
    with as_silent_as_a_gpu():
        run(dataclasses.replace(operands, **changed, problem=widened_problem(operands.problem)), config)
    settle(out, operands.out)


def as_silent_as_a_gpu() -> contextlib.AbstractContextManager[None]:
    """A GPU overflows to infinity in silence, as gelu's and silu's exp must; numpy would warn."""
    return np.errstate(over="ignore", invalid="ignore")


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """An operand as float32 where the interpreter would take it wrongly."""
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def widened_problem(problem: Problem) -> Problem:
    """The problem of operands that are `widened`."""
    if problem.a_dtype != "bfloat16":
        return problem
    names = {"a_dtype": "float32", "b_dtype": "float32", "precision": "ieee"}
    return Problem.from_fields({**problem.fields(), **names})


def stand_in(out: torch.Tensor) -> torch.Tensor:
    """What the kernel writes in place of an output that the interpreter would round wrongly: the output as float32."""
    if out.dtype not in _CAST_WRONG:
        return out
    return torch.empty(out.shape, dtype=torch.float32, device=out.device)


def settle(written: torch.Tensor, out: torch.Tensor) -> None:
    """Round what was written in place of an output into it."""
    if written is not out:
        out.copy_(saturated(written, dtype.name_of(out.dtype)))
