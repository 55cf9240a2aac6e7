"""A library that knows nothing of triton-tuner, and programs that call it under `tuner capture`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

LIBRARY = """
import math
import torch, triton, triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

def configs(*blocks):
    return [triton.Config({"BLOCK": block}, num_warps=warps) for block in blocks for warps in (2, 4)]

@triton.heuristics({"HAS_BIAS": lambda args: args["bias"] is not None})
@triton.autotune(configs=configs(16, 32), key=["N"], reset_to_zero=["total"])
@triton.jit
def segments(x, y, bias, total, cu_seqlens, N, scale, BLOCK: tl.constexpr, HAS_BIAS: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first, last = tl.load(cu_seqlens), tl.load(cu_seqlens + 1)
    v = tl.load(x + at, mask=(at >= first) & (at < last), other=0.0) * scale
    if HAS_BIAS:
        v += tl.load(bias + at, mask=at < N, other=0.0)
    tl.store(y + at, v, mask=at < N)
    tl.atomic_add(total, tl.sum(v))

@triton.autotune(configs=configs(16, 24), key=["DTYPE"])  # 24 does not compile
@triton.jit
def described(source, target, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    for start in range(0, 64, BLOCK):
        for column in range(0, 64, 16):
            block = source.load([start, column]) if BLOCK == 16 else tl.arange(0, BLOCK)
            target.store([start, column], block.to(DTYPE))

@triton.autotune(configs=configs(16, 32), key=["N"], restore_value=["x"])
@triton.jit
def in_place(x, done, N, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # A second launch changes nothing, unless what says that it is done is what it was before the first.
    left = tl.load(done + at, mask=at < N, other=1) == 0
    tl.store(x + at, tl.load(x + at, mask=at < N) * factor, mask=left)
    tl.store(done + at, 1, mask=left)

@triton.autotune(configs=configs(16, 32), key=["N"])
@triton.jit
def gather(x, index, y, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + tl.load(index + at, mask=at < N), mask=at < N), mask=at < N)

@triton.autotune(configs=configs(16, 32), key=["N"], pre_hook=lambda args, reset_only=False: args["x"].normal_())
@triton.jit
def drawn(x, y, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < N), mask=at < N)

@triton.autotune(configs=configs(16, 32), key=["N"])
@triton.jit
def logarithm(x, y, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < N)
    tl.store(y + at, tl.log(-v * v), mask=at < N)

@triton.autotune(configs=configs(16, 32), key=["N"])
@triton.jit
def by_address(table, y, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(table).to(tl.pointer_type(tl.float32))
    tl.store(y + at, tl.load(x + at, mask=at < N), mask=at < N)

@triton.autotune(configs=configs(16, 32), key=["N"])
@triton.jit
def growth(x, y, N, BLOCK: tl.constexpr):
    # What N(0, 1) makes infinite; one of the two blocks is wrong.
    power = 16 if BLOCK == 16 else 15
    v = tl.exp(power * tl.sum(tl.log(1 + tl.abs(tl.load(x + tl.arange(0, 64))))))
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, v + tl.zeros([BLOCK], tl.float32), mask=at < N)

@triton.autotune(configs=configs(16, 32), key=["N"])
@triton.jit
def counted(index, y, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(index + at, mask=at < N) + 1, mask=at < N)

class OwnAutotuner(triton.runtime.Autotuner):
    # As FlagGems has it: a cache of its own, and a `run` that does not end in Triton's.

    kept = {}

    def run(self, *args, **kwargs):
        self.nargs = dict(zip(self.arg_names, args))
        key = tuple(self.nargs[name] for name in self.keys)
        if key not in self.cache:
            configs = self.prune_configs(kwargs)
            self.kept[key] = times = {str(each): self._bench(*args, config=each, **kwargs) for each in configs}
            self.cache[key] = min(configs, key=lambda each: times[str(each)])
        self.best_config = self.cache[key]
        return self.fn.run(*args, **kwargs, **self.best_config.all_kwargs())

class Entry(triton.runtime.KernelInterface):
    def __init__(self, fn):
        self.fn = fn

    def run(self, *args, **kwargs):
        return self.fn.run(*args, **kwargs)

def own_autotune(configs, key):
    return lambda fn: OwnAutotuner(fn, fn.arg_names, configs, key, None, None)

@Entry
@own_autotune(configs(16, 32), key=["N"])
@triton.jit
def doubled(x, y, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2.0 * tl.load(x + at, mask=at < N), mask=at < N)

@triton.autotune(configs=configs(16, 32), key=["N"])
@triton.jit
def coarse(x, y, N, BLOCK: tl.constexpr):
    # Both blocks are right, though one rounds what it computes of bfloat16 to bfloat16 before the end.
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < N).to(tl.float32) + 8.0
    if BLOCK == 32:
        v = v.to(tl.bfloat16).to(tl.float32)
    tl.store(y + at, v - 8.0, mask=at < N)

def grid(n):
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)

def call_segments(n=64, before=0.0):
    both = torch.randn(2, n)
    total = torch.full((1,), before)
    segments[grid(n)](both[0], both[1], None, total, torch.tensor([3, n - 5], dtype=torch.int32), n, 0.5)
    expected = both[0] * 0.5
    expected[:3] = expected[n - 5:] = 0
    assert torch.allclose(both[1], expected) and torch.allclose(total, expected.sum(), atol=1e-4)

def call_all():
    call_segments(before=7.0)  # Triton leaves it zeroed after the first call of a key
    call_segments()
    call_segments(80)
    source, target = torch.randn(64, 64), torch.empty(64, 64, dtype=torch.float16)
    ends = [TensorDescriptor.from_tensor(tensor, [16, 16]) for tensor in (source, target)]
    described[(1,)](*ends, DTYPE=tl.float16)
    assert torch.equal(target, source.half())
    x = torch.ones(130)[1:129]
    in_place[grid(128)](x, torch.zeros(128, dtype=torch.int32), 128, factor=3.0)
    assert bool((x == 3).all())
    growth[grid(64)](torch.zeros(64), torch.empty(64), 64)
    coarse[grid(64)](torch.zeros(64, dtype=torch.bfloat16), torch.empty(64), 64)
    doubled[grid(64)](torch.zeros(64), torch.empty(64), 64)

def call_odd():
    x, y = torch.randn(256), torch.empty(256)
    index = torch.arange(1 << 19, dtype=torch.int32) % 256
    gather[grid(256)](x, index, y, 256)
    drawn[grid(256)](x, y, 256)
    logarithm[grid(256)](x, y, 256)
    by_address[grid(256)](torch.tensor([x.data_ptr()]), y, 256)
    counted[grid(256)](index, torch.empty_like(index), 256)
"""

PLAIN = """
import triton, triton.language as tl
import torch
from tuner.hardware import device
from tuner.sweep import cross_target

@triton.jit
def copy(x, y, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < N), mask=at < N)

def compile_for(*blocks):
    cross_target.activate("sm_90")
    device.current = lambda _index=None: device.KNOWN["sm_90"]
    for block in blocks:
        copy.warmup(torch.float32, torch.float32, 1000, BLOCK=block, grid=(1,))
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The folder that the library's package lies in."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "theirs").mkdir()
    (folder / "theirs" / "__init__.py").write_text("")
    (folder / "theirs" / "kernels.py").write_text(LIBRARY)
    (folder / "theirs" / "plain.py").write_text(PLAIN)
    return folder


@pytest.fixture(scope="session")
def tuner_command(library):
    """Run `tuner` in a process of its own, beside the library; returns what subprocess.run returns."""

    def run(*arguments, cwd=library, env=None, under=(), timeout=200):
        environment = {**os.environ, "PYTHONPATH": str(library), "TUNER_DB": str(library / "tuner.db"), **(env or {})}
        return subprocess.run(
            [*under, sys.executable, "-m", "tuner", *map(str, arguments)],
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )

    return run


@pytest.fixture(scope="session")
def capture(tuner_command):
    """Run a program under `tuner capture --adopt theirs` into a folder."""

    def run(program, folder, **options):
        env = {"TRITON_INTERPRET": "1", **options.pop("env", {})}
        command = ["capture", "--adopt", "theirs", "--out", folder, "--", sys.executable, "-c", program]
        return tuner_command(*command, env=env, **options)

    return run
