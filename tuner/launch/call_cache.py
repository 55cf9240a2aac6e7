"""Repeated calls of an op: the launch plan of an equal earlier call is found and run, with nothing else in between.

A plan serves calls whose tensors are like those that it was made from. The guards by which TorchDynamo chooses a
compiled program test that in one step (guards.py). The rest is a dict's key: the options, the alignment, and which
tensors begin at one address. The key also has the numbers of elements, so that few guards are asked in vain. A call
whose tensors lie where those of an earlier call lay is found by its addresses alone. One with another number of rows
gets the plan of an earlier one, made for its rows, where binaries that ship say how (any_rows.py).
Under a mode to which torch dispatches no plan runs: the mode is to see what a call launches.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from tuner.hardware import triton_settings
from tuner.launch import compat
from tuner.launch.any_rows import AnyRowsCache, AnyRowsPlan
from tuner.launch.bound import Addresses, BoundPlan, allocator, bind, overlap_check
from tuner.launch.guards import guards_hold, make_guard
from tuner.launch.plan import PlanCache, Recording, make_plan, recorded_launches
from tuner.lookup import lookup

PLAIN_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
"""Classes whose values lie in memory at `data_ptr`."""
_NO_TENSOR = (AttributeError, TypeError, RuntimeError)
"""Raised by a tensor without memory, or by an argument of a wrong type. The checks of the slow path then say which."""

_address = torch.Tensor.data_ptr
_forward_ad, _LEVEL = compat.forward_ad_state(), compat.FORWARD_LEVEL
_count_modes = compat.count_dispatch_modes  # guards do not see those of torch's own that record operators
is_tracing = torch.compiler.is_dynamo_compiling


class _NotImported:
    """Stands for `triton.knobs.runtime` while Triton is not imported; then it has a hook that nobody knows."""

    launch_exit_hook = None

    @property
    def launch_enter_hook(self) -> object:
        return sys.modules.get("triton")


_runtime: Any = _NotImported()
_enter: Any = None
_leave: Any = None
_entering: Sequence[object] = ()
_leaving: Sequence[object] = ()


def has_launch_hooks() -> bool:
    """Whether a profiler or another hook listens to launches; then Triton's own path must launch."""
    global _runtime, _enter, _leave, _entering, _leaving  # noqa: PLW0603
    if isinstance(_runtime, _NotImported):
        knobs = triton_settings.knobs()
        if knobs is None:
            return False
        runtime = knobs.runtime
        _enter, _leave = runtime.launch_enter_hook, runtime.launch_exit_hook
        _entering, _leaving = (getattr(hook, "calls", () if hook is None else (hook,)) for hook in (_enter, _leave))
        _runtime = runtime
    return (
        _runtime.launch_enter_hook is not _enter
        or _runtime.launch_exit_hook is not _leave
        or bool(_entering)
        or bool(_leaving)
    )


_untraced: dict[Callable[..., Any], Callable[..., Any]] = {}


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an op for a call that torch.compile traces: it breaks the graph there and runs the op as it is.

    The result is always the same object, because torch.compile compiles anew for another. It is made here and not at
    import, because torch.compiler.disable imports the compiler.
    """
    if function not in _untraced:
        _untraced[function] = torch.compiler.disable(function)
    return _untraced[function]


def any_m(_m: int) -> bool:
    """What an op gives as `serves_rows` that would do the same for every number of rows."""
    return True


class CallCache:
    """The plans of one op's earlier calls.

    An op gives its operands in a fixed order, and None in the last place where a call has no such operand. The options
    are everything else that its launches depend on, except torch's float32 setting.
    """

    def __init__(self) -> None:
        self.plans = PlanCache()
        self._any_rows = AnyRowsCache()
        self._by_key, self._by_address = self.plans.by_key, self.plans.by_address

    def run_two(self, a: Tensor, b: Tensor, options: tuple[Hashable, ...]) -> Tensor | None:
        """Run a call of two operands into new memory; None where there is no plan.

        Everything that such a call costs besides its launch is in this one function, without calls of others.
        """
        if is_tracing() or type(a) not in PLAIN_TENSORS or _forward_ad[_LEVEL] >= 0 or _count_modes():
            return None
        try:
            a_at, b_at = a.data_ptr(), b.data_ptr()
            at = (a_at, b_at, options)
            bound = self._by_address.get(at)
            if bound is None or not bound.matches(a, b):
                bound = self._find((a, b), (a_at, b_at), options, at)
                if bound is None:
                    return None
        except _NO_TENSOR:
            return None
        # `has_launch_hooks`, without the call
        if (
            _entering or _leaving or _runtime.launch_enter_hook is not _enter or _runtime.launch_exit_hook is not _leave
        ) and has_launch_hooks():
            return None
        return bound.run_two(a_at, b_at)

    def run_one(self, x: Tensor) -> Tensor | None:
        """Run a call of one operand without options into new memory; None where there is no plan."""
        if is_tracing() or type(x) not in PLAIN_TENSORS or _forward_ad[_LEVEL] >= 0 or _count_modes():
            return None
        try:
            at = (x.data_ptr(),)
            bound = self._by_address.get(at)
            if bound is None or not bound.matches(x):
                bound = self._find((x,), at, (), at)
                if bound is None:
                    return None
        except _NO_TENSOR:
            return None
        return None if has_launch_hooks() else bound.run_new(at)

    def run(
        self, operands: tuple[Tensor | None, ...], options: tuple[Hashable, ...], out: Tensor | None = None
    ) -> Tensor | None:
        """Run any call, into `out` where it is given; None where there is no plan."""
        if is_tracing() or type(operands[0]) not in PLAIN_TENSORS or _forward_ad[_LEVEL] >= 0 or _count_modes():
            return None
        given = operands[:-1] if operands[-1] is None else operands
        if out is not None:
            given, options = (out, *given), (options, "out")
        try:
            addresses = tuple(map(_address, given))
            at = (addresses, options)
            bound = self._by_address.get(at)
            if bound is None or not bound.matches(*given):
                bound = self._find(given, addresses, options, at)
                if bound is None:
                    return None
        except _NO_TENSOR:
            return None
        if has_launch_hooks():
            return None
        if out is None:
            return bound.run_new(addresses)
        bound.run_into(addresses)
        increment_version(out)  # for autograd, which does not see a launch
        return out

    def _find(
        self, given: tuple[Tensor, ...], addresses: Addresses, options: tuple[Hashable, ...], at: Hashable
    ) -> BoundPlan | None:
        """The plan of a call whose tensors have not been at these addresses before."""
        if 0 in addresses:
            return None  # freed memory, which the checks name
        key = _key(given, addresses, options)
        bound: BoundPlan
        for bound in self._by_key.get(key, ()):
            if bound.matches(*given) and bound.no_overlap(addresses):
                self.plans.add_address(bound, key, at)
                return bound
        sources = lookup.resolver()
        made = self._any_rows.plan(given, addresses, options)
        if made is not None and made.is_tried:
            self.plans.add(key, made, sources)
            self.plans.add_address(made, key, at)
        return made

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
        serves_rows: Callable[[int], bool] | None = None,
    ) -> None:
        """Store the plan of a call that has run, if addresses are all that it takes to run it again.

        Args:
            operands: The call's operands.
            options: The call's options.
            seen: What the call launched.
            result: What the call wrote, all of it by these launches.
            sources: `tuner.lookup.lookup.resolver()`, asked before the call.
            out: The call's output, if it was given one.
            precision: torch's float32 setting, if the call depended on it.
            serves_rows: Whether the op would do the same for another number of rows of its first operand, of which
                nothing else depends; None where more does, or nobody knows.
        """
        given, options = _given(operands, options, out)
        if any(type(each) not in PLAIN_TENSORS or each.is_neg() for each in given) or not guards_hold():
            return
        starts = tuple(map(_address, given))
        if 0 in starts:
            return  # one of torch's zeros without memory
        key = _key(given, starts, options)
        if any(bound.matches(*given) for bound in self._by_key.get(key, ())):
            return  # a plan exists, but a hook listened to this launch
        read = given if out is None else given[1:]
        addresses: list[int | None] = []
        for tensor in (result, *read):
            at = tensor.data_ptr()
            addresses.append(None if at in addresses else at)  # the key says which tensors share an address
        launches = recorded_launches(seen, addresses)
        if launches is None:
            return
        plan = make_plan(seen, launches, result.device.index or 0)
        matches = make_guard(given, precision)
        self.plans.add(key, bind(plan, allocator(result), matches, overlap_check(read, out)), sources)
        if serves_rows is not None and out is None and precision is None:
            for made in AnyRowsPlan.of(given, result, seen, launches, serves_rows):
                self._any_rows.add(made, given, starts, options, sources)


def _given(
    operands: tuple[Tensor | None, ...], options: tuple[Hashable, ...], out: Tensor | None
) -> tuple[tuple[Any, ...], tuple[Hashable, ...]]:
    """The tensors of a call, the output first, and options that say whether there is an output."""
    given = operands[:-1] if operands[-1] is None else operands
    return (given, options) if out is None else ((out, *given), (options, "out"))


def _key(given: Sequence[Tensor], addresses: Addresses, options: tuple[Hashable, ...]) -> Hashable:
    kinds = [tensor.numel() << 4 | at & 15 for tensor, at in zip(given, addresses, strict=True)]
    # Which tensors begin at the same address.
    together = None if len({*addresses}) == len(addresses) else tuple(map(addresses.index, addresses))
    return (*kinds, together, options)
