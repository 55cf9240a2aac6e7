"""The last steps of a checked call of an op of rows: its output as a matrix, its launch, and its plan."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

import torch

from tuner.errors import InputError
from tuner.kernels.elementwise.spec import Tensors
from tuner.kernels.ops.dispatch import flattened, launch
from tuner.launch.call_cache import CallCache, any_m
from tuner.lookup.lookup import resolver
from tuner.problem import Problem
from tuner.problem.gemm_fields import MAX_SIZE


class RowsCall(NamedTuple):
    """A call whose arguments were checked.

    Attributes:
        cache: where its plan is stored.
        given, options: its operands as they were given, and its options: the key of its plan.
        out: the output that it was given, if there is one.
        serves_rows: whether a call of so many rows would be served by a kernel, too.
    """

    cache: CallCache
    given: tuple[torch.Tensor | None, ...]
    options: tuple[Hashable, ...]
    out: torch.Tensor | None
    serves_rows: Callable[[int], bool] = any_m

    def launch(
        self,
        matrix: torch.Tensor,
        weight: torch.Tensor | None,
        result: torch.Tensor,
        problem_of: Callable[[torch.Tensor], Problem],
        *,
        offset: float = 0.0,
    ) -> torch.Tensor:
        """Write the result of a matrix of rows, and store the plan.

        `problem_of` takes the output as a matrix; of `offset` see `Tensors`.
        """
        # If the output's leading dimensions cannot be flattened in place, a copy below fills it.
        flat = flattened(result, len(matrix))
        problem, sources = problem_of(flat), resolver()
        recording = launch(Tensors(matrix, weight, flat, problem, flat, offset), problem, matrix.device)
        if flat.data_ptr() == result.data_ptr():
            kept = self.given, self.options, recording, result, sources
            self.cache.remember(*kept, out=self.out, serves_rows=self.serves_rows)
        else:
            result.copy_(flat.view(result.shape))
        return result


def check_columns(x: torch.Tensor, remedy: str) -> None:
    """Refuse rows of more elements than a problem may have; call it before anything is copied."""
    if x.shape[-1] > MAX_SIZE and x.numel():
        raise InputError(f"x has rows of {x.shape[-1]} elements: expected at most {MAX_SIZE}; use {remedy}")


def sizes(matrix: torch.Tensor) -> tuple[int, int]:
    """M and N of a matrix; an M beyond 32 bits takes the config of the largest that a problem may have."""
    return min(len(matrix), MAX_SIZE), matrix.shape[1]
