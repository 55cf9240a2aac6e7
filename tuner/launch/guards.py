"""The test whether a call's tensors are like an earlier call's: TorchDynamo's guards, and what these leave out.

A guard compares class, dtype, device, sizes, strides, whether a gradient may be asked for, the negative bit, and
whether autocast is on for the device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from tuner.launch import compat
from tuner.launch.torch_precision import torch_precision


def make_guard(tensors: Sequence[Tensor], precision: str | None, *, any_rows: bool = False) -> Callable[..., bool]:
    """Return the test that other tensors are like these: a guard, and what a guard leaves out where it matters.

    Args:
        tensors: A call's tensors.
        precision: torch's float32 setting, if the call depended on it.
        any_rows: Whether the first tensor may have another number of rows.
    """
    asks = any(tensor.requires_grad for tensor in tensors)
    if precision is None and len({*map(id, tensors)}) == len(tensors):
        guard = _guard(tensors, any_rows=any_rows)
        # The weights of most models may be asked for gradients, so their calls must not take the long way below.
        return guard if not asks else lambda *given: not torch.is_grad_enabled() and guard(*given)
    # A guard refuses the same tensor twice.
    first = [next(at for at, each in enumerate(tensors) if each is tensor) for tensor in tensors]
    once = sorted(set(first))
    guard = _guard([tensors[at] for at in once], any_rows=any_rows)

    def matches(*given: Tensor) -> bool:
        if asks and torch.is_grad_enabled():
            return False
        if precision is not None and precision != torch_precision():
            return False
        return all(given[at] is given[to] for at, to in enumerate(first)) and guard(*[given[at] for at in once])

    return matches


def _guard(tensors: Sequence[Tensor], *, any_rows: bool = False) -> Callable[..., bool]:
    sizes: list[list[int | None]] = [[*tensor.shape] for tensor in tensors]
    strides = [[*tensor.stride()] for tensor in tensors]
    if any_rows:
        sizes[0][0] = None
    check: Callable[..., bool] = compat.TensorGuards(
        *tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides
    ).check
    return check


@functools.cache
def guards_hold() -> bool:
    """Whether this torch's guards, which are private, tell apart everything that plans rely on.

    A thread of its own tries them: a program of torch.compile runs first where torch sees no negative bit.
    """
    if compat.TensorGuards is None or compat.neg_view is None:
        return False
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_try_guards).result()


def _try_guards() -> bool:
    one, wide = (torch.empty(size, device="cpu") for size in ((4, 2), (4, 4)))
    with torch.autocast("cpu", enabled=False):
        guard = _guard([one])
    with torch.autocast("cpu"):
        if guard(one):
            return False  # torch.autocast asks for other dtypes
    with torch.autocast("cpu", enabled=False):
        return _tells_apart(guard, one, wide)


def _tells_apart(guard: Callable[..., bool], one: Tensor, wide: Tensor) -> bool:
    rows = _guard([one], any_rows=True)
    sizes = (one[:2], one.view(2, 4), one.view(1, 4, 2), wide[:, :2], one.view(2, 4).t())
    kinds = (one.int(), one.to("meta"), torch.nn.Parameter(one), one.clone().requires_grad_(), compat.neg_view(one))
    rows_hold = rows(one[:2]) and not any(map(rows, (*sizes[1:], *kinds)))
    return guard(one.clone()) and not any(map(guard, (*sizes, *kinds))) and rows_hold
