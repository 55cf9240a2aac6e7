"""`tuner.models.accelerate` on blocks of experts: which run on `fused_experts`, that they are right, and what stays."""

from __future__ import annotations

import copy
import pickle
from importlib import import_module

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import tuner
from tuner.hardware.device import INTERPRETER
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.lookup.row import Row
from tuner.models import accelerate, restore
from tuner.problem import Problem

SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 64, "num_attention_heads": 2}
MODELS = {
    "mixtral": ("MixtralConfig", "MixtralExperts", {"intermediate_size": 48, "num_local_experts": 4}),
    "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeExperts", {"moe_intermediate_size": 48, "num_experts": 4}),
    "olmoe": ("OlmoeConfig", "OlmoeExperts", {"intermediate_size": 48, "num_experts": 4}),
    "deepseek_v3": ("DeepseekV3Config", "DeepseekV3Experts", {"moe_intermediate_size": 48, "n_routed_experts": 4}),
}
CONFIG = Config(
    "experts_pointer", BLOCK_SIZE_M=16, BLOCK_SIZE_N=32, BLOCK_SIZE_K=32, GROUP_SIZE_M=1, num_stages=1, num_warps=4
)


def experts_of(model, **changed):
    config, experts, sizes = MODELS[model]
    module = import_module(f"transformers.models.{model}.modeling_{model}")
    made = getattr(import_module(f"transformers.models.{model}"), config)(
        **SIZES, **sizes, num_experts_per_tok=2, **changed
    )
    made._experts_implementation = "grouped_mm"
    block = getattr(module, experts)(made)
    for weight in block.parameters():
        nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
    return block


def routed(tokens, dtype=torch.float32):
    shares, experts = torch.topk(torch.randn(tokens, 4).softmax(-1), 2)
    return torch.randn(tokens, 32).to(dtype), experts, shares


@pytest.fixture(autouse=True)
def seeded(no_tables):
    torch.manual_seed(0)


@pytest.fixture
def ours(monkeypatch):
    """How many tokens each call of the op had."""
    module = import_module("tuner.kernels.ops.fused_experts")
    calls, own = [], module.checked_call
    monkeypatch.setattr(
        module, "checked_call", lambda given, *rest, **named: calls.append(len(given[0])) or own(given, *rest, **named)
    )
    return calls


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("model", MODELS)
def test_the_experts_of_models_are_one_call_and_right(model, dtype, ours):
    block = experts_of(model).to(dtype)
    given = routed(5, dtype)
    exact = copy.deepcopy(block).double()
    exact.config._experts_implementation = "eager"
    with torch.no_grad():
        wanted, theirs = exact(given[0].double(), given[1], given[2].double()), block(*given)
        done = accelerate(block, backend="tuner")
        found = block(*given)
    assert done.experts == ("",)
    assert ours == [5]
    assert found.dtype == dtype
    error, usual = ((each.double() - wanted).norm() / wanted.norm() for each in (found, theirs))
    assert error <= 1.1 * usual


def test_a_model_runs_its_experts_and_is_given_back(ours):
    from transformers import AutoModelForCausalLM, Qwen3MoeConfig

    config = Qwen3MoeConfig(
        **SIZES, moe_intermediate_size=48, num_experts=4, num_experts_per_tok=2, num_key_value_heads=2, head_dim=16
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    tokens = torch.arange(6).reshape(2, 3)
    with torch.inference_mode():
        expected = model(tokens).logits
        done = accelerate(model, backend="tuner", only="*.experts")
        assert done.experts == ("model.layers.0.mlp.experts",)
        assert "; experts on tuned kernels: 1 block (model.layers.0.mlp.experts)" in str(done)
        torch.testing.assert_close(model(tokens).logits, expected)
        assert ours == [6]
        assert restore(model) == 1
        torch.testing.assert_close(model(tokens).logits, expected, rtol=0, atol=0)
    assert ours == [6]


def test_auto_follows_the_evidence_of_each_number_of_tokens(table, ours):
    block = experts_of("mixtral")
    (why,) = accelerate(block).left
    assert why.startswith("no table of interpreter has the family: `tuner model`")
    table({3: 1.2, 5: 0.9})
    assert accelerate(block).experts == ("",)
    with torch.no_grad():
        for tokens in (3, 5, 7, 3):
            block(*routed(tokens))
    assert ours == [3, 3]


def test_what_is_computed_otherwise_is_left_and_named():
    from transformers import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

    replaced, other, quick = experts_of("mixtral"), experts_of("mixtral"), experts_of("mixtral")
    replaced.forward = lambda *given: given[0]

    class HalvedExperts(type(quick)):
        def _apply_gate(self, x):
            return super()._apply_gate(x).half()

    halved = experts_of("mixtral")
    halved.__class__ = HalvedExperts
    other.config._experts_implementation = "deepgemm"
    quick.act_fn = nn.Mish()
    blocks = {
        "gpt_oss": GptOssExperts(GptOssConfig(hidden_size=32, intermediate_size=48, num_local_experts=4)),
        "replaced": replaced,
        "other": other,
        "quick": quick,
        "halved": halved,
        "moved": experts_of("mixtral").to("meta"),
        "gelu": experts_of("mixtral", hidden_act="gelu_pytorch_tanh"),
    }
    done = accelerate(nn.ModuleDict(blocks), backend="tuner")
    assert done.experts == ("gelu",)
    left = {name: why for why, names in done.left.items() for name in names}
    assert left == {
        "gpt_oss": "no kernel computes GptOssExperts yet",
        "replaced": "the forward was replaced",
        "other": "the model's config asks for experts_implementation='deepgemm'",
        "quick": "the gate of MixtralExperts is not a known activation times up",
        "halved": "the gate of HalvedExperts is not a known activation times up",
        "moved": "on meta: move the model to a GPU first",
    }


def test_gradients_autocast_and_expert_parallel_blocks_get_their_own_forward(ours):
    block, own, given = experts_of("mixtral"), experts_of("mixtral"), routed(4)
    own.load_state_dict(block.state_dict())
    accelerate(block, backend="tuner")
    torch.testing.assert_close(block(*given), own(*given), rtol=0, atol=0)
    block(*given).sum().backward()
    assert block.down_proj.grad is not None
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(block(*given), own(*given), rtol=0, atol=0)
        block._is_expert_parallel = True
        block(*given)
        block._is_expert_parallel = False
        with pytest.raises(RuntimeError):
            block(given[0][:, :31], *given[1:])
        apart = torch.randn(4, 64)[:, ::2]
        torch.testing.assert_close(block(apart, *given[1:]), own(apart, *given[1:]), rtol=0, atol=0)
        wide = copy.deepcopy(block).double()
        wide.config._experts_implementation = "eager"
        assert wide(given[0].double(), given[1], given[2].double()).dtype == torch.float64
        assert not ours
        block(*given)
    assert ours == [4]


@pytest.fixture
def table(tmp_path, make_row, make_table):
    """Make tables say torch's time over the winner's by the number of tokens, for the blocks of `experts_of`."""

    def write(ratios):
        extras = {"groups": 4, "top_k": 2}
        parts = {"dtype": "float32", "layout": "nt", "op": "fused_experts", "epilogue": "silu", "extras": extras}
        version = registry.find("fused_experts", "experts_pointer").version
        rows = [
            Row(Problem(m, 48, 32, **parts), CONFIG, version, make_row().made, 10.0, 1.0, ratio, 1)
            for m, ratio in ratios.items()
        ]
        tuner.use(make_table(*rows, op="fused_experts", device=INTERPRETER).write(tmp_path))

    return write


@pytest.mark.parametrize("backend", ["auto", "tuner"])
def test_compiled_a_block_is_one_operator_for_every_number_of_tokens(backend, table, ours):
    table({3: 1.2, 5: 0.9})
    block, own, graphs = experts_of("mixtral"), experts_of("mixtral"), []
    own.load_state_dict(block.state_dict())

    def backend_of(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    assert accelerate(block, backend=backend).experts == ("",)
    compiled = torch.compile(lambda *given: block(*given) + 1, backend=backend_of, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for tokens, launched in ((3, 1), (5, backend == "tuner"), (9, backend == "tuner"), (0, backend == "tuner")):
            given = routed(tokens)
            ours.clear()
            found = compiled(*given)
            assert len(ours) == launched
            torch.testing.assert_close(found, own(*given) + 1 if tokens else torch.zeros(0, 32))
    called = [str(node.target) for node in graphs[0].graph.nodes if "triton_tuner" in str(node.target)]
    assert [each.removesuffix(".default") for each in called] == ["triton_tuner.experts_by_evidence"]
    assert all("experts_by_evidence" in graph.code for graph in graphs)


def test_what_records_operators_sees_one(ours):
    block, given = experts_of("mixtral"), routed(4)
    accelerate(block, backend="tuner")
    with torch.no_grad():
        recorded = make_fx(block)(*given)
        assert "triton_tuner.experts_by_evidence" in recorded.code
        assert ours == [4]
        torch.testing.assert_close(recorded(*given), block(*given), rtol=0, atol=0)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            assert block(*map(mode.from_tensor, given)).shape == (4, 32)
    assert ours == [4, 4, 4]


def test_compiled_training_has_the_blocks_own_gradients(ours):
    block, given = experts_of("mixtral"), routed(4)
    expected = torch.autograd.grad(block(*given).square().sum(), tuple(block.parameters()))
    accelerate(block, backend="tuner")
    compiled = torch.compile(block, backend="aot_eager")
    found = torch.autograd.grad(compiled(*given).square().sum(), tuple(block.parameters()))
    torch.testing.assert_close(found, expected)
    assert not ours


def test_copies_pickles_and_kept_methods(ours):
    block, given = experts_of("mixtral"), routed(4)
    kind = type(block)
    accelerate(block, backend="tuner")
    assert isinstance(block, kind)
    assert type(block).__name__ == "TunedMixtralExperts"
    with torch.no_grad():
        expected = block(*given)
        for each in (copy.deepcopy(block), pickle.loads(pickle.dumps(block))):
            torch.testing.assert_close(each(*given), expected, rtol=0, atol=0)
        assert ours == [4, 4, 4]
        kept = block.forward
        restore(block)
        torch.testing.assert_close(kept(*given), block(*given), rtol=0, atol=0)
    assert type(block) is kind
    assert ours == [4, 4, 4]


def test_a_gate_that_clamps_its_values_keeps_its_own_forward():
    block = experts_of("mixtral")

    class ClampedExperts(type(block)):
        def _apply_gate(self, gate_up):
            gate, up = gate_up.chunk(2, dim=-1)
            return self.act_fn(gate.clamp(max=10)) * up.clamp(-10, 10)

    block.__class__ = ClampedExperts
    done = accelerate(nn.Sequential(block), backend="tuner")
    assert done.left == {"the gate of ClampedExperts is not a known activation times up": ("0",)}


def test_a_forward_of_ones_own_is_kept():
    block = experts_of("mixtral")

    class ScaledExperts(type(block)):
        def forward(self, *given):
            return 0.5 * super().forward(*given)

    block.__class__ = ScaledExperts
    done = accelerate(nn.Sequential(block), backend="tuner")
    assert done.left == {"ScaledExperts defines its own forward": ("0",)}


def test_what_changes_in_a_block_or_hears_of_its_values_has_its_own_forward(ours):
    block = experts_of("mixtral")
    given = routed(5)
    accelerate(nn.Sequential(block), backend="tuner")
    with torch.no_grad():
        block(*given)
        assert ours == [5]
        hook = block.act_fn.register_forward_hook(lambda _module, _given, result: 0 * result)
        assert not block(*given).any()
        hook.remove()
        block.act_fn = nn.ReLU()
        changed = block(*given)
        assert ours == [5]
        restore(nn.Sequential(block))
        torch.testing.assert_close(changed, block(*given))
