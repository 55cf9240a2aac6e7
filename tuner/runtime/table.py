"""An exported table: the winners of one op on one device, as a file that ships.

The file is JSON with one row a line, sorted so that two exports differ only where the winners do. Reading is lenient:
a row that cannot be used is left out and said, the others stay.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.config import Config
from tuner.device import Device, Environment
from tuner.errors import TableError, TunerError
from tuner.problem import Problem

if TYPE_CHECKING:
    from importlib.abc import Traversable

FORMAT = "triton-tuner table"
VERSION = 1
"""Of the format. A file of a newer one is refused: nobody can know what its rows mean."""
TWICE = "is there already"
"""How the fault of a second row of one problem ends."""
BAD_VALUE = (TunerError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What a value of the wrong kind raises on its way into a problem, a config or a rule."""

_LONGEST = 300  # characters of a reason


@dataclass(frozen=True, slots=True)
class Provenance:
    """How a row was made.

    Attributes:
        environment: the versions it was measured under.
        protocol: the measuring protocol's number.
        tool_version: of triton-tuner when the winner was decided.
    """

    environment: Environment
    protocol: int
    tool_version: str


@dataclass(frozen=True, slots=True)
class Row:
    """A winner as it ships.

    Attributes:
        problem, config: what was chosen for what.
        kernel_version: of the config's kernel when it was measured.
        made: how.
        median_us: microseconds a call.
        vs_default, vs_vendor: the default config's and torch's time over the winner's; None where not measured.
        ties: how many configs were within 0.5% of the fastest, the winner counted.
    """

    problem: Problem
    config: Config
    kernel_version: int
    made: Provenance
    median_us: float
    vs_default: float | None
    vs_vendor: float | None
    ties: int


@dataclass(frozen=True, slots=True)
class Table:
    """The winners of one op on one device.

    Attributes:
        op: the operation.
        device: the GPU model the rows were measured on.
        date: when the newest row was decided, UTC, ISO 8601.
        rows: one a problem, sorted.
        faults: what was wrong with the file and with the rows that were left out, when it was read from a file.
    """

    op: str
    device: Device
    date: str
    rows: tuple[Row, ...]
    faults: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        """`<op>--<device slug>.json`."""
        return file_name(self.op, self.device.slug)

    @property
    def digest(self) -> str:
        """SHA-256 over all but the date: two processes whose tables have one digest choose the same configs."""
        return _digest(_document(self))

    def dumps(self) -> str:
        """The file's text.

        Raises:
            TableError: two versions of one kernel: the file holds one.
        """
        document = _document(self)
        head = {"format": FORMAT, "version": VERSION, "op": self.op, "date": self.date, "digest": _digest(document)}
        lines = [f"  {json.dumps(name)}: {_compact(value)}," for name, value in head.items()]
        lines += [f'  "device": {_compact(document["device"])},', f'  "kernels": {_compact(document["kernels"])},']
        lines += ['  "environments": [', _one_a_line(document["environments"]), "  ],"]
        lines += ['  "rows": [', _one_a_line(document["rows"]), "  ]"]
        return "\n".join(["{", *lines, "}", ""])

    def write(self, directory: Path) -> Path:
        """Write the file into a folder, complete or not at all; returns its path.

        Raises:
            TableError: the folder cannot be written.
        """
        path = directory / self.file_name
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            try:
                temporary.write_text(self.dumps(), encoding="utf-8")
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as e:
            raise TableError(f"cannot write {path}: {e.strerror or e}") from e
        return path


def file_name(op: str, slug: str) -> str:
    """The name of a table's file: `<op>--<device slug>.json`."""
    return f"{op}--{slug}.json"


def load(path: Path | Traversable) -> Table:
    """Read a table from a file, or from one inside a package.

    Raises:
        TableError: the file cannot be read, or is no table, or one of a newer format. A bad row is no error: see
            `Table.faults`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise TableError(f"cannot read table {path}: {getattr(e, 'strerror', None) or e}") from e
    return loads(text, str(path))


def loads(text: str, name: str) -> Table:
    """Read a table from its text.

    Args:
        text: what `Table.dumps` wrote.
        name: what messages call it.

    Raises:
        TableError: see `load`.
    """
    document = _parse(text, name)
    try:
        device = _device(document["device"])
        made = [_provenance(fields) for fields in document["environments"]]
        kernels, op, date = dict(document["kernels"]), str(document["op"]), str(document["date"])
        raw_rows, digest = list(document["rows"]), _digest(document)
    except BAD_VALUE as e:
        raise TableError(f"{name}: not a table of triton-tuner: {reason(e)}: export it again") from e
    faults: list[str] = []
    if document.get("digest") != digest:
        faults.append("its digest is not that of its rows: it was edited after `tuner export` wrote it")
    rows: dict[Problem, Row] = {}
    for number, raw in enumerate(raw_rows, start=1):
        try:
            row = _row(raw, op, kernels, made)
        except BAD_VALUE as e:
            faults.append(f"row {number} left out: {reason(e)}")
            continue
        if row.problem in rows:
            faults.append(f"row {number} left out: {row.problem} {TWICE}")
        else:
            rows[row.problem] = row
    return Table(op, device, date, tuple(rows.values()), tuple(faults))


def _parse(text: str, name: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise TableError(f"{name}: not JSON ({e}): export it again with `tuner export`") from e
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise TableError(f'{name}: not a table of triton-tuner: expected "format": "{FORMAT}"')
    version = document.get("version")
    if isinstance(version, int) and version > VERSION:
        raise TableError(
            f"{name}: table format {version} is newer than this triton-tuner reads ({VERSION}): upgrade triton-tuner"
        )
    if version != VERSION or isinstance(version, bool):
        raise TableError(f"{name}: table format {version!r}: expected {VERSION}: export it again with `tuner export`")
    return document


def _document(table: Table) -> dict[str, Any]:
    """All of the file but its date and digest."""
    made = sorted({row.made for row in table.rows}, key=lambda m: list(map(str, _provenance_fields(m).values())))
    return {
        "format": FORMAT,
        "version": VERSION,
        "op": table.op,
        "device": dataclasses.asdict(table.device),
        "kernels": _kernels(table.rows),
        "environments": [_provenance_fields(m) for m in made],
        "rows": [_row_fields(row, made.index(row.made)) for row in sorted(table.rows, key=_order)],
    }


def _kernels(rows: Iterable[Row]) -> dict[str, int]:
    versions: dict[str, int] = {}
    for row in sorted(rows, key=lambda row: row.config.kernel):
        name = row.config.kernel
        if versions.setdefault(name, row.kernel_version) != row.kernel_version:
            raise TableError(f"kernel {name} in versions {versions[name]} and {row.kernel_version}: a table holds one")
    return versions


def _order(row: Row) -> tuple[Any, ...]:
    """Neighbours in M next to each other, so that a diff reads well."""
    p = row.problem
    kind = (p.a_dtype, p.b_dtype, p.out_dtype, p.layout, not p.aligned, p.epilogue, p.precision, str(p.extras))
    return (*kind, p.n, p.k, p.m)


def _row_fields(row: Row, environment: int) -> dict[str, Any]:
    problem = row.problem.fields()
    del problem["op"]
    return problem | {
        "kernel": row.config.kernel,
        "config": dict(row.config),
        "median_us": round(row.median_us, 4),
        "vs_default": None if row.vs_default is None else round(row.vs_default, 4),
        "vs_vendor": None if row.vs_vendor is None else round(row.vs_vendor, 4),
        "ties": row.ties,
        "environment": environment,
    }


_RESULT = {"kernel", "config", "median_us", "vs_default", "vs_vendor", "ties", "environment"}


def _row(raw: Mapping[str, Any], op: str, kernels: Mapping[str, int], made: list[Provenance]) -> Row:
    problem = problem_of({"op": op} | {name: raw[name] for name in raw if name not in _RESULT})
    kernel = raw["kernel"]
    if kernel not in kernels:
        raise ValueError(f"kernel {kernel!r} has no version in this file's kernels")
    median_us = positive(raw["median_us"], "median_us")
    assert median_us is not None
    return Row(
        problem=problem,
        config=Config(kernel, **raw["config"]),
        kernel_version=int(kernels[kernel]),
        made=made[_index(raw["environment"], len(made))],
        median_us=median_us,
        vs_default=positive(raw.get("vs_default"), "vs_default", optional=True),
        vs_vendor=positive(raw.get("vs_vendor"), "vs_vendor", optional=True),
        ties=int(raw.get("ties", 1)),
    )


def problem_of(fields: Mapping[str, Any]) -> Problem:
    """A problem whose every part is named: a part left out must not become a default that nobody measured.

    Raises:
        TunerError, ValueError, TypeError, AttributeError: a part is missing, unknown, or cannot be.
    """
    problem = Problem.from_fields(fields)
    if missing := problem.fields().keys() - fields.keys():
        raise ValueError(f"{', '.join(sorted(missing))} missing")
    if not isinstance(fields["aligned"], bool):
        raise ValueError(f"aligned must be true or false, got {fields['aligned']!r}")
    return problem


def positive(value: Any, name: str, *, optional: bool = False) -> float | None:
    """A figure as a float; None stays None where it is optional.

    Raises:
        ValueError: it is no positive, finite number.
    """
    if value is None and optional:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} must be a positive number, got {value!r}")
    return float(value)


def _index(value: Any, count: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
        raise ValueError(f"environment {value!r} is not one of the file's {count}")
    return value


def _provenance_fields(made: Provenance) -> dict[str, Any]:
    rest = {"protocol": made.protocol, "tool_version": made.tool_version}
    return dataclasses.asdict(made.environment) | rest


def _device(fields: Mapping[str, Any]) -> Device:
    words: dict[str, Any] = {name: str(fields[name]) for name in ("slug", "name", "vendor", "arch")}
    numbers = {name: int(fields[name]) for name in ("sm_count", "memory_bytes", "shared_bytes", "l2_bytes")}
    return Device(**(words | numbers))


def _provenance(fields: Mapping[str, Any]) -> Provenance:
    versions = {name: str(fields[name]) for name in ("triton", "torch", "backend", "driver", "python")}
    return Provenance(Environment(**versions), int(fields["protocol"]), str(fields["tool_version"]))


def reason(e: Exception) -> str:
    """What an error of `BAD_VALUE` says, in one line that a log can bear: a mangled value may have any length."""
    text = f"{e.args[0]!r} is missing" if isinstance(e, KeyError) and e.args else str(e)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"


def _digest(document: Mapping[str, Any]) -> str:
    content = {name: value for name, value in document.items() if name not in ("date", "digest")}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _compact(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def _one_a_line(values: list[Any]) -> str:
    return ",\n".join(f"    {_compact(value)}" for value in values)
