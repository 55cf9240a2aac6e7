"""A plan bound to a kind of call: it runs into new memory or into an output, on the operands' current stream."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

import torch
from torch import Tensor

from tuner.launch import active_driver, compat
from tuner.launch.plan import LaunchPlan

Addresses = tuple[int, ...]


class BoundPlan(NamedTuple):
    """A plan with everything that a call needs.

    Attributes:
        matches: Whether the plan serves a call's tensors, given in order, under the key that it was stored by.
        no_overlap: Whether the output, whose address comes first, shares no memory with an operand.
        run_two: Returns the result in new memory, from the addresses of two operands; None where it failed to launch
            what had never run.
        run_new: Likewise, from any number of addresses.
        run_into: Writes the output, whose address comes first.
        is_tried: Whether its launches have run, so that it may be kept.
    """

    matches: Callable[..., bool]
    no_overlap: Callable[[Addresses], bool]
    run_two: Callable[[int, int], Tensor | None]
    run_new: Callable[[Addresses], Tensor | None]
    run_into: Callable[[Addresses], None]
    is_tried: bool = True


def bind(
    plan: LaunchPlan,
    allocate: Callable[[], Tensor],
    matches: Callable[..., bool],
    no_overlap: Callable[[Addresses], bool],
) -> BoundPlan:
    """Bind a plan by closures: what every call uses is looked up once, here.

    Args:
        plan: The plan of a call.
        allocate: Returns memory for the result, see `allocator`.
        matches: See `BoundPlan`.
        no_overlap: See `BoundPlan`.
    """
    index, stream_of = plan.index, plan.stream_of
    launch = plan.launcher()
    # On a machine with one device no other can be current.
    several, current = torch.cuda.device_count() > 1, _current_device()

    def run_two(a_at: int, b_at: int) -> Tensor:
        if several and current() != index:
            return run_new((a_at, b_at))
        out = allocate()
        launch(stream_of(index), out.data_ptr(), a_at, b_at)
        return out

    def run_new(addresses: Addresses) -> Tensor:
        if several and current() != index:
            with torch.cuda.device(index):
                return run_new(addresses)
        out = allocate()
        launch(stream_of(index), out.data_ptr(), *addresses)
        return out

    def run_into(addresses: Addresses) -> None:
        if several and current() != index:
            with torch.cuda.device(index):
                return run_into(addresses)
        return launch(stream_of(index), *addresses)

    return BoundPlan(matches, no_overlap, run_two, run_new, run_into)


def overlap_check(operands: Sequence[Tensor], out: Tensor | None) -> Callable[[Addresses], bool]:
    """Return the test that an output of such a call shares no memory with its operands.

    An operand that began at the output's address in the recorded call is left out: the op writes over it on purpose,
    and the call's key says that both begin together.
    """
    if out is None:
        return lambda _addresses: True
    length = _extent_bytes(out)
    others = [(at, _extent_bytes(each)) for at, each in enumerate(operands, 1) if each.data_ptr() != out.data_ptr()]

    def no_overlap(addresses: Addresses) -> bool:
        start = addresses[0]
        return all(addresses[at] + extent <= start or start + length <= addresses[at] for at, extent in others)

    return no_overlap


def _extent_bytes(tensor: Tensor) -> int:
    """The number of bytes from a tensor's first to its last."""
    reach: int = sum(stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    element: int = tensor.element_size()
    return (reach + 1) * element


def allocator(like: Tensor, shape: tuple[int, ...] | None = None) -> Callable[[], Tensor]:
    """Return the function that allocates a result as a recorded call did.

    Args:
        like: What that call wrote.
        shape: The result's shape, if it is another; its elements then lie one after the other.
    """
    if shape is None:
        shape, strides = tuple(like.shape), like.stride()
    else:
        strides = tuple(accumulate((1, *shape[:0:-1]), mul))[::-1]
    if like.is_cuda and compat.empty_strided_cuda is not None:
        return functools.partial(compat.empty_strided_cuda, shape, strides, like.dtype)
    return functools.partial(torch.empty, shape, dtype=like.dtype, device=like.device)


def _current_device() -> Callable[[], int]:
    # torch's own wrapper first tests whether CUDA was initialized, which it was.
    asked: Callable[[], int] = compat.cuda_get_device or active_driver.active().get_current_device
    return asked
