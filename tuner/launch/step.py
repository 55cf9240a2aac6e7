"""One launch of a plan: a compiled kernel whose arguments are complete except for the call's addresses.

A step calls the driver itself, with a launch in which only the stream and the addresses are written at each call.
Where `packed.packer_of` does not know the kernel's arguments, it calls `CompiledKernel.run`.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from tuner.launch import arguments as described
from tuner.launch import compat, cuda
from tuner.launch.arguments import GRID, Address, AddressArgument, Argument, DescriptorArgument, Place
from tuner.launch.bounded_cache import BoundedCache
from tuner.launch.packed import STREAM_AT, Frame, Packer, packer_of

Step = Callable[..., None]
"""Launches on a stream, given by its handle, with the addresses of a call; all of them are integers."""
MOST_DESCRIPTORS = 256
"""Encoded descriptors of one argument, 128 B each. An allocator reuses few addresses."""


class _Pointer:
    """An address that Triton's launchers take for a tensor."""

    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        self.at = at

    def data_ptr(self) -> int:
        return self.at


class RecordedLaunch(NamedTuple):
    """A launch that ran, ready to run again on other addresses.

    Attributes:
        kernel: The CompiledKernel that it launched, or a `ready.ReadyKernel`.
        grid: The number of programs along three axes.
        given: The kernel's arguments in order: numbers, None, and the places of addresses and descriptors.
    """

    kernel: Any
    grid: tuple[int, ...]
    given: Sequence[Argument]

    def step(self) -> Step:
        """Make the step that launches this."""
        return _direct_steps(self)(None) if self.is_direct() else _run_step(self)

    def steps(self, places: Collection[Place]) -> Callable[[int], Step]:
        """What makes the step of this launch with another number at some places, each of which holds one.

        Of a launch that `is_direct`. The steps share what one launch after the other may use.
        """
        return _direct_steps(self, places)

    def is_direct(self, places: Collection[Place] = ()) -> bool:
        """Whether its steps, with a number at some places, take the driver itself and nothing else."""
        kernel = self.kernel
        if _packer(kernel) is None or cuda.launcher() is None or 0 in self.grid or kernel.metadata.global_scratch_size:
            return False
        # What is encoded of padded elements of 4 bits has other extents.
        return not (places and any(meta["fp4_padded"] for meta in kernel.metadata.tensordesc_meta or ()))

    def number(self, place: Place) -> int | None:
        """The integer at a place; None where there is none."""
        return self.grid[0] if place == GRID else described.number_at(self.given, place)

    def with_number(self, places: Sequence[Place], number: int) -> RecordedLaunch:
        """The same launch with another number at some places."""
        grid = (number, *self.grid[1:]) if GRID in places else self.grid
        within = [place for place in places if place != GRID]
        return self._replace(grid=grid, given=described.with_number(self.given, within, number))


def recorded_launch(
    launch: Any, kernel: Any, memory: Sequence[Address], address_of: Callable[[Any], int] = described.own_address
) -> RecordedLaunch | None:
    """Describe a launch that ran; None where an argument is neither a number nor within `memory`.

    Args:
        launch: A `tuner.launch.launch.Launch`.
        kernel: The CompiledKernel that it launched.
        memory: The memory whose addresses later calls will give.
        address_of: What gives a tensor's address in the recorded launch.
    """
    if not isinstance(kernel, compat.CompiledKernel):
        return None
    given = described.arguments_of(launch, memory, address_of)
    return None if given is None else RecordedLaunch(kernel, (*launch.grid, 1, 1)[:3], given)


def _run_step(recorded: RecordedLaunch) -> Step:
    """A step by `CompiledKernel.run`, which takes all arguments in order and ignores the values of constexprs."""
    kernel, given = recorded.kernel, recorded.given
    run, packed = kernel.run, kernel.packed_metadata
    x, y, z = recorded.grid
    places = [(at, argument) for at, argument in enumerate(given) if isinstance(argument, AddressArgument)]
    descriptors = [(at, argument) for at, argument in enumerate(given) if isinstance(argument, DescriptorArgument)]

    def step(stream: int, *addresses: int) -> None:
        arguments: list[Any] = list(given)
        for at, place in places:
            arguments[at] = addresses[place.slot] + place.offset
        for at, descriptor in descriptors:
            # What launchers read of a TensorDescriptor, without its checks.
            base = _Pointer(addresses[descriptor.place.slot] + descriptor.place.offset)
            arguments[at] = SimpleNamespace(**descriptor.rest, base=base)
        # This holds the kernel, not its function alone: Triton 3.9 unloads a binary with its CompiledKernel.
        run(x, y, z, stream, kernel.function, packed, None, None, None, *arguments)

    return step


def _direct_steps(recorded: RecordedLaunch, places: Collection[Place] = ()) -> Callable[[int | None], Step]:
    """Makes steps by the driver itself, with a number at some places, of a launch that `is_direct`.

    The number stands behind a call's addresses, where each step writes it, and arguments that are the number point
    there. So the steps of all numbers share their frames. A frame that last served another number gets the descriptors
    that the number is part of, and the number of programs where it is that.
    """
    kernel, grid = recorded.kernel, recorded.grid
    packer, launch = _packer(kernel), cuda.launcher()
    assert packer is not None
    assert launch is not None
    arguments = _DeviceArguments(kernel, recorded.given, places)
    function = ctypes.c_void_p(kernel.function)
    frames: list[Any] = []

    def step_with(number: int | None) -> Step:
        numbers = () if number is None else (number,)
        values, maps = arguments.values(number), arguments.maps(number)

        # What is not looked up anew at each call is bound here. The kernel is held, not its function alone: Triton 3.9
        # unloads a binary with its CompiledKernel.
        def step(stream: int, *addresses: int, _held: Any = kernel) -> None:
            try:
                frame, pack, writes, computed, served = frames.pop()
            except IndexError:
                count = len(addresses) + len(numbers)
                frame = packer.frame(count, arguments.pointers(len(addresses)))
                packer.fill(frame, grid, stream, [*arguments.template, 0])
                pack = functools.partial(_varying(count).pack_into, frame.memory, frame.start + STREAM_AT)
                writes, computed, served = arguments.writes(packer.offsets, frame), (), None
            if served is not maps:
                for here, encoded in maps.items():
                    at = frame.arguments_at + packer.offsets[here]
                    frame.memory[at : at + len(encoded)] = encoded
                if number is not None and GRID in places:
                    packer.set_programs(frame, number)
                computed = [(write, *value) for write, value in zip(writes, values, strict=True)]
            pack(stream, *frame.tail, *addresses, *numbers)
            for write, value, place in computed:
                write(value(addresses[place.slot] + place.offset))
            configuration, parameters = frame.arguments
            launch(configuration, function, parameters, None)
            frames.append((frame, pack, writes, computed, maps))

        return step

    return step_with


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
        template: The arguments in order; addresses, and what hangs on a number, are those of no call.
    """

    def __init__(self, kernel: Any, given: Sequence[Argument], places: Collection[Place]) -> None:
        self.template: list[Any] = []
        self._from_addresses: dict[int, int] = {}
        self._numbers: list[int] = []
        self._computed: list[_Computed] = []
        metas = iter(kernel.metadata.tensordesc_meta or ())
        for at, (kind, argument) in enumerate(zip(kernel.src.signature.values(), given, strict=True)):
            here = len(self.template)
            if isinstance(argument, DescriptorArgument):
                axes = [place[1] for place in places if place[0] == at]
                self._numbers += [here + 1 + axis for axis in axes]
                computed = _Computed(here, argument.place, cuda.tensor_map_encoder(next(metas), argument.fields), axes)
                self._computed.append(computed)
                encoded = computed.encoder(None).template if computed.holds_address else b""
                self.template += [encoded, *argument.rest["shape"], *argument.rest["strides"]]
            elif kind != "constexpr":
                if (at,) in places:
                    self._numbers.append(here)
                elif isinstance(argument, AddressArgument):
                    if argument.offset:
                        self._computed.append(_Computed(here, argument))
                    else:
                        self._from_addresses[here] = argument.slot
                self.template.append(argument if isinstance(argument, (int, float)) else 0)

    def pointers(self, addresses: int) -> dict[int, int]:
        """The arguments that are an address of the call itself, or the number behind its addresses, and which."""
        return self._from_addresses | dict.fromkeys(self._numbers, addresses)

    def values(self, number: int | None) -> Sequence[tuple[Callable[[int], Any], AddressArgument]]:
        """For each argument that follows from an address: what makes it, and from which address."""
        return [(each.value(number), each.place) for each in self._computed]

    def maps(self, number: int | None) -> Mapping[int, bytes]:
        """The descriptors that hang on the number, by argument, where only their address is written at each call."""
        changed = [each for each in self._computed if each.axes and each.holds_address]
        return {each.here: each.encoder(number).template for each in changed}

    def writes(self, offsets: Sequence[int], frame: Frame) -> Sequence[Callable[[Any], None]]:
        """What writes, into a frame, what `values` makes."""
        return [each.writer(frame.memory, frame.arguments_at + offsets[each.here]) for each in self._computed]


class _Computed(NamedTuple):
    """An argument that follows from an address of the call: that address and an offset, or a descriptor.

    Attributes:
        here: Its index among the arguments as the device takes them.
        place: Where its memory lies.
        described: What encodes the descriptor as it was described; None of an address.
        axes: The descriptor's axes whose extent is the number.
    """

    here: int
    place: AddressArgument
    described: cuda.TensorMapEncoder | None = None
    axes: Sequence[int] = ()

    @property
    def holds_address(self) -> bool:
        """Whether it is a descriptor that is encoded once, and in which the address alone is written over."""
        return self.described is not None and cuda.address_in_map() is not None

    def encoder(self, number: int | None) -> cuda.TensorMapEncoder:
        """What encodes the descriptor."""
        assert self.described is not None
        return self.described if number is None or not self.axes else self.described.resized(self.axes, number)

    def value(self, number: int | None) -> Callable[[int], Any]:
        """What makes of an address what is written."""
        if self.described is None or self.holds_address:
            return int
        # They consist of address, sizes and strides, so they never become wrong.
        return BoundedCache(self.encoder(number), MOST_DESCRIPTORS).__getitem__

    def writer(self, memory: Any, at: int) -> Callable[[Any], None]:
        """What writes it, into memory where the argument begins at `at`."""
        if self.described is None:
            return functools.partial(struct.pack_into, "=Q", memory, at)
        within = cuda.address_in_map()
        code = f"{cuda.MAP_BYTES}s" if within is None else "Q"
        return functools.partial(struct.pack_into, f"={code}", memory, at + (within or 0))
