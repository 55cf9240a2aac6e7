"""Writing files complete or not at all: into a temporary file beside the target, which is then renamed over it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tuner.errors import TableError, TunerError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside a file; what the block writes there takes the file's place when the block ends.

    Where the block raises, the file stays as it was, and the temporary one is removed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        with suppress(OSError):  # where a folder cannot be written, there is nothing to remove
            temporary.unlink(missing_ok=True)


def write(path: Path, fill: Callable[[Path], object], *, error: type[TunerError] = TunerError) -> Path:
    """Write a file complete or not at all; returns its path.

    Args:
        path: the file.
        fill: writes all of it to the path that it is given.
        error: what to raise.

    Raises:
        TunerError: of the kind `error`: the file cannot be written.
    """
    try:
        with replacing(path) as temporary:
            fill(temporary)
    except OSError as e:
        raise error(f"cannot write {path}: {e.strerror or e}") from e
    return path


def write_text(path: Path, text: str, *, error: type[TunerError] = TunerError) -> Path:
    """Write a text file in UTF-8 complete or not at all; see `write`."""
    return write(path, lambda temporary: temporary.write_text(text, encoding="utf-8"), error=error)


def make_folder(directory: Path) -> None:
    """Make a folder to export into, and those above it, where they are missing.

    Raises:
        TableError: something else is there, or it cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise TableError(f"{directory} is not a folder: name a folder to export into") from None
    except OSError as e:
        raise TableError(f"cannot make the folder {directory}: {e.strerror}") from e
