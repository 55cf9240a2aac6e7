"""The database's location: `--db`, else `$TUNER_DB`, else the platform's user data folder."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tuner.errors import UsageError

_PASSWORD = re.compile(r"(://[^:/@]*:)[^@]*(?=@)|(password=)[^&]*")
"""A server's password in a URL, which may hold / and &, and @ too behind the path."""


def database_location(given: str | Path | None = None) -> str:
    """Return the database to use: a path, or a URL such as `postgresql://...`.

    Raises:
        UsageError: the choice is empty: a script's `"$UNSET"` must not write into the user's own database.
    """
    if given == "":
        raise UsageError("the database's name is empty: expected a path or a URL")
    if given is not None:
        return os.fspath(given)
    if named := os.environ.get("TUNER_DB"):
        return named
    import platformdirs

    return str(Path(platformdirs.user_data_dir("triton-tuner", appauthor=False)) / "tuner.db")


def state_folder() -> Path:
    """Return the folder of what must outlive a command but is nobody's document."""
    import platformdirs

    return Path(platformdirs.user_state_dir("triton-tuner", appauthor=False))


def sqlite_path(location: str) -> Path | None:
    """Return the file of a location that is a path or a `sqlite:///` URL, None for other URLs."""
    if location.startswith("sqlite:///"):
        return expanded(location.removeprefix("sqlite:///"))
    return None if "://" in location else expanded(location)


def without_password(typed: str) -> str:
    """Return a location, or a word of a command line that holds one, with its password masked."""
    return _PASSWORD.sub(r"\1\2***", typed)


def expanded(path: str | Path) -> Path:
    """Return a path whose `~` is the user's home, where that is known: Path.expanduser() raises where it is not."""
    return Path(os.path.expanduser(path))  # noqa: PTH111
