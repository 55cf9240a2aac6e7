"""Trials of a run in a local file until a server has them, so that neither its absence nor a kill loses one.

The first line names the run and its database, each other line is a trial. The run holds the file's lock while it lives.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import io
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, select

from tuner import files
from tuner.errors import StoreError, UsageError
from tuner.kernel.config import Config
from tuner.location import state_folder
from tuner.problem import Problem
from tuner.store import models
from tuner.store.engine import Database, faults, writing
from tuner.store.records import KernelVersion, Outcome, Resources, State, Trial, now
from tuner.store.row_ids import RowIds
from tuner.store.runs import Run
from tuner.store.trials import record_missing

Timed = tuple[Trial, str]
"""A trial, and when it was measured."""
_VERSION = 1
_UNREADABLE = (UsageError, ValueError, TypeError, LookupError, AttributeError)
_log = logging.getLogger(__name__)


class Spool:
    """The trials of a run that its server does not have yet.

    Attributes:
        path: the file; it is there as long as it is of use.
        pending: the trials.
        durable: write through to the disk, which costs milliseconds: for trials that stay a while.
    """

    def __init__(self, run: Run, database: Database) -> None:
        """Make no file yet."""
        self.path = _folder() / f"{run.uuid}.jsonl"
        self.pending: list[Timed] = []
        self.durable = False
        self._header = _line({"spool": _VERSION, "run": run.uuid, "database": _place(database)})
        self._file: io.FileIO | None = None
        self._written = 0
        self._warned = False

    def add(self, trials: Sequence[Trial]) -> None:
        """Keep trials; where the file cannot be written they are kept in memory alone, and one warning says so."""
        at = now()
        self.pending += [(trial, at) for trial in trials]
        try:
            self._append(b"".join(_line(_document(*each)) for each in self.pending[self._written :]))
            self._written = len(self.pending)
        except OSError as e:
            if not self._warned:
                self._warned = True
                advice = "what the database does not have when this run ends is lost: make room for it"
                _log.warning("%s cannot be written (%s): %s", self.path, e.strerror or e, advice)

    @property
    def in_memory(self) -> int:
        """How many of the pending trials the file does not hold, because it could not be written."""
        return len(self.pending) - self._written

    def stored(self) -> None:
        """Forget the pending trials: the database has them."""
        if self._file is not None and self._written:
            self._file.truncate(len(self._header))
        self.pending, self._written, self.durable = [], 0, False

    def close(self) -> None:
        """Remove the file, unless it holds trials."""
        if self._file is not None:
            if not self._written:
                self.path.unlink(missing_ok=True)
            self._file.close()
            self._file = None

    def _append(self, lines: bytes) -> None:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = io.FileIO(self.path, "a")
            fcntl.flock(file, fcntl.LOCK_EX)  # before its first line: `replay` passes over an empty file
            self._file = file
        before = os.fstat(self._file.fileno()).st_size
        lines = lines if before else self._header + lines
        if self._file.write(lines) != len(lines):
            self._file.truncate(before)  # no half line in the middle
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.durable:
            os.fsync(self._file.fileno())


def replay(engine: Engine, database: Database) -> None:
    """Store what runs that ended left for a server's database; a warning for each says how it went.

    A file whose trials cannot be stored stays.
    """
    if database.url is None:
        return
    for path in sorted(_folder().glob("*.jsonl")):
        try:
            with path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                header, *lines = file.read().split(b"\n")[:-1] or [b""]  # a kill may have torn the last line
                if header and (run := _run_of(header, path, database)) is not None:
                    _store(engine, database, run, [_trial_of(line, path) for line in lines])
                    path.unlink(missing_ok=True)
                    if lines:
                        _log.warning(
                            "%s: stored %d trials that an earlier run left in %s", database.label, len(lines), path
                        )
        except (BlockingIOError, FileNotFoundError):
            continue  # its run goes on, or another process has stored it
        except OSError as e:
            _log.warning("%s cannot be read (%s): it may hold trials of an earlier run", path, e.strerror or e)
        except StoreError as e:
            _log.warning("%s holds trials of an earlier run that could not be stored: %s", path, e)


def _store(engine: Engine, database: Database, uuid: str, trials: Sequence[Timed]) -> None:
    with faults(database), writing(engine).begin() as connection:
        run_id = connection.execute(select(models.run.c.run_id).where(models.run.c.uuid == uuid)).scalar()
        if run_id is None and trials:
            raise StoreError(f"{database.label} does not know their run: if it was emptied on purpose, remove the file")
        if run_id is not None and trials:
            record_missing(connection, RowIds(), run_id, trials)


def _folder() -> Path:
    return state_folder() / "spool"


def _place(database: Database) -> str:
    """Names a server's database, without its user and password."""
    assert database.url is not None
    query = {name: value for name, value in database.url.query.items() if name in ("host", "port", "dbname", "options")}
    return database.url.set(username=None, password=None, query=query).render_as_string()


def _line(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def _run_of(header: bytes, path: Path, database: Database) -> str | None:
    """The run of a file, None where it is of another database."""
    try:
        document = files.parse_json(header)
        version, run, place = (document[name] for name in ("spool", "run", "database"))
    except _UNREADABLE as e:
        raise StoreError(f"{path}: its first line is damaged: remove the file to give them up") from e
    if version != _VERSION:
        raise StoreError("the file is of another version of triton-tuner: use that one")
    return str(run) if place == _place(database) else None


def _document(trial: Trial, at: str) -> dict[str, Any]:
    return {
        "problem": trial.problem.fields(),
        "config": [trial.config.kernel, trial.config.parameters_json],
        "kernel": dataclasses.asdict(trial.kernel),
        "outcome": dataclasses.asdict(trial.outcome),
        "measured_at": at,
    }


def _trial_of(line: bytes, path: Path) -> Timed:
    try:
        document = files.parse_json(line)
        outcome = document["outcome"]
        made = {"state": State(outcome["state"]), "resources": Resources(**outcome["resources"])}
        problem = Problem.from_fields(document["problem"])
        config = Config.from_json(*document["config"])
        trial = Trial(problem, config, KernelVersion(**document["kernel"]), Outcome(**{**outcome, **made}))
        return trial, str(document["measured_at"])
    except _UNREADABLE as e:
        raise StoreError(f"{path}: a line of it is damaged ({e}): remove the line, {line[:80]!r}") from e
