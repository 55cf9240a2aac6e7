"""One launch of a plan: a compiled kernel, its arguments ready but for addresses, and the cheapest way to the driver.

What is called is `CompiledKernel.run`, whose signature is the same in Triton 3.6 to 3.9, or, where this Triton's
launcher is known, the C function beneath it: without constexprs, with descriptors encoded once for each address.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

Step = Callable[[int, list[int]], None]
"""Launches on a stream, given by its handle, with the addresses of a call."""
MOST_MAPS = 256
"""Encoded descriptors kept for each descriptor argument, 128 B each; an allocator gives few addresses in turn."""
_KNOWN_LAUNCHERS = ("3.7", "3.8", "3.9")
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
        launch: see `tuner.runtime.launch.Launched`.
        kernel: the CompiledKernel it launched.
        known: memory whose addresses later calls will give.
    """
    from triton.compiler import CompiledKernel

    if not isinstance(kernel, CompiledKernel) or launch.function.pre_run_hooks:
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
    from triton.tools.tensor_descriptor import TensorDescriptor

    if argument is None or isinstance(argument, (int, float)):
        return argument
    if isinstance(argument, TensorDescriptor):
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

    def step(stream: int, addresses: list[int]) -> None:
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
    launcher = _lean_launcher(kernel, given)
    if launcher is None:
        return None
    template, places, maps = _flattened(kernel, given)
    launch, packed = launcher.launch, kernel.packed_metadata
    cooperative, overlapped = launcher.launch_cooperative_grid, launcher.launch_pdl
    annotations, signature = launcher.arg_annotations, launcher.kernel_signature
    x, y, z = grid
    plain = [(at, place.slot) for at, place in places if not place.offset]
    shifted = [(at, place.slot, place.offset) for at, place in places if place.offset]

    def step(stream: int, addresses: list[int]) -> None:
        arguments = template.copy()
        for at, slot in plain:
            arguments[at] = addresses[slot]
        if shifted:
            for at, slot, offset in shifted:
                arguments[at] = addresses[slot] + offset
        for at, slot, offset, known in maps:
            address = addresses[slot] + offset
            arguments[at] = known[address]
        launch(
            x,
            y,
            z,
            stream,
            kernel.function,
            cooperative,
            overlapped,
            packed,
            None,
            None,
            None,
            None,
            None,
            annotations,
            signature,
            arguments,
        )

    return step


class _Maps(dict[int, Any]):
    """Encoded descriptors by address. What they say is their address, sizes and strides: they never become wrong."""

    def __init__(self, descriptor: _Descriptor, made: Callable[..., list[Any]], meta: Any) -> None:
        super().__init__()
        self._descriptor, self._made = descriptor.rest, made
        self._rest = (meta, None)[: len(inspect.signature(made).parameters) - 1]

    def __missing__(self, at: int) -> Any:
        """Encode the descriptor of memory at an address, by Triton's own rules."""
        encoded = self._made(_at(self._descriptor, at), *self._rest)[0]
        if len(self) >= MOST_MAPS:
            self.clear()
        self[at] = encoded
        return encoded


def _lean_launcher(kernel: Any, given: Sequence[Any]) -> Any:
    """Triton's own launcher for the arguments as the device takes them: no constexprs, descriptors encoded."""
    import triton
    from triton.runtime.driver import driver

    module = type(kernel.run).__module__
    if not triton.__version__.startswith(_KNOWN_LAUNCHERS) or module != "triton.backends.nvidia.driver":
        return None
    metadata = kernel.metadata
    scratch = metadata.global_scratch_size or metadata.profile_scratch_size
    if scratch or getattr(kernel.run, "gsan_enabled", False) or not _encodes(metadata, given):
        return None
    types: list[str] = []
    for kind, argument in zip(kernel.src.signature.values(), given, strict=True):
        if not isinstance(kind, str):
            return None
        if isinstance(argument, _Descriptor):
            rank = len(argument.rest["shape"])
            types += ["nvTmaDesc", *["i32"] * rank, *["i64"] * rank]
        elif kind != "constexpr":
            types.append(kind)
    source = SimpleNamespace(fn=kernel.src.fn, constants={}, signature={str(at): kind for at, kind in enumerate(types)})
    return driver.active.launcher_cls(source, metadata._replace(tensordesc_meta=None))


def _encodes(metadata: Any, given: Sequence[Any]) -> bool:
    """Whether each descriptor goes to the device encoded, as the binary's metadata has it."""
    count = sum(isinstance(argument, _Descriptor) for argument in given)
    return "tensordesc_meta" in metadata._fields and len(metadata.tensordesc_meta or ()) == count


def _flattened(
    kernel: Any, given: Sequence[Any]
) -> tuple[list[Any], list[tuple[int, _Place]], list[tuple[int, int, int, _Maps]]]:
    """Arguments as the device takes them; where addresses go among them; where descriptors go."""
    made = sys.modules["triton.backends.nvidia.driver"].make_tensordesc_arg
    metas = iter(kernel.metadata.tensordesc_meta or ())
    template: list[Any] = []
    places: list[tuple[int, _Place]] = []
    maps: list[tuple[int, int, int, _Maps]] = []
    for kind, argument in zip(kernel.src.signature.values(), given, strict=True):
        if isinstance(argument, _Descriptor):
            place = argument.place
            maps.append((len(template), place.slot, place.offset, _Maps(argument, made, next(metas))))
            template += [None, *argument.rest["shape"], *argument.rest["strides"]]
        elif kind != "constexpr":
            if isinstance(argument, _Place):
                places.append((len(template), argument))
            template.append(argument)
    return template, places, maps
