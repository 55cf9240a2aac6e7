"""`tuner.models.accelerate` on attention: whose q, k and v are one launch, that they are right, and what stays."""

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
from tuner.kernels.merged.operands import split
from tuner.kernels.ops import dispatch, linear, merged_by_evidence
from tuner.lookup.row import Row
from tuner.models import accelerate, accelerate_attention, accelerate_linear, restore
from tuner.models.accelerate_attention import merged_input
from tuner.problem import Problem

CONFIG = Config("merged_gemv", BLOCK_SIZE_N=32, BLOCK_SIZE_K=64, num_warps=4)
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
DEEPSEEK = {
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 2,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}
MODELS = {
    "llama": ({}, "32+16+16"),
    "mistral": ({}, "32+16+16"),
    "qwen2": ({}, "32+16+16"),  # with biases
    "qwen3": ({}, "32+16+16"),  # norms of q and k lie between the products
    "gemma3_text": ({"sliding_window_pattern": 1}, "32+16+16"),
    "gpt_oss": ({"num_local_experts": 2, "num_experts_per_tok": 1}, "32+16+16"),
    "opt": ({"ffn_dim": 48, "word_embed_proj_dim": 32}, "32+32+32"),
    "deepseek_v3": (DEEPSEEK, "24+32"),
    "deepseek_v2": ({**DEEPSEEK, "q_lora_rank": None, "topk_method": "greedy"}, "64+32"),
}


class Attention(nn.Module):
    """Attention as Llama has it, of one head and without positions."""

    def __init__(self, *, bias: bool = False):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(32, n, bias=bias) for n in (16, 16, 16))
        self.o_proj = nn.Linear(16, 32, bias=False)

    def forward(self, hidden_states, mask=None):
        q, k, v = self.q_proj(hidden_states), self.k_proj(hidden_states), self.v_proj(hidden_states)
        return self.o_proj(nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask))


class Changing(Attention):
    """Attention that changes its input between the products."""

    def forward(self, hidden_states):
        q = self.q_proj(hidden_states)
        hidden_states += 1
        return q + self.k_proj(hidden_states) + self.v_proj(hidden_states)


class Scaling(Attention):
    """Attention that multiplies something else than its input."""

    def forward(self, hidden_states):
        return super().forward(hidden_states * 2)


class Masked(Attention):
    """Attention that reads another argument before it multiplies."""

    def forward(self, hidden_states, mask):
        return super().forward(hidden_states, mask + 1)


class Crossing(Attention):
    """Attention to other states, where they are given."""

    def forward(self, hidden_states, states=None):
        states = hidden_states if states is None else states
        return self.q_proj(hidden_states) + self.k_proj(states) + self.v_proj(states)


class Showing(Attention):
    """Attention that shows its layers, their input and what they gave."""

    def show(self, layer, x, found):
        pass

    def forward(self, hidden_states):
        for layer in (self.q_proj, self.k_proj, self.v_proj):
            found = layer(hidden_states)
            self.show(layer, hidden_states, found)


class Failing(Attention):
    """Attention that raises after the products where it is told to."""

    fails = False

    def forward(self, hidden_states):
        found = super().forward(hidden_states)
        if self.fails:
            raise RuntimeError("told to")
        return found


@pytest.fixture(autouse=True)
def seeded(no_tables):
    torch.manual_seed(0)


@pytest.fixture
def launches(monkeypatch):
    """The problems of merged layers that were launched."""
    seen, own = [], dispatch.launch

    def launch(operands, problem, device):
        seen.extend([problem] if problem.op == "merged_linear" else [])
        return own(operands, problem, device)

    monkeypatch.setattr(merged_by_evidence.dispatch, "launch", launch)
    return seen


def model_of(name):
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(name, **{**SIZES, **MODELS[name][0]})
    return AutoModelForCausalLM.from_config(config).eval()


def accelerated(block):
    done = accelerate(block, backend="tuner")
    assert done.attentions == ("",)
    return block


@pytest.mark.parametrize("name", MODELS)
def test_a_models_attention_is_one_launch_for_one_row_and_is_given_back(name, launches):
    model = model_of(name)
    with torch.inference_mode():
        one, many = torch.tensor([[3]]), torch.tensor([[3, 5, 7]])
        expected = [model(tokens).logits for tokens in (one, many)]
        done = accelerate(model, backend="tuner")
        assert len(done.attentions) == 2
        assert f"; q, k and v in one launch: 2 blocks ({', '.join(done.attentions)})" in str(done)
        torch.testing.assert_close(model(one).logits, expected[0])
        assert [dict(each.extras)["parts"] for each in launches] == [MODELS[name][1]] * 2
        torch.testing.assert_close(model(many).logits, expected[1])
        assert len(launches) == 2
        restore(model)
        torch.testing.assert_close(model(one).logits, expected[0], rtol=0, atol=0)
    assert len(launches) == 2


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_products_are_no_less_exact_and_are_tensors_as_a_layer_gives_them(dtype, bias, launches):
    block, seen = accelerated(Showing(bias=bias).to(dtype)), []
    block.show = lambda *call: seen.append(call)
    with torch.no_grad():
        for x in (torch.randn(1, 32), torch.randn(2, 1, 32), torch.randn(1, 2, 32)):
            block(x.to(dtype))
        for layer, x, found in seen:
            expected = nn.functional.linear(x.double(), layer.weight.double(), layer.bias.double() if bias else None)
            limit = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
            torch.testing.assert_close(found.double(), expected, rtol=limit, atol=limit)
            assert found.is_contiguous()
            assert (found.shape, found.dtype) == ((*x.shape[:-1], 16), dtype)
    assert [each.m for each in launches] == [1, 2, 2]
    assert len(seen) == 9


def test_blocks_that_multiply_something_else_are_not_merged():
    for kind in (Changing, Scaling, Masked):
        assert merged_input(kind()) is None
        block = kind()
        assert not accelerate(block, backend="tuner").attentions
        assert type(block) is kind
    assert merged_input(Attention()).parameter == "hidden_states"
    part = Attention()
    part.k_proj.bias = nn.Parameter(torch.zeros(16))
    assert not accelerate(part, backend="tuner").attentions
    apart = Attention()
    apart.v_proj.double()
    assert not accelerate(apart, backend="tuner").attentions
    replaced = Attention()
    replaced.forward = lambda x: x
    assert not accelerate(replaced, backend="tuner").attentions


def test_a_layer_that_is_given_another_tensor_multiplies_that(launches):
    block, x, other = accelerated(Crossing()), torch.randn(1, 32), torch.randn(1, 32)
    with torch.no_grad():
        torch.testing.assert_close(block(x, other), Crossing.forward(restored(block), x, other))
        torch.testing.assert_close(block(x, states=x), Crossing.forward(restored(block), x))
        torch.testing.assert_close(block(hidden_states=x), Crossing.forward(restored(block), x))
        torch.testing.assert_close(block.q_proj(x), nn.functional.linear(x, block.q_proj.weight, block.q_proj.bias))
    assert len(launches) == 3  # none for the layer alone


def by_torch(x, weights, biases, preferred):
    time.sleep(0.001)  # another thread's turn
    return tuple(nn.functional.linear(x, weight) for weight in weights)


def restored(block):
    own = copy.deepcopy(block)
    restore(own)
    return own


def test_a_product_is_handed_out_once(launches):
    class Asking(Attention):
        def forward(self, hidden_states):
            k, v = self.k_proj(hidden_states), self.v_proj(hidden_states)
            return self.q_proj(hidden_states).mul_(2) + self.q_proj(hidden_states) + k + v

    block, x = accelerated(Asking()), torch.randn(1, 32)
    with torch.no_grad():
        torch.testing.assert_close(block(x), restored(block)(x))
    assert len(launches) == 1


def test_methods_that_were_kept_from_before_serve_layers_of_either_kind():
    block, x = Attention(), torch.randn(1, 32)
    accelerate(block.q_proj, backend="tuner")
    kept = [block.q_proj.forward]
    kept.append(accelerated(block).q_proj.forward)
    with torch.no_grad():
        expected = nn.functional.linear(x, block.q_proj.weight, block.q_proj.bias)
        for again in (lambda: None, lambda: accelerate(block.q_proj, backend="tuner"), lambda: restore(block)):
            again()
            for forward in kept:
                torch.testing.assert_close(forward(x), expected)


def test_nothing_is_handed_over_after_an_error(launches):
    block, x = accelerated(Failing()), torch.randn(1, 32)
    block.fails = True
    with torch.no_grad():
        with pytest.raises(RuntimeError, match="told to"):
            block(x)
        x.normal_()
        torch.testing.assert_close(block.q_proj(x), nn.functional.linear(x, block.q_proj.weight, block.q_proj.bias))
    assert len(launches) == 1


def test_gradients_autocast_and_transforms_get_the_blocks_own_forward(launches):
    block, x = accelerated(Attention()), torch.randn(1, 32)
    own = restored(block)
    block(x).sum().backward()
    own(x).sum().backward()
    torch.testing.assert_close(block.q_proj.weight.grad, own.q_proj.weight.grad)
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(block(x), own(x))
        torch.testing.assert_close(torch.func.vmap(block)(x[None]), own(x)[None])
        assert not launches
        block(x)
    assert len(launches) == 1


def test_layers_that_were_replaced_or_changed_are_asked_as_they_are(launches):
    class Adapted(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base

        def forward(self, x):
            return self.base(x) + 1

    x = torch.randn(1, 32)
    with torch.no_grad():
        adapted = accelerated(Attention())
        adapted.k_proj = Adapted(adapted.k_proj)
        torch.testing.assert_close(adapted(x), restored(adapted)(x))
        biased = accelerated(Attention())
        biased.v_proj.bias = nn.Parameter(torch.randn(16))
        torch.testing.assert_close(biased(x), restored(biased)(x))
        other = accelerated(Attention())
        accelerate(other, backend="torch", only="q_proj")
        torch.testing.assert_close(other(x), restored(other)(x))
        assert not launches
        moved = accelerated(Attention())
        for _ in range(2):
            moved.q_proj.weight.data = torch.randn(16, 32)
            torch.testing.assert_close(moved(x), restored(moved)(x))
    assert launches


def test_hooks_see_what_they_change(launches):
    def add_one(_layer, given, *_):
        given[0].add_(1)

    block, x = accelerated(Attention()), torch.randn(1, 32)
    with torch.no_grad():
        for register in (block.k_proj.register_forward_pre_hook, block.q_proj.register_forward_hook):
            hook, changed = register(add_one), x.clone()
            torch.testing.assert_close(block(x.clone()), restored(block)(changed))
            assert not torch.equal(changed, x)
            hook.remove()
        hook = nn.modules.module.register_module_forward_pre_hook(lambda *_: None)
        block(x)
        hook.remove()
        assert not launches
        block(x)
    assert len(launches) == 1


def test_accelerating_again_follows_the_new_choice(launches):
    block, x = accelerated(Attention()), torch.randn(1, 32)
    with torch.no_grad():
        assert accelerate(block, backend="tuner").attentions == ("",)
        block(x)
        assert len(launches) == 1
        assert accelerate(block, backend="tuner", only="o_proj").attentions == ()
        block(torch.randn(2, 32))
        assert len(launches) == 2
        accelerate(block, backend="auto")  # no table has its layers
        assert type(block) is Attention
        block(x)
    assert len(launches) == 2
    assert restore(accelerated(Attention())) == 5


def test_copies_and_pickles_hand_over_by_themselves(launches):
    block, x = accelerated(Attention()), torch.randn(1, 32)
    with torch.no_grad():
        expected = block(x)
        copied = copy.deepcopy(block)
        copied.q_proj.weight.zero_()
        torch.testing.assert_close(block(x), expected)
        torch.testing.assert_close(copied(x), restored(copied)(x))
        model = model_of("llama")
        accelerate(model, backend="tuner")
        launches.clear()
        loaded = pickle.loads(pickle.dumps(model))
        torch.testing.assert_close(loaded(torch.tensor([[3]])).logits, restored(model)(torch.tensor([[3]])).logits)
    assert len(launches) == 2


def test_threads_share_a_block(monkeypatch):
    # The interpreter serves one thread at a time.
    monkeypatch.setattr(accelerate_linear, "linear", lambda x, weight, bias, _: nn.functional.linear(x, weight, bias))
    monkeypatch.setattr(accelerate_attention, "merged", by_torch)
    block, found = accelerated(Attention()), {}
    xs = [torch.randn(1, 32) for _ in range(40)]

    def run(places):
        with torch.no_grad():
            for place in places:
                found[place] = block(xs[place])

    threads = [threading.Thread(target=run, args=(range(first, 40, 4),)) for first in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    with torch.no_grad():
        for place, x in enumerate(xs):
            torch.testing.assert_close(found[place], restored(block)(x))


def test_auto_follows_the_evidence_of_one_and_of_two_rows(tmp_path, make_row, make_table, launches):
    version = registry.find("merged_linear", "merged_gemv").version

    def name(speeds):
        tables = []
        for op, config, extras, kernel in (
            ("merged_linear", CONFIG, {"parts": "16+16+16"}, version),
            ("matmul", Config("pointer", **POINTER), {}, registry.find("matmul", "pointer").version),
        ):
            n = 48 if extras else 16
            rows = [
                Row(
                    Problem(m, n, 32, dtype="float32", layout="nt", op=op, extras=extras),
                    *(config, kernel, make_row().made, 10.0, 1.0, speed, 1),
                )
                for m, speed in speeds.items()
            ]
            tables.append(make_table(*rows, op=op, device=INTERPRETER).write(tmp_path))
        tuner.use(tmp_path)

    name({1: 1.2, 2: 0.9})
    block = Attention()
    assert accelerate(block).attentions == ("",)
    with torch.no_grad():
        for _ in range(2):
            for m in (1, 2, 3):
                x = torch.randn(m, 32)
                torch.testing.assert_close(block(x), restored(block)(x))
        assert [each.m for each in launches] == [1, 1]
        name({1: 0.9, 2: 1.2})
        for m in (1, 2):
            block(torch.randn(m, 32))
    assert [each.m for each in launches] == [1, 1, 2]


POINTER = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 16, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 1, "num_stages": 1}
POINTER |= {"num_warps": 4}


def test_a_compiled_program_has_one_operator_a_block_for_few_rows_and_no_break_or_guard_more():
    from torch._dynamo.testing import CompileCounterWithBackend

    block = accelerated(Attention(bias=True))
    seen = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(block, backend=seen, fullgraph=True)

    def merged_in(graph):
        return sum("merged_by_evidence" in str(node.target) for node in graph.graph.nodes)

    with torch.no_grad():
        for m in (1, 40, 50, 60, 1):
            x = torch.randn(m, 32)
            torch.testing.assert_close(compiled(x), block(x))
        assert [merged_in(graph) for graph in seen.graphs] == [1, 0]  # of one row, of any number
        torch._dynamo.reset()
        x = torch.randn(8, 32)
        torch._dynamo.mark_dynamic(x, 0)  # a guard on it would be an error
        torch.testing.assert_close(compiled(x), block(x))


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_serves_any_number_of_rows(strict):
    block, rows = accelerated(Attention()), torch.export.Dim("rows", min=1, max=512)
    with torch.no_grad():
        model = nn.Sequential(block)
        exported = torch.export.export(model, (torch.randn(8, 32),), dynamic_shapes=({0: rows},), strict=strict)
        program = exported.module()
        for m in (1, 2, 40):
            x = torch.randn(m, 32)
            torch.testing.assert_close(program(x), block(x))


def test_what_an_operator_is_not_to_run_by_the_kernel_is_a_product_of_each_weight(monkeypatch):
    x, weights, biases = torch.randn(2, 32), [torch.randn(n, 32) for n in (16, 8)], [torch.randn(16), torch.randn(8)]
    seen, own = [], linear.linear
    monkeypatch.setattr(merged_by_evidence, "linear", lambda *given: seen.append(1) or own(*given))
    op = torch.ops.triton_tuner.merged_by_evidence
    with torch.no_grad():
        for given in (biases, []):
            found = split(op(x, weights, given, True), (2,), (16, 8))
            for part, weight, bias in zip(found, weights, given or [None, None], strict=True):
                torch.testing.assert_close(part, nn.functional.linear(x, weight, bias))
    assert len(seen) == 4
    torch.library.opcheck(op, (x, weights, [], True), test_utils=("test_schema", "test_faketensor"))
