"""Launches resolved once: what a call was seen to launch becomes a plan, and a call like it runs the plan.

A plan is made of a call that has run: the compiled kernels it launched, and where in their arguments the call's own
addresses stand. Nothing checks a plan's arguments any more, so whoever keeps plans asks first for all that the launches
depend on: shapes, strides, dtypes, alignment of addresses, device and options.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from tuner.launch import compat
from tuner.launch.arguments import AsCalled, Kept
from tuner.launch.step import Address, Step, make_step
from tuner.lookup import lookup

Make = Callable[[int], tuple[Any, ...]]
"""Makes a launch's temporary tensors on a stream, given by its handle."""
MOST_KEYS = 4096
"""Keys of plans of a few KB; beyond it all are forgotten: a process that sees so many shapes must not grow for ever."""
MOST_ADDRESSES = 8192
"""Addresses that plans are known to serve, some 400 B each: a model's weights by what its allocator gives in turn."""
MOST_OF_A_KEY = 16
"""Plans of one key: they are asked one after the other."""


class Launched(Protocol):
    """One launch of one jit function, as `tuner.launch.launch.Launch` has it."""

    @property
    def function(self) -> Any:
        """The jit function."""
        ...

    @property
    def grid(self) -> tuple[int, ...]:
        """Programs along one to three axes."""
        ...

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Everything before the constexprs, in the function's order."""
        ...

    @property
    def constants(self) -> Mapping[str, Any]:
        """Constexpr arguments by name."""
        ...

    @property
    def key(self) -> str:
        """What its binary depends on but the source, see `tuner.launch.binaries`."""
        ...


@dataclass(frozen=True, slots=True)
class Temporary:
    """Memory that a launch needs beside its operands.

    Attributes:
        tensors: those of the launch that was recorded.
        make: the like for another launch, on a stream given by its handle.
    """

    tensors: tuple[Any, ...]
    make: Make


@dataclass(slots=True)
class Recording:
    """What one call launched, in order.

    Attributes:
        find: a compiled kernel that was shipped for a launch, or None.
        launches: each launch with its CompiledKernel; None under the interpreter.
        temporaries: what it asked for besides.
        count: counts a call like it, where somebody counts them.
    """

    find: Callable[[Any], Any] | None = None
    launches: list[tuple[Launched, Any]] = field(default_factory=list)
    temporaries: list[Temporary] = field(default_factory=list)
    count: Callable[[], Any] | None = None

    def forget(self) -> None:
        """Begin anew: what was launched failed."""
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
    """What records this thread's launches now, if anything does."""
    return getattr(_local, "recording", None)


class Plan:
    """The launches of a call, ready to run again on other addresses."""

    __slots__ = ("index", "steps", "stream_of", "temporaries")

    def __init__(self, index: int, steps: Sequence[Step], temporaries: Sequence[Make]) -> None:
        self.index = index
        self.steps = tuple(steps)
        self.temporaries = tuple(temporaries)
        self.stream_of: Callable[[int], int] = compat.driver.active.get_current_stream

    def launcher(self) -> tuple[Callable[..., None], Mapping[tuple[int, ...], tuple[Any, ...]]]:
        """What `launch` comes to, with the least between: `function(*arguments[stream, *addresses])`."""
        if len(self.steps) == 1 and not self.temporaries and isinstance(self.steps[0], Kept):
            return self.steps[0].launch, self.steps[0].arguments
        return self.launch, AsCalled()

    def launch(self, stream: int, *addresses: int) -> None:
        """Launch on a stream of the plan's device, which must be the current device.

        Args:
            stream: its handle, `stream_of(index)` for the current one.
            addresses: of the call's tensors, in the order that the plan was made with.
        """
        held = [tensor for make in self.temporaries for tensor in make(stream)]  # until all is launched
        addresses += tuple([tensor.data_ptr() for tensor in held])
        for step in self.steps:
            step(stream, *addresses)


def make_plan(seen: Recording, addresses: Sequence[int | None], index: int) -> Plan | None:
    """The plan of a call that was recorded; None where its launches cannot be repeated without looking.

    Args:
        seen: what the call launched. All that it wrote was written by these launches.
        addresses: of the tensors that a later call will give, None for one it will not.
        index: of the CUDA device.
    """
    known = [Address(at, 1, slot) for slot, at in enumerate(addresses) if at is not None]
    if not seen.launches or len({each.start for each in known}) < len(known):
        return None
    slot = len(addresses)
    for temporary in seen.temporaries:
        for tensor in temporary.tensors:
            known.append(Address(tensor.data_ptr(), tensor.numel() * tensor.element_size(), slot))
            slot += 1
    steps = [make_step(launch, kernel, known) for launch, kernel in seen.launches]
    if any(step is None for step in steps):
        return None
    if seen.count is not None:
        steps.insert(0, _counting(seen.count))
    made = [temporary.make for temporary in seen.temporaries]
    return Plan(index, [step for step in steps if step is not None], made)


def _counting(count: Callable[[], Any]) -> Step:
    def step(*_called: int) -> None:
        count()

    return step


class Plans:
    """Plans by key, several under one where a key does not say all.

    A hit is one access of `by_key`, without a lock, or of `by_address`, which has those that served a call at these
    addresses last; `tuner.use` forgets them all.
    """

    def __init__(self) -> None:
        self.by_key: dict[Hashable, tuple[Any, ...]] = {}
        self.by_address: dict[Hashable, Any] = {}
        lookup.on_change(self.by_key.clear)
        lookup.on_change(self.by_address.clear)

    def keep(self, key: Hashable, plan: Any, sources: object) -> None:
        """Keep a plan, unless the sources are no longer those that its config was looked up in.

        Args:
            key: what tells most plans apart.
            plan: what `by_key` gives, the newest first.
            sources: `lookup.resolver()`, asked before the config was looked up.
        """
        if len(self.by_key) >= MOST_KEYS:
            self.by_key.clear()
        self.by_key[key] = (plan, *self.by_key.get(key, ())[: MOST_OF_A_KEY - 1])
        # `use` changes the resolver, then clears: whichever thread comes second removes what must not stay.
        if lookup.resolver() is not sources:
            self.by_key.pop(key, None)

    def seen(self, plan: Any, key: Hashable, at: Hashable) -> None:
        """Keep a plan of `by_key` under the addresses, and whatever else of a call, that it served."""
        if len(self.by_address) >= MOST_ADDRESSES:
            self.by_address.clear()
        self.by_address[at] = plan
        # `use` clears the keys first.
        if plan not in self.by_key.get(key, ()):
            self.by_address.pop(at, None)
