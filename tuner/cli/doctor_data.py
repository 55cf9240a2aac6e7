"""What `tuner doctor` looks at of what is kept: the database and the tables. No check raises."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from tuner.cli.diagnosis import Finding, Status
from tuner.errors import StoreError, TableError


def check_database(location: str | None) -> list[Finding]:
    """The database: there or not, at which revision, whole, on which kind of disk."""
    from tuner.store.engine import faults, locate
    from tuner.store.filesystem import journal_mode

    try:
        database = locate(location)
        with faults(database):
            if database.path is None or database.path.exists():
                findings = _check_contents(location)
            else:
                findings = [_missing_database(database.path)]
    except StoreError as e:
        return [Finding("database", Status.WRONG, str(e))]
    if database.path is not None and journal_mode(database.path) != "wal":
        found = f"{database.path} lies on a network file system: no write-ahead log there, one process at a time"
        findings.append(Finding("database", Status.NOTE, found, "name one on a local disk with --db or $TUNER_DB"))
    return findings


def check_tables() -> list[Finding]:
    """The tables that lookups in this environment would find, and what is wrong with them."""
    from tuner.lookup import sources

    findings: list[Finding] = []
    with _warnings_of("tuner.lookup") as warnings:
        for source in sources.default_sources():
            if source.name.startswith("database "):
                continue
            try:
                devices = ", ".join(sorted(device.slug for device in source.devices()))
            except (TableError, OSError) as e:
                warnings.append(f"{source.name}: {e}")
                continue
            if devices:
                findings.append(Finding("tables", Status.OK, f"{source.name}: for {devices}"))
    findings += [Finding("tables", Status.WRONG, warning) for warning in warnings]
    return findings or [Finding("tables", Status.OK, "none found through $TUNER_TABLES or installed packages")]


def _missing_database(path: Path) -> Finding:
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if folder.is_dir() and os.access(folder, os.W_OK):
        return Finding("database", Status.OK, f"{path} is not there yet: the first `tuner run` makes it")
    return Finding(
        "database",
        Status.WRONG,
        f"{path} cannot be made: {folder} is no folder that may be written to",
        "name another with --db or $TUNER_DB",
    )


def _check_contents(location: str | None) -> list[Finding]:
    from tuner.store import health

    found = health.check(location)
    if found.revision is None:
        return [Finding("database", Status.OK, f"{found.location} is empty: the first `tuner run` fills it")]
    if found.complaints:
        return [Finding("database", Status.WRONG, f"{found.location}: {text}") for text in found.complaints]
    return [Finding("database", Status.OK, f"{found.location}, schema {found.revision}")]


@contextlib.contextmanager
def _warnings_of(name: str) -> Iterator[list[str]]:
    """The warnings logged below a logger while the block runs, kept from stderr: they become findings."""

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(record.getMessage())

    kept: list[str] = []
    logger, handler = logging.getLogger(name), Keep(logging.WARNING)
    propagate = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield kept
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate
