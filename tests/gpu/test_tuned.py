"""Kernels under `tuner.tuned` on a real GPU: tuned by a sweep, measured on a miss, launched and captured."""

from __future__ import annotations

import pytest
import torch

import tuner
from tuner import reference
from tuner.store.store import Store
from tuner.sweep import gpu_lock
from tuner.sweep.plan import Plan
from tuner.sweep.run import sweep

MODULE = """
import torch, triton, triton.language as tl
import tuner

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (128, 1024, 4096) for warps in (4, 8)]

@triton.jit
def added(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(y_ptr + at, mask=at < N) + tl.load(x_ptr + at, mask=at < N), mask=at < N)

offline = tuner.tuned(CONFIGS, ["N"], name="offline", restore_value=["y_ptr"])(added)
missed = tuner.tuned(CONFIGS, ["N"], name="missed", restore_value=["y_ptr"], tune_on_miss=True)(added)

def grid(meta):
    return (triton.cdiv(meta["N"], meta["BLOCK"]),)

@offline.make_inputs
def inputs(problem):
    x, y = (torch.randn(problem["N"], dtype=problem.torch_dtype, device="cuda") for _ in range(2))
    return tuner.Arguments(grid, (x, y, problem["N"]))

@offline.reference
def expected(args):
    return args["y_ptr"].double() + args["x_ptr"].double()
"""


@pytest.fixture
def module(tmp_path, monkeypatch, no_added_kernels):
    """The module above, its kernels registered, and a database of its own.

    So is the GPU's lock: while another test's process measures, a miss would not be tuned.
    """
    monkeypatch.setattr(gpu_lock, "FOLDER", tmp_path)
    monkeypatch.setenv("TUNER_DB", str(tmp_path / "tuner.db"))
    tuner.use(None)
    path = tmp_path / "adding.py"
    path.write_text(MODULE)
    reference.load(f"{path}:offline")
    yield reference.load(f"{path}:grid").__globals__
    tuner.use(None)


def launch(module, kernel, size):
    x, y = (torch.randn(size, device="cuda") for _ in range(2))
    right = x + y
    module[kernel][module["grid"]](x, y, size)
    torch.testing.assert_close(y, right)
    return x, y


def test_a_sweep_tunes_it_and_its_calls_take_the_winner_in_a_graph_too(module, tmp_path):
    kernel, size = module["offline"], 1 << 22
    problem = kernel.spec.read({"N": str(size), "dtype": "fp32"})
    with Store.open(str(tmp_path / "tuner.db")) as store:
        report = sweep(store, [problem], [0], Plan())
    winner = report.problems[0].winner
    assert winner is not None, report.problems[0].reason
    assert winner.vs_default is not None
    x, y = launch(module, "offline", size)
    assert kernel.config_list.of(kernel.best_config) == winner.config
    graph, before = torch.cuda.CUDAGraph(), y.clone()
    with torch.cuda.graph(graph):
        kernel[module["grid"]](x, y, size)
    graph.replay()
    torch.testing.assert_close(y, before + x)


def test_a_miss_is_measured_on_copies_and_kept(module):
    launch(module, "missed", 1 << 20)
    kernel = module["missed"]
    chosen = kernel.best_config
    tuner.use(None)
    launch(module, "missed", 1 << 20)
    assert kernel.best_config == chosen
    problem = next(iter(kernel.cache))
    assert tuner.lookup(problem).rule == "exact"
