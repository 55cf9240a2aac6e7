"""A record of missed problems: a file that says what was called without being tuned, and how often.

Any number of processes add to one file (the ranks of a server, each at its end); `tuner run --from-misses` reads it.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from tuner import files
from tuner.errors import TableError, TunerError
from tuner.problem import Problem
from tuner.problem.family import Ladder, ladders
from tuner.problem.gemm_fields import check_size

FORMAT = "triton-tuner misses"
VERSION = 1
MOST = 4096
"""How many misses a file holds, 0.4 KB each. The least called beyond these are left out and counted together."""
LOCK_SECONDS = 10.0
"""How long adding to a file waits for another process, which holds it for milliseconds."""

NO_BINARY = "no_binary"
"""In place of a match rule: the problem is tuned, and no shipped binary launches its config (`tuner.strict`)."""
BEGIN_ANEW = "move it away, and a new one is begun"
"""What to do about a file that calls are to be added to, and that is no record."""


@dataclass(frozen=True, slots=True)
class Miss:
    """A problem, or a range of Ms of a family, that was called although nobody tuned it.

    Attributes:
        problem: what was called; of a range of Ms the problem with the last.
        device: the slug of the GPU model.
        rule: the match rule that answered instead, see `tuner.Match`; or `NO_BINARY`.
        triton, tool_version: the versions in the process that called.
        first_m: the first M of the range; None where one M was called.
    """

    problem: Problem
    device: str
    rule: str
    triton: str
    tool_version: str
    first_m: int | None = None

    @property
    def wanted(self) -> Problem | Ladder:
        """What `tuner run` is to tune: the problem itself, or a ladder for the range."""
        if self.first_m is None:
            return self.problem
        (ladder,) = ladders(range(self.first_m, self.problem.m + 1), self.problem.with_m)
        return ladder


@dataclass(frozen=True, slots=True)
class Record:
    """Missed problems and their calls.

    Attributes:
        calls: how often each miss was called.
        left_out: how often problems beyond the limit were called.
    """

    calls: Mapping[Miss, int] = field(default_factory=dict)
    left_out: int = 0

    def __add__(self, other: Record) -> Record:
        """Both records in one: calls add up, and misses beyond the limit are left out."""
        calls = Counter(self.calls)
        calls.update(other.calls)
        kept = dict(sorted(calls.items(), key=_most_called_first)[:MOST])
        return Record(kept, self.left_out + other.left_out + sum(calls.values()) - sum(kept.values()))

    def problems(self, slug: str) -> dict[Problem | Ladder, int]:
        """The problems and ladders that nobody tuned for a device with their calls, the most called first."""
        calls: Counter[Problem | Ladder] = Counter()
        for miss, count in sorted(self.calls.items(), key=_most_called_first):
            if miss.device == slug and miss.rule != NO_BINARY:
                calls[miss.wanted] += count
        return dict(calls.most_common())

    def not_shipped(self, slug: str) -> list[int]:
        """The calls of each tuned problem that no shipped binary launches on a device."""
        return [calls for miss, calls in self.calls.items() if (miss.device, miss.rule) == (slug, NO_BINARY)]

    def dumps(self) -> str:
        """The file's text: one miss a line, the most called first."""
        rows = [json.dumps(_fields(miss, calls)) for miss, calls in sorted(self.calls.items(), key=_most_called_first)]
        head = [f'  "format": "{FORMAT}",', f'  "version": {VERSION},', f'  "left_out": {self.left_out},']
        return "\n".join(["{", *head, '  "misses": [', ",\n".join(f"    {row}" for row in rows), "  ]", "}", ""])


def load(path: Path, advice: str = "name another file") -> Record:
    """Read a record; `advice` says what to do about a file that is none.

    Raises:
        TableError: the file cannot be read, or is no record, or a damaged one, or one of another version.
    """
    document = files.read_json(path, "record of misses", advice, error=TableError)
    found = (document.get("format"), document.get("version")) if isinstance(document, dict) else None
    if found != (FORMAT, VERSION):
        raise TableError(f'{path}: no record of misses: expected "format": "{FORMAT}", "version": {VERSION}: {advice}')
    try:
        calls: Counter[Miss] = Counter()
        for fields in document["misses"]:
            calls[_miss(fields)] += _count(fields["calls"])
        return Record(calls, _count(document["left_out"]))
    except (TunerError, LookupError, TypeError, ValueError, AttributeError) as e:
        raise TableError(f"{path}: a damaged record of misses ({type(e).__name__}: {e}): {advice}") from e


def add(path: Path, record: Record) -> None:
    """Add calls to the record in a file, which is made where it is missing.

    Raises:
        TableError: the file cannot be read or written, is no record, or another process holds it; it is as it was.
    """
    try:
        with _locked(path):
            before = load(path, BEGIN_ANEW) if path.exists() else Record()
            with files.replacing(path) as temporary:
                temporary.write_text((before + record).dumps(), encoding="utf-8")
    except OSError as e:
        raise TableError(f"cannot write the record of misses {path}: {e.strerror or e}") from e


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock file beside a record, one by whichever link it is reached: what two add at once is both in it."""
    with Path(f"{os.path.realpath(path)}.lock").open("a") as file:
        deadline = time.monotonic() + LOCK_SECONDS
        while not _lock(file):
            if time.monotonic() > deadline:
                raise TableError(f"cannot write the record of misses {path}: another process holds {file.name}")
            time.sleep(0.01)
        yield


def _lock(file: TextIO) -> bool:
    import fcntl

    with suppress(OSError):  # a file system without locks: a rename keeps the file whole, a count may be lost
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _most_called_first(counted: tuple[Miss, int]) -> tuple[Any, ...]:
    miss, calls = counted
    return -calls, json.dumps(_fields(miss, calls))


def _fields(miss: Miss, calls: int) -> dict[str, Any]:
    where = {"device": miss.device, "rule": miss.rule, "triton": miss.triton, "tool_version": miss.tool_version}
    first = {} if miss.first_m is None else {"first_m": miss.first_m}
    return {"calls": calls, **where, **first, "problem": miss.problem.fields()}


def _miss(fields: Mapping[str, Any]) -> Miss:
    words = {name: fields[name] for name in ("device", "rule", "triton", "tool_version")}
    if odd := [name for name, word in words.items() if not isinstance(word, str)]:
        raise ValueError(f"{odd[0]} must be a string, got {words[odd[0]]!r}")
    problem, first_m = Problem.from_fields(fields["problem"]), fields.get("first_m")
    if first_m is not None and not 1 <= check_size("first_m", first_m) < problem.m:
        raise ValueError(f"first_m must be below the problem's M, {problem.m}, got {first_m}")
    return Miss(problem, **words, first_m=first_m)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"calls must be an integer, got {value!r:.60}")
    return value
