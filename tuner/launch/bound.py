"""A plan as a call runs it: in new memory or into an output, on the current stream of the operands' device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tuner.launch.plan import Plan

try:  # what TorchInductor's own programs allocate by: half the time of torch.empty
    from torch._C._dynamo.guards import _empty_strided_cuda
except ImportError:
    _empty_strided_cuda = None

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
        launch(*arguments[(stream_of(index), out.data_ptr(), *addresses)])
        return out

    def into(addresses: Addresses) -> None:
        if several and current() != index:
            with torch.cuda.device(index):
                return into(addresses)
        return launch(*arguments[(stream_of(index), *addresses)])

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
    reach = sum(stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    return (reach + 1) * tensor.element_size()


def _allocator(like: Tensor) -> Callable[[], Tensor]:
    shape = tuple(like.shape)
    if like.is_cuda and _empty_strided_cuda is not None:
        strides = torch.empty(shape, device="meta").stride()
        return functools.partial(_empty_strided_cuda, shape, strides, like.dtype)
    return functools.partial(torch.empty, shape, dtype=like.dtype, device=like.device)


def _current_device() -> Callable[[], int]:
    from triton.runtime.driver import driver

    asked: Any = driver.active.get_current_device
    # torch's own wrapper looks first whether CUDA was initialized, which it was.
    return torch._C._cuda_getDevice if asked is torch.cuda.current_device else asked
