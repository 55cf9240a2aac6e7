"""Reading files that a user names, and writing files complete or not at all.

A file is written into a temporary one beside it, which is then renamed over it; of a link, beside what it links to.
What cannot be read or written is an error of the kind `error`, whose message calls the file by `noun`: "suite".
"""

from __future__ import annotations

import codecs
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tuner.errors import TableError, TunerError

LARGEST_BYTES = 1 << 30
"""A table of a million rows has a third of it. A larger file is no text of ours, and would fill the memory."""
_LONGEST = 200  # characters of a path that is too long for any file


def check_regular(path: Path, noun: str, *, error: type[TunerError] = TunerError) -> None:
    """Refuse what a reader would wait for or never come to the end of: a pipe, a socket or a device.

    A path that cannot be looked at is refused too (no permission, a loop of links), because Path.exists() would raise.
    A folder passes, and so does a file that is not there: whoever opens them says what they are.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as e:  # ValueError: a name that the file system cannot have
        raise error(f"cannot open the {noun} {_shown(path)}: {_why(e)}") from e
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise error(f"{path} is no regular file: expected a {noun}: name another file")


def read_bytes(path: Path, noun: str, *, error: type[TunerError] = TunerError) -> bytes:
    """Read a regular file, without the byte-order mark that some editors write."""
    check_regular(path, noun, error=error)
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise error(f"{path} has more than {LARGEST_BYTES >> 30} GiB: expected a {noun}: name another file")
        return path.read_bytes().removeprefix(codecs.BOM_UTF8)
    except OSError as e:
        raise error(f"cannot read the {noun} {path}: {_why(e)}: name another file") from e


def content(path: str) -> bytes:
    """A small file's bytes.

    Without a Path and a buffer, which take as long as all else: a process's first call reads hundreds.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        return file.read()


def begins_with(path: Path, words: bytes) -> bool:
    """Whether a file is empty, or begins with these words in any case; False too where it cannot be read."""
    try:
        with path.open("rb") as file:
            begin = file.read(len(words))
    except OSError:
        return False
    return not begin or begin.lower() == words


def parse_json(content: str | bytes) -> Any:
    """Parse JSON, which is in UTF-8 where it is given as bytes; a ValueError says in a few words why it is none."""
    try:
        return json.loads(content if isinstance(content, str) else content.decode())
    except UnicodeDecodeError as e:
        raise ValueError("it is no UTF-8 text") from e
    except RecursionError as e:
        raise ValueError("it is nested too deeply") from e


def read_json(path: Path, noun: str, advice: str, *, error: type[TunerError] = TunerError) -> Any:
    """Read a JSON file; `advice` says what to do about one that is no JSON."""
    content = read_bytes(path, noun, error=error)
    try:
        return parse_json(content)
    except ValueError as e:
        raise error(f"{path}: no {noun}: not JSON ({e}): {advice}") from e


@contextmanager
def replacing(path: Path, *, error: type[TunerError] = TunerError) -> Iterator[Path]:
    """Give a temporary path beside a file; what the block writes there takes the file's place when the block ends.

    Of a link, what it links to is replaced, or made where it is not there. Where the block raises, the file stays as it
    was, and the temporary one is removed.
    """
    target = _behind_links(path, error)
    # In two containers that share a folder, processes of one number may write the same file.
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    try:
        yield temporary
        temporary.replace(target)
    finally:
        with suppress(OSError):  # where a folder cannot be written, there is nothing to remove
            temporary.unlink(missing_ok=True)


def write(path: Path, fill: Callable[[Path], object], *, error: type[TunerError] = TunerError) -> Path:
    """Write a file complete or not at all; `fill` writes all of it to the path that it is given. Returns the path."""
    try:
        with replacing(path, error=error) as temporary:
            fill(temporary)
    except OSError as e:
        raise error(f"cannot write {path}: {_why(e)}: name another place") from e
    return path


def write_text(path: Path, text: str, *, error: type[TunerError] = TunerError) -> Path:
    """Write a text file in UTF-8 complete or not at all; see `write`."""
    return write(path, lambda temporary: temporary.write_text(text, encoding="utf-8"), error=error)


def write_texts(texts: Mapping[Path, str], *, error: type[TunerError] = TunerError) -> None:
    """Write text files in UTF-8, all of them or, where one cannot be written, none."""
    writing = Path()
    try:
        with ExitStack() as replaced:
            for path, text in texts.items():
                writing = path
                replaced.enter_context(replacing(path, error=error)).write_text(text, encoding="utf-8")
    except OSError as e:
        raise error(f"cannot write {writing}: {_why(e)}: name another place") from e


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Wait for the other processes that hold a folder so, and hold it; a file system may have no locks of folders."""
    import fcntl

    with ExitStack() as held:
        with suppress(OSError):
            opened = os.open(folder, os.O_RDONLY)
            held.callback(os.close, opened)
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield


def make_folder(directory: Path) -> None:
    """Make a folder to write into, and those above it, where they are missing.

    Raises:
        TableError: something else is there, or it cannot be made or written into.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise TableError(f"{directory} is not a folder: name a folder to write into") from None
    except (OSError, ValueError) as e:  # ValueError: a name that the file system cannot have
        raise TableError(f"cannot make the folder {_shown(directory)}: {_why(e)}: name another") from e
    if not os.access(directory, os.W_OK):
        raise TableError(f"the folder {directory} may not be written into: name another")


def _behind_links(path: Path, error: type[TunerError]) -> Path:
    """The file to replace for a path, which need not be there yet."""
    check_regular(path, "file", error=error)
    target = path
    while target.is_symlink():
        folder = Path(os.path.realpath(target.parent))
        # What a process has open, as /dev/stdout links to: a shell's redirection must not be replaced by another file.
        if folder.is_relative_to("/proc"):
            raise error(f"{path} is no regular file: expected a file: name another file")
        target = folder / target.readlink()
    return target


def _shown(path: Path) -> str:
    return str(path) if len(str(path)) < _LONGEST else f"{str(path)[:_LONGEST]} ..."


def _why(e: Exception) -> str:
    return getattr(e, "strerror", None) or str(e)
