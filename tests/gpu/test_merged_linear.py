"""merged_linear on a real GPU: its space against float64, and attention eager, by plans, captured and compiled."""

from __future__ import annotations

import pytest
import torch
from checked import check_sample
from torch import nn
from torch.profiler import ProfilerActivity, profile

from tuner import Problem
from tuner.kernel import registry
from tuner.kernels.ops import dispatch, merged_by_evidence
from tuner.models import accelerate


def problem_of(m: int, parts: str, k: int, **rest) -> Problem:
    n = sum(map(int, parts.split("+")))
    return Problem(m, n, k, **{"dtype": "bf16", "layout": "nt", **rest}, op="merged_linear", extras={"parts": parts})


PROBLEMS = [
    *(problem_of(m, "4096+1024+1024", 4096, epilogue=each) for m in (1, 2) for each in ("none", "bias")),
    problem_of(1, "1536+576", 7168),
    problem_of(1, "1+1", 1),
    problem_of(2, "1+1+1", 3, epilogue="bias"),
    problem_of(2, "100+33+7", 513, dtype="fp16"),
    problem_of(1, "1024+1024", 1024, aligned=False),
    *(problem_of(2, "640+64+64", 320, dtype="fp32", precision=each) for each in ("ieee", "tf32", "tf32x3")),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_default_and_a_sample_of_the_space_are_right_and_repeat_their_bits(problem):
    check_sample(registry.find("merged_linear", "merged_gemv"), problem, 12)


class Attention(nn.Module):
    """Attention as Llama has it, of one head and without positions."""

    def __init__(self, *, bias: bool):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(1024, 64, bias=bias) for _ in range(3))
        self.o_proj = nn.Linear(64, 1024, bias=False)

    def forward(self, hidden_states):
        q, k, v = self.q_proj(hidden_states), self.k_proj(hidden_states), self.v_proj(hidden_states)
        return self.o_proj(q * k + v)


@pytest.fixture(params=[False, True], ids=["plain", "bias"])
def attention(request):
    torch.manual_seed(0)
    block = Attention(bias=request.param).to("cuda", torch.bfloat16)
    exact = Attention(bias=request.param).to("cuda", torch.float64)
    exact.load_state_dict(block.state_dict())
    assert accelerate(block, backend="tuner").attentions == ("",)

    def assert_exact(found, x):
        expected = exact(x.double())
        assert ((found.double() - expected).norm() / expected.norm()).item() < 0.02

    return block, assert_exact


def rows(count: int) -> torch.Tensor:
    return torch.randn(1, count, 1024, device="cuda", dtype=torch.bfloat16)


def test_attention_is_one_launch_by_a_plan_and_captured(attention, monkeypatch):
    block, assert_exact = attention
    calls, launch = [], dispatch.launch
    monkeypatch.setattr(
        merged_by_evidence.dispatch, "launch", lambda *given: calls.append(given[1].op) or launch(*given)
    )
    with torch.no_grad():
        for count in (1, 2, 3):
            calls.clear()
            for _ in range(3):
                x = rows(count)
                assert_exact(block(x), x)
            assert calls.count("merged_linear") == (count < 3)
        x = rows(1)
        block(x)
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
            block(x)
        kernels = [each for each in profiler.events() if each.device_type == torch.autograd.DeviceType.CUDA]
        assert len(kernels) == 4  # the products, one times another, the sum, o
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            captured = block(x)
        for _ in range(2):
            x.copy_(rows(1))
            graph.replay()
            assert_exact(captured, x)


@pytest.mark.long
def test_an_inductor_program_calls_the_operator_for_one_row_and_captures(attention):
    block, assert_exact = attention
    compiled = torch.compile(block, fullgraph=True)
    with torch.no_grad():
        for count in (1, 8, 40, 1):
            x = rows(count)
            assert_exact(compiled(x), x)
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
            compiled(x)
        names = [each.name for each in profiler.events() if each.device_type == torch.autograd.DeviceType.CUDA]
        assert sum("merged_gemv" in name for name in names) == 1, names
