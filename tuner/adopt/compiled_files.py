"""Binaries that a captured program compiled, each a file beside the captured calls, and what ships of them.

A kernel without an autotuner has no config to choose, so nothing is tuned for it: what a fresh process needs of it is
what another one compiled. The kernels that an autotuner chose a config for are compiled for their winners instead.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.adopt import calls
from tuner.errors import SuiteError, in_short
from tuner.hardware import device as devices
from tuner.launch import binaries

if TYPE_CHECKING:
    from tuner.launch.compile_cache import Compiled
    from tuner.tables.binaries import Written

FORMAT, VERSION = "triton-tuner captured binary", 1
NOUN = "captured binary"
SUFFIX = ".binary.json"


@dataclass(frozen=True, slots=True)
class Binary:
    """A kernel that was compiled while a program was captured.

    Attributes:
        kernel: where its function stands, "package.module:name".
        device: the slug of the device that it was compiled on.
        triton: the version of Triton that compiled it.
        target: what it was compiled for: backend, architecture and warp size.
        entry: what the index of a folder of kernels says of it.
        contents: its metadata and binary in base64, by suffix.
    """

    kernel: str
    device: str
    triton: str
    target: Sequence[Any]
    entry: Mapping[str, Any]
    contents: Mapping[str, str]

    @property
    def library(self) -> str:
        """The package that its function is in."""
        return library_of(self.kernel)

    @property
    def file_name(self) -> str:
        """The name of the file that holds it, the same in every process that compiles it."""
        told = json.dumps([self.kernel, self.device, self.triton, self.entry["key"]])
        name = self.kernel.rpartition(":")[2].rpartition(".")[2]
        return f"{name[:80]}-{hashlib.sha256(told.encode()).hexdigest()[:16]}{SUFFIX}"

    def dumps(self) -> str:
        """Return the text of the file."""
        document = {name: getattr(self, name) for name in self.__slots__} | {"format": FORMAT, "version": VERSION}
        return json.dumps(document, sort_keys=True, separators=(",", ":")) + "\n"

    def decoded(self) -> dict[str, bytes]:
        """Return the contents of its files by suffix.

        Raises:
            ValueError: they are not what was written.
        """
        found = {suffix: base64.b64decode(text, validate=True) for suffix, text in self.contents.items()}
        if {suffix: hashlib.sha256(content).hexdigest() for suffix, content in found.items()} != self.entry["files"]:
            raise ValueError("its contents were changed")
        return found


def place_of(function: Any) -> str:
    """Return where a jit function stands: "package.module:name"."""
    return f"{function.__module__}:{function.__qualname__}"


def library_of(place: str) -> str:
    """Return the package that a place is in."""
    return place.partition(":")[0].partition(".")[0]


def described(function: Any, compiled: Compiled) -> Binary:
    """Return the record of a kernel that this process compiled for its current device."""
    from tuner.tables import binaries as tables

    made, place = tables.entry_of(compiled), place_of(function)
    contents = {suffix: base64.b64encode(content).decode() for suffix, content in made.contents.items()}
    return Binary(
        place, devices.current().slug, *binaries.triton_and_target(), made.entry | {"kernel": place}, contents
    )


def load(folders: Iterable[Path]) -> tuple[list[Binary], list[str]]:
    """Read the binaries of folders: see `calls.read_all`."""
    return calls.read_all(folders, SUFFIX, _read)


def of_this_triton(found: Iterable[Binary]) -> tuple[list[Binary], list[str]]:
    """Return the binaries that the installed Triton compiled, and say in one line each what others there are."""
    here, others = devices.triton_version(), Counter[tuple[str, str]]()
    kept: list[Binary] = []
    for each in found:
        if each.triton == here:
            kept.append(each)
        else:
            others[each.library, each.triton] += 1
    said = "binaries of {}: {}, made by Triton {}, here is {}: capture it again"
    return kept, [said.format(library, count, by, here) for (library, by), count in sorted(others.items())]


def export(found: Iterable[Binary], directory: Path, covered: Mapping[str, Collection[str]]) -> list[Written]:
    """Write binaries beside tables, a folder for each library and device.

    Args:
        found: the binaries.
        directory: where the tables are.
        covered: by the slug of a device, the keys of what ships with the tables.

    Raises:
        TableError: a folder cannot be written.
    """
    from tuner.tables import binaries as tables

    folders: dict[str, dict[str, Binary]] = {}
    for each in found:
        if (key := each.entry["key"]) not in covered.get(each.device, ()):
            folders.setdefault(binaries.folder_name(each.library, each.device), {}).setdefault(key, each)
    written: list[Written] = []
    for name, kernels in sorted(folders.items()):
        made = {key: tables.CompiledEntry(dict(each.entry), each.decoded()) for key, each in kernels.items()}
        first = next(iter(kernels.values()))
        written.append(tables.write_entries(directory / name, made, (first.triton, first.target)))
    return written


def _read(path: Path) -> Binary:
    document = calls.document(path, NOUN, FORMAT, VERSION)
    try:
        found = Binary(**document)
        binaries.entry_of(found.entry)
        found.decoded()
        if "/" in "".join([found.kernel, found.device, *found.contents]):
            raise ValueError("it names another folder")
        if found.file_name != path.name:
            raise ValueError("its name is of another binary")
    except (LookupError, TypeError, ValueError, AttributeError) as e:
        raise SuiteError(f"{path}: a damaged {NOUN} ({in_short(e)}): {calls.ADVICE}") from e
    return found
