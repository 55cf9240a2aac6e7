"""Compiled kernels that ship beside a table: found by what their launch depends on, loaded without a compiler.

`tuner export --with-kernels` writes them into `<op>--<device slug>.kernels/`. They are used under the very Triton that
made them, on the same architecture, for the same source; anything else is compiled by Triton as ever.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.errors import TableError
from tuner.launch import compat
from tuner.lookup import lookup
from tuner.lookup.resolver import Resolver
from tuner.lookup.row import BAD_VALUE

FORMAT = "triton-tuner kernels"
VERSION = 1
INDEX = "index.json"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """One kernel of a folder.

    Attributes:
        key: what its launch depends on, see `key_of`.
        source: of the jit function and all that it calls: Triton's own hash.
        signature: types of the arguments by name, as Triton has them; empty where the launch says them itself.
        constants: values compiled in, by their place among the arguments; empty likewise.
        files: SHA-256 of its metadata and of its binary, by the files' suffixes; files are named for them.
    """

    key: str
    source: str
    signature: Mapping[str, str]
    constants: tuple[tuple[tuple[int, ...], Any], ...]
    files: Mapping[str, str]


class Shelf:
    """The kernels of one op and device that can be loaded here."""

    def __init__(self) -> None:
        self.entries: dict[str, tuple[Path, Entry]] = {}
        self._made: dict[tuple[str, int | None], Any] = {}
        self._bad: set[str] = set()

    def kernel(self, key: str, function: Any, index: int | None, source: Any = None) -> Any:
        """The CompiledKernel under a key, for the current device; None where there is none.

        Args:
            key: see `key_of`.
            function: the jit function.
            index: of the current device.
            source: Triton's ASTSource of the launch, where there is one; else the entry's signature makes it.
        """
        made = self._made.get((key, index))
        if made is not None or key not in self.entries or key in self._bad:
            return made
        folder, entry = self.entries[key]
        try:
            # Without a lock: of two threads that load it at once both use what came first.
            return self._made.setdefault((key, index), _load(folder, entry, function, source))
        except (TableError, OSError, *BAD_VALUE) as e:
            self._bad.add(key)
            _log.warning("%s: a kernel is not used, Triton compiles it instead: %s", folder, e)
            return None


def key_of(specialization: Mapping[str, Any]) -> str:
    """The key of a launch, from all that its binary depends on but the source."""
    return hashlib.sha256(json.dumps(specialization, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def folder_name(op: str, slug: str) -> str:
    """The name of a folder of kernels: `<op>--<device slug>.kernels`."""
    return f"{op}--{slug}.kernels"


def shelf(op: str, slug: str) -> Shelf | None:
    """The kernels that ship beside this process's tables; None where there are none for this Triton and device."""
    try:
        return _shelves[op, slug]
    except KeyError:
        pass
    resolver = lookup.resolver()
    made = Shelf()
    for folder in _folders(resolver, folder_name(op, slug)):
        for entry in _read(folder):
            made.entries.setdefault(entry.key, (folder, entry))
    found = made if made.entries else None
    _shelves[op, slug] = found
    if lookup.resolver() is not resolver:
        _shelves.pop((op, slug), None)
    return found


def _folders(resolver: Resolver, name: str) -> list[Path]:
    from tuner.lookup import sources

    found: list[Path] = []
    for source in resolver.sources():
        place: Any = None
        if isinstance(source, sources.TableFile):
            place = source.path.parent
        elif isinstance(source, sources.TableFolder):
            place = source.path
        elif isinstance(source, sources.TablePackage):
            place = source.folder()
        if isinstance(place, Path) and (place / name / INDEX).is_file():  # what lies in a zip file is not loaded
            found.append(place / name)
    return found


def _read(folder: Path) -> list[Entry]:
    """A folder's entries, none where they are not for here; why is said once."""
    try:
        document = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        if document["format"] != FORMAT or document["version"] != VERSION:
            raise TableError(f"format {document['format']!r} {document['version']!r}: expected {FORMAT!r} {VERSION}")
        made_by, arch = str(document["triton"]), document["target"]
        entries = [_entry(fields) for fields in document["kernels"]]
    except (TableError, OSError, *BAD_VALUE) as e:
        _log.warning("%s is not used: %s: export it again with --with-kernels", folder, e)
        return []
    here, target = _here()
    if made_by != here:
        _log.warning(
            "%s was made by Triton %s, here is %s: kernels are compiled at their first launch instead; to ship them for"
            " this Triton: tuner export DIR --with-kernels",
            *(folder, made_by, here),
        )
        return []
    if arch != target:
        _log.warning("%s is for %s, here is %s: not used", folder, arch, target)
        return []
    return entries


def _entry(fields: Mapping[str, Any]) -> Entry:
    constants = tuple((tuple(int(step) for step in path), value) for path, value in fields["constants"])
    files = {str(suffix): str(digest) for suffix, digest in fields["files"].items()}
    signature = {str(name): str(kind) for name, kind in fields["signature"]}  # in the arguments' order
    return Entry(str(fields["key"]), str(fields["source"]), signature, constants, files)


def _here() -> tuple[str, list[Any]]:
    """This Triton and the target it compiles for."""
    import triton

    target = compat.driver.active.get_current_target()
    return str(triton.__version__), [target.backend, target.arch, target.warp_size]


def _load(folder: Path, entry: Entry, function: Any, source: Any) -> Any:
    if function.cache_key != entry.source:
        raise TableError(f"{function.__name__} is another version than was compiled: export again with --with-kernels")
    paths: dict[str, Path] = {}
    for suffix, digest in entry.files.items():
        path = folder / f"{digest}.{suffix}"
        if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise TableError(f"{path.name} was changed: export again with --with-kernels")
        paths[f"{function.__name__}.{suffix}"] = path
    made = compat.ASTSource(function, dict(entry.signature), dict(entry.constants)) if source is None else source
    return compat.CompiledKernel(made, paths, entry.key)


_shelves: dict[tuple[str, str], Shelf | None] = {}
lookup.on_change(_shelves.clear)
