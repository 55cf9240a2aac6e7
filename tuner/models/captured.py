"""Reads the journals that `tuner capture` recorded into a folder, and writes their suite."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import shlex
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner import files
from tuner.errors import ProblemError, SuiteError
from tuner.models import written_suites
from tuner.models.lines import Line, dumps, problem
from tuner.models.products import Product
from tuner.models.recorder import FORMAT, SUFFIX, VERSION
from tuner.problem import Problem, suite
from tuner.problem.family import Ladder

SUITE = "suite.csv"
MAX_LISTED = 8
"""A family with more Ms than this is tuned for the range from its least M to its largest."""
_TYPES = [str, str, int, int, str, str, str, str, bool, str, str, str, int]
"""The types of a Product's fields."""
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
_ADVICE = "move it away, and record again"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Captured:
    """The calls of a folder.

    Attributes:
        calls: how often each product was called, by its Ms.
        left_out: how many calls were of products that no problem describes, or of families beyond those that are kept.
    """

    calls: dict[Product, Counter[int]]
    left_out: int

    def lines(self) -> list[Line]:
        """The lines of a suite, those that compute most first."""
        lines = [Line(product, _cell(sorted(ms)), min(ms), ms.total()) for product, ms in self.calls.items()]
        work = {
            product: sum(problem(product, m).flops * count for m, count in ms.items())
            for product, ms in self.calls.items()
        }
        return sorted(lines, key=lambda line: -work[line.product])


def load(folder: Path) -> Captured:
    """Read the journals of a folder. Where a GPU was used, what ran on the CPU is left out.

    Raises:
        SuiteError: a journal cannot be read, or is none.
    """
    calls: dict[Product, Counter[int]] = {}
    left_out = 0
    for path in _journals(folder):
        recorded, others = _read(path)
        left_out += others
        for product, ms in recorded.items():
            calls.setdefault(product, Counter()).update(ms)
    devices = {product.device for product in calls}
    if devices - {"cpu"}:
        calls = {product: ms for product, ms in calls.items() if product.device != "cpu"}
    valid = {product: ms for product, ms in calls.items() if _is_problem(product, max(ms))}
    return Captured(valid, left_out + sum(ms.total() for product, ms in calls.items() if product not in valid))


def write_suite(folder: Path) -> Captured:
    """Write the suite of a folder's journals beside them, unless one is there that is newer or was edited.

    Raises:
        SuiteError: see `load`; or it cannot be written.
    """
    newest = max(_written(folder), default=0)
    captured = load(folder)
    if captured.calls and _has_more(folder) and not _keeps_edited(folder):
        path = files.write_text(folder / SUITE, _text(captured), error=SuiteError)
        os.utime(path, ns=(newest, newest))  # so that what is recorded meanwhile is newer than the suite
    return captured


def problems(folder: Path, *, write: bool = True) -> list[Problem | Ladder]:
    """The problems and ladders of a folder's suite, which is written first if journals are newer.

    Args:
        folder: what `tuner capture` recorded into.
        write: False where nothing may be written: what the suite would say is returned.

    Raises:
        SuiteError: there are none, or they cannot be read.
    """
    path = folder / SUITE
    if not _journals(folder) and not path.exists():
        raise SuiteError(
            f"nothing was captured in {folder}: expected {SUITE}, journals ({SUFFIX}) or calls of adopted kernels: "
            f"type tuner capture --out {folder} -- COMMAND"
        )
    if not (found := of_suite(folder, write=write)):
        raise SuiteError(f"no matrix product was captured in {folder}: see `tuner capture --help` for what is recorded")
    return found


def of_suite(folder: Path, *, write: bool = True) -> list[Problem | Ladder]:
    """The same, none where no matrix product was captured. A folder that cannot be written is only read.

    Raises:
        SuiteError: they cannot be read, or the suite not be written where the folder can.
    """
    path = folder / SUITE
    # Where something is newer, the recording program was killed, or is still running.
    if _has_more(folder) and not (write and _could_write(folder)) and not _keeps_edited(folder):
        captured = load(folder)
        if captured.calls:
            with tempfile.TemporaryDirectory() as place:
                path = Path(place) / SUITE
                path.write_text(_text(captured), encoding="utf-8")
                return suite.load_with_ladders(path)
    return suite.load_with_ladders(path) if path.exists() else []


def _could_write(folder: Path) -> bool:
    """Write the suite; False where the folder cannot be written."""
    try:
        write_suite(folder)
    except SuiteError as e:
        if getattr(e.__cause__, "errno", None) not in _NOT_WRITABLE:
            raise
        return False
    return True


def is_edited(folder: Path) -> bool:
    """Whether a folder's suite is there and is not what was written.

    Raises:
        SuiteError: it cannot be read.
    """
    return written_suites.is_edited(folder / SUITE)


def _keeps_edited(folder: Path) -> bool:
    """Whether the suite is somebody's work and stays, which a line says."""
    path = folder / SUITE
    if not is_edited(folder):
        return False
    numbered = (folder / f"edited{number or ''}.csv" for number in itertools.count())
    free = next(each for each in numbered if not each.exists())
    _log.warning(
        "%s was edited, so it stays without what was recorded since: to have it written anew: %s",
        path,
        shlex.join(["mv", str(path), str(free)]),
    )
    return True


def _has_more(folder: Path) -> bool:
    """Whether something was recorded since the suite was written or edited."""
    path = folder / SUITE
    written = path.stat().st_mtime_ns if path.exists() else -1
    return any(at > written for at in _written(folder))


def _written(folder: Path) -> list[int]:
    """When each journal was last written, nanoseconds."""
    try:
        return [journal.stat().st_mtime_ns for journal in _journals(folder)]
    except OSError as e:
        raise SuiteError(f"cannot read the journal {e.filename}: {e.strerror}: {_ADVICE}") from e


def _journals(folder: Path) -> list[Path]:
    try:
        return sorted(each for each in folder.iterdir() if each.name.endswith(SUFFIX))
    except OSError as e:
        raise SuiteError(f"cannot read the folder {folder}: {e.strerror}: name one that tuner capture wrote") from e


def _read(path: Path) -> tuple[dict[Product, dict[int, int]], int]:
    """The calls of a journal, and how many were left out. A last line without its end is ignored."""
    content = files.read_bytes(path, "journal", error=SuiteError).rpartition(b"\n")[0]
    calls: dict[Product, dict[int, int]] = {}
    products: dict[int, Product] = {}
    left_out = 0
    if not content:
        return calls, left_out
    try:
        head, *rows = map(files.parse_json, content.split(b"\n"))
        if (head["format"], head["version"], tuple(head["fields"])) != (FORMAT, VERSION, Product._fields):
            raise ValueError(f"expected {FORMAT}, version {VERSION}")
        for row in rows:
            if row[0] == "left out":
                left_out = int(row[1])
                continue
            number, m, count, *fields = row
            if fields:
                products[number] = Product(*fields[0])
                if [*map(type, products[number])] != _TYPES:
                    raise TypeError(f"no product: {fields[0]!r:.200}")
            if not (type(m) is type(count) is int and m > 0):
                raise TypeError(f"no call: {row!r:.200}")
            calls.setdefault(products[number], {})[m] = count
    except (ArithmeticError, ValueError, LookupError, TypeError, AttributeError) as e:
        raise SuiteError(
            f"{path}: no journal of tuner capture, or a damaged one ({type(e).__name__}: {e}): {_ADVICE}"
        ) from e
    return calls, left_out


def _is_problem(product: Product, m: int) -> bool:
    try:
        problem(product, m)
    except ProblemError:
        return False
    return True


def _cell(ms: Sequence[int]) -> str:
    return f"{ms[0]}-{ms[-1]}" if len(ms) > MAX_LISTED else ",".join(map(str, ms))


def _text(captured: Captured) -> str:
    remarks = ["The GEMMs of a program, by `tuner capture`; count: how often it called each, as far as is known."]
    if captured.left_out:
        remarks.append(
            f"Left out: {captured.left_out} calls of products that no problem describes, or of too many families."
        )
    return written_suites.signed(dumps(captured.lines(), *remarks))
