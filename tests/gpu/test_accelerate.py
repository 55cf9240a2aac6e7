"""`tuner.models.accelerate` on a real GPU: a model's numbers, plans, CUDA graphs, TorchInductor and another GPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from tuner.kernels.ops import gated_linear
from tuner.kernels.ops import matmul as ops
from tuner.models import accelerate, restore


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(256, 512, bias=False), nn.Linear(256, 512)
        self.down = nn.Linear(512, 256, bias=False)

    def forward(self, x):
        return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))


@pytest.fixture
def model():
    torch.manual_seed(0)
    made = Block().to("cuda", torch.bfloat16)
    accelerate(made, backend="tuner")
    return made


@pytest.fixture
def checked(monkeypatch):
    """A list that grows with each call that no plan served."""
    calls = []
    run = ops.checked_call
    monkeypatch.setattr(ops, "checked_call", lambda *given, **named: (calls.append(1), run(*given, **named))[1])
    return calls


def rows(count: int, device: str = "cuda") -> torch.Tensor:
    return torch.randn(count, 256, device=device, dtype=torch.bfloat16)


def assert_right(found: torch.Tensor, model: nn.Module, x: torch.Tensor) -> None:
    """Compare with the same model in float64, which torch computes."""
    exact = Block().to(x.device, torch.float64)
    exact.load_state_dict(model.state_dict())
    with torch.no_grad():
        expected = exact(x.double())
    assert ((found.double() - expected).norm() / expected.norm()).item() < 0.01


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_repeated_steps_run_plans_and_are_right(model, checked, mode):
    with mode():
        for _ in range(3):
            x = rows(8)
            assert_right(model(x), model, x)
    assert len(checked) == 3  # each layer once
    assert restore(model) == 3


def test_a_captured_step_reads_the_operands_of_its_replay(model):
    x = rows(4)
    with torch.inference_mode():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            model(x)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = model(x)
        for _ in range(2):
            x.copy_(rows(4))
            graph.replay()
            assert_right(result, model, x)


@pytest.mark.long
def test_one_inductor_program_serves_every_m(model):
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for count in (2, 8, 100):
            x = rows(count)
            assert_right(compiled(x), model, x)


@pytest.mark.long
def test_a_compiled_program_runs_known_calls_before_torch_dispatches(model):
    compiled = torch.compile(model, fullgraph=True)
    seen = []
    with torch.no_grad():
        for _ in range(3):
            x = rows(8)
            with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
                found = compiled(x)
            assert_right(found, model, x)
            seen.append(sum(each.name == "triton_tuner::linear" for each in profiler.events()))
    assert seen[0] >= 3
    assert seen[2] == 0  # the first call runs while torch compiles, where its state is another than at the second


def test_under_autocast_float32_weights_are_cast(checked):
    model = Block().cuda()
    accelerate(model, backend="tuner")
    x = torch.randn(8, 256, device="cuda")
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        assert_right(model(x), model, x)
    assert len(checked) == 3


class StepsNorm(nn.Module):
    """An RMSNorm by several kernels, as transformers has it."""

    def __init__(self):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.randn(256)), 1e-5

    def forward(self, x):
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


def test_a_norm_is_one_kernel_and_no_less_exact():
    norm, x = StepsNorm().to("cuda", torch.bfloat16), rows(8)
    exact = nn.functional.rms_norm(x.double(), (256,), norm.weight.double(), norm.eps)
    errors, kernels = [], []
    for _ in range(2):
        with torch.no_grad(), profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
            found = norm(x)
        kernels.append(sum(each.device_type == torch.autograd.DeviceType.CUDA for each in profiler.events()))
        errors.append((found.double() - exact).norm().item())
        assert accelerate(norm).norms == ("",)
    assert kernels[0] > kernels[1] == 1
    assert errors[1] <= 1.01 * errors[0]


class Mlp(nn.Module):
    """A gated MLP, as Llama has it or as Phi 3 has it."""

    def __init__(self, *, joined):
        super().__init__()
        if joined:
            self.gate_up_proj = nn.Linear(256, 1024, bias=False)
        else:
            self.gate_proj, self.up_proj = nn.Linear(256, 512, bias=False), nn.Linear(256, 512, bias=False)
        self.down_proj, self.act_fn = nn.Linear(512, 256, bias=False), nn.SiLU()

    def forward(self, x):
        if hasattr(self, "gate_up_proj"):
            gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        else:
            gate, up = self.gate_proj(x), self.up_proj(x)
        return self.down_proj(self.act_fn(gate) * up)


@pytest.mark.parametrize("joined", [False, True])
def test_a_gated_mlp_is_two_launches_by_plans_and_captured(joined, monkeypatch):
    mlp, calls, run = Mlp(joined=joined).to("cuda", torch.bfloat16), [], gated_linear.checked_call
    exact = Mlp(joined=joined).to("cuda", torch.float64)
    exact.load_state_dict(mlp.state_dict())
    monkeypatch.setattr(
        gated_linear, "checked_call", lambda *given, **named: (calls.append(1), run(*given, **named))[1]
    )
    assert accelerate(mlp, backend="tuner").mlps == ("",)

    def assert_exact(found, x):
        expected = exact(x.double())
        assert ((found.double() - expected).norm() / expected.norm()).item() < 0.01

    with torch.no_grad():
        for count in (1, 8, 300):
            calls.clear()
            for _ in range(3):
                x = rows(count)
                assert_exact(mlp(x), x)
            assert len(calls) <= 1
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
            mlp(x)
        assert sum(each.device_type == torch.autograd.DeviceType.CUDA for each in profiler.events()) == 2
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            captured = mlp(x)
        x.copy_(rows(300))
        graph.replay()
        assert_exact(captured, x)


@pytest.mark.long
@pytest.mark.parametrize("joined", [False, True])
def test_one_inductor_program_serves_every_m_of_a_gated_mlp(joined):
    mlp = Mlp(joined=joined).to("cuda", torch.bfloat16)
    accelerate(mlp, backend="tuner")
    compiled = torch.compile(mlp, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for count in (2, 8, 100):
            x = rows(count)
            torch.testing.assert_close(compiled(x), mlp(x), rtol=0, atol=0)


@pytest.fixture
def experts():
    """A block of experts as transformers has it, and tokens with their experts and shares."""
    from transformers.models.qwen3_moe import Qwen3MoeConfig
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "moe_intermediate_size": 128, "num_experts": 8, "num_experts_per_tok": 2}
    config = Qwen3MoeConfig(**sizes, num_hidden_layers=1)
    config._experts_implementation = "grouped_mm"
    block = Qwen3MoeExperts(config).to("cuda", torch.bfloat16)
    for weight in block.parameters():
        nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)

    def routed(count):
        shares, chosen = torch.topk(torch.randn(count, 8, device="cuda").softmax(-1), 2)
        return rows(count), chosen, shares.bfloat16()

    return block, routed


@pytest.mark.long
def test_one_inductor_program_serves_every_number_of_tokens_of_a_block_of_experts(experts):
    block, routed = experts
    accelerate(block, backend="tuner")
    compiled = torch.compile(block, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for count in (2, 8, 100):
            given = routed(count)
            torch.testing.assert_close(compiled(*given), block(*given), rtol=0, atol=0)
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
            compiled(*given)
        assert sum(each.device_type == torch.autograd.DeviceType.CUDA for each in profiler.events()) == 4


def test_a_counter_of_flops_counts_what_a_model_had_before(model, experts):
    from torch.utils.flop_counter import FlopCounterMode

    def counted(module, given):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            module(*given)
        return counter.get_total_flops()

    x = rows(8)
    assert counted(model, [x]) == 3 * 2 * 8 * 256 * 512
    block, routed = experts
    accelerate(block, backend="tuner")
    assert counted(block, routed(8)) == 2 * 16 * 256 * 3 * 128


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU: torch.cuda.device_count() is below 2")
def test_a_model_that_moves_between_gpus_runs_where_it_is():
    model = Block().to("cuda:0", torch.bfloat16)
    accelerate(model, backend="tuner")
    for device in ("cuda:0", "cuda:1", "cuda:0"):
        x = rows(8, device)
        with torch.no_grad():
            found = model.to(device)(x)
        assert found.device == x.device
        assert_right(found, model, x)
