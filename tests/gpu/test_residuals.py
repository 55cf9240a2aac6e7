"""Residuals that products add on a real GPU: a layer of one row, eager by plans, captured, and compiled by Inductor."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from tuner.kernels.ops import matmul as ops
from tuner.models import accelerate


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.rand(1024) + 0.5), 1e-6

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Attention(nn.Module):
    """What is mixed does not matter here."""

    def __init__(self):
        super().__init__()
        self.v_proj, self.o_proj = nn.Linear(1024, 512, bias=False), nn.Linear(512, 1024, bias=False)

    def forward(self, hidden_states):
        return self.o_proj(self.v_proj(hidden_states)), None


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(1024, 2048, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(2048, 1024, bias=False)

    def forward(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """A layer as Llama has it."""

    def __init__(self):
        super().__init__()
        self.first_norm, self.second_norm = Norm(), Norm()
        self.attention, self.mlp = Attention(), Mlp()

    def forward(self, hidden_states):
        attended, _ = self.attention(self.first_norm(hidden_states))
        hidden_states = hidden_states + attended
        return hidden_states + self.mlp(self.second_norm(hidden_states))


@pytest.fixture
def layer():
    torch.manual_seed(0)
    made, exact = Layer().to("cuda", torch.bfloat16).eval(), Layer().to("cuda", torch.float64)
    exact.load_state_dict(made.state_dict())
    assert accelerate(made, backend="tuner").residuals == ("",)

    def assert_exact(found, x):
        expected = exact(x.double())
        assert ((found.double() - expected).norm() / expected.norm()).item() < 0.01

    return made, assert_exact


def rows(count: int) -> torch.Tensor:
    return torch.randn(1, count, 1024, device="cuda", dtype=torch.bfloat16)


def kernels_of(call) -> list[str]:
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        call()
    return [each.name for each in profiler.events() if each.device_type == torch.autograd.DeviceType.CUDA]


def test_the_residual_takes_no_launch_by_plans_and_captured(layer, monkeypatch):
    made, assert_exact = layer
    checked, run = [], ops.checked_call
    monkeypatch.setattr(ops, "checked_call", lambda *given, **named: (checked.append(1), run(*given, **named))[1])
    with torch.no_grad():
        for count in (1, 3):
            checked.clear()
            for _ in range(3):
                x = rows(count)
                assert_exact(made(x), x)
            assert len(checked) == 3  # v, o and down, once
        x = rows(1)
        assert not [name for name in kernels_of(lambda: made(x)) if "add" in name.lower()]
        assert [name for name in kernels_of(lambda: made(rows(3))) if "add" in name.lower()]
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            captured = made(x)
        for _ in range(2):
            x.copy_(rows(1))
            graph.replay()
            assert_exact(captured, x)


@pytest.mark.long
def test_an_inductor_program_of_one_row_has_our_kernels_alone(layer):
    made, assert_exact = layer
    compiled = torch.compile(made, fullgraph=True)
    with torch.no_grad():
        for count in (1, 8, 40, 1):
            x = rows(count)
            assert_exact(compiled(x), x)
        names = kernels_of(lambda: compiled(x))
        assert sum("norm_kernel" in name for name in names) == 2, names
        assert not [name for name in names if name.startswith("triton_")], names
