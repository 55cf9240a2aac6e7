"""Calls that an op has had before: what a plan of `tuner.runtime.launch` needs of torch.

A plan serves the calls whose tensors are as those it was made with. torch's own guards, by which TorchDynamo's programs
are chosen, say so in one step: class, dtype, device, sizes, strides, whether a gradient may be asked for, the negative
bit. The rest (options, alignment, which tensors begin at one address) is a dict's key; numbers of elements are in it
too, so that a guard is seldom asked in vain. Two operands that lie where they lay before are found by that alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from triton import knobs

from tuner.kernels.precision import torch_precision
from tuner.runtime.launch import Plan, Plans, Recording, make_plan

try:  # `_empty_strided_cuda` is what TorchInductor's own programs allocate by: half the time of torch.empty
    from torch._C._dynamo.guards import TensorGuards, _empty_strided_cuda
except ImportError:
    TensorGuards = _empty_strided_cuda = None

_PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Classes whose `data_ptr` is all there is to them."""
_NO_TENSOR = (AttributeError, TypeError, RuntimeError)
"""What is raised where an argument is no tensor, none with memory of its own, or no option: the checks say which."""

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


@dataclass(frozen=True, slots=True)
class Ready:
    """A plan with all that a call needs.

    Attributes:
        matches: whether it serves a call's tensors, in order and without None; the call's key is the plan's.
        of_two: the result in new memory, from the addresses of two operands.
        fresh: the same of any number of operands.
        into: writes the output, whose address comes first; False, and nothing is done, where it may overlap an operand.
    """

    matches: Callable[..., bool]
    of_two: Callable[[int, int], Tensor]
    fresh: Callable[..., Tensor]
    into: Callable[..., bool]


class Calls:
    """The plans of one op.

    An op's tensors are always given in one order, the output first, None for what a call leaves out. Its options are
    all that its launches depend on beside them, but torch's float32 setting.
    """

    def __init__(self) -> None:
        self.plans = Plans()
        self._by_key, self._by_address = self.plans.by_key, self.plans.by_address

    def of_two(self, a: Tensor, b: Tensor, options: tuple[Hashable, ...]) -> Tensor | None:
        """The result of a call of two operands and nothing else, in new memory; None where there is no plan.

        All that such a call costs beside its launch stands here, so it stands in a line.
        """
        if _is_tracing():
            return None
        try:
            a_at, b_at = a.data_ptr(), b.data_ptr()
            at = (a_at, b_at, options)
            ready = self._by_address.get(at)
            if ready is None or not ready.matches(a, b):
                ready = self._of_kind(a, b, at)
                if ready is None:
                    return None
        except _NO_TENSOR:
            return None
        if _entering or _leaving or _knobs.launch_enter_hook is not _enter or _knobs.launch_exit_hook is not _leave:
            return None  # as `hooked` has it
        return ready.of_two(a_at, b_at)

    def _of_kind(self, a: Tensor, b: Tensor, at: tuple[Any, ...]) -> Ready | None:
        """The plan of two operands, the first time that they lie at these addresses."""
        a_at, b_at, options = at
        key = (a.numel(), b.numel(), a_at & 15, b_at & 15, a_at == b_at, options)
        for ready in self._by_key.get(key, ()):
            if ready.matches(a, b):
                self.plans.seen(ready, key, at)
                return ready
        return None

    def of(self, tensors: tuple[Tensor | None, ...], options: tuple[Hashable, ...]) -> Tensor | None:
        """The result of any call, the output where it was given; None where there is no plan."""
        if _is_tracing():
            return None
        try:
            key, given, addresses = _key(tensors, options)
            for ready in self._by_key.get(key, ()):
                if ready.matches(*given):
                    break
            else:
                return None
        except _NO_TENSOR:
            return None
        if hooked():
            return None
        out = tensors[0]
        if out is None:
            return ready.fresh(*addresses)
        return out if ready.into(*addresses) else None

    def remember(
        self,
        tensors: tuple[Tensor | None, ...],
        options: tuple[Hashable, ...],
        seen: Recording,
        result: Tensor,
        sources: object,
        *,
        precision: str | None = None,
    ) -> None:
        """Keep the plan of a call that has run, where it can be run again by addresses alone.

        Args:
            tensors, options: the call's.
            seen: what it launched.
            result: what it wrote, all of it by these launches.
            sources: `tuner.runtime.lookup.desk()`, asked before the call.
            precision: torch's float32 setting where the call went by it.
        """
        key, given, _ = _key(tensors, options)
        if any(type(each) not in _PLAIN or each.is_neg() for each in given) or not _guards_hold():
            return
        if any(ready.matches(*given) for ready in self._by_key.get(key, ())):
            return  # somebody hears of launches, so it was not used
        operands = [tensor for tensor in tensors[1:] if tensor is not None]
        addresses: list[int | None] = []
        for tensor in (result, *operands):
            at = tensor.data_ptr()
            addresses.append(None if at in addresses else at)  # one memory for both: the key says so too
        plan = make_plan(seen, addresses, result.device.index or 0)
        if plan is not None:
            self.plans.keep(key, _ready(plan, result, operands, _matches(given, precision)), sources)


def _key(tensors: tuple[Tensor | None, ...], options: tuple[Hashable, ...]) -> tuple[Hashable, list[Tensor], list[int]]:
    """A call's key, the tensors it was given, and their addresses."""
    given: list[Tensor] = []
    addresses: list[int] = []
    key: list[Hashable] = []
    for tensor in tensors:
        if tensor is None:
            key.append(None)
        else:
            at = tensor.data_ptr()
            given.append(tensor)
            addresses.append(at)
            key.append(tensor.numel() << 4 | at & 15)
    if len(given) == 2 and tensors[0] is None and tensors[2] is not None:  # as `Calls.of_two` has it
        (a, b), (a_at, b_at) = given, addresses
        return (a.numel(), b.numel(), a_at & 15, b_at & 15, a_at == b_at, options), given, addresses
    # Which of them begin at one address.
    key.append(None if len({*addresses}) == len(addresses) else tuple(map(addresses.index, addresses)))
    key.append(options)
    return tuple(key), given, addresses


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
    check: Callable[..., bool] = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    return check


@functools.cache
def _guards_hold() -> bool:
    """Whether this torch's guards, which are its own affair, tell apart what plans rely on."""
    if TensorGuards is None:
        return False
    one, wide = (torch.empty(size, device="cpu") for size in ((4, 2), (4, 4)))
    guard = _guard([one])
    sizes = (one[:2], one.view(2, 4), one.view(1, 4, 2), wide[:, :2], one.view(2, 4).t())
    kinds = (one.int(), one.to("meta"), torch.nn.Parameter(one), one.clone().requires_grad_(), torch._neg_view(one))
    return guard(one.clone()) and not any(map(guard, (*sizes, *kinds)))


def _ready(plan: Plan, result: Tensor, operands: Sequence[Tensor], matches: Callable[..., bool]) -> Ready:
    """Functions rather than methods: what a call uses is looked up once, here."""
    index, stream_of, allocate = plan.index, plan.stream_of, _allocator(result)
    launch, arguments = plan.launcher()
    # Where there is one device, no other can be the current one.
    several, current = torch.cuda.device_count() > 1, _current_device()
    length = _span(result)
    # An op that may write over an operand had it so when the plan was made: the key says that they begin together.
    apart = [(at, _span(each)) for at, each in enumerate(operands, 1) if each.data_ptr() != result.data_ptr()]

    def of_two(a_at: int, b_at: int) -> Tensor:
        if several and current() != index:
            return fresh(a_at, b_at)
        out = allocate()
        launch(*arguments[stream_of(index), out.data_ptr(), a_at, b_at])
        return out

    def fresh(*operands: int) -> Tensor:
        if several and current() != index:
            with torch.cuda.device(index):
                return fresh(*operands)
        out = allocate()
        launch(*arguments[(stream_of(index), out.data_ptr(), *operands)])
        return out

    def into(*addresses: int) -> bool:
        start = addresses[0]
        for at, span in apart:
            if start < addresses[at] + span and addresses[at] < start + length:
                return False
        if several and current() != index:
            with torch.cuda.device(index):
                return into(*addresses)
        launch(*arguments[(stream_of(index), *addresses)])
        return True

    return Ready(matches, of_two, fresh, into)


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
