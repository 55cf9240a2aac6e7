"""Compiled kernels beside tables: those of the winners, and those of the defaults for what no winner serves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner import files
from tuner.errors import KernelError, TableError, in_short
from tuner.hardware.device import Device
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.launch import compat, compile_cache, nearest
from tuner.launch.binaries import FORMAT, INDEX, VERSION, folder_name
from tuner.launch.plan import recorded
from tuner.lookup import match_rules
from tuner.lookup.row import Row
from tuner.lookup.table import Table
from tuner.problem import Problem

_BINARIES = ("cubin", "hsaco")


@dataclass(frozen=True, slots=True)
class Written:
    """A folder of kernels that was written, and the configs that did not compile, with the reasons."""

    path: Path
    kernels: int
    nbytes: int
    failed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A compiled kernel: its entry in the index, and its files' contents by name."""

    entry: dict[str, Any]
    files: dict[str, bytes]


def write(table: Table, directory: Path) -> Written:
    """Compile what a table's rows and the defaults beside them launch; write it beside the table.

    It needs no GPU: Triton's active driver says what to compile for. Each row's problem has a default for two
    alignments: its own, and operands that 16 bytes do not divide.

    Raises:
        TableError: the folder cannot be written, or nothing compiled.
    """
    failed: list[str] = []
    made: dict[str, _Kernel] = {}
    for problem, config in served(table.rows, table.device):
        try:
            for kernel in _compiled(problem, config):
                made.setdefault(kernel.entry["key"], kernel)
        except Exception as e:  # noqa: BLE001  a compiler raises anything; that config compiles where it is launched
            failed.append(f"{problem}: {config}: {in_short(e)}"[:300])
    if not made:
        raise TableError(f"no kernel of {table.file_name} compiled: {failed[0] if failed else 'it has no row'}")
    folder = directory / folder_name(table.op, table.device.slug)
    files.make_folder(folder)
    kernels = [made[key] for key in sorted(made)]
    _write_files(folder, kernels)
    contents = {name: content for kernel in kernels for name, content in kernel.files.items()}
    return Written(folder, len(kernels), sum(map(len, contents.values())), tuple(failed))


def served(rows: Sequence[Row], device: Device) -> Iterator[tuple[Problem, Config]]:
    """What calls of the problems of rows launch on a device, with each class of binaries once."""
    seen: set[tuple[str, str]] = set()
    for problem, config in _asked(rows, device):
        try:
            compile_class = registry.find(problem.op, config.kernel, problem.source).compile_class(problem, config)
        except (KernelError, NotImplementedError):
            if not problem.is_keyed:
                continue
            compile_class = str(problem)  # to be told below why it does not compile
        if (config.kernel, compile_class) not in seen:
            seen.add((config.kernel, compile_class))
            yield problem, config


def _asked(rows: Sequence[Row], device: Device) -> Iterator[tuple[Problem, Config]]:
    for row in rows:
        yield row.problem, row.config
    for row in rows:
        for problem in _alignments(row.problem):
            config = _default(problem, device)
            if config is not None:
                yield problem, config


def _alignments(problem: Problem) -> Iterable[Problem]:
    if problem.is_keyed:  # a fact of its own: who makes its arguments, makes those of a row
        return ()
    return dict.fromkeys((problem, Problem.from_fields({**problem.fields(), "aligned": False})))


def _default(problem: Problem, device: Device) -> Config | None:
    try:
        return match_rules.default_config(problem, device)[0]  # as a lookup asks for it
    except KernelError:
        return None


def _compiled(problem: Problem, config: Config) -> Iterator[_Kernel]:
    with recorded() as seen, compile_cache.collect_compiled() as compiled:
        registry.find(problem.op, config.kernel, problem.source).compile(problem, config)
    if problem.is_keyed:
        for each in compiled:
            entry = _entry(each.key, each.kernel, [], [])  # Triton says the rest where it would compile
            arguments = nearest.arguments_of(each.kernel.src)
            if arguments is not None:
                listed = [[name, kind, value, sorted(facts)] for name, (kind, value, facts) in arguments.items()]
                entry.entry.update(context=each.context, arguments=listed)
            yield entry
    for launch, kernel in seen.launches:
        signature = [[name, kind] for name, kind in kernel.src.signature.items()]
        constants = [[list(path), value] for path, value in kernel.src.constants.items()]
        # A kernel whose constants JSON cannot hold compiles where it is launched.
        if all(value is None or isinstance(value, (bool, int, float, str)) for _, value in constants):
            yield _entry(launch.key, kernel, signature, constants)


def _entry(key: str, kernel: Any, signature: list[Any], constants: list[Any]) -> _Kernel:
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
    return _Kernel(entry, {f"{digests[suffix]}.{suffix}": content for suffix, content in contents.items()})


def _write_files(folder: Path, kernels: list[_Kernel]) -> None:
    """Write the binaries, then the index that names them, and remove what it does not name."""
    import triton

    target = compat.driver.active.get_current_target()
    document = {
        "format": FORMAT,
        "version": VERSION,
        "triton": str(triton.__version__),
        "target": [target.backend, target.arch, target.warp_size],
        "kernels": [kernel.entry for kernel in kernels],
    }
    contents = {name: content for kernel in kernels for name, content in kernel.files.items()}
    try:
        for name, content in sorted(contents.items()):
            with files.replacing(folder / name) as temporary:
                temporary.write_bytes(content)
        files.write_text(folder / INDEX, json.dumps(document, indent=1, sort_keys=True) + "\n", error=TableError)
        for old in folder.iterdir():
            if old.suffix in (".json", ".tmp", *(f".{suffix}" for suffix in _BINARIES)) and old.name not in {
                *contents,
                INDEX,
            }:
                old.unlink()
    except OSError as e:
        raise TableError(f"cannot write {folder}: {e.strerror or e}") from e
