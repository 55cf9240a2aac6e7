"""One launch of a plan: a compiled kernel, its arguments ready but for addresses, and the cheapest way to the driver.

What is called is the C function beneath `CompiledKernel.run` where this Triton's is known, with arguments made once for
the same addresses; elsewhere `CompiledKernel.run` itself, whose signature is the same in Triton 3.6 to 3.9.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tuner.launch import compat
from tuner.launch.arguments import Kept, Memo

Step = Callable[..., None]
"""Launches on a stream, given by its handle, with the addresses of a call: all integers."""
MOST_MAPS = 256
"""Encoded descriptors kept for each descriptor argument, 128 B each; an allocator gives few addresses in turn."""
_UNKNOWN = object()


@dataclass(frozen=True, slots=True)
class Address:
    """Memory that a recorded launch was given.

    Attributes:
        start: its address then.
        length: bytes an argument may begin in: 1 for an operand, which is passed by its own address alone.
        slot: where later calls have its address.
    """

    start: int
    length: int
    slot: int


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an argument's memory lies: an address of a call, and bytes beyond it."""

    slot: int
    offset: int


@dataclass(frozen=True, slots=True)
class _Descriptor:
    """A descriptor argument: where its memory lies, and the rest of it: the memory itself must not be held.

    Attributes:
        place: of its memory.
        rest: Triton's TensorDescriptor by name, but for its base.
    """

    place: _Place
    rest: Mapping[str, Any]


class _Base:
    """Memory as Triton's launchers ask for it."""

    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        self.at = at

    def data_ptr(self) -> int:
        return self.at


def make_step(launch: Any, kernel: Any, known: Sequence[Address]) -> Step | None:
    """The step of a launch that ran; None where an argument is neither a number nor memory that is known.

    Args:
        launch: see `tuner.launch.plan.Launched`.
        kernel: the CompiledKernel it launched.
        known: memory whose addresses later calls will give.
    """
    if not isinstance(kernel, compat.CompiledKernel) or launch.function.pre_run_hooks:
        return None
    given = [_sorted_out(argument, known) for argument in launch.arguments]
    if any(argument is _UNKNOWN for argument in given):
        return None
    names = [parameter.name for parameter in launch.function.params]
    if set(names[len(given) :]) != set(launch.constants):
        return None
    given += [launch.constants[name] for name in names[len(given) :]]
    grid = (*launch.grid, 1, 1)[:3]
    return _bare(kernel, grid, given) or _ordinary(kernel, grid, given)


def _sorted_out(argument: Any, known: Sequence[Address]) -> Any:
    if argument is None or isinstance(argument, (int, float)):
        return argument
    if hasattr(argument, "block_shape"):  # a TensorDescriptor, Triton's or Gluon's
        place = _sorted_out(argument.base, known)
        rest = {name: getattr(argument, name) for name in argument.__dataclass_fields__ if name != "base"}
        return _Descriptor(place, rest) if isinstance(place, _Place) else _UNKNOWN
    if not hasattr(argument, "data_ptr"):
        return _UNKNOWN
    at = argument.data_ptr()
    found = [each for each in known if each.start <= at < each.start + each.length]
    return _Place(found[0].slot, at - found[0].start) if len(found) == 1 else _UNKNOWN


def _ordinary(kernel: Any, grid: tuple[int, ...], given: Sequence[Any]) -> Step:
    """By `CompiledKernel.run`: all arguments in order, constexprs included, whose values are ignored."""
    run, packed = kernel.run, kernel.packed_metadata
    x, y, z = grid
    places = [(at, argument) for at, argument in enumerate(given) if isinstance(argument, _Place)]
    descriptors = [(at, argument) for at, argument in enumerate(given) if isinstance(argument, _Descriptor)]

    def step(stream: int, *addresses: int) -> None:
        arguments = list(given)
        for at, place in places:
            arguments[at] = addresses[place.slot] + place.offset
        for at, descriptor in descriptors:
            arguments[at] = _at(descriptor.rest, addresses[descriptor.place.slot] + descriptor.place.offset)
        # The kernel itself is held, not its function: Triton 3.9 unloads a binary with its CompiledKernel.
        run(x, y, z, stream, kernel.function, packed, None, None, None, *arguments)

    return step


def _at(rest: Mapping[str, Any], at: int) -> Any:
    """A descriptor of other memory: what launchers read of a TensorDescriptor, without checking it again."""
    return SimpleNamespace(**rest, base=_Base(at))


def _bare(kernel: Any, grid: tuple[int, ...], given: Sequence[Any]) -> Step | None:
    """By the C function beneath `run`; None where this Triton's launcher is not known or has more to do."""
    ranks = [len(argument.rest["shape"]) if isinstance(argument, _Descriptor) else None for argument in given]
    found = compat.driver_launch(kernel, ranks)
    if found is None:
        return None
    fixed, flattened = found.fixed, _Flattened(kernel, given, constexprs=not found.in_a_list)

    def in_a_row(stream: int, *addresses: int) -> tuple[Any, ...]:
        return *grid, stream, *fixed, *flattened.at(addresses)

    def in_a_list(stream: int, *addresses: int) -> tuple[Any, ...]:
        return *grid, stream, *fixed, flattened.at(addresses)

    return Kept(kernel, found.function, in_a_list if found.in_a_list else in_a_row)


def _maps(descriptor: _Descriptor, made: Callable[..., list[Any]], meta: Any) -> Memo[int, Any]:
    """Encoded descriptors by address. What they say is their address, sizes and strides: they never become wrong."""
    rest = (meta, None)[: len(inspect.signature(made).parameters) - 1]

    def encoded(at: int) -> Any:
        return made(_at(descriptor.rest, at), *rest)[0]  # by Triton's own rules

    return Memo(encoded, MOST_MAPS)


class _Flattened:
    """A kernel's arguments as the device takes them: where addresses go among them, and where descriptors."""

    def __init__(self, kernel: Any, given: Sequence[Any], *, constexprs: bool) -> None:
        made = compat.make_tensordesc_arg
        metas = iter(kernel.metadata.tensordesc_meta or ())
        self._template: list[Any] = []
        self._places: list[tuple[int, _Place]] = []
        self._maps: list[tuple[int, _Place, Memo[int, Any]]] = []
        for kind, argument in zip(kernel.src.signature.values(), given, strict=True):
            here = len(self._template)
            if isinstance(argument, _Descriptor):
                self._maps.append((here, argument.place, _maps(argument, made, next(metas))))
                self._template += [None, *argument.rest["shape"], *argument.rest["strides"]]
            elif kind != "constexpr":
                if isinstance(argument, _Place):
                    self._places.append((here, argument))
                self._template.append(argument)
            elif constexprs:
                self._template.append(None)

    def at(self, addresses: Sequence[int]) -> list[Any]:
        """The arguments of a call."""
        arguments = self._template.copy()
        for here, place in self._places:
            arguments[here] = addresses[place.slot] + place.offset
        for here, place, known in self._maps:
            arguments[here] = known[addresses[place.slot] + place.offset]
        return arguments
