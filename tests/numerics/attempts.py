"""One case launched and judged: its view of memory, a poisoned output between guard bands, float64, and once more."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch
from covering import Case

from tuner.kernel import Inputs, KernelSpec, registry
from tuner.store.records import State
from tuner.sweep import verify

_GAP_BYTES = 16
_GUARD_BYTES = 256


@dataclass(frozen=True, slots=True)
class Attempt:
    """How a case ended.

    Attributes:
        state: COMPLETE for a right result.
        message: why not, else "".
        ratio: error over tolerance; at most 1 is right.
        stray: whether a byte outside the output changed.
        repeatable: whether a second launch wrote the same bits.
        compiled: binaries that the launches had to make, because nobody had made them before.
    """

    state: State
    message: str = ""
    ratio: float = 0.0
    stray: bool = False
    repeatable: bool = True
    compiled: int = 0


def attempt(case: Case, torch_device: str) -> Attempt:
    """Launch a case twice into a poisoned output; whatever a launch raises comes through."""
    spec = registry.find(case.problem.op, case.config.kernel)
    inputs = laid_out(spec.make_inputs(case.problem, torch_device, case.seed), case.view)
    reference = spec.reference(inputs)
    tolerance = spec.tolerance(case.problem)
    first = launched(spec, inputs, case).clone()
    found = verify.check(inputs, reference, case.problem.k, tolerance)
    repeatable = torch.equal(first, launched(spec, inputs, case))
    failure = found.failure or (None if repeatable else "a second launch wrote other bits")
    state = State.COMPLETE if failure is None else State.WRONG_RESULT
    return Attempt(state, failure or "", share(found.error, tolerance), found.stray, repeatable)


def share(error: float, tolerance: float) -> float:
    """Error over tolerance, where that may be 0: sums of integers are exact."""
    if tolerance:
        return error / tolerance
    return math.inf if error else 0.0


def launched(spec: KernelSpec, inputs: Inputs, case: Case) -> torch.Tensor:
    """The bytes of the whole output buffer after a launch into poison."""
    verify.poison(inputs)
    spec.launch(inputs, case.config)
    if inputs.output.is_cuda:
        torch.cuda.synchronize()
    return inputs.buffer.view(-1).view(torch.uint8)


_READ = ("a", "b", "up", "second", "third")


def laid_out(inputs: Any, view: str) -> Any:
    """The same operands in memory as a view of `covering.VIEWS` has them; what lies between their rows is NaN."""
    if view == "transposed":
        out, buffer = framed(inputs.out.mT, 0)
        return dataclasses.replace(inputs, out=out.mT, buffer=buffer)
    if view not in ("strided", "odd"):
        return inputs  # as make_inputs has them: "shifted" is a problem that is not aligned
    given = {name: getattr(inputs, name) for name in _READ if getattr(inputs, name, None) is not None}
    spaced = {name: spread(tensor, gap(tensor, view)) for name, tensor in given.items()}
    # The products of merged layers lie one after another, whatever the operands' rows do.
    out, buffer = framed(inputs.out, 0 if "second" in given else gap(inputs.out, view))
    return dataclasses.replace(inputs, **spaced, out=out, buffer=buffer)


def gap(tensor: torch.Tensor, view: str) -> int:
    """Elements between two rows."""
    return 1 if view == "odd" else _GAP_BYTES // tensor.element_size()


def spread(tensor: torch.Tensor, columns: int) -> torch.Tensor:
    """A copy whose contiguous rows (or columns, where those are) lie `columns` elements of NaN apart."""
    order = sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim))
    stored = tensor.permute(order)
    width = stored.shape[-1]
    room = stored.new_empty(*stored.shape[:-1], width + columns)
    room.view(torch.uint8).fill_(verify.POISON)
    room[..., :width].copy_(stored)
    return room[..., :width].permute([order.index(dim) for dim in range(tensor.dim())])


def framed(like: torch.Tensor, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor of a shape whose rows lie `columns` elements apart, between guard bands; and all of its buffer."""
    rows, *middle, width = like.shape
    row_bytes = math.prod(middle) * (width + columns) * like.element_size()
    guard = _GUARD_BYTES // row_bytes + 2
    buffer = like.new_empty(guard + rows + guard, *middle, width + columns)
    return buffer[guard : guard + rows, ..., :width], buffer
