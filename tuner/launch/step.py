"""One launch of a plan: a compiled kernel whose arguments are complete except for the call's addresses.

A step calls the driver itself, with a launch in which only the stream and the addresses are written at each call.
Where `packed.packer_of` does not know the kernel's arguments, it calls `CompiledKernel.run`.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from tuner.launch import compat, cuda
from tuner.launch.bounded_cache import BoundedCache
from tuner.launch.packed import STREAM_AT, Packer, arguments_offset, packer_of

Step = Callable[..., None]
"""Launches on a stream, given by its handle, with the addresses of a call; all of them are integers."""
Place = tuple[int, ...]
"""Where a launch is given a number: the index of an argument, and of a descriptor's argument the axis of its shape."""
MOST_DESCRIPTORS = 256
"""Encoded descriptors of one argument, 128 B each. An allocator reuses few addresses."""
_UNSUPPORTED = object()


@dataclass(frozen=True, slots=True)
class Address:
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


@dataclass(frozen=True, slots=True)
class _AddressArgument:
    """An argument's memory: the slot of a call's address, and an offset from it in bytes."""

    slot: int
    offset: int


@dataclass(frozen=True, slots=True)
class _DescriptorArgument:
    """A TMA descriptor without its tensor, which a plan must not keep alive.

    Attributes:
        place: Where its memory lies.
        rest: The fields of Triton's TensorDescriptor by name, except its base.
    """

    place: _AddressArgument
    rest: Mapping[str, Any]

    def changed(self, axis: int, extent: int) -> _DescriptorArgument:
        """The same descriptor with another extent of one axis."""
        shape = [*self.rest["shape"]]
        shape[axis] = extent
        return _DescriptorArgument(self.place, {**self.rest, "shape": shape})


class _Pointer:
    """An address that Triton's launchers take for a tensor."""

    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        self.at = at

    def data_ptr(self) -> int:
        return self.at


@dataclass(frozen=True, slots=True)
class RecordedLaunch:
    """A launch that ran, ready to run again on other addresses.

    Attributes:
        kernel: The CompiledKernel that it launched.
        grid: The number of programs along three axes.
        given: The kernel's arguments in order: numbers, None, and the places of addresses and descriptors.
        arguments: The same as the device takes them, where they are known already.
    """

    kernel: Any
    grid: tuple[int, ...]
    given: Sequence[Any]
    arguments: _DeviceArguments | None = None

    def step(self) -> Step:
        """Make the step that launches this."""
        return _direct_step(self) or _run_step(self)

    def number(self, place: Place) -> int | None:
        """The whole number at a place; None where there is none."""
        at, *axis = place
        found = next(iter(self.given[at : at + 1]), None)
        if axis:
            sizes = found.rest["shape"] if isinstance(found, _DescriptorArgument) else ()
            found = next(iter(sizes[axis[0] : axis[0] + 1]), None)
        return found if isinstance(found, int) else None

    def changed(self, places: Collection[Place], number: int) -> RecordedLaunch:
        """The same launch with another number at some places, each of which holds one."""
        given = list(self.given)
        for at, *axis in places:
            given[at] = given[at].changed(*axis, number) if axis else number
        changed = {place[0]: given[place[0]] for place in places}
        return RecordedLaunch(
            self.kernel, self.grid, given, None if self.arguments is None else self.arguments.changed(changed)
        )

    def laid_out(self) -> RecordedLaunch:
        """The same launch, of which changed ones are laid out with less work."""
        packer = _packer(self.kernel)
        return self if packer is None else replace(self, arguments=_DeviceArguments(self.kernel, self.given))


def recorded_launch(launch: Any, kernel: Any, memory: Sequence[Address]) -> RecordedLaunch | None:
    """Describe a launch that ran; None where an argument is neither a number nor within `memory`.

    Args:
        launch: A `tuner.launch.launch.Launch`.
        kernel: The CompiledKernel that it launched.
        memory: The memory whose addresses later calls will give.
    """
    if not isinstance(kernel, compat.CompiledKernel) or launch.function.pre_run_hooks:
        return None
    given = [_classified(argument, memory) for argument in launch.arguments]
    if any(argument is _UNSUPPORTED for argument in given):
        return None
    names = [parameter.name for parameter in launch.function.params]
    if set(names[len(given) :]) != set(launch.constants):
        return None
    given += [launch.constants[name] for name in names[len(given) :]]
    return RecordedLaunch(kernel, (*launch.grid, 1, 1)[:3], given)


def _classified(argument: Any, memory: Sequence[Address]) -> Any:
    if argument is None or isinstance(argument, (int, float)):
        return argument
    if hasattr(argument, "block_shape"):  # a TensorDescriptor, Triton's or Gluon's
        place = _classified(argument.base, memory)
        rest = {name: getattr(argument, name) for name in argument.__dataclass_fields__ if name != "base"}
        return _DescriptorArgument(place, rest) if isinstance(place, _AddressArgument) else _UNSUPPORTED
    if not hasattr(argument, "data_ptr"):
        return _UNSUPPORTED
    at = argument.data_ptr()
    found = [each for each in memory if each.start <= at < each.start + each.length]
    return _AddressArgument(found[0].slot, at - found[0].start) if len(found) == 1 else _UNSUPPORTED


def _run_step(recorded: RecordedLaunch) -> Step:
    """A step by `CompiledKernel.run`, which takes all arguments in order and ignores the values of constexprs."""
    kernel, given = recorded.kernel, recorded.given
    run, packed = kernel.run, kernel.packed_metadata
    x, y, z = recorded.grid
    places = [(at, argument) for at, argument in enumerate(given) if isinstance(argument, _AddressArgument)]
    descriptors = [(at, argument) for at, argument in enumerate(given) if isinstance(argument, _DescriptorArgument)]

    def step(stream: int, *addresses: int) -> None:
        arguments = list(given)
        for at, place in places:
            arguments[at] = addresses[place.slot] + place.offset
        for at, descriptor in descriptors:
            # What launchers read of a TensorDescriptor, without its checks.
            base = _Pointer(addresses[descriptor.place.slot] + descriptor.place.offset)
            arguments[at] = SimpleNamespace(**descriptor.rest, base=base)
        # This holds the kernel, not its function alone: Triton 3.9 unloads a binary with its CompiledKernel.
        run(x, y, z, stream, kernel.function, packed, None, None, None, *arguments)

    return step


def _direct_step(recorded: RecordedLaunch) -> Step | None:
    """A step by the driver itself; None where a launch is more than that."""
    kernel, grid = recorded.kernel, recorded.grid
    packer, launch = _packer(kernel), cuda.launcher()
    if packer is None or launch is None or 0 in grid or kernel.metadata.global_scratch_size:
        return None
    arguments = recorded.arguments or _DeviceArguments(kernel, recorded.given)
    function = ctypes.c_void_p(kernel.function)
    frames: list[Any] = []

    # What is not looked up anew at each call is bound here. The kernel is held, not its function alone: Triton 3.9
    # unloads a binary with its CompiledKernel.
    def step(stream: int, *addresses: int, _held: Any = kernel) -> None:
        try:
            frame, pack, computed = frames.pop()
        except IndexError:
            count = len(addresses)
            frame = packer.frame(count, arguments.from_addresses)
            packer.fill(frame, grid, stream, [*arguments.template, 0])
            pack = functools.partial(_varying(count).pack_into, frame.memory, frame.start + STREAM_AT)
            computed = arguments.computed(packer.offsets, frame.memory, frame.start + arguments_offset(count))
        pack(stream, *frame.tail, *addresses)
        for write, value, place in computed:
            write(value(addresses[place.slot] + place.offset))
        configuration, parameters = frame.arguments
        launch(configuration, function, parameters, None)
        frames.append((frame, pack, computed))

    return step


@functools.lru_cache(maxsize=1024)
def _packer(kernel: Any) -> Packer | None:
    """One for all plans of a kernel, which differ in their frames."""
    return packer_of(kernel.src.signature, kernel.metadata)


@functools.cache
def _varying(addresses: int) -> struct.Struct:
    """From the stream on: the rest of a launch's configuration, and the addresses of a call."""
    return struct.Struct(f"=QQI12x{addresses}Q")


class _DeviceArguments:
    """A kernel's arguments as the device takes them.

    Attributes:
        template: The arguments in order; addresses and descriptors are those of no call.
        from_addresses: The arguments that are an address of the call itself, and which.
    """

    def __init__(self, kernel: Any, given: Sequence[Any]) -> None:
        self.template: list[Any] = []
        self.from_addresses: dict[int, int] = {}
        self._metas: dict[int, Any] = {}
        self._starts: list[int] = []
        self._computed: dict[int, tuple[int, str, Callable[[int], Any], _AddressArgument]] = {}
        metas = iter(kernel.metadata.tensordesc_meta or ())
        for at, (kind, argument) in enumerate(zip(kernel.src.signature.values(), given, strict=True)):
            here = len(self.template)
            self._starts.append(here)
            if isinstance(argument, _DescriptorArgument):
                self._metas[at] = next(metas)
                self.template += self._described(at, argument)
            elif kind != "constexpr":
                if isinstance(argument, _AddressArgument):
                    if argument.offset:
                        self._computed[here] = 0, "Q", int, argument
                    else:
                        self.from_addresses[here] = argument.slot
                is_number = isinstance(argument, (int, float))
                self.template.append(argument if is_number else 0)

    def changed(self, given: Mapping[int, Any]) -> _DeviceArguments:
        """The same with other numbers or descriptors, by the arguments' indices."""
        made = copy.copy(self)
        made.template, made._computed = [*self.template], {**self._computed}
        for at, argument in given.items():
            values = made._described(at, argument) if isinstance(argument, _DescriptorArgument) else [argument]
            made.template[self._starts[at] : self._starts[at] + len(values)] = values
        return made

    def _described(self, at: int, argument: _DescriptorArgument) -> list[Any]:
        """The values of a descriptor, which is encoded, and what writes it."""
        here, rest = self._starts[at], SimpleNamespace(**argument.rest)
        encode = cuda.tensor_map_encoder(self._metas[at], rest)
        if (within := cuda.address_in_map()) is not None:
            self._computed[here] = within, "Q", int, argument.place
            encoded = encode.template
        else:
            # They consist of address, sizes and strides, so they never become wrong.
            kept = BoundedCache(encode, MOST_DESCRIPTORS)
            self._computed[here] = 0, f"{cuda.MAP_BYTES}s", kept.__getitem__, argument.place
            encoded = b""
        return [encoded, *rest.shape, *rest.strides]

    def computed(self, offsets: Sequence[int], memory: Any, start: int) -> list[Any]:
        """For each argument that follows from an address: what writes it, what makes it, and from which address."""
        return [
            (functools.partial(struct.pack_into, f"={code}", memory, start + offsets[at] + within), value, place)
            for at, (within, code, value, place) in self._computed.items()
        ]
