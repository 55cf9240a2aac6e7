"""Launches that ship ready to run: a first call needs neither its kernel's host code nor Triton, whose import waits.

Beside binaries, the index of a folder (binaries.py) says of each range of Ms what it launches: which binaries, on what
grid, with which arguments. The driver loads and launches them. That holds for operands that lie as those did which were
described: row after row, at addresses that 16 bytes divide. All other calls take the long way.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from tuner.files import content
from tuner.hardware.device import Device
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.launch import arguments, binaries, cuda
from tuner.launch.binaries import Entry
from tuner.launch.plan import LaunchRange, arguments_without_memory, operands_of, recorded
from tuner.launch.step import RecordedLaunch
from tuner.lookup import lookup
from tuner.lookup.row import BAD_VALUE
from tuner.problem import Problem, dtype
from tuner.problem.batches import Key

ALIGNMENT = 16
"""Bytes that divide the addresses of described operands."""
_log = logging.getLogger(__name__)


class _Described(NamedTuple):
    """One launch as an index holds it: the key of its binary, and the rest of `RecordedLaunch`."""

    key: str
    grid: tuple[int, ...]
    given: Sequence[arguments.Argument]
    concurrent: bool


class ReadyRange(NamedTuple):
    """Ms that one config serves by launches that differ in M alone.

    Attributes:
        launch_range: The Ms.
        launches: What the first of them launches.
        operands: The strides and the dtypes of the tensors that `operands_of` lists.
        kernel_version: The version of the kernel that was asked.
    """

    launch_range: LaunchRange
    launches: Sequence[_Described]
    operands: Sequence[tuple[tuple[int, ...], torch.dtype]]
    kernel_version: int

    def lies_like(self, operands: Any) -> bool:
        """Whether the tensors of a call lie as those that were described."""
        given = operands_of(operands)
        if given is None or len(given) != len(self.operands):
            return False
        addresses = [each.data_ptr() for each in given]
        if math.gcd(*addresses) % ALIGNMENT or len({*addresses}) < len(addresses):
            return False
        return all((each.stride(), each.dtype) == expected for each, expected in zip(given, self.operands, strict=True))


class ReadyKernel:
    """A binary that ships, loaded by the driver: what the plan of a launch reads of a CompiledKernel.

    Attributes:
        function: Its handle on the current device.
    """

    def __init__(self, folder: Path, entry: Entry) -> None:
        """Load it onto the current device.

        Raises:
            OSError, AttributeError, KeyError, TypeError, ValueError: its files are not those that the index names.
            RuntimeError: the driver refuses it.
        """
        found = {suffix: content(f"{folder}/{digest}.{suffix}") for suffix, digest in entry.files.items()}
        if any(hashlib.sha256(found[suffix]).hexdigest() != digest for suffix, digest in entry.files.items()):
            raise ValueError("a file was changed")
        fields = json.loads(found["json"])
        self.metadata = SimpleNamespace(**{**fields, "target": SimpleNamespace(**fields["target"])})
        self.src = SimpleNamespace(signature=entry.signature)
        self._binary = found["cubin"]  # it must outlive the function
        self._loaded = cuda.load(fields["name"], self._binary, fields["shared"], cuda.current_device())
        self.function = self._loaded.function


class ReadyLaunches:
    """What the ranges of one op and device launch, by binaries of its folders."""

    def __init__(self, folders: Sequence[tuple[Path, Mapping[str, Any]]]) -> None:
        """Take folders with their indexes, the preferred first."""
        self._folders = folders
        self._entries: dict[str, tuple[Path, Mapping[str, Any]]] = {}
        for folder, index in reversed(folders):
            self._entries |= {each["key"]: (folder, each) for each in index["kernels"]}
        self._ranges: dict[tuple[Key, Config], tuple[ReadyRange, ...]] = {}
        self._made: dict[tuple[str, int | None], ReadyKernel] = {}

    def ranges(self, problem: Problem, config: Config) -> tuple[ReadyRange, ...]:
        """The ranges of a problem's family that a config serves."""
        known = self._ranges.get((problem.family, config))
        if known is None:
            known = self._ranges[problem.family, config] = self._read(binaries.range_key(problem, config))
        return known

    def range_of(self, problem: Problem, config: Config) -> ReadyRange | None:
        """The range that holds a problem's M; None where there is none."""
        held = (
            each
            for each in self.ranges(problem, config)
            if each.launch_range.first_m <= problem.m <= each.launch_range.last_m
        )
        return next(held, None)

    def launches(self, found: ReadyRange, m: int, index: int | None) -> list[RecordedLaunch]:
        """What an M of a range launches, loaded onto the current device.

        Raises:
            IndexError: it has no argument at a place of M.
            OSError, AttributeError, KeyError, TypeError, ValueError, RuntimeError: see `ReadyKernel`.
        """
        made = []
        for each, places in zip(found.launches, found.launch_range.places, strict=True):
            launch = RecordedLaunch(self._kernel(each.key, index), each.grid, each.given)
            made.append(launch.with_number(places, m))
            if each.concurrent:
                cuda.ask_for_shared(launch.kernel)
        return made

    def _kernel(self, key: str, index: int | None) -> ReadyKernel:
        made = self._made.get((key, index))
        if made is not None:
            return made
        folder, entry = self._entries[key]
        # There is no lock: two threads that load it at once both use the first one's.
        return self._made.setdefault((key, index), ReadyKernel(folder, binaries.entry_of(entry)))

    def _read(self, key: str) -> tuple[ReadyRange, ...]:
        for folder, index in self._folders:
            try:
                found = [_range_of(each) for each in index["ranges"].get(key, ()) if len(each) > 3 and each[3]]
            except BAD_VALUE as e:
                _log.warning("%s: launches are not used: %s: export it again with --with-kernels", folder, e)
                continue
            if found and all(launch.key in self._entries for each in found for launch in each.launches):
                return tuple(found)
        return ()


def ready_launches(op: str, device: Device, sources: Callable[[], str]) -> ReadyLaunches | None:
    """What ships ready beside this process's tables; None where nothing does for this device and these kernels.

    Args:
        op: The op.
        device: The device.
        sources: Returns the digest of the kernels' sources, as the index has it.
    """
    try:
        return _known[op, device.slug]
    except KeyError:
        pass
    resolver = lookup.resolver()
    found = [
        (folder, index)
        for folder in binaries.folders(resolver, binaries.folder_name(op, device.slug))
        if (index := binaries.index_of(folder)) is not None and _is_made_for(index, device, sources)
    ]
    made = ReadyLaunches(found) if found and cuda.launcher() is not None else None
    _known[op, device.slug] = made
    if lookup.resolver() is not resolver:
        _known.pop((op, device.slug), None)
    return made


def _is_made_for(index: Mapping[str, Any], device: Device, sources: Callable[[], str]) -> bool:
    backend, arch = [*index["target"], "", ""][:2]
    if not index.get("sources") or (backend, f"sm_{arch}") != ("cuda", device.arch) or index["sources"] != sources():
        return False
    return all(isinstance(each, dict) and isinstance(each.get("key"), str) for each in index["kernels"])


def described(problem: Problem, config: Config, entries: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """What a config launches for a problem, as an index holds it; None where that cannot be told without its kernel.

    Args:
        problem, config: What is launched.
        entries: The entries of an index by their keys.
    """
    spec = registry.find(problem.op, config.kernel, problem.source)
    with recorded(lambda _launch: None) as seen:  # nothing is compiled
        spec.compile(problem, config)
    given, operands = arguments_without_memory(seen), operands_of(seen.operands)
    if given is None or operands is None or not problem.aligned:
        return None
    launches = []
    for (launch, _), every in zip(seen.launches, given, strict=True):
        if launch.key not in entries:
            return None
        kinds = [kind for _, kind in entries[launch.key]["signature"]]
        values = [None if kind == "constexpr" else each for kind, each in zip(kinds, every, strict=True)]
        listed = {"kernel": launch.key, "grid": [*launch.grid, 1, 1][:3], "concurrent": launch.concurrent}
        launches.append({**listed, "arguments": arguments.to_json(values)})
    listed_operands = [[[*each.stride()], dtype.name_of(each.dtype)] for each in operands]
    return {"operands": listed_operands, "launches": launches, "kernel_version": spec.version}


def _range_of(fields: Sequence[Any]) -> ReadyRange:
    launch_range = binaries.launch_range_of(fields)
    launches = [
        _Described(
            str(each["kernel"]),
            tuple(map(int, each["grid"])),
            arguments.from_json(each["arguments"]),
            bool(each["concurrent"]),
        )
        for each in fields[3]["launches"]
    ]
    if len(launches) != len(launch_range.places):
        raise ValueError("it does not say where each launch has M")
    operands = [(tuple(map(int, strides)), dtype.to_torch(name)) for strides, name in fields[3]["operands"]]
    return ReadyRange(launch_range, launches, operands, int(fields[3]["kernel_version"]))


_known: dict[tuple[str, str], ReadyLaunches | None] = {}
lookup.on_change(_known.clear)
