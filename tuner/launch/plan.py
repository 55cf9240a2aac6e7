"""Launch plans: what a call was recorded to launch, ready to run again on other addresses.

A plan is made from a call that has run. It has the compiled kernels, and the places among their arguments where the
call's addresses go. A plan checks nothing, so whoever stores plans must first compare everything that the launches
depend on: shapes, strides, dtypes, alignment of addresses, device and options.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tuner.bounded import make_room
from tuner.launch import active_driver, compat
from tuner.launch.arguments import Address, Argument, Place, arguments_of
from tuner.launch.step import RecordedLaunch, Step, recorded_launch
from tuner.lookup import lookup

Make = Callable[[int], tuple[Any, ...]]
"""Makes a launch's temporary tensors on a stream, which is given by its handle."""
LAST_M = 1024
"""The last M of ranges that is looked at: what a server decodes at once. A longer prefill takes milliseconds anyway."""
MOST_KEYS = 4096
"""Keys with plans, of a few KB each."""
MOST_ADDRESSES = 8192
"""Combinations of addresses with a plan, about 400 B each: a model's weights times the outputs that torch reuses."""
MOST_OF_A_KEY = 16
"""Plans of one key at most: they are tried one after the other."""


class Temporary(NamedTuple):
    """Memory that a launch needs beside its operands.

    Attributes:
        tensors: The tensors of the launch that was recorded.
        make: Makes such tensors for another launch, on a stream given by its handle.
    """

    tensors: tuple[Any, ...]
    make: Make


class LaunchRange(NamedTuple):
    """Ms that one config serves by the same launches, in which M alone differs.

    Attributes:
        first_m, last_m: The first and the last of them.
        places: Where each launch is given M.
        serves: Whether a lookup gives this config for one of these Ms, too.
    """

    first_m: int
    last_m: int
    places: Sequence[Sequence[Place]]
    serves: Callable[[int], bool] = lambda _m: True


class PreparedRange(NamedTuple):
    """What operands without memory would launch for Ms that are launched alike.

    Attributes:
        launch_range: The Ms.
        launches: Returns what the first of them launches; a kernel that is not loaded yet is loaded then, and what
            cannot be raises one of `failures(*UNREADABLE)`.
    """

    launch_range: LaunchRange
    launches: Callable[[], Sequence[RecordedLaunch]]


class PreparedLaunches(NamedTuple):
    """What operands without memory would launch.

    Attributes:
        own: What they would for the call's own problem and config.
        ranges: What they would for other Ms of its family.
    """

    own: Sequence[RecordedLaunch]
    ranges: Sequence[PreparedRange]


@dataclass(slots=True)
class Recording:
    """What one call launched, in order.

    Attributes:
        find: Returns the compiled kernel that was shipped for a launch, or None.
        launches: Each `tuner.launch.launch.Launch` with its CompiledKernel, which is None under the interpreter.
        temporaries: The memory that the launches needed besides their operands.
        count: Counts such a call, where calls are counted.
        launch_range: Other Ms whose launches are known to be like these, where binaries say so.
        ahead: The launches of the family's other Ms, where they were prepared.
        operands: The operands without memory, where they were made for what was recorded.
        ready: What it launched without its kernel's host code, see `ready.ReadyLaunches`; None where it did not.
    """

    find: Callable[[Any], Any] | None = None
    launches: list[tuple[Any, Any]] = field(default_factory=list)
    temporaries: list[Temporary] = field(default_factory=list)
    count: Callable[[], Any] | None = None
    launch_range: LaunchRange | None = None
    ahead: PreparedLaunches | None = None
    operands: Any = None
    ready: Sequence[RecordedLaunch] | None = None

    def forget(self) -> None:
        """Drop everything, because a launch failed."""
        self.launches.clear()
        self.temporaries.clear()


_local = threading.local()


@contextmanager
def recorded(find: Callable[[Any], Any] | None = None) -> Iterator[Recording]:
    """Record what this thread launches inside the block."""
    before = recording()
    _local.recording = made = Recording(find)
    try:
        yield made
    finally:
        _local.recording = before


def recording() -> Recording | None:
    """The innermost active recording of this thread, if there is one."""
    return getattr(_local, "recording", None)


def stream_of() -> Callable[[int], int]:
    """The function that returns the handle of a device's current stream, by the device's index."""
    found: Callable[[int], int] = compat.cuda_stream_of or active_driver.active().get_current_stream
    return found


class LaunchPlan:
    """The launches of a call, ready to run again on other addresses."""

    __slots__ = ("index", "steps", "stream_of", "temporaries")

    def __init__(self, index: int, steps: Sequence[Step], temporaries: Sequence[Make]) -> None:
        self.index = index
        self.steps = tuple(steps)
        self.temporaries = tuple(temporaries)
        self.stream_of = stream_of()

    def launcher(self) -> Callable[..., None]:
        """The cheapest function that does what `launch` does."""
        return self.launch if len(self.steps) > 1 or self.temporaries else self.steps[0]

    def launch(self, stream: int, *addresses: int) -> None:
        """Launch on a stream of the plan's device, which must be the current device.

        Args:
            stream: The stream's handle, `stream_of(index)` for the current stream.
            addresses: The addresses of the call's tensors, in the order that the plan was made with.
        """
        held = [tensor for make in self.temporaries for tensor in make(stream)]  # alive until everything is launched
        addresses += tuple([tensor.data_ptr() for tensor in held])
        for step in self.steps:
            step(stream, *addresses)


def recorded_launches(seen: Recording, addresses: Sequence[int | None]) -> list[RecordedLaunch] | None:
    """The launches of a recorded call; None where addresses are not enough to repeat them.

    Args:
        seen: What the call launched; everything that it wrote was written by these launches.
        addresses: The addresses of the tensors that a later call will give, None for one that it will not give.
    """
    if seen.ready is not None:
        return None if None in addresses else [*seen.ready]
    memory = [Address(at, 1, slot) for slot, at in enumerate(addresses) if at is not None]
    if not seen.launches or len({each.start for each in memory}) < len(memory):
        return None
    slot = len(addresses)
    for temporary in seen.temporaries:
        for tensor in temporary.tensors:
            memory.append(Address(tensor.data_ptr(), tensor.numel() * tensor.element_size(), slot))
            slot += 1
    launches = [recorded_launch(launch, kernel, memory) for launch, kernel in seen.launches]
    known = [each for each in launches if each is not None]
    return known if len(known) == len(launches) else None


def launches_without_memory(seen: Recording) -> list[RecordedLaunch] | None:
    """The launches of operands without memory; None where addresses are not enough to repeat them.

    A later call gives the addresses of the result, of A, of B, of `up` and of a bias, if there are such.
    """
    memory = _without_memory(seen)
    if memory is None:
        return None
    launches = [recorded_launch(launch, kernel, memory, _address_without_memory) for launch, kernel in seen.launches]
    known = [each for each in launches if each is not None]
    return known if len(known) == len(launches) else None


def arguments_without_memory(seen: Recording) -> list[list[Argument]] | None:
    """The arguments of each launch of operands without memory, see `launches_without_memory`."""
    memory = _without_memory(seen)
    if memory is None:
        return None
    found = [arguments_of(launch, memory, _address_without_memory) for launch, _ in seen.launches]
    known = [each for each in found if each is not None]
    return known if len(known) == len(found) else None


def _without_memory(seen: Recording) -> list[Address] | None:
    """What stands for the memory of operands without memory; None where they are not all that was launched on."""
    given = operands_of(seen.operands)
    if given is None or seen.temporaries or not seen.launches:
        return None
    return [Address(_address_without_memory(each), 1, slot) for slot, each in enumerate(given)]


_MORE_TENSORS = ("up", "second", "third", "bias", "second_bias", "third_bias")


def operands_of(operands: Any) -> list[Any] | None:
    """A call's tensors in the order of its addresses: output, A, all weights and biases; None where it has others."""
    others = (getattr(operands, name, None) for name in ("scale_a", "scale_b", "ends", "experts"))
    if not hasattr(operands, "b") or any(each is not None for each in others):
        return None
    more = (getattr(operands, name, None) for name in _MORE_TENSORS)
    given = [operands.out, operands.a, operands.b, *more]
    return [each for each in given if each is not None]


def _address_without_memory(tensor: Any) -> int:
    """A number that tells apart where tensors of the device "meta" begin."""
    storage: int = tensor.untyped_storage()._cdata
    within: int = tensor.storage_offset() * tensor.element_size()
    return (storage << 32) + within


def make_plan(seen: Recording, launches: Sequence[RecordedLaunch], index: int) -> LaunchPlan:
    """Make the plan of a recorded call.

    Args:
        seen: What the call launched.
        launches: The same, as `recorded_launches` gives it.
        index: The index of the CUDA device.
    """
    steps = [each.step() for each in launches]
    if (count := seen.count) is not None:
        steps.insert(0, lambda *_called: count())
    return LaunchPlan(index, steps, [temporary.make for temporary in seen.temporaries])


class PlanCache:
    """Plans by key, several under one key where the key does not tell them apart.

    A hit takes one access, without a lock, of `by_address`, which has the plan that last served these addresses, or of
    `by_key`. `tuner.use` drops all plans.
    """

    def __init__(self) -> None:
        self.by_key: dict[Hashable, tuple[Any, ...]] = {}
        self.by_address: dict[Hashable, Any] = {}
        lookup.on_change(self.by_key.clear)
        lookup.on_change(self.by_address.clear)

    def add(self, key: Hashable, plan: Any, sources: object) -> None:
        """Store a plan, unless the sources have changed since its config was looked up.

        Args:
            key: Tells most plans apart.
            plan: The plan, which becomes the first of its key.
            sources: `lookup.resolver()`, asked before the config was looked up.
        """
        make_room(self.by_key, MOST_KEYS)
        self.by_key[key] = (plan, *self.by_key.get(key, ())[: MOST_OF_A_KEY - 1])
        # `use` changes the resolver, then clears: whichever thread comes second removes what must not stay.
        if lookup.resolver() is not sources:
            self.by_key.pop(key, None)

    def add_address(self, plan: Any, key: Hashable, at: Hashable) -> None:
        """Store a plan of `by_key` under the addresses and options that it served."""
        make_room(self.by_address, MOST_ADDRESSES)
        self.by_address[at] = plan
        # `use` clears the keys first.
        if plan not in self.by_key.get(key, ()):
            self.by_address.pop(at, None)
