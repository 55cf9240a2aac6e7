"""A plan as a call runs it: in new memory or into an output, on the current stream of the operands' device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tuner.launch import compat
from tuner.launch.plan import Plan

Addresses = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ready:
    """A plan with all that a call needs.

    Attributes:
        matches: whether it serves a call's tensors, in order; the call's key is the plan's.
        lie_apart: whether at these addresses the output, the first, shares no memory with an operand.
        of_two: the result in new memory, from the addresses of two operands.
        fresh: the same of any number of operands.
        into: writes the output, whose address comes first.
    """

    matches: Callable[..., bool]
    lie_apart: Callable[[Addresses], bool]
    of_two: Callable[[int, int], Tensor]
    fresh: Callable[[Addresses], Tensor]
    into: Callable[[Addresses], None]


def make_ready(
    plan: Plan, result: Tensor, matches: Callable[..., bool], lie_apart: Callable[[Addresses], bool]
) -> Ready:
    """A plan by functions, not methods: what a call uses is looked up once, here.

    Args:
        plan: of a call that has run.
        result: what it wrote; new results are like it.
        matches, lie_apart: as `Ready` has them.
    """
    index, stream_of, allocate = plan.index, plan.stream_of, _allocator(result)
    launch, arguments = plan.launcher()
    # Where there is one device, no other can be the current one.
    several, current = torch.cuda.device_count() > 1, _current_device()

    def of_two(a_at: int, b_at: int) -> Tensor:
        if several and current() != index:
            return fresh((a_at, b_at))
        out = allocate()
        launch(*arguments[stream_of(index), out.data_ptr(), a_at, b_at])
        return out

    def fresh(addresses: Addresses) -> Tensor:
        if several and current() != index:
            with torch.cuda.device(index):
                return fresh(addresses)
        out = allocate()
        called = (stream_of(index), out.data_ptr(), *addresses)
        launch(*arguments[called])
        return out

    def into(addresses: Addresses) -> None:
        if several and current() != index:
            with torch.cuda.device(index):
                return into(addresses)
        called = (stream_of(index), *addresses)
        return launch(*arguments[called])

    return Ready(matches, lie_apart, of_two, fresh, into)


def apart(operands: Sequence[Tensor], out: Tensor | None) -> Callable[[Addresses], bool]:
    """Whether other memory of such tensors lies apart; an op that wrote over an operand may: they begin together."""
    if out is None:
        return lambda _addresses: True
    length = _span(out)
    others = [(at, _span(each)) for at, each in enumerate(operands, 1) if each.data_ptr() != out.data_ptr()]

    def lie_apart(addresses: Addresses) -> bool:
        start = addresses[0]
        return all(addresses[at] + span <= start or start + length <= addresses[at] for at, span in others)

    return lie_apart


def _span(tensor: Tensor) -> int:
    """Bytes from a tensor's first to its last."""
    reach: int = sum(stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    element: int = tensor.element_size()
    return (reach + 1) * element


def _allocator(like: Tensor) -> Callable[[], Tensor]:
    shape = tuple(like.shape)
    if like.is_cuda and compat.empty_strided_cuda is not None:
        strides = torch.empty(shape, device="meta").stride()
        return functools.partial(compat.empty_strided_cuda, shape, strides, like.dtype)
    return functools.partial(torch.empty, shape, dtype=like.dtype, device=like.device)


def _current_device() -> Callable[[], int]:
    asked: Callable[[], int] = compat.driver.active.get_current_device
    # torch's own wrapper looks first whether CUDA was initialized, which it was.
    if asked is torch.cuda.current_device and compat.cuda_get_device is not None:
        asked = compat.cuda_get_device
    return asked
