"""A shortcut to kernels that were compiled before: those that ship, and those that Triton's cache holds.

Triton keys each binary by all that it depends on, its own sources and what `ptxas --version` prints among it: a process
hashes hundreds of MB and starts a subprocess before its first launch, though nothing is compiled. Those two are told
here by the sizes and times of the same files, as make tells what changed; all else is hashed as Triton does. Under that
cheaper key Triton's cache holds Triton's own, under which it holds the kernel. Triton alone compiles and fills its
cache, and nothing is found there that its own key would not have found.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tuner.errors import TableError
from tuner.launch import binaries, compat
from tuner.lookup.row import BAD_VALUE

VARIABLE = "TUNER_SHORTCUT"
"""`0` there: every process asks Triton for its own key."""
FILE = "triton-tuner.json"
VERSION = 1
_KEY_LENGTH = 64
_BESIDE = ("__pycache__", "include")
"""Folders of Triton's that no binary depends on."""
_log = logging.getLogger(__name__)
_local = threading.local()

Shelf = Callable[[], binaries.Shelf | None]
"""Gives the kernels that ship for a jit function and the current device."""


def take(function: Any, shelf: Shelf | None = None) -> None:
    """Let a jit function's compiles take the shortcut from here on; anything else stays as it is.

    Args:
        function: a `triton.JITFunction`, what a decorator made of one, or the interpreter's stand-in for it.
        shelf: where kernels of it may ship.
    """
    while not hasattr(function, "device_caches"):
        if not hasattr(function, "fn"):
            return
        function = function.fn
    caches = function.device_caches
    make = getattr(caches, "default_factory", None)
    if make is None or isinstance(make, _Binders):
        return
    caches.default_factory = _Binders(function, make, shelf)
    if caches:
        function.compile = Shortcut(function.compile, shelf)


class _Binders:
    """Makes what a jit function needs on a device it has not seen, as Triton does, which sets its `compile` anew."""

    def __init__(self, function: Any, make: Callable[[], Any], shelf: Shelf | None) -> None:
        self._function, self._make, self._shelf = function, make, shelf

    def __call__(self) -> Any:
        made = self._make()
        self._function.compile = Shortcut(self._function.compile, self._shelf)
        return made


@contextmanager
def watched() -> Iterator[list[tuple[str, Any]]]:
    """Collect what this thread compiles by shortcuts inside the block: what each kernel is found by, and the kernel."""
    before = getattr(_local, "seen", None)
    seen: list[tuple[str, Any]] = []
    _local.seen = seen
    try:
        yield seen
    finally:
        _local.seen = before


class Shortcut:
    """In the place of Triton's `compile`: the kernel that was shipped, or that Triton's cache holds."""

    def __init__(self, compiles: Callable[..., Any], shelf: Shelf | None) -> None:
        self._compiles, self._shelf = compiles, shelf

    def __call__(self, src: Any, target: Any = None, options: Any = None, **more: Any) -> Any:
        """Compile as `triton.compile` does, or find what was compiled before."""
        told = _told(src, target, options)
        kernel = None if told is None else self._found(told, src, target)
        if kernel is None:
            kernel = self._compiles(src, target=target, options=options, **more)
            if told is not None:
                _keep(told, target, kernel)
        seen = getattr(_local, "seen", None)
        if seen is not None and told is not None:
            seen.append((told, kernel))
        return kernel

    def _found(self, told: str, src: Any, target: Any) -> Any:
        from triton import knobs

        if knobs.compilation.always_compile:
            return None
        shelf = None if self._shelf is None else self._shelf()
        if shelf is not None:
            kernel = shelf.kernel(told, src.fn, compat.driver.active.get_current_device(), source=src)
            if kernel is not None:
                return kernel
        return _cached(told, target, src)


def _told(src: Any, target: Any, options: Any) -> str | None:
    """All that a binary depends on but who compiles it; None where that is more than can be told here."""
    from triton import knobs

    if not isinstance(src, compat.ASTSource) or target is None:
        return None
    if getattr(knobs.runtime, "add_stages_inspection_hook", None) is not None:
        return None
    parsed = compat.make_backend(target).parse_options({**(options or {}), **src.parse_options()})
    told = {"source": src.hash(), "options": parsed.hash(), "target": str(target)}
    return binaries.key_of({**told, "environment": sorted(compat.get_cache_invalidating_env_vars().items())})


def _key(told: str, target: Any) -> str | None:
    """With this Triton, and what it calls: what its cache holds our file under; None where that is turned off."""
    if os.environ.get(VARIABLE) == "0":
        return None
    compiler = _assembler(target) or compat.make_backend(target).hash()
    return hashlib.sha256(json.dumps([VERSION, told, _triton(), compiler]).encode()).hexdigest()


@functools.cache
def _triton() -> str:
    """Path, size and time of Triton's files, those that its own key reads among them; and the list of their hashes."""
    import triton

    root = Path(triton.__file__).parent
    told = [str(triton.__version__), _installed(root, triton.__version__), *sorted(_files(root))]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def _installed(root: Path, version: str) -> str:
    """The installer's list of hashes: it tells builds apart whose files are as long, and all of one time."""
    try:
        return hashlib.sha256((root.parent / f"triton-{version}.dist-info" / "RECORD").read_bytes()).hexdigest()
    except OSError:
        return ""


def _files(folder: Path | str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_dir():
                yield _file(entry.path)
            elif entry.name not in _BESIDE:
                yield from _files(entry.path)


def _file(path: str) -> str:
    try:
        found = Path(path).stat()
    except OSError as e:
        return f"{path} {type(e).__name__}"
    return f"{path} {found.st_size} {found.st_mtime_ns}"


def _assembler(target: Any) -> str | None:
    """Which ptxas would compile for a target; None where the target's backend says cheaply what its key needs.

    Triton's own lies among its files. Another is chosen by the environment, or, against which nothing is known here but
    to ask Triton, by an assignment in this process.
    """
    from triton import knobs

    if target.backend != "cuda" or vars(knobs.nvidia):
        return None
    told = [str(target.arch), os.environ.get("TRITON_MOCK_PTX_VERSION", "")]
    for variable in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
        told.append(_file(os.environ[variable]) if os.environ.get(variable) else "")
    return "\n".join(told)


def _place(key: str) -> Any:
    """Where Triton's cache holds our file: its manager; None where there can be none."""
    try:
        return compat.get_cache_manager(key)
    except OSError as e:  # read-only media that hold Triton's own files, but none of ours
        _say_unkept(e.strerror or str(e))
        return None


@functools.cache
def _say_unkept(why: str) -> None:
    _log.warning("Triton's cache takes no %s, so each start hashes Triton's sources: %s", FILE, why)


def _cached(told: str, target: Any, src: Any) -> Any:
    """The kernel in Triton's cache, told to whoever listens as Triton does; None where it is not there."""
    from triton import knobs

    timer, key = compat.CompileTimer(), _key(told, target)
    place = None if key is None else _place(key)
    path = None if place is None else place.get_file(FILE)
    if path is None or key is None:
        return None
    try:
        theirs = _read(Path(path), key)
        metadata = f"{src.name[:150]}.json"
        group = compat.get_cache_manager(theirs).get_group(metadata) or {}
        if metadata not in group:
            return None
        kernel = compat.CompiledKernel(src, group, theirs)
        if (kernel.metadata.hash, kernel.metadata.target) != (theirs, target):
            raise TableError(f"{group[metadata]} is of another kernel")
    except (OSError, *BAD_VALUE) as e:
        _log.warning("%s is not used, Triton looks its kernel up itself: %s", path, e)
        return None
    listener = knobs.compilation.listener
    if listener:
        stored = kernel.metadata._asdict()
        listener(src=src, metadata=stored, metadata_group=group, times=timer.end(), cache_hit=True)
    return kernel


def _read(path: Path, key: str) -> str:
    """Triton's key, from the file that `_keep` wrote."""
    document = json.loads(path.read_text(encoding="utf-8"))
    if document["key"] != key:
        raise TableError("it is for another key")
    theirs = bytes.fromhex(document["triton_key"]).hex()
    if len(theirs) != _KEY_LENGTH:
        raise TableError(f"it holds {theirs!r}, which is no key of Triton's")
    return theirs


def _keep(told: str, target: Any, kernel: Any) -> None:
    key = _key(told, target)
    place = None if key is None or not isinstance(kernel, compat.CompiledKernel) else _place(key)
    if place is None:
        return
    try:
        place.put(json.dumps({"key": key, "triton_key": kernel.hash}), FILE, binary=False)
    except OSError as e:
        _say_unkept(e.strerror or str(e))
