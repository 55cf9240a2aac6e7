"""What is wrong with a folder of binaries beside tables: its index is read as a launch reads it, and its files too."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from tuner.errors import TableError
from tuner.files import parse_json
from tuner.launch import binaries
from tuner.lookup.row import BAD_VALUE
from tuner.lookup.table_files import KERNELS_SUFFIX
from tuner.tables.verify.finding import Finding, Level

if TYPE_CHECKING:
    from importlib.abc import Traversable


def check(folder: Traversable) -> list[Finding]:
    """Return what is wrong with a folder that `tuner export --with-kernels` wrote: one finding, or none."""
    try:
        document = binaries.checked(parse_json((folder / binaries.INDEX).read_bytes()))
        entries = [binaries.entry_of(fields) for fields in document["kernels"]]
        for found in document["ranges"].values():
            list(map(binaries.launch_range_of, found))
    except (TableError, OSError, *BAD_VALUE) as e:
        why = e.strerror if isinstance(e, OSError) else e
        return [_finding(folder, f"its {binaries.INDEX} cannot be read: {why}", "the index of its kernels")]
    files = sorted({(suffix, digest) for entry in entries for suffix, digest in entry.files.items()})
    wrong = [name for suffix, digest in files if _digest(folder / (name := f"{digest}.{suffix}")) != digest]
    if not wrong:
        return []
    count = f"{len(wrong)} of its {len(files)} files are missing or were changed, the first {wrong[0]}"
    return [_finding(folder, count, "the files that its index names")]


def _digest(path: Traversable) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _finding(folder: Traversable, found: str, expected: str) -> Finding:
    slug = folder.name.removesuffix(KERNELS_SUFFIX).partition("--")[2]
    advice = "export it again with --with-kernels"
    return Finding(Level.ERROR, "kernels", str(folder), slug, "", found, expected, advice)
