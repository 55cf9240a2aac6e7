"""A launch's arguments without its tensors: numbers, and where the memory of a call stands among its addresses.

An index of binaries holds them as JSON, so that a process launches what it has never seen.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

Place = tuple[int, ...]
"""Where a launch is given a number: the index of an argument, and of a descriptor's argument the axis of its shape."""
GRID: Place = (-1,)
"""The place of a number that is how many programs are launched along the first axis."""
Number = int | float | None
_ENCODED = ("shape", "strides", "padding", "round_f32_to_tf32")
"""The fields of a descriptor that its encoder reads; the kernel knows the others."""
_ADDRESS, _DESCRIPTOR = "address", "descriptor"
own_address: Callable[[Any], int] = operator.methodcaller("data_ptr")
"""A tensor's own address."""


class Address(NamedTuple):
    """Memory that a recorded launch was given.

    Attributes:
        start: Its address in the recorded launch.
        length: The number of bytes in which an argument may begin. It is 1 for an operand, which is always passed by
            its own address.
        slot: The index of its address among the addresses of later calls.
    """

    start: int
    length: int
    slot: int


class AddressArgument(NamedTuple):
    """An argument's memory: the slot of a call's address, and an offset from it in bytes."""

    slot: int
    offset: int


class DescriptorArgument(NamedTuple):
    """A TMA descriptor without its tensor, which a plan must not keep alive.

    Attributes:
        place: Where its memory lies.
        rest: The fields of Triton's TensorDescriptor by name, except its base.
    """

    place: AddressArgument
    rest: Mapping[str, Any]

    def with_extent(self, axis: int, extent: int) -> DescriptorArgument:
        """The same with another extent of an axis."""
        shape = [extent if at == axis else each for at, each in enumerate(self.rest["shape"])]
        return self._replace(rest={**self.rest, "shape": shape})

    @property
    def fields(self) -> Any:
        """What a descriptor's encoder reads."""
        return SimpleNamespace(**self.rest)


Argument = Number | AddressArgument | DescriptorArgument


def arguments_of(launch: Any, memory: Sequence[Address], address_of: Callable[[Any], int]) -> list[Argument] | None:
    """A launch's arguments in the jit function's order; None where one is neither a number nor within `memory`.

    Args:
        launch: A `tuner.launch.launch.Launch`.
        memory: The memory whose addresses later calls will give.
        address_of: What gives a tensor's address in the recorded launch.
    """
    if launch.function.pre_run_hooks:
        return None
    names = [parameter.name for parameter in launch.function.params]
    constants = names[len(launch.arguments) :]
    if set(constants) != set(launch.constants):
        return None
    given: list[Argument] = []
    for argument in launch.arguments:
        found = _argument_of(argument, memory, address_of)
        if found is None and argument is not None:
            return None
        given.append(found)
    return given + [launch.constants[name] for name in constants]


def _argument_of(argument: Any, memory: Sequence[Address], address_of: Callable[[Any], int]) -> Argument:
    if argument is None or isinstance(argument, (int, float)):
        return argument
    if hasattr(argument, "block_shape"):  # a TensorDescriptor, Triton's or Gluon's
        place = _argument_of(argument.base, memory, address_of)
        rest = {name: getattr(argument, name) for name in argument.__dataclass_fields__ if name != "base"}
        return DescriptorArgument(place, rest) if isinstance(place, AddressArgument) else None
    if not hasattr(argument, "data_ptr"):
        return None
    at = address_of(argument)
    found = [each for each in memory if each.start <= at < each.start + each.length]
    return AddressArgument(found[0].slot, at - found[0].start) if len(found) == 1 else None


def number_at(given: Sequence[Argument], place: Place) -> int | None:
    """The integer at a place; None where there is none."""
    at, *axis = place
    found: Any = next(iter(given[at : at + 1]), None)
    if axis:
        sizes = found.rest["shape"] if isinstance(found, DescriptorArgument) else ()
        found = next(iter(sizes[axis[0] : axis[0] + 1]), None)
    return found if isinstance(found, int) else None


def with_number(given: Sequence[Argument], places: Sequence[Place], number: int) -> list[Argument]:
    """The same arguments with another number at some places."""
    made = list(given)
    for at, *axis in places:
        argument = made[at]
        made[at] = argument.with_extent(axis[0], number) if isinstance(argument, DescriptorArgument) else number
    return made


def to_json(given: Sequence[Argument]) -> list[Any]:
    """Arguments as an index holds them."""
    return [_fields(argument) for argument in given]


def from_json(fields: Sequence[Any]) -> list[Argument]:
    """Arguments of an index.

    Raises:
        TypeError, ValueError: they are none.
    """
    return [_of_fields(each) if isinstance(each, list) else _number(each) for each in fields]


def _fields(argument: Argument) -> Any:
    if isinstance(argument, AddressArgument):
        return [_ADDRESS, argument.slot, argument.offset]
    if isinstance(argument, DescriptorArgument):
        rest = {name: argument.rest[name] for name in _ENCODED if name in argument.rest}
        rest |= {name: [int(each) for each in rest[name]] for name in ("shape", "strides")}
        return [_DESCRIPTOR, argument.place.slot, argument.place.offset, rest]
    return argument


def _of_fields(fields: Sequence[Any]) -> Argument:
    kind, slot, offset, *rest = fields
    place = AddressArgument(int(slot), int(offset))
    if kind == _ADDRESS and not rest:
        return place
    (found,) = rest
    shape, strides = ([int(each) for each in found[name]] for name in ("shape", "strides"))
    if kind != _DESCRIPTOR or len(shape) != len(strides):
        raise ValueError(f"{kind!r} is no argument")
    return DescriptorArgument(place, {**found, "shape": shape, "strides": strides})


def _number(value: Any) -> Number:
    if value is None or isinstance(value, (int, float)):
        return value
    raise ValueError(f"{value!r:.40} is no number")
