"""`tuner.models.accelerate` on gated MLPs: whose gate and up are one launch, that they are right, and what stays."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

import tuner
from tuner.hardware.device import INTERPRETER
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.kernels.ops import arguments
from tuner.kernels.ops import gated_linear as op
from tuner.launch.torch_precision import torch_precision_set
from tuner.lookup import evidence
from tuner.lookup.row import Row
from tuner.models import accelerate, accelerate_mlp, restore
from tuner.problem import Problem

CONFIG = Config(
    "gated_pointer",
    BLOCK_SIZE_M=16,
    BLOCK_SIZE_N=32,
    BLOCK_SIZE_K=32,
    GROUP_SIZE_M=1,
    SWAP_AB=False,
    num_stages=1,
    num_warps=4,
)
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
DEEPSEEK = {
    **EXPERTS,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 0,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}
MODELS = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {},
    "gemma": {},
    "gemma3_text": {"sliding_window_pattern": 1},
    "phi3": {},
    "glm4": {},
    "deepseek_v3": DEEPSEEK,
}
NO_GATE = "gates of MLPs: {} computes something else"
MORE = "gates of MLPs: gate or up does more than multiply by a weight: it has a bias, a hook or its own forward"


class Gated(nn.Module):
    """A gated MLP as models have it."""

    def __init__(self, *, bias=False, act=None):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(32, 48, bias=bias), nn.Linear(32, 48, bias=bias)
        self.down_proj, self.act_fn = nn.Linear(48, 32), act or nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Joined(nn.Module):
    """A gated MLP whose gate and up are one layer."""

    def __init__(self, *, up_first=False):
        super().__init__()
        self.gate_up_proj, self.down_proj, self.act_fn = nn.Linear(32, 96, bias=False), nn.Linear(48, 32), nn.SiLU()
        self.up_first = up_first

    def forward(self, x):
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(self.act_fn(up) * gate if self.up_first else self.act_fn(gate) * up)


class Dropping(Gated):
    """A gated MLP with dropout."""

    def forward(self, x):
        return functional.dropout(super().forward(x), 0.5, self.training)


class Clamped(Gated):
    """A gated MLP that bounds its gate."""

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x).clamp(max=7.0)) * self.up_proj(x))


class Bounded(Gated):
    """A gated MLP that bounds its gate where an attribute says so."""

    def __init__(self, limit=None):
        super().__init__()
        self._limit = limit

    def forward(self, x):
        gate = self.gate_proj(x)
        return self.down_proj(
            self.act_fn(gate if self._limit is None else gate.clamp(max=self._limit)) * self.up_proj(x)
        )


class Widened(Gated):
    """A gated MLP that multiplies in float32, which takes layers of float32."""

    def forward(self, x):
        return super().forward(x.float()).to(x.dtype)


class Failing(Gated):
    """A gated MLP that takes rows of one length only."""

    def forward(self, x):
        return super().forward(x.view(-1, 32))


class Asking(Gated):
    """A gated MLP that takes another operand."""

    def forward(self, x, residual):
        return super().forward(x) + residual


class Normed(Gated):
    """A gated MLP with a norm between both halves."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(48)

    def forward(self, x):
        return self.down_proj(self.norm(self.act_fn(self.gate_proj(x)) * self.up_proj(x)))


class Adapted(nn.Module):
    """A layer with an adapter beside it, as LoRA has it."""

    def __init__(self, base_layer):
        super().__init__()
        self.base_layer, self.low = base_layer, nn.Linear(32, 48, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.low(x)


class Named(torch.Tensor):
    """A tensor class of somebody's own."""


@pytest.fixture(autouse=True)
def seeded(no_tables):
    torch.manual_seed(0)


@pytest.fixture
def gates(monkeypatch):
    """The shapes of x that the op was launched with."""
    seen, own = [], op.launch
    monkeypatch.setattr(op, "launch", lambda given, *rest: seen.append(tuple(given.a.shape)) or own(given, *rest))
    return seen


@pytest.fixture
def table(tmp_path, make_row, make_table):
    """Name a table with some Ms, each with what torch's time over ours was there."""

    def name(speeds, n=48, activation="silu"):
        parts = {"dtype": "float32", "layout": "nt", "op": "gated_linear", "epilogue": activation}
        version = registry.find("gated_linear", "gated_pointer").version
        rows = [
            Row(Problem(m, n, 32, **parts), CONFIG, version, make_row().made, 10.0, 1.0, speed, 1)
            for m, speed in speeds.items()
        ]
        tuner.use(make_table(*rows, op="gated_linear", device=INTERPRETER).write(tmp_path))

    return name


def model_of(name):
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(name, **SIZES, **MODELS[name])
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("name", MODELS)
def test_a_models_mlps_run_gate_and_up_in_one_launch_and_are_given_back(name, gates, ours):
    model, tokens = model_of(name), torch.arange(6).reshape(2, 3)
    only = "*.shared_experts*" if name == "deepseek_v3" else "*.mlp*"
    block = "model.layers.0.mlp" + (".shared_experts" if name == "deepseek_v3" else "")
    with torch.inference_mode():
        expected = model(tokens).logits
        done = accelerate(model, backend="tuner", only=only)
        assert done.mlps == (block,)
        assert f"; gate and up in one launch: 1 block ({block})" in str(done)
        ours.clear()
        torch.testing.assert_close(model(tokens).logits, expected)
        assert gates == [(6, 32)]
        assert len(ours) == 1  # down
        assert restore(model) == len(done.exchanged) + len(done.mlps) + len(done.residuals)
        torch.testing.assert_close(model(tokens).logits, expected, rtol=0, atol=0)
    assert gates == [(6, 32)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", ["llama", "gemma", "phi3"])
def test_they_are_no_less_exact(name, dtype, gates):
    block = model_of(name).model.layers[0].mlp
    for weight in block.parameters():
        nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
    block.to(dtype)
    x, exact = torch.randn(2, 5, 32).to(dtype), copy.deepcopy(block).double()
    with torch.no_grad():
        wanted, theirs = exact(x.double()), block(x)
        assert accelerate(block, backend="tuner").mlps == ("",)
        found = block(x)
    assert gates == [(10, 32)]
    assert found.dtype == dtype
    error, usual = ((each.double() - wanted).norm() / wanted.norm() for each in (found, theirs))
    assert error <= 1.1 * usual


def test_experts_in_one_tensor_are_no_mlps():
    from transformers import AutoConfig, AutoModelForCausalLM

    for name in ("mixtral", "qwen3_moe"):
        config = AutoConfig.for_model(name, **SIZES, **EXPERTS, num_local_experts=4, num_experts=4)
        done = accelerate(AutoModelForCausalLM.from_config(config), backend="tuner")
        assert not done.mlps
        assert done.experts == ("model.layers.0.mlp.experts",)


@pytest.mark.parametrize("activation", [nn.GELU("tanh"), nn.ReLU(), nn.LeakyReLU(0.01), nn.SiLU()])
@pytest.mark.parametrize("kind", [Gated, Joined])
def test_each_activation_is_found_in_either_order(kind, activation, gates):
    x = torch.randn(3, 32)
    for up_first in (False, True) if kind is Joined else (None,):
        block = Gated() if up_first is None else Joined(up_first=up_first)
        block.act_fn = activation
        with torch.no_grad():
            expected = block(x)
            assert accelerate(block, backend="tuner").mlps == ("",)
            torch.testing.assert_close(block(x), expected)
    assert set(gates) == {(3, 32)}


def test_what_computes_something_else_is_left_and_named():
    from transformers.activations import ACT2FN

    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_proj, self.up_proj, self.down_proj = (nn.Linear(8, 8, bias=False) for _ in range(3))

        def forward(self, x):
            return self.down_proj(self.up_proj(self.gate_proj(x)))

    replaced, odd, apart, hooked = Gated(), Gated(), Gated(), Gated()
    replaced.forward = lambda x: x
    odd.up_proj.weight = nn.Parameter(odd.up_proj.weight.detach().as_subclass(Named), requires_grad=False)
    apart.up_proj.bfloat16()
    hooked.up_proj.register_forward_pre_hook(lambda *_: None)
    weighted = Gated()
    nn.utils.parametrizations.weight_norm(weighted.gate_proj)
    blocks = {
        "biased": Gated(bias=True),
        "clamped": Clamped(),
        "exact_gelu": Gated(act=nn.GELU()),
        "quick_gelu": Gated(act=ACT2FN["quick_gelu"]),
        "slope": Gated(act=nn.LeakyReLU(0.02)),
        "learned": Gated(act=nn.PReLU()),
        "failing": Failing(),
        "asking": Asking(),
        "normed": Normed(),
        "other": Other(),
        "hooked": hooked,
        "replaced": replaced,
        "odd": odd,
        "apart": apart,
        "weighted": weighted,
        "wide": Gated().double(),
        "moved": Gated().to("meta"),
    }
    done = accelerate(nn.ModuleDict(blocks), backend="tuner")
    assert not done.mlps
    left = {name: why for why, names in done.left.items() for name in names if name in blocks}
    assert left == {
        "biased": MORE,
        "clamped": NO_GATE.format("Clamped"),
        "exact_gelu": NO_GATE.format("Gated"),
        "quick_gelu": NO_GATE.format("Gated"),
        "slope": NO_GATE.format("Gated"),
        "learned": NO_GATE.format("Gated"),
        "failing": NO_GATE.format("Failing"),
        "asking": NO_GATE.format("Asking"),
        "normed": NO_GATE.format("Normed"),
        "other": NO_GATE.format("Other"),
        "hooked": MORE,
        "replaced": "gates of MLPs: the forward was replaced",
        "odd": "gates of MLPs: the weights are of class Named",
        "apart": "gates of MLPs: gate and up have weights of different kinds",
        "weighted": MORE,
        "wide": "gates of MLPs: the weights are float64",
        "moved": "gates of MLPs: on meta: move the model to a GPU first",
    }
    assert accelerate(blocks["biased"], backend="torch").left['backend="torch"'][0] == ""


@pytest.fixture
def tried(monkeypatch):
    """The classes of the blocks that were tried."""
    seen, own = [], accelerate_mlp.gate_of
    monkeypatch.setattr(accelerate_mlp, "gate_of", lambda block: seen.append(type(block).__name__) or own(block))
    return seen


def test_of_blocks_that_are_alike_one_is_tried(tried):
    blocks = nn.ModuleList(Gated() for _ in range(12))
    blocks[3].act_fn, blocks[4].act_fn = nn.GELU("tanh"), nn.GELU()
    blocks[5].half()
    blocks[6].act_fn = nn.LeakyReLU(0.01)
    blocks[7].act_fn = nn.LeakyReLU(0.02)
    blocks[8].act_fn.register_forward_hook(lambda *_: None)
    blocks[9].extra = nn.Parameter(torch.zeros(1))
    done = accelerate(blocks, backend="tuner")
    assert done.left[NO_GATE.format("Gated")] == ("4", "7")
    assert len(done.mlps) == 10
    assert len(tried) == 8  # one of the six that are alike
    tried.clear()
    accelerate(blocks, backend="tuner")
    assert len(tried) == 8  # what is found is not kept for a second time


def test_blocks_of_one_class_that_compute_something_else_are_told_apart(tried):
    blocks = nn.ModuleList(Bounded(limit) for limit in (None, 7.0, None, 7.0, None))
    done = accelerate(blocks, backend="tuner")
    assert done.mlps == ("0", "2", "4")
    assert done.left[NO_GATE.format("Bounded")] == ("1", "3")
    assert tried == ["Bounded"] * 2


def test_a_trial_refuses_two_dtypes_as_torch_does():
    for dtype in (torch.bfloat16, torch.float16):
        assert accelerate_mlp.gate_of(Gated().to(dtype)).activation == "silu"
    assert accelerate_mlp.gate_of(Widened()).activation == "silu"
    assert accelerate_mlp.gate_of(Widened().bfloat16()) is None


def test_auto_asks_for_the_family_of_a_blocks_own_activation_alone(table, monkeypatch):
    table({3: 1.2}, activation="relu")
    asked, own = [], evidence.is_tuned
    monkeypatch.setattr(evidence, "is_tuned", lambda family, device: asked.append(family) or own(family, device))
    assert not accelerate(Gated()).mlps
    assert [each.epilogue for each in asked if each.op == "gated_linear"] == ["silu"]


def test_auto_follows_the_evidence_of_each_number_of_tokens(table, gates, ours):
    block = Gated()
    why = next(iter(accelerate(block).left))
    assert why.startswith("gates of MLPs: no table of interpreter has the family: `tuner model`")
    table({3: 1.2, 5: 0.9})
    assert accelerate(block).mlps == ("",)
    with torch.no_grad():
        for _ in range(2):
            for m in (3, 5, 7):
                x = torch.randn(m, 32)
                torch.testing.assert_close(block(x), Gated.forward(block, x))
        assert gates == [(3, 32)] * 2
        table({3: 0.9, 5: 1.2})
        for m in (3, 5):
            block(torch.randn(m, 32))
        tuner.use(None)
        block(torch.randn(5, 32))
    assert gates == [(3, 32), (3, 32), (5, 32)]


def test_the_own_forward_still_runs_tuned_layers(table, gates, ours):
    block = Gated()
    table({3: 0.9})
    accelerate(block, backend="tuner", only="*_proj")
    assert accelerate(block, only="").mlps == ("",)
    with torch.no_grad():
        block(torch.randn(3, 32))
    assert (len(gates), len(ours)) == (0, 3)


@pytest.mark.parametrize("kind", [Gated, Joined])
def test_gradients_autocast_other_kinds_and_transforms_get_the_blocks_own_forward(kind, gates):
    block, x = kind(), torch.randn(4, 32)
    own = copy.deepcopy(block)
    accelerate(block, backend="tuner", only="")
    torch.testing.assert_close(block(x), own(x), rtol=0, atol=0)
    block(x).sum().backward()
    assert block.down_proj.weight.grad is not None
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(block(x), own(x), rtol=0, atol=0)
        torch.testing.assert_close(torch.func.vmap(block)(x[:, None]), own(x[:, None]))
        torch.testing.assert_close(block(x.as_subclass(Named)), own(x).as_subclass(Named), rtol=0, atol=0)
        torch.testing.assert_close(block(x[0]), own(x[0]), rtol=0, atol=0)
        assert block(x[:0]).shape == (0, 32)
        for given in ((x[:, :31],), (x.bfloat16(),), (x, x), ()):
            with pytest.raises((RuntimeError, TypeError)):
                block(*given)
        wide = copy.deepcopy(block).double()
        assert wide(x.double()).dtype == torch.float64
        torch.testing.assert_close(block(x=x), own(x), rtol=0, atol=0)
        assert not gates
        parameters = {name: 2 * value for name, value in own.named_parameters()}
        torch.testing.assert_close(
            torch.func.functional_call(block, parameters, (x,)), torch.func.functional_call(own, parameters, (x,))
        )
        torch.testing.assert_close(block(x[:, None].expand(4, 3, 32)), own(x[:, None].expand(4, 3, 32)))
    assert gates == [(4, 32), (12, 32)]


def test_layers_that_changed_since_get_the_blocks_own_forward(gates):
    from torch.nn.utils import parametrize

    x = torch.randn(4, 32)

    def adapted(block):
        block.gate_proj = Adapted(block.gate_proj)

    def biased(block):
        block.up_proj.bias = nn.Parameter(torch.ones(48))

    def replaced(block):
        block.up_proj.forward = lambda x: 2 * functional.linear(x, block.up_proj.weight)

    def computed(block):
        parametrize.register_parametrization(block.gate_proj, "weight", nn.Identity())

    def strided(block):
        block.up_proj.weight = nn.Parameter(block.up_proj.weight.detach().t().contiguous().t())

    def activated(block):
        block.act_fn = nn.Mish()

    for change in (adapted, biased, replaced, computed, strided, activated):
        block = Gated()
        accelerate(block, backend="tuner", only="")
        with torch.no_grad():
            block(x)
            assert gates == [(4, 32)]
            change(block)
            torch.testing.assert_close(block(x), Gated.forward(block, x), rtol=0, atol=0)
        assert gates.pop() == (4, 32), change


class Limited(Gated):
    """A gated MLP whose forward reads a function, a number and a child that need not be there."""

    def __init__(self):
        super().__init__(act=nn.LeakyReLU(0.01))
        self.squash, self.limit, self.last = functional.silu, 1e30, None
        self.register_module("late", None)

    def forward(self, x):
        gate = self.squash(self.gate_proj(x)).clamp(-self.limit, self.limit)
        result = self.down_proj(gate * self.up_proj(x))
        return result if self.late is None else self.late(result)


def test_what_a_block_was_tried_with_and_changed_since_gets_its_own_forward(gates):
    x = torch.randn(4, 32)
    changes = (
        lambda block: setattr(block, "squash", functional.relu),
        lambda block: setattr(block, "limit", 0.1),
        lambda block: setattr(block, "late", nn.Hardtanh(-0.1, 0.1)),
        lambda block: setattr(block.act_fn, "negative_slope", 0.9),
        lambda block: setattr(block.act_fn, "forward", functional.relu),
    )
    for change in changes:
        block = Limited()
        accelerate(block, backend="tuner", only="")
        with torch.no_grad():
            block(x)
            assert gates.pop() == (4, 32)
            change(block)
            torch.testing.assert_close(block(x), Limited.forward(block, x), rtol=0, atol=0)
        assert gates == [], change


def test_a_pickled_block_holds_what_it_was_tried_with(gates):
    block, x = Limited(), torch.randn(4, 32)
    block.hidden_size = 123_456_789
    accelerate(block, backend="tuner", only="")
    back = pickle.loads(pickle.dumps(block))
    with torch.no_grad():
        torch.testing.assert_close(back(x), block(x))
    assert gates == [(4, 32)] * 2


class Foreign(Gated):
    """A gated MLP that keeps what it sees, and needs what is not installed."""

    seen: list[object]
    missing = False

    def forward(self, x):
        self.seen.append(x)
        if self.missing:
            raise ImportError("no such library")
        return super().forward(x)


def test_trying_a_block_leaves_no_trace_and_raises_nothing():
    for missing in (False, True):
        block = Foreign()
        block.seen, block.missing = [], missing
        done = accelerate(block, backend="tuner")
        assert block.seen == []
        assert bool(done.mlps) is not missing


def test_a_subclass_of_a_patched_class_stays():
    block = Gated()
    accelerate(block, backend="tuner")
    block.__class__ = type("FSDPGated", (type(block),), {})
    done = accelerate(block, backend="tuner")
    assert done.mlps == ()
    assert any("FSDPGated is a subclass made after accelerate()" in why for why in done.left)


def test_a_call_where_there_are_no_kernels_says_nothing_of_later_ones(gates, monkeypatch):
    block, x = Gated(), torch.randn(4, 32)
    accelerate(block, backend="tuner")
    with torch.no_grad():
        with monkeypatch.context() as patched:
            patched.setattr(arguments, "has_kernels", lambda _device: False)
            block(x)
        assert gates == []
        block(x)
    assert gates == [(4, 32)]


def test_another_precision_of_float32_is_asked_for_anew(monkeypatch):
    asked, block, x = [], Gated(), torch.randn(4, 32)
    monkeypatch.setattr(evidence, "is_tuned", lambda *_: True)
    monkeypatch.setattr(evidence, "beats_vendor", lambda problem, _: asked.append(problem.precision) or False)
    accelerate(block, backend="auto", only="")
    with torch.no_grad():
        for precision in ("ieee", "tf32", "ieee"):
            with torch_precision_set(precision):
                block(x)
    assert asked == ["ieee", "tf32"]


@pytest.mark.parametrize("name", ["gate_proj", "up_proj", "act_fn"])
def test_hooks_see_what_they_would(name, gates):
    block, x, seen = Gated(), torch.randn(4, 32), []
    accelerate(block, backend="tuner")
    layer = getattr(block, name)
    with torch.no_grad():
        for register in (layer.register_forward_hook, layer.register_forward_pre_hook):
            hook = register(lambda *given: seen.append(given[1][0].shape))
            block(x)
            assert (len(seen), gates) == (1, [])
            hook.remove()
            block(x)
            assert (len(seen), gates) == (1, [(4, 32)])
            seen.clear()
            gates.clear()


def test_hooks_of_all_modules_of_the_block_and_of_down_are_called(gates):
    block, x, seen = Gated(), torch.randn(4, 32), []
    accelerate(block, backend="tuner")
    register = torch.nn.modules.module.register_module_forward_hook
    with torch.no_grad():
        hook = register(lambda module, *_: seen.append(module))
        block(x)
        hook.remove()
        assert seen == [block.gate_proj, block.act_fn, block.up_proj, block.down_proj, block]
        assert not gates
        seen.clear()
        for layer in (block, block.down_proj):
            layer.register_forward_hook(lambda module, *_: seen.append(module))
        block(x)
    assert seen == [block.down_proj, block]
    assert gates == [(4, 32)]


def test_dropout_is_the_blocks_own_while_it_trains(gates):
    block, x = Dropping(), torch.randn(4, 32)
    state = torch.random.get_rng_state()
    assert accelerate(block, backend="tuner", only="").mlps == ("",)
    assert torch.equal(torch.random.get_rng_state(), state)
    with torch.no_grad():
        dropped = block(x)
        assert (dropped == 0).any()
        assert not gates
        block.eval()
        torch.testing.assert_close(block(x), Gated.forward(block, x))
        assert len(gates) == 1
        plain = Gated()
        accelerate(plain, backend="tuner", only="")
        plain(x)  # trains too, which changes nothing
    assert len(gates) == 2


def test_sharded_weights_get_the_blocks_own_forward(gates):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        mesh, x = init_device_mesh("cpu", (1,)), torch.randn(4, 32)
        whole, parted = Gated(), Gated()
        with torch.no_grad():
            expected = whole(x), parted(x)
            for block in (whole, parted):
                accelerate(block, backend="tuner", only="")
            fully_shard(whole, mesh=mesh)
            parallelize_module(parted, mesh, {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel()})
            torch.testing.assert_close(whole(x), expected[0])
            assert gates == [(4, 32)]  # whole while they are used
            torch.testing.assert_close(parted(x), expected[1])
        assert gates == [(4, 32)]
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("backend", ["auto", "tuner"])
@pytest.mark.parametrize("kind", [Gated, Joined])
def test_compiled_a_block_is_one_operator_for_every_m(kind, backend, table, gates):
    table({3: 1.2, 8: 0.9})
    block, graphs = kind(), []

    def backend_of(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    accelerate(block, backend=backend, only="")
    compiled = torch.compile(lambda x: block(x) + 1, backend=backend_of, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for m, launched in ((3, 1), (8, backend == "tuner"), (9, backend == "tuner")):
            x = torch.randn(2, m, 32)[0]
            gates.clear()
            torch.testing.assert_close(compiled(x), block(x) + 1, rtol=0, atol=0)
            assert len(gates) == 2 * launched
            torch.testing.assert_close(compiled(x), kind.forward(block, x) + 1)
    (graph,) = graphs
    called = [str(node.target) for node in graph.graph.nodes if "triton_tuner" in str(node.target)]
    assert [each.removesuffix(".default") for each in called] == ["triton_tuner.gated_by_evidence"]


def test_compiled_training_and_hooks_are_the_blocks_own(gates):
    block, x, seen = Gated(), torch.randn(4, 32), []
    expected = torch.autograd.grad(block(x).square().sum(), tuple(block.parameters()))
    accelerate(block, backend="tuner")
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    found = torch.autograd.grad(compiled(x).square().sum(), tuple(block.parameters()))
    torch.testing.assert_close(found, expected)
    block.gate_proj.register_forward_hook(lambda *given: seen.append(given[2]))
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(block, backend="aot_eager")(x), Gated.forward(block, x))
    assert seen
    assert not gates


def test_recorded_programs_hold_one_operator(gates):
    block, x = Joined(up_first=True), torch.randn(4, 32)
    accelerate(block, backend="tuner", only="")
    with torch.no_grad():
        expected = block(x)
        exported = torch.export.export(block, (x,), dynamic_shapes=(({0: torch.export.Dim("batch", max=64)},),))
        called = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
        assert called.count("triton_tuner.gated_by_evidence.default") == 1
        gates.clear()
        torch.testing.assert_close(exported.module()(x[:3]), expected[:3])
        assert gates == [(3, 32)]
        torch.testing.assert_close(make_fx(block)(x)(x), expected)


def test_copies_pickles_state_ties_replicas_and_kept_methods(gates):
    llama = model_of("llama").model.layers[0].mlp
    x, kind, names = torch.randn(4, 32), type(llama), list(llama.state_dict())
    llama.up_proj.weight = llama.gate_proj.weight
    accelerate(llama, backend="tuner")
    assert isinstance(llama, kind)
    assert type(llama).__name__ == "TunedLlamaMLP"
    assert list(llama.state_dict()) == names
    assert llama.up_proj.weight is llama.gate_proj.weight
    with torch.no_grad():
        expected = llama(x)
        torch.testing.assert_close(expected, kind.forward(llama, x))
        gates.clear()
        copies = [copy.deepcopy(llama), pickle.loads(pickle.dumps(llama))]
        before = {name: value.clone() for name, value in llama.state_dict().items()}
        llama.load_state_dict({name: 0 * value for name, value in before.items()})
        for each in copies:
            torch.testing.assert_close(each(x), expected, rtol=0, atol=0)
            assert restore(each) == 4
        assert len(gates) == 2
        assert not llama(x).any()
        llama.load_state_dict(before, assign=True)
        torch.testing.assert_close(llama(x), expected, rtol=0, atol=0)
        gates.clear()
        replica = llama._replicate_for_data_parallel()
        for name, layer in llama.named_children():
            replica._modules[name] = layer._replicate_for_data_parallel()
            if name != "act_fn":  # as torch's `replicate` does
                replica._modules[name].weight, replica._modules[name]._parameters["bias"] = layer.weight, None
        torch.testing.assert_close(replica(x), expected)
        assert not gates
        kept = llama.forward
        restore(llama)
        torch.testing.assert_close(kept(x), llama(x), rtol=0, atol=0)
    assert type(llama) is kind
    assert not gates


def test_patterns_name_blocks(refused):
    model = nn.ModuleDict({"mlp": Gated(), "other": Gated()})
    done = accelerate(model, backend="tuner", only="mlp")
    assert (done.mlps, done.exchanged) == (("mlp",), ())
    words = "only: 'nobody' names no linear layer, norm, MLP or experts: expected a pattern of names of the model's 8"
    refused(lambda: accelerate(model, only="nobody"), words)
