"""What is wrong with a folder of binaries beside tables: its index is read as a launch reads it, and its files too."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tuner.errors import TableError
from tuner.files import parse_json
from tuner.kernels.base import sources
from tuner.launch import binaries
from tuner.lookup.row import BAD_VALUE
from tuner.lookup.table import Table
from tuner.lookup.table_files import KERNELS_SUFFIX
from tuner.tables.export import usable
from tuner.tables.verify.finding import Finding, Level

if TYPE_CHECKING:
    from importlib.abc import Traversable


def check(folder: Traversable, tables: Iterable[Table] = ()) -> list[Finding]:
    """Return what is wrong with a folder that `tuner export --with-kernels` wrote, and the rows that it lacks."""
    try:
        document = binaries.checked(parse_json((folder / binaries.INDEX).read_bytes()))
        entries = [binaries.entry_of(fields) for fields in document["kernels"]]
        for found in document["ranges"].values():
            list(map(binaries.launch_range_of, found))
        known = frozenset(map(str, document.get("rows", ())))
    except (TableError, OSError, *BAD_VALUE) as e:
        why = e.strerror if isinstance(e, OSError) else e
        return [_finding(folder, f"its {binaries.INDEX} cannot be read: {why}", "the index of its kernels")]
    files = sorted({(suffix, digest) for entry in entries for suffix, digest in entry.files.items()})
    wrong = [name for suffix, digest in files if _digest(folder / (name := f"{digest}.{suffix}")) != digest]
    if not wrong:
        # Another version of triton-tuner may name rows otherwise, and one of before names none.
        is_known = "rows" in document and document.get("sources") == sources.digest()
        return _lacking(folder, known, tables) if is_known else []
    count = f"{len(wrong)} of its {len(files)} files are missing or were changed, the first {wrong[0]}"
    return [_finding(folder, count, "the files that its index names")]


def _lacking(folder: Traversable, known: frozenset[str], tables: Iterable[Table]) -> list[Finding]:
    mine = [table for table in tables if binaries.folder_name(table.op, table.device.slug) == folder.name]
    served = [row for table in mine for row in usable(table.rows, table.device)[0]]  # what is refused launches nothing
    lacking = [row for row in served if binaries.row_key(row.problem, row.config) not in known]
    if not lacking:
        return []
    count = f"it was written without {len(lacking)} of {len(served)} rows, the first {lacking[0].problem}"
    return [_finding(folder, f"{count}: their first calls may compile", "kernels of every row", Level.WARNING)]


def _digest(path: Traversable) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _finding(folder: Traversable, found: str, expected: str, level: Level = Level.ERROR) -> Finding:
    slug = folder.name.removesuffix(KERNELS_SUFFIX).partition("--")[2]
    advice = "export it again with --with-kernels"
    return Finding(level, "kernels", str(folder), slug, "", found, expected, advice)
