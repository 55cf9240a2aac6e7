"""Calls of `matmul` that have been made before: what a plan of `tuner.runtime.launch` needs of torch.

A call's key says all that its launches depend on and its checks look at, but three things that are asked at each call:
whether a gradient is asked for, whether somebody hooked himself into launches, and whether `out` lies apart.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from triton import knobs

from tuner.runtime.launch import Plan, Plans, Recording, make_plan

try:  # what TorchInductor's own programs allocate by: half the time of torch.empty
    from torch._C._dynamo.guards import _empty_strided_cuda
except ImportError:
    _empty_strided_cuda = None

PLANS = Plans()
OUT = 2
"""Where a call's addresses have the output's: a, b, out, bias, scale_a, scale_b."""
_PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Classes whose `data_ptr` is all there is to them. Any other class is asked every time."""

_knobs = knobs.runtime
_enter, _leave = _knobs.launch_enter_hook, _knobs.launch_exit_hook
_entering, _leaving = (getattr(hook, "calls", () if hook is None else (hook,)) for hook in (_enter, _leave))


def hooked() -> bool:
    """Whether somebody, a profiler for instance, is to hear of launches: then Triton's own path launches."""
    return (
        _knobs.launch_enter_hook is not _enter
        or _knobs.launch_exit_hook is not _leave
        or bool(_entering)
        or bool(_leaving)
    )


def mark(tensor: Tensor | None) -> Hashable:
    """What a key says of a tensor, None for none."""
    if tensor is None:
        return None
    at = tensor.data_ptr() & 15
    return tensor.__class__, tensor.shape, tensor.stride(), tensor.dtype, at, tensor.get_device(), tensor.is_neg()


@dataclass(frozen=True, slots=True)
class Ready:
    """A plan with all that a call of its key needs.

    Attributes:
        fresh: the result in new memory, from a call's addresses.
        into: writes the output at its address; False, and nothing is done, where it may overlap an operand.
    """

    fresh: Callable[[list[int]], Tensor]
    into: Callable[[list[int]], bool]


def _ready(plan: Plan, result: Tensor, operands: Sequence[tuple[int, Tensor]]) -> Ready:
    """Functions rather than methods: what a call uses is looked up once, here."""
    index, stream_of, current, allocate = plan.index, plan.stream_of, _current_device(), _allocator(result)
    # A launch of one kernel that needs nothing else is called without a detour.
    launch = plan.steps[0] if len(plan.steps) == 1 and not plan.temporaries else plan.launch
    length, spans = _span(result), [(slot, _span(operand)) for slot, operand in operands]

    def fresh(addresses: list[int]) -> Tensor:
        if current() != index:
            with torch.cuda.device(index):
                return fresh(addresses)
        out = allocate()
        addresses[OUT] = out.data_ptr()
        launch(stream_of(index), addresses)
        return out

    def into(addresses: list[int]) -> bool:
        start = addresses[OUT]
        for slot, span in spans:
            if start < addresses[slot] + span and addresses[slot] < start + length:
                return False
        if current() != index:
            with torch.cuda.device(index):
                return into(addresses)
        launch(stream_of(index), addresses)
        return True

    return Ready(fresh, into)


def remember(key: Hashable, seen: Recording, tensors: Sequence[Tensor | None], sources: object) -> None:
    """Keep the plan of a call that has run, where it can be run again by addresses alone.

    Args:
        key: the call's.
        seen: what it launched.
        tensors: a, b, the output, bias, scale_a, scale_b as the caller gave them, or was given.
        sources: `tuner.runtime.lookup.desk()`, asked before the call.
    """
    given = [tensor for tensor in tensors if tensor is not None]
    if any(type(tensor) not in _PLAIN or tensor.is_neg() for tensor in given) or any(map(_may_be_negated, given[:2])):
        return
    addresses: list[int | None] = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    for first, second in ((0, 1), (4, 5)):
        if addresses[first] == addresses[second]:
            addresses[second] = None  # one memory for both: the key says so too
    a, result = tensors[0], tensors[OUT]
    assert a is not None
    assert result is not None
    plan = make_plan(seen, addresses, a.device.index or 0)
    if plan is not None:
        operands = [(slot, tensor) for slot, tensor in enumerate(tensors) if tensor is not None and slot != OUT]
        PLANS.keep(key, _ready(plan, result, operands), sources)


def _may_be_negated(tensor: Tensor) -> bool:
    """Whether torch could mark memory like an operand's as negated: parts of complex numbers lie two apart.

    Asking each operand at each call would cost more than the rest of its key.
    """
    strides = (stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)
    return all(stride % 2 == 0 for stride in strides)


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
