"""Ways around dtypes for which Triton's interpreter computes wrong results.

Under TRITON_INTERPRET=1 a bfloat16 `tl.dot` multiplies raw bits, a cast to bfloat16 truncates and a cast to an 8-bit
float is off by up to 50%, all silently (Triton 3.6 to 3.9). Therefore the host widens bfloat16 operands to float32, the
kernel writes float32, and torch casts the result. Other dtypes are passed through unchanged.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tuner.kernel.config import Config
from tuner.kernels.base.activations import saturated
from tuner.problem import Problem, dtype

_CAST_WRONG = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


def launch_interpreted(operands: Any, config: Config, run: Callable[[Any, Config], None]) -> None:
    """Run a kernel under the interpreter, through float32 where the result would otherwise be wrong.

    Args:
        operands: The operands as a GPU takes them, a dataclass with `out`, `buffer` and `problem`. All its other
            tensors are read.
        config: The config to launch with.
        run: Launches the kernel itself.
    """
    out = output_for(operands.out)
    names = [each.name for each in dataclasses.fields(operands) if each.name not in ("out", "buffer")]
    read = {name: widened(each) for name in names if isinstance(each := getattr(operands, name), torch.Tensor)}
    with ignore_float_warnings():
        run(dataclasses.replace(operands, **read, out=out, problem=widened_problem(operands.problem)), config)
    copy_rounded(out, operands.out)


def ignore_float_warnings() -> contextlib.AbstractContextManager[None]:
    """Silence numpy's overflow warnings: exp in gelu and silu overflows by design, and a GPU does not report it."""
    return np.errstate(over="ignore", invalid="ignore")


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """The operand, converted to float32 if the interpreter would read it wrongly."""
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def widened_problem(problem: Problem) -> Problem:
    """The problem of the `widened` operands."""
    if problem.a_dtype != "bfloat16":
        return problem
    names = {"a_dtype": "float32", "b_dtype": "float32", "precision": "ieee"}
    return Problem.from_fields({**problem.fields(), **names})


def output_for(out: torch.Tensor) -> torch.Tensor:
    """The tensor that the kernel writes: the output, or a float32 tensor if the interpreter would round wrongly.

    It begins with the output's values, because a kernel need not write all of it: rows of no group stay as they are.
    """
    if out.dtype not in _CAST_WRONG:
        return out
    return torch.empty(out.shape, dtype=torch.float32, device=out.device).copy_(out)


def copy_rounded(written: torch.Tensor, out: torch.Tensor) -> None:
    """Copy what was written to `output_for(out)` into the output, rounded."""
    if written is not out:
        out.copy_(saturated(written, dtype.name_of(out.dtype)))
