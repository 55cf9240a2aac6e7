"""Right results where Triton's interpreter has none.

Under TRITON_INTERPRET=1 a bfloat16 `tl.dot` multiplies raw bits, a cast to bfloat16 truncates and a cast to an 8-bit
float is off by up to 50%, all silently (Triton 3.6 to 3.9). There the host widens bfloat16 operands to float32, the
kernel writes float32, and torch casts. Every other dtype goes through as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch

from tuner.config import Config
from tuner.kernels.epilogue import saturated
from tuner.kernels.operands import Operands
from tuner.problem import Problem

_CAST_WRONG = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


def launch_interpreted(operands: Operands, config: Config, run: Callable[[Operands, Config], None]) -> None:
    """Run a kernel under the interpreter by way of float32, where it would be wrong otherwise.

    Args:
        operands: as for a GPU.
        config: passed on.
        run: launches the kernel itself.
    """
    out = operands.out
    if out.dtype in _CAST_WRONG:
        out = torch.empty(out.shape, dtype=torch.float32, device=out.device)
    a, b = _widened(operands.a), _widened(operands.b)
    bias = None if operands.bias is None else _widened(operands.bias)
    problem = operands.problem
    if a is not operands.a:
        names = {"a_dtype": "float32", "b_dtype": "float32", "precision": "ieee"}
        problem = Problem.from_fields({**problem.fields(), **names})
    # A GPU overflows to infinity in silence, as gelu's and silu's exp must; numpy would warn.
    with np.errstate(over="ignore", invalid="ignore"):
        run(dataclasses.replace(operands, a=a, b=b, bias=bias, out=out, problem=problem), config)
    if out is not operands.out:
        operands.out.copy_(saturated(out, operands.problem.out_dtype))


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor
