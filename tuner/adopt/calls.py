"""A captured call of an autotuned kernel, and the folder of such calls: each kernel and key has a file of its own.

What a file holds decides its name. So processes that capture the same call write the same file, and none needs to
know of the others.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tuner import files
from tuner.errors import ConfigError, KernelError, SuiteError, in_short
from tuner.tuned.arguments import Arguments
from tuner.tuned.signature import Signature
from tuner.tuned.triton_configs import COMPILERS, ConfigList

FORMAT, VERSION = "triton-tuner captured call", 1
NOUN = "captured call"
SUFFIX = ".call.json"
MOST_CALLS = 4096
"""How many calls a folder keeps, and how many binaries."""
ADVICE = "remove it, and capture again"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a kernel, without the values of floats.

    Attributes:
        kernel: where the kernel is imported from, "package.module:name".
        key: the problem of the call, in words; with the kernel it names the file.
        about: the autotuner's arguments, and what it does to them around a launch: `about`.
        storages, args, kwargs: what was passed, as `tuner.adopt.values` writes it.
        grids: by config of the list, its parameters and the programs along each axis; no programs where the grid cannot
            be had for it. Configs that differ in warps and stages alone have one entry.
    """

    kernel: str
    key: str
    about: Mapping[str, Any]
    storages: Sequence[Sequence[Any]]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    grids: Sequence[tuple[Mapping[str, Any], Sequence[int]]] = field(default_factory=tuple)

    @property
    def file_name(self) -> str:
        """The name of the file that holds the call."""
        told = json.dumps([self.kernel, self.key, self.about], sort_keys=True)
        name = self.kernel.rpartition(":")[2].rpartition(".")[2]
        return f"{name[:80]}-{hashlib.sha256(told.encode()).hexdigest()[:16]}{SUFFIX}"

    def dumps(self) -> str:
        """Return the text of the file."""
        document = {name: getattr(self, name) for name in self.__slots__} | {"format": FORMAT, "version": VERSION}
        return json.dumps(document, sort_keys=True, separators=(",", ":")) + "\n"


def about(autotuner: Any) -> dict[str, Any]:
    """Return what replaying a call takes for granted of its autotuner: its arguments, and its hooks by name."""

    def named(hook: Any) -> str:
        return f"{getattr(hook, '__module__', '')}:{getattr(hook, '__qualname__', type(hook).__qualname__)}"

    hooks = {
        name: named(getattr(autotuner, name))
        for name in ("pre_hook", "post_hook")
        if getattr(autotuner, f"user_defined_{name}", False)
    }
    return {
        "arguments": list(autotuner.arg_names),
        "reset_to_zero": list(autotuner.reset_to_zero),
        "restore_value": list(autotuner.restore_value),
        **hooks,
    }


def grids(autotuner: Any, signature: Signature, call: Arguments) -> list[tuple[dict[str, Any], list[int]]]:
    """Return the grid of a call for every config of the list, as the launch would have it."""
    found: dict[str, tuple[dict[str, Any], list[int]]] = {}
    named = signature.named(call.args, call.kwargs)
    known = ConfigList(autotuner.base_fn.__name__, None)
    for config in autotuner.configs:
        with contextlib.suppress(ConfigError):  # no table can hold it, so nothing is tuned by it
            pairs = parameters(known, config.kwargs)
            if str(pairs) in found:  # a grid knows nothing of warps and stages
                continue
            try:
                programs = _programs(call.grid, {**signature.defaults, **_meta(autotuner, named, config)})
            except Exception:  # noqa: BLE001  a user's function may raise anything; that config has no grid
                programs = []
            found[str(pairs)] = pairs, programs
    return list(found.values())


def parameters(known: ConfigList, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kernel's own parameters of a config as tables hold them, sorted."""
    import triton

    return {name: value for name, value in known.of(triton.Config(dict(given))).pairs if name not in COMPILERS}


def _meta(autotuner: Any, named: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """Return what a grid's function is given: the call's arguments, the config's, and those of heuristics below."""
    meta = {**named, **config.all_kwargs()}
    fn = autotuner.fn
    while hasattr(fn, "values") and hasattr(fn, "fn"):
        for name, heuristic in fn.values.items():
            meta[name] = heuristic(meta)
        fn = fn.fn
    return meta


def _programs(grid: Any, meta: dict[str, Any]) -> list[int]:
    found = grid(meta) if callable(grid) else grid
    return [int(each) for each in (found if isinstance(found, (tuple, list)) else (found,))]


def load(folders: Iterable[Path]) -> tuple[list[Call], list[str]]:
    """Read the calls of folders: see `read_all`."""
    return read_all(folders, SUFFIX, _read)


def read_all(folders: Iterable[Path], suffix: str, read: Callable[[Path], T]) -> tuple[list[T], list[str]]:
    """Return what `read` makes of the files of a suffix, and in one line each why others cannot be read.

    Raises:
        SuiteError: a folder cannot be read.
    """
    found: list[T] = []
    faults: list[str] = []
    for path in [path for folder in folders for path in paths(folder, suffix)]:
        try:
            found.append(read(path))
        except SuiteError as e:
            faults.append(str(e))
    return found, faults


def paths(folder: Path, suffix: str = SUFFIX) -> list[Path]:
    """Return the files of a folder that hold calls, or what another suffix is of, sorted.

    Raises:
        SuiteError: the folder cannot be read.
    """
    try:
        return sorted(each for each in folder.iterdir() if each.name.endswith(suffix) and not each.name.startswith("."))
    except OSError as e:
        raise SuiteError(f"cannot read the folder {folder}: {e.strerror}: name one that tuner capture wrote") from e


def document(path: Path, noun: str, kind: str, expected: int) -> dict[str, Any]:
    """Read a file of a folder, and take off what says its format and version.

    Raises:
        SuiteError: it cannot be read, or is of another format or version.
    """
    found = files.read_json(path, noun, ADVICE, error=SuiteError)
    if not isinstance(found, dict) or found.pop("format", None) != kind:
        raise SuiteError(f"{path}: no {noun}: {ADVICE}")
    if (version := found.pop("version", None)) != expected:
        raise SuiteError(f"{path}: a {noun} of version {version}: expected {expected}: {ADVICE}")
    return found


def _read(path: Path) -> Call:
    fields = document(path, NOUN, FORMAT, VERSION)
    try:
        call = Call(**fields)
        if call.file_name != path.name:
            raise ValueError("its name is of another call")
    except (TypeError, ValueError, AttributeError) as e:
        raise SuiteError(f"{path}: a damaged {NOUN} ({in_short(e)}): {ADVICE}") from e
    return call


def is_outdated(path: Path, call: Call) -> bool:
    """Return whether a file holds the call for another list of configs, or cannot be read."""

    def listed(grids: Sequence[tuple[Mapping[str, Any], Sequence[int]]]) -> list[str]:
        return sorted(str(sorted(pairs.items())) for pairs, _ in grids)

    try:
        return listed(_read(path).grids) != listed(call.grids)
    except (SuiteError, AttributeError, TypeError, ValueError):
        return True


def check(call: Call, autotuner: Any) -> None:
    """Raise KernelError where an autotuner is no longer what the call was captured of."""
    now = about(autotuner)
    for name in sorted(now.keys() | call.about.keys()):
        if now.get(name) != call.about.get(name):
            raise KernelError(
                f"{call.kernel} was captured with {name} {call.about.get(name)}, and has {now.get(name)} now: "
                "capture it again"
            )
