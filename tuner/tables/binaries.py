"""Compiled kernels beside tables: those of the winners, and of the defaults for operands that no winner serves."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tuner import files
from tuner.errors import KernelError, TableError, in_short
from tuner.hardware import device as devices
from tuner.hardware.device import Device
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.kernels.base import sources
from tuner.launch import compile_cache, nearest
from tuner.launch.binaries import (
    FORMAT,
    INDEX,
    VERSIONS,
    checked,
    folder_name,
    range_key,
    row_key,
    triton_and_target,
)
from tuner.launch.compile_cache import Compiled
from tuner.launch.launch_range import launch_ranges
from tuner.launch.plan import LaunchRange, recorded
from tuner.launch.ready import described
from tuner.lookup import match_rules
from tuner.lookup.row import BAD_VALUE, Row
from tuner.lookup.table import Table
from tuner.problem import Problem
from tuner.problem.family import Range, ms_of_each_kind
from tuner.sweep.host_errors import host_error_in, why_uncompiled
from tuner.tables.export import usable

_BINARIES = ("cubin", "hsaco")


@dataclass(frozen=True, slots=True)
class Written:
    """A folder of kernels that was written.

    Attributes:
        path: the folder.
        keys: the keys of its kernels.
        nbytes: how large its binaries are.
        failed: the rows that a lookup refuses and the configs that did not compile, with the reasons.
    """

    path: Path
    keys: frozenset[str]
    nbytes: int
    failed: tuple[str, ...] = ()

    @property
    def kernels(self) -> int:
        """How many kernels it has."""
        return len(self.keys)


@dataclass(frozen=True, slots=True)
class CompiledEntry:
    """A compiled kernel: its entry in the index, and its files' contents by suffix."""

    entry: dict[str, Any]
    contents: dict[str, bytes]

    @property
    def files(self) -> dict[str, bytes]:
        """The contents by the names of the files."""
        return {f"{self.entry['files'][suffix]}.{suffix}": content for suffix, content in self.contents.items()}


def asked(table: Table) -> list[tuple[Problem, Config]]:
    """What a table's rows launch, and beside them the defaults for operands that 16 bytes do not divide.

    Of each class of binaries there is one. Rows that a lookup refuses launch nothing.
    """
    table, _ = _usable(table)
    return list(served(table.rows, table.device, _ranges(table)))


def write(
    table: Table,
    directory: Path,
    launched: Sequence[tuple[Problem, Config]] | None = None,
    broken: Mapping[tuple[Problem, Config], str] = MappingProxyType({}),
) -> Written:
    """Compile what a table launches, and write it beside the table.

    It needs no GPU: Triton's active driver says what to compile for.

    Args:
        table: the table.
        directory: where it lies.
        launched: what `asked` gave, where it was asked already; Triton's cache may have it.
        broken: what of it is known not to compile, and why.

    Raises:
        TableError: the folder cannot be written, or nothing compiled.
    """
    table, failed = _usable(table)
    made: dict[str, CompiledEntry] = {}
    classes: set[tuple[str, str] | None] = set()
    broken = dict(broken)
    for problem, config in asked(table) if launched is None else launched:
        try:
            if (problem, config) not in broken:
                for kernel in _compiled(problem, config):
                    made.setdefault(kernel.entry["key"], kernel)
                    classes.add(_class_of(problem, config))
        except Exception as e:  # a compiler raises anything; that config compiles where it is launched
            if (error := host_error_in(e)) is not None:
                raise TableError(why_uncompiled(error)) from e
            broken[problem, config] = in_short(e)
    failed += [f"{problem}: {config}: {reason}"[:300] for (problem, config), reason in broken.items()]
    if not made:
        raise TableError(f"no kernel of {table.file_name} compiled: {failed[0] if failed else 'it has no row'}")
    folder = directory / folder_name(table.op, table.device.slug)
    with devices.expected(table.device):  # which decides how many programs a persistent kernel has
        listed = _listed_ranges(table, _ranges(table), made)
    rows = [row_key(row.problem, row.config) for row in table.rows if _class_of(row.problem, row.config) in classes]
    found = write_entries(folder, made, triton_and_target(), listed, rows)
    return replace(found, failed=tuple(failed))


def _usable(table: Table) -> tuple[Table, list[str]]:
    """A table without the rows that a lookup refuses, and why it does."""
    rows, refused = usable(table.rows, table.device)
    return replace(table, rows=tuple(rows)), [f"{row.problem}: {reason}"[:300] for row, reason in refused.items()]


def _ranges(table: Table) -> list[tuple[Problem, Range]]:
    return [(family.at(each.row_m), each) for family in table.families for each in family.ranges]


def _listed_ranges(
    table: Table, ranges: Iterable[tuple[Problem, Range]], made: Mapping[str, CompiledEntry]
) -> dict[str, list[Any]]:
    """By `range_key`, the Ms of ranges and rows that are launched alike, and what they launch, for an index."""
    entries = {key: kernel.entry for key, kernel in made.items()}
    configs = {row.problem: row.config for row in table.rows}
    listed = [(problem, each.first_m, each.last_m) for problem, each in ranges if problem in configs]
    listed += [(problem, problem.m, problem.m) for problem in configs if not problem.is_keyed]
    found: dict[str, list[Any]] = {}
    for problem, first_m, last_m in listed:
        known = found.setdefault(range_key(problem, configs[problem]), [])
        if any(first <= first_m and last_m <= last for first, last, *_ in known):
            continue
        with contextlib.suppress(Exception):  # a kernel without launches, of which the compiles told already
            known += [
                _listed(problem, configs[problem], one, entries)
                for one in launch_ranges(problem, configs[problem], first_m, last_m)
            ]
    return {key: known for key, known in found.items() if known}


def _listed(
    problem: Problem, config: Config, launch_range: LaunchRange, entries: Mapping[str, Mapping[str, Any]]
) -> list[Any]:
    launches = described(problem.with_m(launch_range.first_m), config, entries)
    return [launch_range.first_m, launch_range.last_m, launch_range.places, launches]


def served(
    rows: Sequence[Row], device: Device, ranges: Iterable[tuple[Problem, Range]]
) -> Iterator[tuple[Problem, Config]]:
    """What calls of the problems of rows launch, and of ranges by their rows' problems; each class of binaries once."""
    seen: set[tuple[str, str] | None] = {None}
    for problem, config in _asked(rows, device, ranges):
        found = _class_of(problem, config)
        if found not in seen:
            seen.add(found)
            yield problem, config


def _class_of(problem: Problem, config: Config) -> tuple[str, str] | None:
    """The kernel and the class of binaries that a config launches; None where nothing is compiled before its call."""
    try:
        spec = registry.find(problem.op, config.kernel, problem.source)
        return config.kernel, registry.ask(spec, "compile_class", problem, config)
    except (KernelError, NotImplementedError):
        return (config.kernel, str(problem)) if problem.is_keyed else None  # `write` tells why a key does not compile


def _asked(
    rows: Sequence[Row], device: Device, ranges: Iterable[tuple[Problem, Range]]
) -> Iterator[tuple[Problem, Config]]:
    for row in rows:
        yield row.problem, row.config
    configs = {row.problem: row.config for row in rows}
    for problem, each in ranges:
        if problem in configs:
            for m in ms_of_each_kind(problem, each.first_m, each.last_m):
                yield problem.with_m(m), configs[problem]
    for row in rows:
        if row.problem.aligned and not row.problem.is_keyed:  # of a key, alignment is what its arguments are made with
            problem = Problem.from_fields({**row.problem.fields(), "aligned": False})
            if (config := _default(problem, device)) is not None:
                yield problem, config


def _default(problem: Problem, device: Device) -> Config | None:
    try:
        return match_rules.default_config(problem, device)[0]  # as a lookup asks for it
    except KernelError:
        return None


def _compiled(problem: Problem, config: Config) -> Iterator[CompiledEntry]:
    with recorded() as seen, compile_cache.collect_compiled() as compiled:
        registry.find(problem.op, config.kernel, problem.source).compile(problem, config)
    if problem.is_keyed:
        yield from map(entry_of, compiled)
    for launch, kernel in seen.launches:
        signature = [[name, kind] for name, kind in kernel.src.signature.items()]
        constants = [[list(path), value] for path, value in kernel.src.constants.items()]
        # A kernel whose constants JSON cannot hold compiles where it is launched.
        if all(value is None or isinstance(value, (bool, int, float, str)) for _, value in constants):
            yield _entry(launch.key, kernel, signature, constants)


def entry_of(compiled: Compiled) -> CompiledEntry:
    """Return the entry of a kernel that Triton itself launches, which says the rest where it would compile."""
    found = _entry(compiled.key, compiled.kernel, [], [])
    arguments = nearest.arguments_of(compiled.kernel.src)
    if arguments is not None:
        listed = [[name, kind, value, sorted(facts)] for name, (kind, value, facts) in arguments.items()]
        found.entry.update(context=compiled.context, arguments=listed)
    return found


def _entry(key: str, kernel: Any, signature: list[Any], constants: list[Any]) -> CompiledEntry:
    (suffix,) = (suffix for suffix in _BINARIES if suffix in kernel.asm)
    metadata = next(Path(path) for name, path in kernel.metadata_group.items() if name.endswith(".json"))
    contents = {"json": metadata.read_bytes(), suffix: kernel.asm[suffix]}
    digests = {suffix: hashlib.sha256(content).hexdigest() for suffix, content in contents.items()}
    entry = {
        "key": key,
        "function": kernel.src.fn.__name__,
        "source": kernel.src.fn.cache_key,
        "signature": signature,
        "constants": constants,
        "files": digests,
    }
    return CompiledEntry(entry, contents)


def write_entries(
    folder: Path,
    made: Mapping[str, CompiledEntry],
    compiler: tuple[str, Sequence[Any]],
    ranges: Mapping[str, Sequence[Any]] = MappingProxyType({}),
    rows: Iterable[str] = (),
) -> Written:
    """Write binaries, then the index that names them, and remove what neither it nor the index before names.

    A process that serves loads a binary when it first needs it, by the index that it read before. A Python package
    keeps nothing of before: all that lies in it is shipped.

    Args:
        folder: the folder, which is made where it is missing.
        made: the kernels by their keys.
        compiler: the version of Triton that compiled them, and what for; see `triton_and_target`.
        ranges: what the index says of the launches of ranges, by `range_key`.
        rows: the rows whose kernels these are, by `row_key`.

    Raises:
        TableError: the folder cannot be written.
    """
    kernels = [made[key] for key in sorted(made)]
    document = {
        "format": FORMAT,
        "version": VERSIONS[-1],
        "triton": compiler[0],
        "target": compiler[1],
        "sources": sources.digest(),
        "kernels": [kernel.entry for kernel in kernels],
        "ranges": dict(ranges),
        "rows": sorted(rows),
    }
    contents = {name: content for kernel in kernels for name, content in kernel.files.items()}
    files.make_folder(folder)
    try:
        with files.sole_writer(folder):  # who removes what is not its own would take away another's
            _replace_all(folder, contents, document)
    except OSError as e:
        raise TableError(f"cannot write {folder}: {e.strerror or e}") from e
    return Written(folder, frozenset(made), sum(map(len, contents.values())))


def _replace_all(folder: Path, contents: Mapping[str, bytes], document: Mapping[str, Any]) -> None:
    kept = {*contents, INDEX}
    if not (folder.parent / "__init__.py").exists():
        kept |= _named_by(folder / INDEX)
    for name, content in sorted(contents.items()):
        with files.replacing(folder / name) as temporary:
            temporary.write_bytes(content)
    files.write_text(
        folder / INDEX, json.dumps(document, separators=(",", ":"), sort_keys=True) + "\n", error=TableError
    )
    for old in folder.iterdir():
        if old.suffix in (".json", ".tmp", *(f".{suffix}" for suffix in _BINARIES)) and old.name not in kept:
            old.unlink()


def _named_by(index: Path) -> set[str]:
    """The files that an index names; none where it is missing or damaged."""
    try:
        entries = checked(files.parse_json(index.read_bytes()))["kernels"]
        return {f"{digest}.{suffix}" for entry in entries for suffix, digest in entry["files"].items()}
    except (TableError, OSError, *BAD_VALUE):
        return set()
