"""fused_experts on a real GPU: its space, graphs of new routing, plans, other streams."""

from __future__ import annotations

import pytest
import torch
from checked import check_sample, check_streams

from tuner import Problem
from tuner.hardware import device
from tuner.kernel import registry
from tuner.kernels import fused_experts
from tuner.kernels.experts.operands import ExpertsOperands, reference, tolerance
from tuner.kernels.ops import fused_experts as fused_experts_op
from tuner.launch import launch as launching
from tuner.sweep import verify


def problem_of(m: int, n: int, k: int, experts: int, top_k: int, **rest) -> Problem:
    extras = {"groups": experts, "top_k": top_k}
    return Problem(m, n, k, **{"layout": "nt", "epilogue": "silu", **rest}, op="fused_experts", extras=extras)


PROBLEMS = [
    problem_of(1, 768, 2048, 128, 8, dtype="bf16"),
    problem_of(33, 768, 2048, 128, 8, dtype="bf16"),
    problem_of(1000, 1536, 1024, 8, 2, dtype="fp16", epilogue="gelu"),
    problem_of(100, 255, 511, 5, 3, dtype="bf16", epilogue="relu"),
    problem_of(64, 512, 512, 16, 4, dtype="fp16", aligned=False),
    problem_of(300, 256, 384, 6, 6, dtype="fp32", precision="tf32"),
    problem_of(65, 200, 300, 17, 1, dtype="fp32", epilogue="none"),
    problem_of(700, 264, 328, 5, 2, dtype="bf16", epilogue="gelu"),
]
SIZES = (64, 256, 512, 16, 4)
"""Tokens, N, K, experts and top_k of the calls."""


def given(m: int = 64, seed: int = 0) -> list[torch.Tensor]:
    made = registry.find("fused_experts", "experts_pointer").make_inputs(
        problem_of(m, *SIZES[1:], dtype="bf16"), "cuda", seed
    )
    return [made.a, made.b, made.down, made.experts, made.shares]


def assert_right(out: torch.Tensor, tensors: list[torch.Tensor]) -> None:
    x, gate_up, down, experts, shares = tensors
    problem = problem_of(len(x), down.shape[2], down.shape[1], len(down), experts.shape[1], dtype="bf16")
    made = ExpertsOperands(x, gate_up, down, out, experts, shares, problem, out)
    assert verify.error(out, reference(made), problem.k) <= tolerance(problem)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_default_and_a_sample_of_the_space_are_right_and_repeat_their_bits(problem):
    for spec in registry.serving(problem, device.current()):
        check_sample(spec, problem, 8)


@pytest.mark.parametrize("problem", PROBLEMS[:2], ids=str)
def test_torchs_own_way_passes_the_same_check(problem):
    spec, *_ = registry.serving(problem, device.current())
    inputs = spec.make_inputs(problem, "cuda", 0)
    try:
        spec.vendor(inputs)
    except NotImplementedError as e:
        pytest.skip(str(e))
    assert verify.error(inputs.output, spec.reference(inputs), problem.k) <= spec.tolerance(problem)


def test_choices_of_no_expert_are_left_out():
    tensors = given()
    tensors[3][::3, 1], tensors[3][::5, 2], tensors[3][7] = -1, 16, -1
    out = torch.full_like(tensors[0], float("nan"))
    fused_experts(*tensors, out=out)
    assert_right(out, tensors)
    assert (out[7] == 0).all()


@pytest.mark.parametrize("m", [1, 64, 300])
def test_a_captured_graph_replays_with_the_tokens_experts_and_shares_of_the_day(m):
    tensors = given(m)
    x, _, _, experts, shares = tensors
    fused_experts(*tensors)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fused_experts(*tensors)
    for seed in range(1, 5):
        other = given(m, seed)
        x.copy_(other[0])
        experts.copy_(other[3])
        shares.copy_(other[4])
        if seed > 2:
            experts.fill_(seed)  # one expert has all slots
        if seed == 4:
            experts[:, 1:] = -1
        out.fill_(float("nan"))
        graph.replay()
        assert_right(out, tensors)


def test_a_repeated_call_runs_its_plan_and_reads_what_its_tensors_hold_then(monkeypatch):
    tensors, out = given(), torch.empty(64, 512, device="cuda", dtype=torch.bfloat16)
    fused_experts(*tensors)
    fused_experts(*tensors, out=out)
    launched = []
    monkeypatch.setattr(fused_experts_op, "launch", lambda *given: launched.append(given))
    monkeypatch.setattr(launching, "run", launched.append)
    for seed in range(1, 4):
        for mine, other in zip(tensors, given(64, seed), strict=True):
            mine.copy_(other)
        assert_right(fused_experts(*tensors), tensors)
        out.fill_(float("nan"))
        assert fused_experts(*tensors, out=out) is out
        assert_right(out, tensors)
    assert launched == []


def test_calls_on_several_streams_do_not_disturb_each_other():
    sets = [given(64, seed) for seed in range(4)]
    for tensors, once in zip(sets, check_streams(fused_experts, sets), strict=True):
        assert_right(once, tensors)


def test_a_call_reads_what_the_one_before_it_wrote():
    x, *rest = given()
    results = []
    for synchronized in (True, False):
        values = x
        for _ in range(10):
            values = fused_experts(values, *rest)
            values = values / values.abs().amax().clamp(min=1e-3)
            if synchronized:
                torch.cuda.synchronize()
        results.append(values)
    assert torch.isfinite(results[0]).all()
    assert torch.equal(*results)


def test_other_dtypes_of_experts_and_shares_and_views():
    x, gate_up, down, experts, shares = given()
    wide = torch.full((16, 512, 272), float("nan"), device="cuda", dtype=torch.bfloat16)
    wide[..., 8:264] = down
    rows = torch.full((64, 520), float("nan"), device="cuda", dtype=torch.bfloat16)
    rows[:, :512] = x
    for tensors in (
        [x, gate_up, down, experts.int(), shares.bfloat16()],
        [rows[:, :512], gate_up, wide[..., 8:264], experts.t().contiguous().t(), shares.t().contiguous().t()],
    ):
        for _ in range(2):
            assert_right(fused_experts(*tensors), tensors)
