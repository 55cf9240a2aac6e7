"""Call a family whose binaries do not ship at the Ms given; tells what each call compiled and asked the formula."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import stub_driver
import stub_matmul
import torch

import tuner
from tuner.kernel import registry
from tuner.kernels import bmm, gated_linear, matmul, rms_norm
from tuner.kernels.ops import compile_ahead
from tuner.launch import compile_threads, cuda
from tuner.launch import launch as launching
from tuner.lookup import match_rules

kind, how, ms = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
compiles = stub_matmul.activate()
asked: list[Any] = []
looked: list[None] = []
ruled: list[Any] = []
formula = registry.default_config
weight = stub_matmul.half(256, 256).t()
eights = torch.empty(1024, 512, dtype=torch.float8_e4m3fn).t()  # of 256 columns one binary serves every M
gate, up = (stub_matmul.half(256, 256) for _ in range(2))
norm_weight = torch.empty(256, dtype=torch.float16)
keep: list[torch.Tensor] = []


def ask(problem: Any, *rest: Any) -> Any:
    asked.append(problem)
    return formula(problem, *rest)


def broken(*_: Any) -> Any:
    raise RuntimeError("no such instruction")


def call(m: int) -> None:
    if kind == "bmm":
        keep.append(bmm(torch.empty(2, m, 256, dtype=torch.float16), weight.expand(2, 256, 256)))
    elif kind == "gated":
        keep.append(gated_linear(stub_matmul.half(m, 256), gate, up))
    elif kind in ("norm", "gemma"):
        keep.append(rms_norm(stub_matmul.half(m, 256), norm_weight, 1e-5, offset=float(kind == "gemma")))
    elif kind == "scaled":
        scales = {"scale_a": torch.empty(m, 1), "scale_b": torch.empty(1, 1024)}
        keep.append(matmul(torch.empty(m, 512, dtype=torch.float8_e4m3fn), eights, **scales))
    else:
        keep.append(matmul(stub_matmul.half(m, 256, shift=kind == "unaligned"), weight))


def counted(run: Any) -> Any:
    def counting(launches: Any) -> None:
        looked.append(None)
        run(launches)

    return counting


def told_of(m: int) -> dict[str, int]:
    """One call; a binary is found in Triton's cache where an earlier program of the test's module compiled it."""
    before = figures()
    call(m)
    names = "made", "asked", "looked", "ruled"
    return {name: now - then for name, now, then in zip(names, figures(), before, strict=True)}


def figures() -> tuple[int, ...]:
    return compiles.compiled + compiles.from_cache, len(asked), len(looked), len(ruled)


def can_run(*given: Any, rules: Any = match_rules.can_run) -> bool:
    ruled.append(given)
    return bool(rules(*given))


match_rules.can_run = can_run
registry.default_config = ask
launching.run = counted(launching.run)
if how == "alone":
    compile_ahead.prepare = lambda *_: None
elif how == "broken":
    compile_threads.compile_launches = broken
elif how == "misses":
    tuner.record_misses(os.environ["MISSES"])
if how == "threads":
    # torch makes the device's context a thread's own where that has GPU tensors; here they are on the host.
    with ThreadPoolExecutor(4, initializer=cuda.ensure_context) as workers:
        list(workers.map(call, ms))  # raises what a thread raised
    calls = []
else:
    calls = [told_of(m) for m in ms]
tuner.flush_misses()
stub_driver.tell(calls=calls)
