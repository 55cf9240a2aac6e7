"""`tuner.models.accelerate` on residuals: whose blocks add them, that sums are right, and what stays."""

from __future__ import annotations

import copy
import pickle
import threading
import time

import pytest
import torch
from torch import nn

import tuner
from tuner.hardware.device import INTERPRETER
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.kernels.ops import matmul
from tuner.lookup.row import Row
from tuner.models import accelerate, accelerate_linear, accelerate_residual, restore
from tuner.models.residual_form import Ending, ending_of, residual_form
from tuner.problem import Problem

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MODELS = {
    "llama": ({}, 2),
    "mistral": ({}, 2),
    "qwen2": ({}, 2),
    "qwen3": ({}, 2),
    "gemma": ({}, 2),  # norms that add one to their weight
    "granite": ({}, 2),
    "phi3": ({}, 2),  # q, k and v by one layer, and dropout of what is added
    "mixtral": ({"num_local_experts": 2}, 1),  # experts instead of an MLP
    "qwen3_moe": ({"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32}, 1),
}
OTHERS = {
    "gemma2": {},  # a norm of what is added
    "olmo2": {},  # the same, and none before
    "gpt_oss": {"num_local_experts": 2, "num_experts_per_tok": 1},  # with biases
}
POINTER = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 16, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 1, "num_stages": 1}
POINTER |= {"num_warps": 4}


class Norm(nn.Module):
    """An RMSNorm as models have it."""

    def __init__(self):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.rand(32) + 0.5), 1e-6

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


VALUES, LAST, GATE, DOWN = (16, 32), (32, 16), (48, 32), (32, 48)
"""The weights of a layer's linear layers, in their order; the gate's are those of its other half too."""


class Attention(nn.Module):
    """What is mixed does not matter here."""

    fails = False

    def see(self, *given):
        pass

    def __init__(self, *, bias=False):
        super().__init__()
        self.v_proj, self.o_proj = nn.Linear(32, 16, bias=False), nn.Linear(16, 32, bias=bias)
        self.scaling = 1.0

    def forward(self, hidden_states, scale=None, **others):
        self.see(scale, others)
        mixed = self.v_proj(hidden_states) if scale is None else self.v_proj(hidden_states) * scale
        if self.fails:
            raise RuntimeError("told to")
        return self.o_proj(mixed), None


class Mlp(nn.Module):
    """A gated MLP."""

    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(32, 48, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(48, 32, bias=False)

    def forward(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """A layer as Llama has it."""

    factor = 1.0

    def __init__(self, attention=None):
        super().__init__()
        self.first_norm, self.second_norm = Norm(), Norm()
        self.attention, self.mlp = attention or Attention(), Mlp()
        self.eval()

    def forward(self, hidden_states, scale=None, mask=None, **others):
        attended, _ = self.attention(hidden_states=self.first_norm(hidden_states), scale=scale, **others)
        hidden_states = hidden_states + attended
        return hidden_states + self.mlp(self.second_norm(hidden_states))


class Scaled(Layer):
    """A layer that adds a multiple of what a block gives; `factor` says which."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, hidden_states):
        attended, _ = self.attention(self.first_norm(hidden_states))
        hidden_states = hidden_states + attended * self.factor
        return hidden_states + self.mlp(self.second_norm(hidden_states))


class Parallel(Layer):
    """A layer whose blocks have the same input."""

    def forward(self, hidden_states):
        attended, _ = self.attention(self.first_norm(hidden_states))
        return hidden_states + attended + self.mlp(self.second_norm(hidden_states))


class Reading(Layer):
    """A layer that reads an argument."""

    def forward(self, hidden_states, scale=None):
        return super().forward(hidden_states, scale=None if scale is None else scale + 1)


class InPlace(Layer):
    """A layer that changes its input."""

    def forward(self, hidden_states):
        attended, _ = self.attention(self.first_norm(hidden_states))
        hidden_states += attended
        return hidden_states + self.mlp(self.second_norm(hidden_states))


class Doubling(Attention):
    """Attention that returns more than its last product."""

    def forward(self, hidden_states, **others):
        found, _ = super().forward(hidden_states, **others)
        return found * 2, None


class Twice(Attention):
    """Attention that multiplies by its last weight twice."""

    def forward(self, hidden_states, **others):
        mixed, _ = super().forward(hidden_states, **others)
        return self.o_proj(self.v_proj(mixed)), None


class Normalized(Attention):
    """Attention whose last product goes through another child; `of` says through which."""

    def __init__(self, of):
        super().__init__()
        self.after = of

    def forward(self, hidden_states, **others):
        return self.after(super().forward(hidden_states, **others)[0]), None


class Halving(Attention):
    """Attention that changes its last product in place."""

    def forward(self, hidden_states, **others):
        found, _ = super().forward(hidden_states, **others)
        found *= 0.5
        return found, None


class Telling(Layer):
    """A layer that asks whether it is given an argument."""

    def forward(self, hidden_states, scale=None):
        return super().forward(hidden_states if scale is not None else hidden_states * 2)


class Ordering(Layer):
    """A layer whose blocks change places where it is given an argument."""

    def forward(self, hidden_states, scale=None):
        steps = [(self.first_norm, self.attention), (self.second_norm, self.mlp)]
        for norm, block in steps if scale is not None else reversed(steps):
            added = block(norm(hidden_states))
            hidden_states = hidden_states + (added if block is self.mlp else added[0])
        return hidden_states


class Comparing(Layer):
    """A layer that compares an argument."""

    def forward(self, hidden_states, mode="a"):
        return super().forward(hidden_states * 2 if mode == "b" else hidden_states)


class Weighted(Layer):
    """A layer that adds by a weight of its own."""

    def __init__(self):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(()))

    def forward(self, hidden_states):
        return super().forward(hidden_states) * self.alpha


class Clamping(Layer):
    """A layer whose result has a limit."""

    def forward(self, hidden_states):
        return super().forward(hidden_states).clamp(-100, 100)


class Widening(Layer):
    """A layer whose sums are float32."""

    def forward(self, hidden_states):
        return super().forward(hidden_states).float()


class Dropping(Layer):
    """A layer with dropout of what it adds."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.eval()

    def forward(self, hidden_states):
        attended, _ = self.attention(self.first_norm(hidden_states))
        hidden_states = hidden_states + self.drop(attended)
        return hidden_states + self.mlp(self.second_norm(hidden_states))


class First(Layer):
    """A layer that takes the first of what attention of an unknown kind gives."""

    def forward(self, hidden_states):
        hidden_states = hidden_states + self.attention(self.first_norm(hidden_states))[0]
        return hidden_states + self.mlp(self.second_norm(hidden_states))


class Unknown(Attention):
    """Attention that cannot be tried."""

    def forward(self, hidden_states):
        if not hidden_states.any():
            raise RuntimeError("there is nothing to attend to")
        return super().forward(hidden_states)


@pytest.fixture(autouse=True)
def seeded(no_tables):
    torch.manual_seed(0)


@pytest.fixture
def sums(monkeypatch):
    """The problems of products with a bias that were launched."""
    seen, own = [], matmul.launch

    def launch(operands, problem, device):
        seen.extend([problem] if problem.has_bias else [])
        return own(operands, problem, device)

    monkeypatch.setattr(matmul, "launch", launch)
    return seen


def model_of(name, **others):
    from transformers import AutoConfig, AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **{**SIZES, **others})).eval()


def accelerated(layer):
    assert accelerate(layer, backend="tuner").residuals == ("",)
    return layer


def restored(layer):
    own = copy.deepcopy(layer)
    restore(own)
    return own


@pytest.mark.parametrize(
    "name",
    [name if name in ("llama", "phi3", "mixtral") else pytest.param(name, marks=pytest.mark.long) for name in MODELS],
)
def test_a_models_blocks_add_the_residual_of_one_row_and_are_given_back(name, sums):
    others, blocks = MODELS[name]
    model = model_of(name, **others, attention_bias=False)
    with torch.inference_mode():
        one, many = torch.tensor([[3]]), torch.tensor([[3, 5, 7]])
        expected = [model(tokens).logits for tokens in (one, many)]
        done = accelerate(model, backend="tuner")
        assert f"; residual added by products: 2 layers ({', '.join(done.residuals)})" in str(done)
        torch.testing.assert_close(model(one).logits, expected[0])
        found = [each for each in sums if each.n == 32 and each.m == 1]
        assert [each.k for each in found] == [32, 48][:blocks] * 2
        sums.clear()
        torch.testing.assert_close(model(many).logits, expected[1])
        assert not [each for each in sums if each.n == 32 and each.k == 48]
        restore(model)
        torch.testing.assert_close(model(one).logits, expected[0], rtol=0, atol=0)


@pytest.mark.parametrize("name", OTHERS)
def test_models_that_add_something_else_keep_their_layers(name):
    model = model_of(name, **OTHERS[name])
    assert not accelerate(model, backend="tuner").residuals


def test_generation_from_a_cache_gives_the_same_tokens(sums):
    model, ids = model_of("llama"), torch.tensor([[3, 5, 7]])
    expected = model.generate(ids, max_new_tokens=6, do_sample=False)
    accelerate(model, backend="tuner")
    torch.testing.assert_close(model.generate(ids, max_new_tokens=6, do_sample=False), expected)
    assert len(sums) == 5 * 4  # the prompt's three rows give the first token


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_sum_is_no_less_exact_than_the_layers_own(dtype, sums):
    layer, x = accelerated(Layer().to(dtype)), torch.randn(1, 1, 32).to(dtype)
    exact = restored(layer).double()
    with torch.no_grad():
        found, expected = layer(x), exact(x.double())
        own = restored(layer)(x)
    assert (found.shape, found.dtype) == (x.shape, dtype)
    errors = [(each.double() - expected).norm().item() for each in (found, own)]
    assert errors[0] <= (2e-6 if dtype == torch.float32 else 1.2 * errors[1])
    assert len(sums) == 2


def test_layers_that_compute_something_else_are_left_alone(sums):
    others = (Telling(), Ordering(), Comparing(), Weighted(), Clamping(), Widening().half(), First(Unknown()))
    for layer in (Scaled(0.5), Parallel(), Reading(), InPlace(), Layer().train(), *others):
        assert residual_form(layer) is None
        assert not accelerate(layer, backend="tuner").residuals
        assert not isinstance(layer, accelerate_residual.AddingLayer)
    assert ending_of(Doubling()) == Ending(None, 1)
    assert ending_of(Twice()) == Ending(None, None)
    for after in (Norm(), nn.Dropout(), nn.Identity()):
        assert ending_of(Normalized(after)) == Ending(None, 1)
    assert ending_of(Halving()) == Ending(None, 1)
    assert ending_of(Attention()) == Ending("o_proj", 1)
    with torch.no_grad():
        x = torch.randn(1, 32)
        for attention in (Doubling(), Attention(bias=True)):  # its MLP adds
            layer = accelerated(Layer(attention))
            sums.clear()
            torch.testing.assert_close(layer(x), restored(layer)(x))
            assert [each.k for each in sums] == ([48] if isinstance(attention, Doubling) else [16, 48])


def test_a_block_is_given_what_the_layer_would_give_it(sums):
    layer, x, scale, seen = accelerated(Layer()), torch.randn(1, 32), torch.tensor(2.0), []
    layer.attention.see = lambda *given: seen.append(given)
    with torch.no_grad():
        for given in ({}, {"scale": scale}, {"mask": 1}, {"scale": scale, "mask": 1, "more": 2}):
            torch.testing.assert_close(layer(x, **given), restored(layer)(x, **given))
            assert seen == [(given.get("scale"), {"more": 2} if "more" in given else {})] * 2
            seen.clear()
        assert len(sums) == 8
        torch.testing.assert_close(layer(x, scale), restored(layer)(x, scale))  # by its place: the layer's own forward
        torch.testing.assert_close(layer(hidden_states=x), restored(layer)(x))
        assert len(sums) == 8
        exact = accelerated(Scaled(1.0))
        with pytest.raises(TypeError, match="unexpected keyword argument 'wrong'"):
            exact(x, wrong=1)


def test_what_is_no_plain_row_is_the_layers_own(sums):
    layer, x = accelerated(Layer()), torch.randn(1, 32)
    own = restored(layer)
    layer(x).sum().backward()
    own(x).sum().backward()
    torch.testing.assert_close(layer.mlp.down_proj.weight.grad, own.mlp.down_proj.weight.grad)
    with torch.no_grad():
        for rows in (torch.randn(2, 32), torch.randn(2, 1, 32), torch.randn(0, 32)):
            torch.testing.assert_close(layer(rows), own(rows))
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(layer(x), own(x))
        torch.testing.assert_close(torch.func.vmap(layer)(x[None]), own(x)[None])
        layer.train()
        torch.testing.assert_close(layer(x), own(x))
        layer.eval()
        assert not sums
        torch.testing.assert_close(layer(x), own(x))
        torch.testing.assert_close(layer(x[0].as_strided((1, 1, 32), (1, 1, 1))), own(x)[None])
    assert len(sums) == 4


def test_a_layer_that_was_changed_since_runs_as_it_is(sums):
    class Adapted(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base

        def forward(self, x):
            return self.base(x) + 1

    x, changed = torch.randn(1, 32), []
    dropping = accelerated(Dropping())
    dropping.drop = nn.Linear(32, 32)
    for change in (
        lambda layer: setattr(layer.attention, "o_proj", Adapted(layer.attention.o_proj)),
        lambda layer: setattr(layer.mlp.down_proj, "bias", nn.Parameter(torch.randn(32))),
        lambda layer: setattr(layer, "attention", copy.deepcopy(layer.attention)),
        lambda layer: setattr(layer.mlp, "forward", lambda x: x),
        lambda layer: accelerate(layer, backend="torch", only="mlp.down_proj"),
        lambda layer: setattr(layer.attention, "scaling", 2.0),
        lambda layer: setattr(layer.attention, "__class__", type("Other", (Doubling,), {})),
        lambda layer: setattr(layer.mlp, "training", True),
    ):
        layer = accelerated(Layer())
        change(layer)
        changed.append(layer)
    scaled = accelerated(Scaled(1.0))
    scaled.factor = 3.0
    with torch.no_grad():
        for layer in (*changed, scaled, dropping):
            torch.testing.assert_close(layer(x), restored(layer)(x))
        assert not [each for each in sums if each.k == 16]
        moved = accelerated(Layer())
        for _ in range(2):
            moved.attention.o_proj.weight.data = torch.randn(32, 16)
            torch.testing.assert_close(moved(x), restored(moved)(x))
    assert sums


def test_hooks_see_what_a_block_gives_without_the_residual(sums):
    layer, x, seen = accelerated(Layer()), torch.randn(1, 32), []
    with torch.no_grad():
        for block in (layer.attention.o_proj, layer.mlp, layer.mlp.down_proj):
            hook = block.register_forward_hook(lambda _layer, _given, found: seen.append(found))
            torch.testing.assert_close(layer(x), restored(layer)(x))
            hook.remove()
            torch.testing.assert_close(*seen)
            seen.clear()
        hook = nn.modules.module.register_module_forward_pre_hook(lambda *_: None)
        layer(x)
        hook.remove()
        assert not sums
        hook = layer.first_norm.register_forward_hook(lambda _layer, _given, found: found * 2)
        torch.testing.assert_close(layer(x), restored(layer)(x))
        hook.remove()
    assert len(sums) == 2  # a norm's hook runs as ever


def test_nothing_is_added_after_an_error(sums):
    layer, x = accelerated(Layer()), torch.randn(1, 32)
    layer.attention.fails = True
    with torch.no_grad():
        with pytest.raises(RuntimeError, match="told to"):
            layer(x)
        mixed = torch.randn(1, 16)
        expected = nn.functional.linear(mixed, layer.attention.o_proj.weight)
        torch.testing.assert_close(layer.attention.o_proj(mixed), expected)
    assert not sums


def test_a_layer_that_is_called_by_its_own_block_adds_to_each_its_own(sums):
    layer, x, other = accelerated(Layer()), torch.randn(1, 32), torch.randn(1, 32)
    with torch.no_grad():
        expected = [restored(layer)(each) for each in (x, other)]
        found = []

        def call(*_):
            hook.remove()
            found.append(layer(other))

        hook = layer.attention.v_proj.register_forward_hook(call)
        found.insert(0, layer(x))
    for each, right in zip(found, expected, strict=True):
        torch.testing.assert_close(each, right)
    assert len(sums) == 4


def test_a_trial_leaves_nothing_in_a_block():
    class Counting(Attention):
        def __init__(self):
            super().__init__()
            self.calls = []
            self.register_buffer("steps", torch.zeros(()))

        def forward(self, hidden_states):
            self.calls.append(1)
            self.steps += 1
            return super().forward(hidden_states)

    layer = accelerated(Layer(Counting()))
    assert (layer.attention.calls, layer.attention.steps.item()) == ([], 0)


def test_odd_forwards_are_left_alone():
    class Nothing(Layer):
        def forward(self):
            return None

    class Anything(Layer):
        def forward(self, *given):
            return given

    for layer in (Nothing(), Anything()):
        assert accelerate(layer, backend="tuner").residuals == ()


def test_threads_share_a_layer(monkeypatch):
    def by_torch(x, weight, bias, _):
        time.sleep(0.001)  # another thread's turn
        return nn.functional.linear(x, weight, bias)

    # The interpreter serves one thread at a time.
    for module in (accelerate_linear, accelerate_residual):
        monkeypatch.setattr(module, "linear", by_torch)
    layer, found = Layer(), {}
    accelerate(layer, backend="tuner", only="*o_proj")
    assert isinstance(layer, accelerate_residual.AddingLayer)
    xs = [torch.randn(1, 32) for _ in range(40)]

    def run(places):
        with torch.no_grad():
            for place in places:
                found[place] = layer(xs[place])

    threads = [threading.Thread(target=run, args=(range(first, 40, 4),)) for first in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    with torch.no_grad():
        for place, x in enumerate(xs):
            torch.testing.assert_close(found[place], restored(layer)(x))


def test_copies_and_pickles_add_by_themselves(sums):
    layer, x = accelerated(Layer()), torch.randn(1, 32)
    with torch.no_grad():
        expected = layer(x)
        copied = copy.deepcopy(layer)
        copied.attention.o_proj.weight.zero_()
        torch.testing.assert_close(layer(x), expected)
        torch.testing.assert_close(copied(x), restored(copied)(x))
        assert len(sums) == 6
        model = model_of("llama")
        accelerate(model, backend="tuner")
        loaded = pickle.loads(pickle.dumps(model))
        sums.clear()
        torch.testing.assert_close(loaded(torch.tensor([[3]])).logits, restored(model)(torch.tensor([[3]])).logits)
    assert len(sums) == 4


def test_accelerating_again_follows_the_new_choice(sums):
    layer, x = accelerated(Layer()), torch.randn(1, 32)
    with torch.no_grad():
        accelerated(layer)(x)
        assert len(sums) == 2
        assert accelerate(layer, backend="tuner", only="mlp.*").residuals == ("",)
        layer(x)
        assert [each.k for each in sums[2:]] == [16, 48]
        assert accelerate(layer, backend="tuner", only="attention.v_proj").residuals == ("",)
        assert accelerate(layer, backend="tuner", only="*norm").residuals == ()
        layer(x)
        assert len(sums) == 6
        accelerate(layer)  # no table has its layers
        assert type(layer) is Layer
        layer(x)
    assert len(sums) == 6
    kept = accelerated(Layer())
    forward = kept.forward
    assert restore(kept) == 9  # five linear layers, two norms, the MLP and the whole
    with torch.no_grad():
        torch.testing.assert_close(forward(x), kept(x))


def test_auto_adds_where_tables_have_a_faster_product_with_a_bias_for_one_row(tmp_path, make_row, make_table, sums):
    version = registry.find("matmul", "pointer").version

    def name(ratio, epilogue="bias"):
        rows = [
            Row(
                Problem(1, 32, k, dtype="float32", layout="nt", epilogue=kind),
                *(Config("pointer", **POINTER), version, make_row().made, 10.0, 1.0, speed, 1),
            )
            for k in (16, 48)
            for kind, speed in (("none", 1.2), (epilogue, ratio))
        ]
        make_table(*rows, op="matmul", device=INTERPRETER).write(tmp_path)
        tuner.use(tmp_path)

    layer, x = Layer(), torch.randn(1, 32)
    with torch.no_grad():
        for ratio, is_added in ((1.2, True), (0.9, False), (1.2, True)):
            name(ratio)
            assert accelerate(layer).residuals == (("",) if is_added else ())
            sums.clear()
            torch.testing.assert_close(layer(x), restored(layer)(x))
            assert [each.k for each in sums] == [16, 48] * is_added
        name(0.9)  # torch adds now, in its product
        torch.testing.assert_close(layer(x), restored(layer)(x))
    assert len(sums) == 2


def test_auto_looks_up_no_layer_of_which_nothing_is_added(tmp_path, make_row, make_table, monkeypatch):
    """A table that is not asked need not be read, as those that come with triton-tuner need not."""
    version, asked = registry.find("matmul", "pointer").version, []
    rows = [
        Row(
            Problem(1, n, k, dtype="float32", layout="nt", epilogue=epilogue),
            *(Config("pointer", **POINTER), version, make_row().made, 10.0, 1.0, 1.2, 1),
        )
        for n, k, epilogue in (*((n, k, "none") for n, k in (VALUES, LAST, GATE, DOWN)), (*LAST, "bias"))
    ]
    make_table(*rows, op="matmul", device=INTERPRETER).write(tmp_path)
    tuner.use(tmp_path)
    monkeypatch.setattr(
        accelerate_residual.evidence,
        "beats_vendor",
        lambda problem, device, own=accelerate_residual.evidence.beats_vendor: (
            asked.append((problem.n, problem.k, problem.epilogue)) or own(problem, device)
        ),
    )
    assert accelerate(Layer()).residuals == ("",)
    # One layer after the other until one has a row; then the last layer of each block.
    assert [(n, k) for n, k, epilogue in asked if epilogue == "bias"] == [VALUES, LAST, LAST, DOWN]


def test_a_compiled_program_of_one_row_has_no_addition_and_no_break_or_guard_more():
    from torch._dynamo.testing import CompileCounterWithBackend

    layer = accelerated(Layer())
    seen = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, backend=seen, fullgraph=True)

    def called(graph):
        names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        return [sum(each in name for name in names) for each in ("triton_tuner.linear", "rms_norm", "built-in")]

    with torch.no_grad():
        for m in (1, 40, 50, 60, 1):
            x = torch.randn(m, 32)
            torch.testing.assert_close(compiled(x), layer(x))
        assert len(seen.graphs) == 2  # of one row, of any number
        assert called(seen.graphs[0]) == [3, 2, 0]
        assert called(seen.graphs[1])[1] == 0
        assert called(seen.graphs[1])[2] > 2
        torch._dynamo.reset()
        x = torch.randn(8, 32)
        torch._dynamo.mark_dynamic(x, 0)  # a guard on it would be an error
        torch.testing.assert_close(compiled(x), layer(x))
    residuals = [layer.attention.o_proj._tuner_choice.residual, layer.mlp.down_proj._tuner_choice.residual]
    assert [each.take() for each in residuals] == [None, None]


def test_layers_that_are_compiled_one_by_one_are_one_program():
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    layers = [Layer() for _ in range(12)]
    for index, layer in enumerate(layers):
        layer.layer_idx = layer.attention.layer_idx = index
        layer.attention.heads = 2
    model = nn.Sequential(*layers)
    assert len(accelerate(model, backend="tuner").residuals) == 12
    seen, x = CompileCounterWithBackend("eager"), torch.randn(1, 32)
    with torch.no_grad():
        expected = model(x)
        for layer in layers:
            layer.compile(backend=seen, fullgraph=True)
        torch.testing.assert_close(model(x), expected)
        assert len(seen.graphs) == 1
        layers[3].attention.heads = 4  # any other integer counts: this layer's own forward is another program
        torch.testing.assert_close(model(x), expected)
        assert len(seen.graphs) == 2


def test_a_block_that_is_not_compiled_adds_all_the_same():
    class Disabled(Attention):
        @torch.compiler.disable
        def forward(self, hidden_states, **others):
            return super().forward(hidden_states, **others)

    layer, x = accelerated(Layer(Disabled())), torch.randn(1, 32)
    compiled = torch.compile(layer, backend="eager")
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), restored(layer)(x))
    assert layer.attention.o_proj._tuner_choice.residual.take() is None


def test_compiled_gradients_and_a_replaced_norm_are_those_of_the_layer():
    layer, x = accelerated(Layer()), torch.randn(1, 32)
    for name in ("attention.o_proj", "mlp.down_proj"):
        layer.get_submodule(name).weight.requires_grad_(False)
    own = restored(layer)
    for each in (torch.compile(layer, backend="aot_eager"), own):
        each(x).square().sum().backward()
    torch.testing.assert_close(layer.first_norm.weight.grad, own.first_norm.weight.grad)
    torch.testing.assert_close(layer.attention.v_proj.weight.grad, own.attention.v_proj.weight.grad)
    layer.first_norm.forward = lambda given: given * 0
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(layer, backend="eager")(x), restored(layer)(x))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_traced_program_serves_any_number_of_rows():
    layer = accelerated(Layer())
    with torch.no_grad():
        traced = torch.jit.trace(layer, torch.randn(1, 32), check_trace=False)
        x = torch.randn(3, 32)
        torch.testing.assert_close(traced(x), restored(layer)(x))


@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.long)])
def test_an_exported_program_serves_any_number_of_rows(strict):
    layer, rows = accelerated(Layer()), torch.export.Dim("rows", min=1, max=512)
    with torch.no_grad():
        model = nn.Sequential(layer)
        exported = torch.export.export(model, (torch.randn(8, 32),), dynamic_shapes=({0: rows},), strict=strict)
        program = exported.module()
        for m in (1, 2, 40):
            x = torch.randn(m, 32)
            torch.testing.assert_close(program(x), layer(x))
        if not strict:  # strict, torch warns of what a layer is handed
            x = torch.randn(1, 32)
            torch.testing.assert_close(torch.export.export(model, (x,), strict=False).module()(x), layer(x))
