"""Compiled kernels that ship beside a table: each is found by a key of its launch and loaded without a compiler.

`tuner export --with-kernels` writes them into `<op>--<device slug>.kernels/`. They are used only under the Triton that
made them, on the same architecture and for the same source. Triton compiles everything else.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from tuner.errors import KernelError, TableError
from tuner.kernel.config import Config
from tuner.launch import active_driver, compat, nearest
from tuner.launch.plan import LaunchRange
from tuner.lookup import lookup
from tuner.lookup.resolver import Resolver
from tuner.lookup.row import BAD_VALUE
from tuner.lookup.table_files import KERNELS_SUFFIX
from tuner.problem import Problem
from tuner.version import __version__

FORMAT = "triton-tuner kernels"
VERSIONS = (1, 2)
"""Those that are read; the last is written. Version 2 says what ranges launch, see ready.py."""
INDEX = "index.json"
_log = logging.getLogger(__name__)


class Entry(NamedTuple):
    """One kernel of a folder.

    Attributes:
        key: The key of its launch, see `key_of`.
        source: Triton's hash of the jit function and of everything that it calls.
        signature: The types of the arguments by name, as Triton writes them; empty where the launch gives them.
        constants: The values compiled in, by their place among the arguments; empty where the launch gives them.
        files: The SHA-256 of its metadata and of its binary, by suffix. The files are named after these hashes.
        context: The key of everything that the binary depends on except source and arguments; "" where the launch gives
            all of its arguments.
        arguments: What the binary assumes of its arguments.
        kernel: Where the jit function stands, "package.module:name"; "" for what a table's rows launch.
    """

    key: str
    source: str
    signature: Mapping[str, str]
    constants: tuple[tuple[tuple[int, ...], Any], ...]
    files: Mapping[str, str]
    context: str = ""
    arguments: nearest.Arguments = MappingProxyType({})
    kernel: str = ""


class NotShippedError(KernelError):
    """Strict: no shipped binary launches this, and nothing is compiled.

    Attributes:
        advice: what to type, where nobody who knows the kernel catches this error.
    """

    advice = ""

    def __str__(self) -> str:
        return super().__str__() + self.advice


class ShippedBinaries:
    """The kernels of one op and device that can be loaded here."""

    def __init__(self) -> None:
        self.entries: dict[str, tuple[Path, Entry]] = {}
        self.ranges: dict[str, tuple[LaunchRange, ...]] = {}
        self._made: dict[tuple[str, int | None], Any] = {}
        self._bad: set[str] = set()

    def kernel(self, key: str, function: Any, index: int | None, source: Any = None) -> Any:
        """Load the kernel of a key for the current device; None where there is none.

        Args:
            key: See `key_of`.
            function: The jit function.
            index: The index of the current device.
            source: Triton's ASTSource of the launch; unless given, it is made from the entry's signature.
        """
        made = self._made.get((key, index))
        if made is not None or key not in self.entries or key in self._bad:
            return made
        folder, entry = self.entries[key]
        try:
            # There is no lock: two threads that load it at once both use the first one's.
            return self._made.setdefault((key, index), _load(folder, entry, function, source))
        except (TableError, OSError, *BAD_VALUE) as e:
            self._bad.add(key)
            _log.warning("%s: a kernel is not used: %s", folder, e)
            return None

    def launch_range(self, problem: Problem, config: Config) -> LaunchRange | None:
        """The Ms around a problem's for which this config is launched alike; None where the folder says none."""
        for each in self.ranges.get(range_key(problem, config), ()):
            if each.first_m <= problem.m <= each.last_m:
                return each
        return None

    def sources_of(self, kernel: str) -> set[str]:
        """Return which sources the binaries of a jit function were compiled from; see `Entry`."""
        return {entry.source for _, entry in self.entries.values() if entry.kernel == kernel}

    def nearest_kernel(self, src: Any, context: str, index: int | None) -> Any:
        """Load the kernel of a source that assumes as much of its arguments as a call keeps, and nothing else.

        Args:
            src: Triton's ASTSource of the launch.
            context: See `Entry`.
            index: The index of the current device.

        Raises:
            NotShippedError: none can be loaded; the message names the arguments that the one nearest to it refuses.
        """
        call, source = nearest.arguments_of(src) or {}, src.fn.cache_key
        of_source = [entry for _, entry in self.entries.values() if (entry.context, entry.source) == (context, source)]
        refused = {entry.key: nearest.misfits(entry.arguments, call) for entry in of_source}
        of_source.sort(key=lambda entry: (len(refused[entry.key]), -nearest.facts(entry.arguments)))
        for entry in of_source if call else ():
            if refused[entry.key]:
                names = ", ".join(refused[entry.key])
                raise NotShippedError(f"the nearest binary of {src.fn.__name__} that ships is for another {names}")
            signature = {name: kind for name, (kind, _, _) in entry.arguments.items()}
            constants = {name: value for name, (kind, value, _) in entry.arguments.items() if kind == "constexpr"}
            made = compat.ASTSource(src.fn, signature, constants)
            kernel = self.kernel(entry.key, src.fn, index, source=made)
            if kernel is not None:
                return kernel
        raise NotShippedError(f"no binary of {src.fn.__name__} by these constants and options ships")


def key_of(specialization: Mapping[str, Any]) -> str:
    """The key of a launch, from everything that its binary depends on except the source."""
    return hashlib.sha256(json.dumps(specialization, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def range_key(problem: Problem, config: Config) -> str:
    """The key of what this version's kernels launch by a config for a problem's family."""
    family = {"problem": problem.with_m(1).fields(), "kernel": config.kernel, "config": dict(config)}
    return key_of({**family, "triton_tuner": __version__})


def row_key(problem: Problem, config: Config) -> str:
    """The key of a row whose kernels are in a folder, the same in every process: 64 bits, which no chance repeats."""
    return key_of({"problem": str(problem), "source": problem.source, "config": config.label})[:16]


def folder_name(op: str, slug: str) -> str:
    """The name of a folder of kernels: `<op>--<device slug>.kernels`."""
    return f"{op}--{slug}{KERNELS_SUFFIX}"


def shipped_binaries(op: str, slug: str) -> ShippedBinaries | None:
    """The kernels that ship beside this process's tables; None where there are none for this Triton and device."""
    try:
        return _shipped[op, slug]
    except KeyError:
        pass
    resolver = lookup.resolver()
    made = ShippedBinaries()
    for folder in folders(resolver, folder_name(op, slug)):
        entries, ranges = _read(folder)
        for entry in entries:
            made.entries.setdefault(entry.key, (folder, entry))
        made.ranges = ranges | made.ranges
    found = made if made.entries else None
    _shipped[op, slug] = found
    if lookup.resolver() is not resolver:
        _shipped.pop((op, slug), None)
    return found


def folders(resolver: Resolver, name: str) -> list[Path]:
    """The folders of a name beside the tables of a resolver's sources, in their order."""
    from tuner.lookup import sources

    found: list[Path] = []
    for source in resolver.sources.all():
        place = sources.place_of(source)
        # What lies in a zip file is not loaded. A damaged table's op may be no name that a file can have.
        if isinstance(place, Path) and os.path.isfile(place / name / INDEX):  # noqa: PTH113  Path.is_file raises
            found.append(place / name)
    return found


def _read(folder: Path) -> tuple[list[Entry], dict[str, tuple[LaunchRange, ...]]]:
    """A folder's entries and ranges. There are none, and one warning, where they cannot be used on this machine."""
    document = index_of(folder)
    if document is None:
        return [], {}
    try:
        made_by, arch = str(document["triton"]), document["target"]
        entries = [entry_of(fields) for fields in document["kernels"]]
        ranges = {key: tuple(map(launch_range_of, found)) for key, found in document["ranges"].items()}
    except BAD_VALUE as e:
        _warn(folder, e)
        return [], {}
    here, target = triton_and_target()
    if made_by != here:
        _log.warning(
            "%s was made by Triton %s, here is %s: its kernels are not used; to ship them for this Triton: %stuner"
            " export DIR --with-kernels",
            folder,
            made_by,
            here,
            "tuner capture again, then " if any(each.kernel for each in entries) else "",
        )
        return [], {}
    if arch != target:
        _log.warning("%s is for %s, here is %s: not used", folder, arch, target)
        return [], {}
    return entries, ranges


def index_of(folder: Path) -> Mapping[str, Any] | None:
    """The index of a folder; None, and one warning, where it is none."""
    if folder not in _indexes:
        try:
            _indexes[folder] = checked(json.loads((folder / INDEX).read_text(encoding="utf-8")))
        except (TableError, OSError, *BAD_VALUE) as e:
            _warn(folder, e)
            _indexes[folder] = None
    return _indexes[folder]


def checked(document: Any) -> Mapping[str, Any]:
    """Return what a folder's index holds.

    Raises:
        TableError, KeyError, TypeError: it is none.
    """
    if document["format"] != FORMAT or document["version"] not in VERSIONS:
        expected = f"expected {FORMAT!r} {' or '.join(map(str, VERSIONS))}"
        raise TableError(f"format {document['format']!r} {document['version']!r}: {expected}")
    for name, kind in (("kernels", list), ("target", list), ("ranges", dict)):
        if not isinstance(document.setdefault(name, kind() if name == "ranges" else None), kind):
            raise TableError(f"its {name} are no {kind.__name__}")
    return document  # type: ignore[no-any-return]


def _warn(folder: Path, why: Exception) -> None:
    _log.warning("%s is not used: %s: export it again with --with-kernels", folder, why)


def entry_of(fields: Mapping[str, Any]) -> Entry:
    """Return an entry as a folder's index holds it.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    constants = tuple((tuple(int(step) for step in path), value) for path, value in fields["constants"])
    files = {str(suffix): str(digest) for suffix, digest in fields["files"].items()}
    signature = {str(name): str(kind) for name, kind in fields["signature"]}  # in the arguments' order
    context, arguments = fields.get("context", ""), fields.get("arguments", ())
    known = {str(name): (str(kind), str(value), frozenset(map(str, facts))) for name, kind, value, facts in arguments}
    kernel = str(fields.get("kernel", ""))
    return Entry(str(fields["key"]), str(fields["source"]), signature, constants, files, str(context), known, kernel)


def launch_range_of(fields: Sequence[Any]) -> LaunchRange:
    """Return a range as a folder's index holds it: the first M, the last, and by launch the places where M stands.

    Raises:
        TypeError, ValueError: it is none.
    """
    first_m, last_m, places, *_launches = fields
    return LaunchRange(int(first_m), int(last_m), [[tuple(map(int, place)) for place in each] for each in places])


def triton_and_target() -> tuple[str, list[Any]]:
    """The version of Triton, and the target that it compiles for."""
    import triton

    target = active_driver.active().get_current_target()
    return str(triton.__version__), [target.backend, target.arch, target.warp_size]


def _load(folder: Path, entry: Entry, function: Any, source: Any) -> Any:
    if function.cache_key != entry.source:
        raise TableError(f"{function.__name__} is another version than was compiled: export again with --with-kernels")
    paths: dict[str, Path] = {}
    for suffix, digest in entry.files.items():
        path = folder / f"{digest}.{suffix}"
        if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise TableError(f"{path.name} was changed: export again with --with-kernels")
        paths[f"{function.__name__}.{suffix}"] = path
    made = compat.ASTSource(function, dict(entry.signature), dict(entry.constants)) if source is None else source
    from tuner.launch.driver_launch import DriverKernel

    return DriverKernel(made, paths, entry.key)


_shipped: dict[tuple[str, str], ShippedBinaries | None] = {}
_indexes: dict[Path, Mapping[str, Any] | None] = {}
lookup.on_change(_shipped.clear)
lookup.on_change(_indexes.clear)
