"""Compile kernels of a module that changes between starts, by the shortcut and by Triton's own key; print both."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from triton import knobs
from triton.runtime import cache

from tuner.launch import compile_cache
from tuner.sweep import cross_target

SOURCE = """
import triton
import triton.language as tl

SCALE = tl.constexpr(2)

@triton.jit
def shifted(x):
    return x + 1

@triton.jit
def kernel(x, y, N, BLOCK: tl.constexpr, KIND: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, shifted(tl.load(x + at, mask=at < N)) * SCALE, mask=at < N)
"""
MODULE = Path(sys.argv[1]) / "changing.py"
told: list[dict[str, Any]] = []
heard: list[bool] = []
warned: list[str] = []
asks: list[None] = []


class Warned(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        warned.append(record.getMessage())


def start(source: str = SOURCE, *, dtype: torch.dtype = torch.float32, kind: Any = "plain", **options: Any) -> Any:
    """What a new process does of a kernel's module: import it, and compile for its first launch."""
    MODULE.write_text(source)
    spec = importlib.util.spec_from_file_location(MODULE.stem, MODULE)
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode = True  # two sources of one second would share it
    spec.loader.exec_module(module)
    compile_cache.install(module.kernel)
    if kind == "function":
        kind = module.shifted
    return warm_up(module.kernel, dtype, kind, options)


def warm_up(kernel: Any, dtype: torch.dtype, kind: Any, options: dict[str, Any]) -> Any:
    return kernel.warmup(dtype, dtype, 128, BLOCK=128, KIND=kind, grid=(1,), enable_fp_fusion=True, **options)


def case(name: str, *given: Any, **options: Any) -> None:
    """One start by the shortcut, and the same by Triton alone, which must not differ."""
    heard.clear()
    asks.clear()
    ours, asked, ours_heard = start(*given, **options), bool(asks), heard.copy()
    os.environ[compile_cache.VARIABLE] = "0"
    theirs = start(*given, **options)
    del os.environ[compile_cache.VARIABLE]
    same = (ours.hash, ours.metadata_group, sorted(ours.asm)) == (
        theirs.hash,
        theirs.metadata_group,
        sorted(theirs.asm),
    )
    told.append({"case": name, "asked": asked, "cached": ours_heard, "same": same, "hash": ours.hash})


@contextlib.contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    os.environ[name] = value
    yield
    del os.environ[name]


def spoil(change: Callable[[Path], object]) -> None:
    for kept in Path(knobs.cache.dir).glob(f"*/{compile_cache.FILE}"):
        change(kept)


class ReadOnly(cache.FileCacheManager):
    """A cache on media that cannot be written: what is there is there."""

    def __init__(self, key: str, **kinds: bool) -> None:
        if not (Path(knobs.cache.dir) / key).exists():
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        super().__init__(key, **kinds)


def of_two_targets() -> dict[str, Any]:
    """What one jit function is compiled for, one device after the other, and whether Triton's key was asked for."""
    first = start()
    cross_target.activate("sm_80")
    asks.clear()
    second = warm_up(first.src.fn, torch.float32, "plain", {})
    return {"arch": [each.metadata.target.arch for each in (first, second)], "asked": bool(asks)}


def main() -> None:
    logging.getLogger("tuner").addHandler(Warned())
    logging.getLogger("tuner").propagate = False
    knobs.compilation.listener = lambda *_, cache_hit, **__: heard.append(cache_hit)
    triton_key = cache.triton_key()  # hashed once here: every start asks for it anew
    cache.triton_key = lambda: (asks.append(None), triton_key)[1]
    cross_target.activate("sm_90")
    case("first")
    case("again")
    case("other source", SOURCE.replace("* SCALE", "* SCALE * 3"))
    case("other function below", SOURCE.replace("x + 1", "x + 2"))
    case("other constant beside", SOURCE.replace("constexpr(2)", "constexpr(3)"))
    case("other options", num_warps=8)
    case("other dtype", dtype=torch.float16)
    case("other constant", kind="other")
    case("a function as constant", kind="function")
    case("a function as constant, changed", SOURCE.replace("x + 1", "x + 3"), kind="function")
    with environment("TRITON_DISABLE_LINE_INFO", "1"):
        case("other environment")
    ptxas = MODULE.parent / "ptxas"
    ptxas.symlink_to(knobs.nvidia.ptxas.path)
    with environment("TRITON_PTXAS_PATH", str(ptxas)):
        case("other ptxas")
    version, triton.__version__ = triton.__version__, "3.7.99"
    compile_cache._triton_fingerprint.cache_clear()
    case("other Triton")
    triton.__version__ = version
    compile_cache._triton_fingerprint.cache_clear()
    case("once more")
    cross_target.activate("sm_80")
    case("other target")
    cross_target.activate("sm_90")
    targets = of_two_targets()
    cross_target.activate("sm_90")
    with environment("TRITON_ALWAYS_COMPILE", "1"):
        case("always compiled")
    spoil(lambda kept: kept.write_text("{"))
    case("damaged")
    case("mended")
    spoil(lambda kept: kept.write_text(kept.read_text().replace('"key": "', '"key": "0')))
    case("of another key")
    shutil.rmtree(Path(knobs.cache.dir) / cache._base32(told[0]["hash"]))
    case("gone from Triton's cache")
    spoil(lambda kept: shutil.rmtree(kept.parent))
    knobs.cache.manager_class = ReadOnly
    case("read-only")
    case("read-only again")
    knobs.cache.manager_class = cache.FileCacheManager
    sys.stdout.write(json.dumps({"told": told, "warned": warned, "targets": targets}))


if __name__ == "__main__":
    main()
