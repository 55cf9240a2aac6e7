"""Modes of torch see operators: counters of FLOPs count them as torch's own, and checkpoints keep their results."""

from __future__ import annotations

import functools
import subprocess
import sys
from importlib import import_module

import pytest
import torch
from torch import nn
from torch.utils._mode_utils import no_dispatch
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

from tuner.kernels import bmm, fused_experts, gated_linear, grouped_mm, matmul, softmax
from tuner.models import accelerate


@pytest.fixture(autouse=True)
def seeded(no_tables):
    torch.manual_seed(0)


class Mlp(nn.Module):
    """A gated block whose gate and up share a launch."""

    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(32, 48, bias=False), nn.Linear(32, 48, bias=False)
        self.down_proj, self.act_fn = nn.Linear(48, 32, bias=False), nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


def counted(call):
    with FlopCounterMode(display=False) as counter:
        result = call()
    return counter.get_total_flops(), result


def test_products_count_as_torchs_own():
    a, b, bias = torch.randn(2, 5, 32), torch.randn(32, 48), torch.randn(48)
    gate, up = torch.randn(48, 32), torch.randn(48, 32)
    out, product = torch.empty(2, 5, 48), 2 * 10 * 32 * 48
    calls = {
        "plain": (lambda: matmul(a, b), a @ b, product),
        "epilogue": (lambda: matmul(a, b, bias=bias, activation="relu"), (a @ b + bias).relu(), product),
        "out": (lambda: matmul(a, b, out=out), a @ b, product),
        "gated": (lambda: gated_linear(a, gate, up, activation="relu"), (a @ gate.t()).relu() * (a @ up.t()), 0),
        "gated out": (lambda: gated_linear(a, gate, up, activation=None, out=out), a @ gate.t() * (a @ up.t()), 0),
    }
    for name, (call, expected, flops) in calls.items():
        found, result = counted(call)
        assert found == (flops or 2 * product), name
        torch.testing.assert_close(result, expected)
    assert counted(lambda: bmm(a, b.expand(2, -1, -1)))[0] == product
    ends, chosen = torch.tensor([4, 10], dtype=torch.int32), torch.tensor([[0, 1], [1, 0]])
    assert counted(lambda: grouped_mm(a.flatten(0, 1), b.expand(2, -1, -1), ends))[0] == product
    experts = torch.randn(2, 2 * 48, 32), torch.randn(2, 32, 48), chosen, torch.rand(2, 2)
    assert counted(lambda: fused_experts(a[0, :2], *experts))[0] == 3 * 2 * 4 * 32 * 48
    assert counted(lambda: softmax(a))[0] == 0
    assert counted(lambda: a @ b)[0] == product
    assert counted(lambda: matmul(a, b, backend="auto"))[0] == product


@pytest.mark.parametrize("backend", ["auto", "tuner"])
def test_an_accelerated_model_counts_as_before(backend):
    model, x = nn.Sequential(Mlp(), nn.RMSNorm(32), nn.Linear(32, 16)), torch.randn(4, 32)

    def trained():
        return torch.autograd.grad(model(x).square().sum(), tuple(model.parameters()))

    with torch.no_grad():
        expected, result = counted(lambda: model(x))
    in_training, gradients = counted(trained)
    assert expected == 2 * 4 * 32 * (3 * 48 + 16)
    accelerate(model, backend=backend)
    with torch.no_grad():
        found, same = counted(lambda: model(x))
        torch.testing.assert_close(same, result)
        assert found == expected
        torch.testing.assert_close(counted(lambda: nn.functional.silu(model(x)))[0], expected)
    found, same = counted(trained)
    assert found == in_training
    torch.testing.assert_close(same, gradients)


def test_a_counters_own_formula_stays_and_each_counter_hears_of_ours():
    a, b = torch.randn(4, 32), torch.randn(32, 48)
    given = {torch.ops.triton_tuner.matmul: lambda *_, **__: 7}
    with FlopCounterMode(display=False) as outer, FlopCounterMode(display=False, custom_mapping=given) as inner:
        matmul(a, b)
    assert (outer.get_total_flops(), inner.get_total_flops()) == (2 * 4 * 32 * 48, 7)


@pytest.mark.long
def test_a_compiled_program_is_counted_and_the_counters_module_is_not_imported_for_it():
    program = """
import sys, torch
from tuner.kernels import matmul
assert "torch.utils.flop_counter" not in sys.modules
compiled = torch.compile(lambda a, b: matmul(a, b) + 1, backend="inductor")
given = torch.randn(4, 32), torch.randn(32, 48)
with torch.no_grad():
    compiled(*given)
    from torch.utils.flop_counter import FlopCounterMode
    with FlopCounterMode(display=False) as counter:
        compiled(*given)
print(counter.get_total_flops())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 2 * 4 * 32 * 48


def test_a_selective_checkpoint_keeps_the_products_it_is_told_to(monkeypatch):
    module, launches = import_module("tuner.kernels.ops.matmul"), []
    own = module.checked_call
    monkeypatch.setattr(module, "checked_call", lambda *given, **named: launches.append(1) or own(*given, **named))
    model, x = nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 32)), torch.randn(4, 32, requires_grad=True)
    asked = (x, *model.parameters())
    expected = torch.autograd.grad(model(x).square().sum(), asked)
    accelerate(model, backend="tuner")
    for kept, launched in (([], 8), ([torch.ops.triton_tuner.matmul.default], 6)):
        launches.clear()
        contexts = functools.partial(create_selective_checkpoint_contexts, kept)
        out = checkpoint(model, x, use_reentrant=False, context_fn=contexts)
        torch.testing.assert_close(torch.autograd.grad(out.square().sum(), asked), expected, rtol=1e-4, atol=1e-4)
        assert len(launches) == launched


def test_where_torch_skips_its_modes_no_operator_is_called():
    a, b = torch.randn(4, 32), torch.randn(32, 48)
    with FlopCounterMode(display=False) as counter, no_dispatch():
        result = matmul(a, b)
    torch.testing.assert_close(result, a @ b)
    assert counter.get_total_flops() == 0
