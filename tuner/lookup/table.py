"""An exported table: the winners of one op on one device, as a file that ships.

The file is JSON with one row a line, sorted so that two exports differ only where the winners do. Reading is lenient:
a row that cannot be used is left out and reported, and the others stay. Lookups read it by `tuner.lookup.loaded_table`,
which makes the rows that are asked for and no others.

A file that cannot be read, is no table or is of a newer format is a TableError, which calls it by `name`.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tuner import files
from tuner.errors import TableError
from tuner.hardware.device import IDENTITY, Device, with_known_rates
from tuner.lookup import families, fault, table_digest
from tuner.lookup.fault import Fault
from tuner.lookup.row import BAD_VALUE, Provenance, Row, reason
from tuner.problem import Problem
from tuner.problem.batches import Key, split
from tuner.problem.family import Family

if TYPE_CHECKING:
    from importlib.abc import Traversable

FORMAT = "triton-tuner table"
VERSION = 2
"""The version that is written. A file of a newer one is refused, since nobody can know what its rows mean."""
OLDEST_VERSION = 1
"""The oldest version that is read. It has no families."""
_IN_FILE_NAME = re.compile(r"[\w.-]+", re.ASCII)
"""An op or a device's slug, which are parts of the name that a table from elsewhere is written under."""


class ParsedTable(NamedTuple):
    """A table's file, of which all but the rows was checked.

    Attributes:
        op, device, date: as `Table` has them.
        kernels: each kernel's version.
        made: how rows were made, which a row names by its place here; for an entry that cannot be read, the reason.
        families: as JSON holds them.
        rows: as JSON holds them, or as `large_table.decode` gives them.
        document: the file, whose rows are the same.
        is_as_written: whether the file is to the byte, but for its date, what was written with that digest.
    """

    op: str
    device: Device
    date: str
    kernels: Mapping[str, Any]
    made: tuple[Provenance | str, ...]
    families: Sequence[Any]
    rows: Sequence[Any]
    document: Mapping[str, Any]
    is_as_written: bool


@dataclass(frozen=True, slots=True)
class Table:
    """The winners of one op on one device.

    Attributes:
        op: the operation.
        device: the GPU model the rows were measured on.
        date: when the newest row was decided, UTC, ISO 8601.
        rows: one a problem, sorted.
        families: ranges of M over these rows; no two share an M of one batch.
        faults: what was wrong with the file and with what was left out of it, when it was read from a file.
    """

    op: str
    device: Device
    date: str
    rows: tuple[Row, ...]
    families: tuple[Family, ...] = ()
    faults: tuple[Fault, ...] = ()

    @property
    def file_name(self) -> str:
        """`<op>--<device slug>.json`."""
        return file_name(self.op, self.device.slug)

    @property
    def digest(self) -> str:
        """SHA-256 over all but the date. Two processes whose tables have the same digest choose the same configs."""
        return table_digest.digest(table_digest.unsigned_text(_document(self)))

    def dumps(self) -> str:
        """Return the file's text."""
        return table_digest.signed_text(table_digest.unsigned_text(_document(self)), self.date)

    def write(self, directory: Path) -> Path:
        """Write the file into a folder, complete or not at all; returns its path."""
        return files.write_text(directory / self.file_name, self.dumps(), error=TableError)


def file_name(op: str, slug: str) -> str:
    """The name of a table's file: `<op>--<device slug>.json`."""
    return f"{op}--{slug}.json"


def load(path: str | Path | Traversable) -> Table:
    """Read a table from a file, or from one inside a package, with every row.

    Raises:
        TableError: the file cannot be read, or is no table, or one of a newer format. A bad row is no error: see
            `Table.faults`.
    """
    return from_parsed(parse(read_bytes(Path(path) if isinstance(path, str) else path), str(path)))


def read_bytes(path: Path | Traversable) -> bytes:
    """A table's file."""
    if isinstance(path, Path):
        return files.read_bytes(path, "table", error=TableError)
    try:
        return path.read_bytes()
    except OSError as e:
        raise TableError(f"cannot read the table {path}: {e.strerror or e}") from e


def loads(content: str, name: str) -> Table:
    """Read a table from its text, as `Table.dumps` wrote it."""
    return from_parsed(parse(content.encode(errors="surrogatepass"), name))


def from_parsed(found: ParsedTable) -> Table:
    """Make every row of a parsed file; what cannot be read is left out and becomes one of `Table.faults`."""
    faults: list[Fault] = []
    rows: dict[Problem, Row] = {}
    for number, raw in enumerate(found.rows, start=1):
        try:
            row = Row.from_fields(raw, found.op, found.kernels, found.made)
        except BAD_VALUE as e:
            faults.append(fault.unreadable(f"row {number}", e))
            continue
        if row.problem in rows:
            faults.append(fault.duplicate(f"row {number}", row.problem))
        else:
            rows[row.problem] = row
    tuned = tuple(_families(found, faults))
    table = Table(found.op, found.device, found.date, tuple(rows.values()), tuned)
    if not found.is_as_written and not _says(table, found.document):
        faults.insert(0, fault.edited())
    return dataclasses.replace(table, faults=tuple(faults))


def _families(found: ParsedTable, faults: list[Fault]) -> Iterator[Family]:
    """Make every family of a parsed file; one that cannot be, or that shares an M with one before, is a fault."""
    known: dict[Key, list[Family]] = {}
    for number, raw in enumerate(found.families, start=1):
        try:
            family = families.from_fields(raw, found.op)
            others = known.setdefault(split(family.problem)[0], [])
            if clash := [each for each in others if families.overlap(each, family)]:
                shown = f"{family.first_m}-{family.last_m} and {clash[0].first_m}-{clash[0].last_m}"
                batches = f" at batch {families.batches_of(family)[0]}" if family.batches else ""
                raise ValueError(f"the ranges {shown} of one family overlap{batches}")
        except BAD_VALUE as e:
            faults.append(fault.unreadable_family(f"family {number}", e))
            continue
        others.append(family)
        yield family


def parse(content: bytes, name: str) -> ParsedTable:
    """Parse a table's file and check all but its rows."""
    return parsed(_json(content, name), name, is_as_written=table_digest.is_as_written(content))


def parsed(document: Any, name: str, *, is_as_written: bool) -> ParsedTable:
    """Check all but the rows of a table's document."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise TableError(f'{name}: not a table of triton-tuner: expected "format": "{FORMAT}"')
    version = document.get("version")
    if isinstance(version, int) and version > VERSION:
        raise TableError(
            f"{name}: table format {version} is newer than this triton-tuner reads ({VERSION}): upgrade triton-tuner"
        )
    if isinstance(version, bool) or not isinstance(version, int) or version < OLDEST_VERSION:
        expected = f"{OLDEST_VERSION} or {VERSION}"
        raise TableError(f"{name}: table format {version!r}: expected {expected}: export it again with `tuner export`")
    try:
        op, device = str(document["op"]), _device(document["device"])
        if not _IN_FILE_NAME.fullmatch(op) or not _IN_FILE_NAME.fullmatch(device.slug):
            raise ValueError(f"{file_name(op, device.slug)!r:.80} is no name of a file")
        return ParsedTable(
            op=op,
            device=device,
            date=str(document["date"]),
            kernels=dict(document["kernels"]),
            made=tuple(_made(fields) for fields in list(document["environments"])),
            families=list(document["families"]) if version > 1 else (),
            rows=list(document["rows"]),
            document=document,
            is_as_written=is_as_written,
        )
    except BAD_VALUE as e:
        raise TableError(f"{name}: not a table of triton-tuner: {reason(e)}: export it again") from e


def _made(fields: Any) -> Provenance | str:
    """How rows were made, or why that cannot be read, in which case the rows that name it are left out."""
    try:
        return Provenance.from_fields(fields)
    except BAD_VALUE as e:
        return reason(e)


def _says(table: Table, document: Mapping[str, Any]) -> bool:
    """Whether a file holds a table and its digest, and nothing else."""
    said = {name: value for name, value in document.items() if name not in ("date", "digest")}
    try:
        mine = _document(table)
        if said["version"] == 1:
            mine = {name: value for name, value in mine.items() if name != "families"} | {"version": 1}
        if table_digest.digest(table_digest.unsigned_text(mine)) != document.get("digest"):
            return False
        return json.dumps(mine, sort_keys=True) == json.dumps(said, sort_keys=True)
    except BAD_VALUE:  # a value that could be read and cannot be written
        return False


def _json(content: bytes, name: str) -> Any:
    try:
        return json.loads(content.decode())
    except UnicodeDecodeError as e:
        raise _neither(name, f"not text ({e.reason})") from e
    except (ValueError, RecursionError) as e:
        if FORMAT.encode() in content:
            raise TableError(f"{name}: a table that is cut short or damaged ({e}): export or download it again") from e
        raise _neither(name, f"not JSON ({e})" if content else "it is empty") from e


def _neither(name: str, why: str) -> TableError:
    return TableError(f"{name}: neither a table nor a SQLite database: {why}: name another, or export it again")


def _document(table: Table) -> dict[str, Any]:
    """The content of the file without its date and digest."""
    made = sorted({row.made for row in table.rows}, key=lambda m: list(map(str, m.fields().values())))
    return {
        "format": FORMAT,
        "version": VERSION,
        "op": table.op,
        "device": {name: getattr(table.device, name) for name in IDENTITY},
        "kernels": _kernels(table.rows),
        "environments": [m.fields() for m in made],
        "rows": [row.fields(made.index(row.made)) for row in sorted(table.rows, key=lambda row: _order(row.problem))],
        "families": [
            families.fields(each) for each in sorted(table.families, key=lambda one: _order(one.at(one.last_m)))
        ],
    }


def _kernels(rows: Iterable[Row]) -> dict[str, int]:
    versions: dict[str, int] = {}
    for row in sorted(rows, key=lambda row: row.config.kernel):
        name = row.config.kernel
        if versions.setdefault(name, row.kernel_version) != row.kernel_version:
            raise TableError(f"kernel {name} in versions {versions[name]} and {row.kernel_version}: a table holds one")
    return versions


def _order(p: Problem) -> tuple[Any, ...]:
    """Problems of one family next to each other, so that a diff reads well."""
    kind = (p.a_dtype, p.b_dtype, p.out_dtype, p.layout, not p.aligned, p.epilogue, p.precision, str(p.extras))
    return (*kind, p.n, p.k, p.m)


def _device(fields: Mapping[str, Any]) -> Device:
    words: dict[str, Any] = {name: str(fields[name]) for name in ("slug", "name", "vendor", "arch")}
    numbers = {name: int(fields[name]) for name in ("sm_count", "memory_bytes", "shared_bytes", "l2_bytes")}
    return with_known_rates(Device(**(words | numbers)))
