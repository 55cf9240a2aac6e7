"""Calls that an op has had before: what a plan of `tuner.launch.plan` needs of torch.

A plan serves the calls whose tensors are as those it was made with. torch's own guards, by which TorchDynamo's programs
are chosen, say so in one step: class, dtype, device, sizes, strides, whether a gradient may be asked for, the negative
bit. The rest (options, alignment, which tensors begin at one address) is a dict's key; numbers of elements are in it
too, so that a guard is seldom asked in vain. Tensors that lie where they lay before are found by that alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from triton import knobs

from tuner.launch import compat
from tuner.launch.bound import Addresses, Ready, apart, make_ready
from tuner.launch.plan import Plans, Recording, make_plan
from tuner.launch.torch_precision import torch_precision

_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
"""Classes whose `data_ptr` is all there is to them."""
_NO_TENSOR = (AttributeError, TypeError, RuntimeError)
"""What is raised where a tensor has no memory of its own, or an option is none: the checks say which."""

_address = torch.Tensor.data_ptr
_forward_ad, _LEVEL = compat.forward_ad_state(), compat.FORWARD_LEVEL
_is_tracing = torch.compiler.is_dynamo_compiling
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


class Calls:
    """The plans of one op.

    An op's operands are always given in one order, the last of them None where a call leaves it out. Its options are
    all that its launches depend on beside them, but torch's float32 setting.
    """

    def __init__(self) -> None:
        self.plans = Plans()
        self._by_key, self._by_address = self.plans.by_key, self.plans.by_address

    def of_two(self, a: Tensor, b: Tensor, options: tuple[Hashable, ...]) -> Tensor | None:
        """The result of a call of two operands and nothing else, in new memory; None where there is no plan.

        All that such a call costs beside its launch stands here, so it stands in a line.
        """
        if _is_tracing() or type(a) not in _PLAIN or _forward_ad[_LEVEL] >= 0:
            return None
        try:
            a_at, b_at = a.data_ptr(), b.data_ptr()
            at = (a_at, b_at, options)
            ready = self._by_address.get(at)
            if ready is None or not ready.matches(a, b):
                ready = self._of_kind((a, b), (a_at, b_at), options, at)
                if ready is None:
                    return None
        except _NO_TENSOR:
            return None
        if _entering or _leaving or _knobs.launch_enter_hook is not _enter or _knobs.launch_exit_hook is not _leave:
            return None  # as `hooked` has it
        return ready.of_two(a_at, b_at)

    def of_one(self, x: Tensor, options: tuple[Hashable, ...]) -> Tensor | None:
        """As `of_two`, of one operand."""
        if _is_tracing() or type(x) not in _PLAIN or _forward_ad[_LEVEL] >= 0:
            return None
        try:
            x_at = x.data_ptr()
            at = (x_at, options)
            ready = self._by_address.get(at)
            if ready is None or not ready.matches(x):
                ready = self._of_kind((x,), (x_at,), options, at)
                if ready is None:
                    return None
        except _NO_TENSOR:
            return None
        return None if hooked() else ready.fresh((x_at,))

    def of(
        self, operands: tuple[Tensor | None, ...], options: tuple[Hashable, ...], out: Tensor | None = None
    ) -> Tensor | None:
        """The result of any call, `out` where it is given; None where there is no plan."""
        if _is_tracing() or type(operands[0]) not in _PLAIN or _forward_ad[_LEVEL] >= 0:
            return None
        given = operands[:-1] if operands[-1] is None else operands
        if out is not None:
            given, options = (out, *given), (options, "out")
        try:
            addresses = tuple(map(_address, given))
            at = (addresses, options)
            ready = self._by_address.get(at)
            if ready is None or not ready.matches(*given):
                ready = self._of_kind(given, addresses, options, at)
                if ready is None:
                    return None
        except _NO_TENSOR:
            return None
        if hooked():
            return None
        if out is None:
            return ready.fresh(addresses)
        ready.into(addresses)
        return out

    def _of_kind(
        self, given: tuple[Tensor, ...], addresses: Addresses, options: tuple[Hashable, ...], at: Hashable
    ) -> Ready | None:
        """The plan of a call's tensors, the first time that they lie at these addresses."""
        key = _key(given, addresses, options)
        ready: Ready
        for ready in self._by_key.get(key, ()):
            if ready.matches(*given) and ready.lie_apart(addresses):
                self.plans.seen(ready, key, at)
                return ready
        return None

    def remember(
        self,
        operands: tuple[Tensor | None, ...],
        options: tuple[Hashable, ...],
        seen: Recording,
        result: Tensor,
        sources: object,
        *,
        out: Tensor | None = None,
        precision: str | None = None,
    ) -> None:
        """Keep the plan of a call that has run, where it can be run again by addresses alone.

        Args:
            operands, options, out: the call's.
            seen: what it launched.
            result: what it wrote, all of it by these launches.
            sources: `tuner.lookup.lookup.resolver()`, asked before the call.
            precision: torch's float32 setting where the call went by it.
        """
        given, options = _form(operands, options, out)
        if any(type(each) not in _PLAIN or each.is_neg() for each in given) or not _guards_hold():
            return
        key = _key(given, tuple(map(_address, given)), options)
        if any(ready.matches(*given) for ready in self._by_key.get(key, ())):
            return  # somebody hears of launches, so it was not used
        read = given if out is None else given[1:]
        addresses: list[int | None] = []
        for tensor in (result, *read):
            at = tensor.data_ptr()
            addresses.append(None if at in addresses else at)  # one memory for both: the key says so too
        plan = make_plan(seen, addresses, result.device.index or 0)
        if plan is not None:
            ready = make_ready(plan, result, _matches(given, precision), apart(read, out))
            self.plans.keep(key, ready, sources)


def _form(
    operands: tuple[Tensor | None, ...], options: tuple[Hashable, ...], out: Tensor | None
) -> tuple[tuple[Any, ...], tuple[Hashable, ...]]:
    """The tensors that a call was given, the output first, and options that say whether there is one."""
    given = operands[:-1] if operands[-1] is None else operands
    return (given, options) if out is None else ((out, *given), (options, "out"))


def _key(given: Sequence[Tensor], addresses: Addresses, options: tuple[Hashable, ...]) -> Hashable:
    kinds = [tensor.numel() << 4 | at & 15 for tensor, at in zip(given, addresses, strict=True)]
    # Which of them begin at one address.
    together = None if len({*addresses}) == len(addresses) else tuple(map(addresses.index, addresses))
    return (*kinds, together, options)


def _matches(tensors: Sequence[Tensor], precision: str | None) -> Callable[..., bool]:
    """Whether other tensors are as these: a guard, and what a guard does not ask, only where it matters."""
    # A guard takes no tensor twice.
    first = [next(at for at, each in enumerate(tensors) if each is tensor) for tensor in tensors]
    once = sorted(set(first))
    guard = _guard([tensors[at] for at in once])
    asks = any(tensor.requires_grad for tensor in tensors)
    if len(once) == len(tensors) and not asks and precision is None:
        return guard

    def matches(*given: Tensor) -> bool:
        if asks and torch.is_grad_enabled():
            return False
        if precision is not None and precision != torch_precision():
            return False
        return all(given[at] is given[to] for at, to in enumerate(first)) and guard(*[given[at] for at in once])

    return matches


def _guard(tensors: Sequence[Tensor]) -> Callable[..., bool]:
    sizes, strides = [[*tensor.shape] for tensor in tensors], [[*tensor.stride()] for tensor in tensors]
    check: Callable[..., bool] = compat.TensorGuards(
        *tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides
    ).check
    return check


@functools.cache
def _guards_hold() -> bool:
    """Whether this torch's guards, which are its own affair, tell apart what plans rely on."""
    if compat.TensorGuards is None or compat.neg_view is None:
        return False
    one, wide = (torch.empty(size, device="cpu") for size in ((4, 2), (4, 4)))
    guard = _guard([one])
    sizes = (one[:2], one.view(2, 4), one.view(1, 4, 2), wide[:, :2], one.view(2, 4).t())
    kinds = (one.int(), one.to("meta"), torch.nn.Parameter(one), one.clone().requires_grad_(), compat.neg_view(one))
    return guard(one.clone()) and not any(map(guard, (*sizes, *kinds)))
