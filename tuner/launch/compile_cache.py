"""Finds kernels that were compiled before, shipped or in Triton's cache, without hashing Triton itself.

Triton's key of a binary covers everything that the binary depends on, Triton's own sources and the output of
`ptxas --version` among it: a process hashes hundreds of MB and starts a subprocess before its first launch, even when
nothing is compiled. This module tells a changed Triton or ptxas by the sizes and times of the same files, as make does,
and hashes the rest as Triton does. Under this cheaper key a small file in Triton's cache holds Triton's own key, under
which the cache holds the kernel. Only Triton compiles and fills its cache, and nothing is found here that Triton's own
key would not have found.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.errors import TableError, one_line
from tuner.launch import active_driver, binaries, compat
from tuner.lookup import strict
from tuner.lookup.row import BAD_VALUE

VARIABLE = "TUNER_SHORTCUT"
"""An environment variable; with `0` every process asks Triton for its own key."""
FILE = "triton-tuner.json"
VERSION = 1
_KEY_LENGTH = 64
_BESIDE = ("__pycache__", "include")
"""Folders of Triton that no binary depends on."""
_log = logging.getLogger(__name__)
_local = threading.local()
_installing = threading.Lock()

FindShipped = Callable[[], binaries.ShippedBinaries | None]
"""Returns the kernels that ship for a jit function and the current device."""


def install(function: Any, find_shipped: FindShipped | None = None) -> None:
    """Make a jit function look for compiled kernels here before it compiles. Any other object stays as it is.

    Args:
        function: A `triton.JITFunction`, possibly wrapped by a decorator, or the interpreter's stand-in for one.
        find_shipped: Returns the kernels that may ship for it.
    """
    function = _jit_function(function)
    caches: Any = getattr(function, "device_caches", None)
    make = getattr(caches, "default_factory", None)
    if make is None:
        return
    if not isinstance(make, _BinderFactory):
        active_driver.prepare()
    elif find_shipped is None or find_shipped in make.finders:
        return
    with _installing:  # what two threads put in each other's place would lose the finders of one
        make = caches.default_factory
        if not isinstance(make, _BinderFactory):
            make = caches.default_factory = _BinderFactory(function, make)
            if caches:
                function.compile = CachedCompile(function.compile, make.finders)
        if find_shipped is not None and find_shipped not in make.finders:
            # One function may be several kernels, or be compiled here before it serves.
            make.finders.append(find_shipped)


def bind(function: Any) -> None:
    """Install, and make what Triton keeps a function's kernels in for the current device.

    Threads that both come first would make two of them, and the kernels in one would be lost.
    """
    install(function)
    _ = function.device_caches[active_driver.active().get_current_device()]


def uninstall(function: Any, find_shipped: FindShipped | None = None) -> None:
    """Take back an `install`; where nothing else serves from the function, it compiles as Triton made it."""
    function = _jit_function(function)
    with _installing:
        make = getattr(getattr(function, "device_caches", None), "default_factory", None)
        if not isinstance(make, _BinderFactory):
            return
        make.finders[:] = [each for each in make.finders if each != find_shipped]
        if not make.finders:
            function.device_caches.default_factory = make.made_by
            if isinstance(function.compile, CachedCompile):
                function.compile = function.compile.compiles


def _jit_function(function: Any) -> Any:
    while not hasattr(function, "device_caches") and hasattr(function, "fn"):
        function = function.fn
    return function


class _BinderFactory:
    """Makes a jit function's binder for a new device as Triton does, and replaces the `compile` that Triton sets."""

    def __init__(self, function: Any, make: Callable[[], Any]) -> None:
        self._function, self.made_by = function, make
        self.finders: list[FindShipped] = []

    def __call__(self) -> Any:
        made = self.made_by()
        self._function.compile = CachedCompile(self._function.compile, self.finders)
        return made


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel that was compiled or found.

    Attributes:
        key: The key of everything that it depends on except its compiler.
        context: The key of all of that except the source and the arguments.
        kernel: The CompiledKernel.
    """

    key: str
    context: str
    kernel: Any


@contextmanager
def collect_compiled() -> Iterator[list[Compiled]]:
    """Collect everything that this thread compiles or finds inside the block, for blocks around it too."""
    before = getattr(_local, "seen", None)
    seen: list[Compiled] = []
    _local.seen = seen
    try:
        yield seen
    finally:
        _local.seen = before
        if before is not None:
            before += seen


class CachedCompile:
    """Replaces a jit function's `compile`: returns the kernel that was shipped or that Triton's cache holds."""

    def __init__(self, compiles: Callable[..., Any], finders: Sequence[FindShipped]) -> None:
        self.compiles, self._finders = compiles, finders

    def __call__(self, src: Any, target: Any = None, options: Any = None, **more: Any) -> Any:
        """Compile as `triton.compile` does, or find what was compiled before.

        Raises:
            NotShippedError: the kernel serves calls, the process is strict, and no shipped binary fits.
        """
        context = _context(src, target, options)
        key = None if context is None else binaries.key_of({"source": src.hash(), **context})
        if self._finders and strict.is_on():
            return self._shipped_only(key, context, src)
        kernel = None if key is None else self._find(key, src, target)
        if kernel is None:
            kernel = self.compiles(src, target=target, options=options, **more)
            if key is not None:
                _store(key, target, kernel)
        seen = getattr(_local, "seen", None)
        if seen is not None and key is not None and context is not None:
            seen.append(Compiled(key, binaries.key_of(context), kernel))
        return kernel

    def _find(self, key: str, src: Any, target: Any) -> Any:
        from triton import knobs

        if knobs.compilation.always_compile:
            return None
        return self._shipped(key, src) or _load(key, target, src)

    def _shipped(self, key: str, src: Any) -> Any:
        for shipped, index in self._every_shipped():
            kernel = shipped.kernel(key, src.fn, index, source=src)
            if kernel is not None:
                return self._with_launcher(kernel)
        return None

    def _with_launcher(self, kernel: Any) -> Any:
        """A shipped kernel, to be launched by Triton's own launcher where one of those who find it wants that."""
        if any(getattr(find, "is_for_triton", False) for find in self._finders):
            kernel.is_for_triton = True
        return kernel

    def _every_shipped(self) -> Iterator[tuple[binaries.ShippedBinaries, int]]:
        """What ships for the function, with the index of the current device."""
        for find in self._finders:
            shipped = find()
            if shipped is not None:
                yield shipped, active_driver.active().get_current_device()

    def _shipped_only(self, key: str | None, context: Mapping[str, Any] | None, src: Any) -> Any:
        """The shipped kernel, or else the nearest one of the same function, constants and options."""
        if key is None or context is None:
            raise binaries.NotShippedError(f"{src.name}: a hook changes how Triton compiles, so no shipped binary fits")
        kernel = self._shipped(key, src)
        if kernel is not None:
            return kernel
        missing = binaries.NotShippedError(f"no binary of {src.name} ships for this device and Triton")
        for shipped, index in self._every_shipped():
            try:
                return self._with_launcher(shipped.nearest_kernel(src, binaries.key_of(context), index))
            except binaries.NotShippedError as e:
                missing = e
        missing.advice = next(filter(None, (getattr(find, "advice", "") for find in self._finders)), "")
        raise missing


def _context(src: Any, target: Any, options: Any) -> dict[str, Any] | None:
    """What a binary depends on beside its source and its compiler; None where this module cannot tell."""
    from triton import knobs

    if not isinstance(src, compat.ASTSource) or target is None:
        return None
    if getattr(knobs.runtime, "add_stages_inspection_hook", None) is not None:
        return None
    parsed = compat.make_backend(target).parse_options({**(options or {}), **src.parse_options()})
    environment = sorted(compat.get_cache_invalidating_env_vars().items())
    return {"options": parsed.hash(), "target": str(target), "environment": environment}


def _folder(key: str, target: Any) -> tuple[str, Any] | None:
    """The key of our file, from a kernel's key, this Triton and its ptxas, and the manager of its folder in the cache.

    None if that is turned off, or the folder cannot be created.
    """
    if os.environ.get(VARIABLE) == "0":
        return None
    compiler = _ptxas_fingerprint(target) or compat.make_backend(target).hash()
    file_key = hashlib.sha256(json.dumps([VERSION, key, _triton_fingerprint(), compiler]).encode()).hexdigest()
    try:
        return file_key, compat.get_cache_manager(file_key)
    except OSError as e:  # read-only media that hold Triton's own files, but none of ours
        _warn_not_stored(e.strerror or str(e))
        return None


@functools.cache
def _warn_not_stored(why: str) -> None:
    _log.warning("Triton's cache takes no %s, so each start hashes Triton's sources: %s", FILE, why)


@functools.cache
def _triton_fingerprint() -> str:
    """A hash of the path, size and time of Triton's files, and of the installer's list of their hashes."""
    import triton

    root = Path(triton.__file__).parent
    parts = [str(triton.__version__), _installed(root, triton.__version__), *sorted(_file_stats(root))]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _installed(root: Path, version: str) -> str:
    """A hash of the installer's list of hashes, which tells builds apart whose files have equal sizes and times."""
    try:
        return hashlib.sha256((root.parent / f"triton-{version}.dist-info" / "RECORD").read_bytes()).hexdigest()
    except OSError:
        return ""


def _file_stats(folder: Path | str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_dir():
                yield _stat(entry.path)
            elif entry.name not in _BESIDE:
                yield from _file_stats(entry.path)


def _stat(path: str) -> str:
    try:
        found = Path(path).stat()
    except OSError as e:
        return f"{path} {type(e).__name__}"
    return f"{path} {found.st_size} {found.st_mtime_ns}"


def _ptxas_fingerprint(target: Any) -> str | None:
    """Which ptxas would compile for a target; None where the backend's own hash must be asked for.

    Triton's own ptxas lies among its files. An environment variable may choose another. So may an assignment to a knob
    in this process, which only Triton itself can tell.
    """
    from triton import knobs

    if target.backend != "cuda" or vars(knobs.nvidia):
        return None
    parts = [str(target.arch), os.environ.get("TRITON_MOCK_PTX_VERSION", "")]
    for variable in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
        parts.append(_stat(os.environ[variable]) if os.environ.get(variable) else "")
    return "\n".join(parts)


def _load(key: str, target: Any, src: Any) -> Any:
    """The kernel in Triton's cache, announced to a listener as Triton does; None where it is not there."""
    from triton import knobs

    timer, folder = compat.CompileTimer(), _folder(key, target)
    path = None if folder is None else folder[1].get_file(FILE)
    if folder is None or path is None:
        return None
    try:
        triton_key = _read(Path(path), folder[0])
        metadata = f"{src.name[:150]}.json"
        group = compat.get_cache_manager(triton_key).get_group(metadata) or {}
        if metadata not in group:
            return None
        kernel = compat.CompiledKernel(src, group, triton_key)
        if (kernel.metadata.hash, kernel.metadata.target) != (triton_key, target):
            raise TableError(f"{group[metadata]} is of another kernel")
    except (OSError, *BAD_VALUE) as e:
        _log.warning("%s is not used, Triton looks its kernel up itself: %s", path, one_line(e))
        return None
    listener = knobs.compilation.listener
    if listener:
        stored = kernel.metadata._asdict()
        listener(src=src, metadata=stored, metadata_group=group, times=timer.end(), cache_hit=True)
    return kernel


def _read(path: Path, key: str) -> str:
    """Read Triton's key from the file that `_store` wrote."""
    document = json.loads(path.read_text(encoding="utf-8"))
    if document["key"] != key:
        raise TableError("it is for another key")
    triton_key = bytes.fromhex(document["triton_key"]).hex()
    if len(triton_key) != _KEY_LENGTH:
        raise TableError(f"it holds {triton_key!r}, which is no key of Triton's")
    return triton_key


def _store(key: str, target: Any, kernel: Any) -> None:
    folder = _folder(key, target) if isinstance(kernel, compat.CompiledKernel) else None
    if folder is None:
        return
    file_key, manager = folder
    try:
        manager.put(json.dumps({"key": file_key, "triton_key": kernel.hash}), FILE, binary=False)
    except OSError as e:
        _warn_not_stored(e.strerror or str(e))
