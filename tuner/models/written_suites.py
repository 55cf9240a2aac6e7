"""Suites that commands write: the first line has the digest of the others, so that what somebody edited is kept."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tuner import files
from tuner.errors import SuiteError

_DIGEST_LINE = "# Digest {}; once this file is edited, nothing writes it again.\n"


def signed(text: str) -> str:
    """A suite's text with its digest above it."""
    return _digest_line(text.encode()) + text


def is_edited(path: Path) -> bool:
    """Whether a file is there and is not what a command wrote.

    Raises:
        SuiteError: it cannot be read.
    """
    if not path.exists():
        return False
    first, end, rest = files.read_bytes(path, "suite", error=SuiteError).partition(b"\n")
    return first + end != _digest_line(rest).encode()


def _digest_line(text: bytes) -> str:
    return _DIGEST_LINE.format(hashlib.sha256(text).hexdigest()[:16])
