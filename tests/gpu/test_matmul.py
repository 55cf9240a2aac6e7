"""The kernels on a real GPU: every dtype and layout against float64, operands beyond 2^31 elements; plans of calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter

import pytest
import torch
from triton import knobs

import tuner
from tuner import Problem
from tuner.errors import InputError, KernelError
from tuner.hardware import device
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.kernels import matmul
from tuner.kernels.gemm.pointer.spec import SPEC
from tuner.kernels.ops.matmul import CALL_CACHE
from tuner.launch import launch as launching
from tuner.lookup.row import Provenance, Row
from tuner.lookup.table import Table
from tuner.sweep import verify

PROBLEMS = [
    Problem(512, 512, 512, dtype="bf16", layout="nt"),
    Problem(129, 1000, 4093, dtype="fp16", epilogue="bias+gelu"),
    Problem(16, 4096, 14336, dtype="bf16", layout="nt", epilogue="bias+silu"),
    Problem(300, 200, 1000, dtype="fp32", layout="tn", precision="tf32"),
    Problem(300, 200, 1000, dtype="fp32", layout="tt", precision="tf32x3"),
    Problem(256, 256, 512, dtype="fp32"),
    Problem(256, 512, 14336, dtype="e4m3", layout="nt"),
    Problem(256, 512, 14336, a_dtype="e4m3", b_dtype="e5m2", layout="nt", out_dtype="fp32"),
    Problem(64, 512, 1024, dtype="e4m3", layout="nn", out_dtype="e4m3", epilogue="relu"),
    Problem(512, 512, 512, dtype="fp16", aligned=False),
    Problem(1024, 1536, 65536, dtype="bf16", layout="tn", out_dtype="fp32"),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_default_of_every_kernel_is_right(problem):
    """benchmarks/checks/numerics.py tries sampled configs and ragged shapes as well."""
    here = device.current()
    try:
        specs = registry.serving(problem, here)
    except KernelError as e:
        pytest.skip(str(e))
    inputs = SPEC.make_inputs(problem, "cuda", 0)
    reference = SPEC.reference(inputs)
    for spec in specs:
        config = spec.default_config(problem, here)
        verify.poison(inputs)
        spec.launch(inputs, config)
        torch.cuda.synchronize()
        assert verify.check(inputs, reference, problem.k, spec.tolerance(problem)).failure is None, str(config)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_torchs_library_passes_the_same_check(problem):
    inputs = SPEC.make_inputs(problem, "cuda", 0)
    verify.poison(inputs)
    try:
        SPEC.vendor(inputs)
    except NotImplementedError as e:
        pytest.skip(str(e))
    torch.cuda.synchronize()
    assert verify.check(inputs, SPEC.reference(inputs), problem.k, SPEC.tolerance(problem)).failure is None


def beyond_2_31(free_gib: int) -> None:
    if torch.cuda.mem_get_info()[0] < free_gib * 2**30:
        pytest.skip(f"needs {free_gib} GiB of free device memory")


def test_elements_of_a_and_the_output_beyond_2_31():
    beyond_2_31(12)
    m, n, k = 2**31 // 256 + 300, 256, 256
    a = torch.zeros(m, k, device="cuda", dtype=torch.bfloat16)
    a[-300:].normal_()
    b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
    out = matmul(a, b)
    tail = a[-300:].double() @ b.double()
    assert verify.error(out[-300:], tail, k) <= SPEC.tolerance(Problem(m, n, k, dtype="bf16"))
    assert (out[:1000] == 0).all()


def test_elements_of_b_beyond_2_31_and_an_advance_along_k_of_that_length():
    beyond_2_31(10)
    k, n = 96, 2**31 // 64 + 48
    b = torch.zeros(k, n, device="cuda", dtype=torch.float8_e4m3fn)
    b[:, -160:] = torch.randn(k, 160, device="cuda").to(torch.float8_e4m3fn)
    a = torch.randn(16, k, device="cuda").to(torch.float8_e4m3fn)
    if reason := SPEC.supports(Problem(16, n, k, dtype="e4m3"), device.current()):
        pytest.skip(reason)
    out = matmul(a, b)
    tail = a.double() @ b[:, -160:].double()
    assert verify.error(out[:, -160:].contiguous(), tail, k) <= SPEC.tolerance(Problem(16, n, k, dtype="e4m3"))


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.float16)


def right(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> bool:
    limit = SPEC.tolerance(Problem(*out.shape, a.shape[1]))
    return verify.error(out, a.double() @ b.double(), a.shape[1]) <= limit


@pytest.fixture
def looked(monkeypatch):
    """Counts the launches that went the long way."""
    counted: Counter[str] = Counter()
    run = launching.run

    def counting(launches):
        counted["times"] += 1
        run(launches)

    monkeypatch.setattr(launching, "run", counting)
    CALL_CACHE.plans.by_key.clear()
    return counted


@pytest.fixture
def won(tmp_path):
    """Have a config serve a problem, as if it had won."""

    def won(problem: Problem, config: Config) -> None:
        made = Provenance(tuner.device.Environment("", "", "", "", ""), 1, "test")
        row = Row(problem, config, registry.find("matmul", config.kernel).version, made, 1.0, None, None, 1)
        tuner.use(Table("matmul", device.current(), "2026-01-01T00:00:00Z", (row,)).write(tmp_path))

    yield won
    tuner.use(None)


SHAPES = [(256, 256, 256), (1, 4096, 4096), (16, 512, 8192), (127, 129, 4093), (2048, 2048, 512)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_second_call_is_right_and_looks_nothing_up(shape, looked):
    m, n, k = shape
    for number in range(4):
        a, b = half(m, k), half(n, k).t()
        assert right(matmul(a, b), a, b)
        assert looked["times"] == 1, number
        out = torch.full((m, n), torch.nan, device="cuda", dtype=torch.float16)
        if number:
            matmul(a, b, out=out)
            assert right(out, a, b)
            looked["times"] = 1  # the first with `out` is another kind


def test_operands_on_the_host_and_on_the_gpu_are_refused():
    with pytest.raises(InputError, match=r"a is on cuda:0 and b on cpu: expected one device; use b.to\(a.device\)"):
        matmul(half(8, 8), half(8, 8).cpu())
    with pytest.raises(InputError, match="out is on cpu and a on cuda:0"):
        matmul(half(8, 8), half(8, 8), out=half(8, 8).cpu())


def test_two_streams_at_once_with_split_sums(won, looked):
    problem = Problem(64, 64, 8192)
    split = registry.find("matmul", "split_k").default_config(problem, device.current()).replace(SPLIT_K=8)
    won(problem, split)
    streams = [torch.cuda.Stream() for _ in range(2)]
    inputs = [(half(64, 8192), half(8192, 64)) for _ in streams]
    expected = [matmul(a, b) for a, b in inputs]
    results: list[list[torch.Tensor]] = [[] for _ in streams]
    torch.cuda.synchronize()
    for _ in range(200):
        for stream, (a, b), found in zip(streams, inputs, results, strict=True):
            with torch.cuda.stream(stream):
                found.append(matmul(a, b))
    torch.cuda.synchronize()
    for found, one in zip(results, expected, strict=True):
        assert all(each.equal(one) for each in found)
    assert looked["times"] == 1


def test_threads_each_with_a_stream_of_its_own():
    wrong: list[str] = []

    def work(seed: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            generator = torch.Generator("cuda").manual_seed(seed)
            for _ in range(50):
                a, b = (torch.randn(256, 256, device="cuda", generator=generator).half() for _ in range(2))
                if not right(matmul(a, b), a, b):
                    wrong.append(threading.current_thread().name)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("shape", [(256, 256, 256), (64, 64, 8192), (127, 129, 4093)], ids=str)
def test_a_planned_call_is_captured_with_the_memory_it_allocates(shape):
    m, n, k = shape
    a, b = half(m, k), half(k, n)
    for _ in range(2):
        matmul(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = matmul(a, b)
        second = matmul(a, b)
    a.copy_(half(m, k))
    first.zero_()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert right(first, a, b)
    assert first.equal(second)


def test_a_hook_hears_of_every_launch():
    a, b = half(256, 256), half(256, 256)
    expected = matmul(a, b)
    heard = []

    def hear(metadata):
        heard.append(metadata.get()["name"])

    knobs.runtime.launch_enter_hook.add(hear)
    try:
        assert matmul(a, b).equal(expected)
    finally:
        knobs.runtime.launch_enter_hook.remove(hear)
    assert heard
    assert matmul(a, b).equal(expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU: torch.cuda.device_count() is below 2")
def test_operands_on_another_gpu_than_the_current_one():
    for index in (1, 0, 1, 0):
        a, b = (torch.randn(256, 256, device=f"cuda:{index}").half() for _ in range(2))
        out = matmul(a, b)
        assert out.device == a.device
        assert right(out, a, b)
        assert torch.cuda.current_device() == 0


SERVE = """
import sys, torch, triton
compiled = []
triton.knobs.compilation.listener = lambda *_, cache_hit=False, **__: compiled.append(cache_hit)
from tuner.kernels import matmul
a, b = (torch.randn(256, 256, device="cuda").half() for _ in range(2))
for _ in range(3):
    out = matmul(a, b)
assert (out.double() - a.double() @ b.double()).abs().max() < 0.1
print(len(compiled))
"""
SHIP = """
import sys
from pathlib import Path
from tuner.tables import binaries as kernels
from tuner.lookup import table
from tuner.sweep import cross_target as target
loaded = table.load(Path(sys.argv[1]))
target.activate(loaded.device.arch)
kernels.write(loaded, Path(sys.argv[1]).parent)
"""


def test_a_process_that_serves_from_shipped_kernels_compiles_nothing(tmp_path):
    problem, here = Problem(256, 256, 256), device.current()
    config = registry.default_config(problem, here)
    made = Provenance(tuner.device.Environment("", "", "", "", ""), 1, "test")
    row = Row(problem, config, registry.find("matmul", config.kernel).version, made, 1.0, None, None, 1)
    path = Table("matmul", here, "2026-01-01T00:00:00Z", (row,)).write(tmp_path)

    def run(source: str, cache: str, *arguments: str) -> str:
        environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / cache), "TUNER_TABLES": str(tmp_path)}
        command = [sys.executable, "-c", source, *arguments]
        # Not from the checkout, whose folder `tuner` would hide an installed package from `-c`.
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=280
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(SHIP, "ship", str(path))
    assert json.loads(run(SERVE, "serve")) == 0


def test_a_launch_stays_on_the_current_stream_and_can_be_captured():
    a, b = (torch.randn(256, 256, device="cuda", dtype=torch.float16) for _ in range(2))
    expected = matmul(a, b)
    out = torch.empty_like(expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        matmul(a, b, out=out)
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert out.equal(expected)
