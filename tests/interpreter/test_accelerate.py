"""`tuner.models.accelerate`: which layers run on tuned kernels, that they are right, and what stays as it was."""

from __future__ import annotations

import copy
import gc
import pickle
import re
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import tuner
from tuner.hardware.device import INTERPRETER
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.launch.torch_precision import torch_precision_set
from tuner.lookup import lookup
from tuner.lookup.row import Row
from tuner.models import accelerate, restore
from tuner.problem import Problem
from tuner.problem.family import Check, Family, Range

CONFIG = Config("pointer", BLOCK_SIZE_M=32, BLOCK_SIZE_N=32, BLOCK_SIZE_K=32, GROUP_SIZE_M=1, num_stages=1, num_warps=4)


class Block(nn.Module):
    """A gated block as models have it."""

    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(32, 48, bias=False), nn.Linear(32, 48)
        self.down = nn.Linear(48, 32, bias=False)

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Adapted(nn.Module):
    """A layer with an adapter beside it, as LoRA has it."""

    def __init__(self, base_layer):
        super().__init__()
        self.base_layer = base_layer
        self.low, self.high = nn.Linear(32, 4, bias=False), nn.Linear(4, 48, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.high(self.low(x))


class Doubled(nn.Linear):
    """A layer that computes something else."""

    def forward(self, x):
        return 2 * super().forward(x)


class Named(nn.Linear):
    """A class of somebody's own that computes what nn.Linear does."""


class ToyExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(2, 32, 48))


@pytest.fixture(autouse=True)
def seeded(no_tables):
    torch.manual_seed(0)


@pytest.fixture
def tuned(tmp_path, make_row, make_table):
    """Name a table of ranges of M, each given by its last M and what torch's time over ours was there."""

    def name(n: int, k: int, ranges: dict[int, float | None], **parts: object) -> None:
        version, parts = registry.find("matmul", "pointer").version, {"dtype": "float32", "layout": "nt", **parts}
        problems = [Problem(m, n, k, **parts) for m in ranges]
        rows = [Row(each, CONFIG, version, make_row().made, 10.0, 1.0, ranges[each.m], 1) for each in problems]
        firsts = [1, *(m + 1 for m in ranges)]
        held = tuple(Range(first, m, m, "measured") for first, m in zip(firsts, ranges, strict=False))
        family = Family(problems[0], held, Check(4, 1.02, 1.05))
        tuner.use(make_table(*rows, device=INTERPRETER, families=(family,)).write(tmp_path))

    return name


def test_a_model_runs_on_our_kernels_and_gives_torchs_numbers(ours):
    model, x = Block(), torch.randn(2, 3, 32)
    expected = model(x).detach()
    assert str(accelerate(model, backend="tuner")) == "on tuned kernels (backend 'tuner'): 3 layers (gate, up, down)"
    for mode in (torch.no_grad, torch.inference_mode):
        ours.clear()
        with mode():
            torch.testing.assert_close(model(x), expected)
        assert len(ours) == 3
    assert restore(model) == 3
    ours.clear()
    torch.testing.assert_close(model(x), expected)
    assert not ours
    assert type(model.gate) is nn.Linear
    assert vars(model.gate).keys() == vars(nn.Linear(1, 1)).keys()


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_under_autocast_the_kernels_take_what_torch_would_cast(weights, ours):
    model, x = Block().to(weights), torch.randn(4, 32)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        expected = model(x)
        accelerate(model, backend="tuner")
        found = model(x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.02)
    assert len(ours) == 3


def test_auto_follows_the_evidence_of_each_range_of_m(tuned, ours):
    tuned(48, 32, {4: 1.3, 16: 0.9, 64: None, 128: 1.01})  # between its rows the family loses 2%
    layer = nn.Linear(32, 48, bias=False)
    assert accelerate(layer).exchanged == ("",)
    for m, launched in ((1, 1), (4, 1), (5, 0), (16, 0), (17, 1), (64, 1), (100, 0), (128, 1), (129, 0), (0, 0)):
        x = torch.randn(m, 32)
        for _ in range(2):
            ours.clear()
            with torch.no_grad():
                torch.testing.assert_close(layer(x), nn.functional.linear(x, layer.weight))
            assert len(ours) == launched, m


def test_other_tables_decide_anew(tuned, ours):
    layer, x = nn.Linear(32, 48, bias=False), torch.randn(8, 32)
    tuned(48, 32, {16: 1.3})
    accelerate(layer)
    for speed, launched in ((0.8, 0), (1.2, 1), (0.8, 0)):
        tuned(48, 32, {16: speed})
        ours.clear()
        with torch.no_grad():
            layer(x)
        assert len(ours) == launched


def test_auto_leaves_families_without_a_table_and_says_what_to_do(tuned):
    tuned(48, 32, {64: 1.3})
    model = Block()
    for _ in range(2):
        done = accelerate(model)
    assert done.exchanged == ("gate",)  # the other two have a bias, or another shape
    assert str(done) == (
        "on tuned kernels (backend 'auto'): 1 layer (gate); left on torch (no table of interpreter has the family: "
        "`tuner model` lists what to tune): 2 layers (up, down)"
    )
    assert type(model.up) is nn.Linear


def test_a_row_without_a_range_serves_its_own_m(tmp_path, make_row, make_table, ours):
    version = registry.find("matmul", "pointer").version
    row = Row(Problem(8, 48, 32, dtype="float32", layout="nt"), CONFIG, version, make_row().made, 10.0, 1.0, 1.1, 1)
    tuner.use(make_table(row, device=INTERPRETER).write(tmp_path))
    layer = nn.Linear(32, 48, bias=False)
    assert accelerate(layer).exchanged
    with torch.no_grad():
        for m in (7, 8, 9):
            layer(torch.randn(m, 32))
    assert len(ours) == 1


def test_another_precision_of_float32_is_asked_for_anew(tuned, ours):
    layer, x, launched = nn.Linear(32, 48, bias=False), torch.randn(4, 32), []
    tuned(48, 32, {16: 1.3}, precision="tf32")
    with torch_precision_set("tf32"):
        accelerate(layer)
    for precision in ("ieee", "tf32", "ieee"):
        with torch_precision_set(precision), torch.no_grad():
            layer(x)
        launched.append(len(ours))
    assert launched == [0, 1, 1]


def test_auto_asks_torch_for_what_needs_a_gradient(tuned, ours):
    tuned(48, 32, {64: 1.3})
    layer, x = nn.Linear(32, 48, bias=False), torch.randn(8, 32)
    accelerate(layer)
    layer(x).sum().backward()
    assert not ours
    torch.testing.assert_close(layer.weight.grad, x.sum(0).expand(48, 32))


def test_gradients_and_checkpoints_are_torchs(ours):
    model, x = Block(), torch.randn(4, 32)
    expected = torch.autograd.grad(model(x).square().sum(), tuple(model.parameters()))
    accelerate(model, backend="tuner")
    for call in (model, lambda x: checkpoint(model, x, use_reentrant=False)):
        ours.clear()
        found = torch.autograd.grad(call(x).square().sum(), tuple(model.parameters()))
        assert len(ours) >= 3
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("backend", ["auto", "tuner"])
def test_compiled_a_layer_is_one_operator_for_every_m(backend, tuned, ours):
    tuned(48, 32, {4: 1.3, 16: 0.8})
    layer, graphs = nn.Linear(32, 48, bias=False), []

    def backend_of(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    accelerate(layer, backend=backend)
    compiled = torch.compile(lambda x: layer(x) + 1, backend=backend_of, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for m, launched in ((3, 1), (4, 1), (8, backend == "tuner"), (16, backend == "tuner")):
            x = torch.randn(m, 32)
            ours.clear()
            torch.testing.assert_close(compiled(x), nn.functional.linear(x, layer.weight) + 1)
            assert len(ours) == launched
    (graph,) = graphs
    called = [str(node.target) for node in graph.graph.nodes if "triton_tuner" in str(node.target)]
    assert called == ["triton_tuner.linear.default"] or called == ["triton_tuner.linear"]
    assert not any("built-in function linear" in str(node.target) for node in graph.graph.nodes)


def test_compiled_training_has_torchs_gradients():
    model, x = Block(), torch.randn(4, 32)
    expected = torch.autograd.grad(model(x).square().sum(), tuple(model.parameters()))
    for backend in ("auto", "tuner"):
        accelerate(model, backend=backend)
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(torch.autograd.grad(compiled(x).square().sum(), tuple(model.parameters())), expected)


def test_state_hooks_ties_and_classes_stay(ours):
    model = nn.Sequential(Named(32, 48), nn.Linear(48, 32), nn.Linear(32, 48))
    model[2].weight = model[0].weight
    seen, before, x = [], {name: value.clone() for name, value in model.state_dict().items()}, torch.randn(4, 32)
    model[0].register_forward_hook(lambda *_: seen.append("after"))
    model[0].register_forward_pre_hook(lambda *_: seen.append("before"))
    expected = model(x).detach()
    accelerate(model, backend="tuner")
    assert isinstance(model[0], Named)
    assert model[2].weight is model[0].weight
    assert model.state_dict().keys() == before.keys()
    model.load_state_dict(before)
    seen.clear()
    with torch.no_grad():
        torch.testing.assert_close(model(x), expected)
        assert seen == ["before", "after"]
        model.load_state_dict({name: 2 * value for name, value in before.items()}, assign=True)
        torch.testing.assert_close(
            model[1](x.repeat(1, 2)[:, :48]),
            2 * nn.functional.linear(x.repeat(1, 2)[:, :48], before["1.weight"], before["1.bias"]),
        )
        model.to(torch.float64)
        ours.clear()
        assert model(x.double()).dtype == torch.float64
        assert not ours  # no kernel takes float64
    restore(model)
    assert [type(layer) for layer in model] == [Named, nn.Linear, nn.Linear]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_and_pickles_are_patched_and_have_weights_of_their_own(copied, ours):
    model, x = nn.Sequential(Named(32, 48), nn.ReLU(), nn.Linear(48, 8)), torch.randn(4, 32)
    accelerate(model, backend="tuner")
    with torch.no_grad():
        expected = model(x)
        other = copied(model)
        for parameter in model.parameters():
            parameter.zero_()
        ours.clear()
        torch.testing.assert_close(other(x), expected)
    assert len(ours) == 2
    assert isinstance(other[0], Named)
    assert restore(other) == 2


def test_adapters_run_beside_a_patched_base_layer(ours):
    model, x = Adapted(nn.Linear(32, 48)), torch.randn(4, 32)
    expected = model(x).detach()
    accelerate(model, backend="tuner", only="base_layer")
    with torch.no_grad():
        torch.testing.assert_close(model(x), expected)
    assert len(ours) == 1


def test_what_cannot_be_patched_is_left_and_named():
    model = nn.ModuleDict(
        {
            "fine": nn.Linear(32, 48),
            "doubled": Doubled(32, 48),
            "hooked": nn.Linear(32, 48),
            "mapped": nn.Linear(32, 48),
            "computed": nn.utils.parametrizations.weight_norm(nn.Linear(32, 48)),
            "sparse": nn.Linear(32, 48),
            "meta": nn.Linear(32, 48, device="meta"),
            "wide": nn.Linear(32, 48, dtype=torch.float64),
            "lazy": nn.LazyLinear(48),
            "experts": ToyExperts(),
        }
    )
    model["hooked"].forward = model["mapped"].forward = lambda x: x
    model["mapped"]._hf_hook = object()  # as Hugging Face's accelerate leaves it
    model["sparse"].weight = nn.Parameter(model["sparse"].weight.detach().to_sparse())
    done = accelerate(model, backend="tuner")
    assert done.exchanged == ("fine",)
    left = {name: why for why, names in done.left.items() for name in names}
    words = {
        "doubled": "Doubled defines its own forward",
        "hooked": "the forward was replaced",
        "mapped": "the forward was replaced by Hugging Face's accelerate, for a device_map or offloading",
        "computed": "the weight or bias is computed at each call",
        "sparse": "the weight has the layout torch.sparse_coo",
        "meta": "on meta: move the model to a GPU first",
        "wide": "the weight is float64",
        "lazy": "the weights are of class UninitializedParameter",
        "experts": "no kernel computes ToyExperts yet",
    }
    assert left == words
    assert "\n" not in str(done)


def test_the_linear_layers_of_gpt2_are_counted_among_those_that_are_left():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=64, n_positions=16)
    model = transformers.GPT2LMHeadModel(config)
    result = accelerate(model, backend="tuner")
    (names,) = [names for why, names in result.left.items() if why.startswith("Conv1D")]
    assert names[:2] == ("transformer.h.0.attn.c_attn", "transformer.h.0.attn.c_proj")
    assert "left on torch (Conv1D, whose weight is stored [inputs, outputs]): 8 layers (" in str(result)
    assert result.exchanged == ("lm_head",)
    only = accelerate(model, only="*.c_attn")
    assert [len(names) for names in only.left.values()] == [2]
    restore(model)


def test_sharded_weights_are_torchs_own(ours):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        mesh, x = init_device_mesh("cpu", (1,)), torch.randn(4, 32)
        model = nn.Sequential(Block(), Block(), nn.Linear(32, 48))
        expected = model(x).detach()
        accelerate(model, backend="tuner", only=["0.*", "2"])
        fully_shard(model[0], mesh=mesh)
        parallelize_module(model[2], mesh, ColwiseParallel())
        parallelize_module(model[1], mesh, {"gate": ColwiseParallel(), "up": ColwiseParallel()})
        done = accelerate(model[1], backend="tuner")
        assert done.left == {"the weights are of class DTensor": ("gate", "up")}
        restore(model[1])
        with torch.no_grad():
            torch.testing.assert_close(
                model[2](model[0](x)),
                nn.functional.linear(model[0](x), model[2].weight.full_tensor(), model[2].bias.full_tensor()),
            )
        assert len(ours) == 6  # whole while they are used, so the kernels run
        loss = model[0](x).sum()
        loss.backward()
        assert model[0].gate.weight.grad is not None
        assert expected.shape == (4, 48)
    finally:
        dist.destroy_process_group()


def test_recorded_programs_hold_one_operator(ours):
    model, x = Block(), torch.randn(4, 32)
    accelerate(model, backend="tuner")
    with torch.no_grad():
        expected = model(x)
        batch = {0: torch.export.Dim("batch", max=64)}
        exported = torch.export.export(model, (x,), dynamic_shapes=(batch,))
        called = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
        assert called.count("triton_tuner.linear.default") == 3
        ours.clear()
        torch.testing.assert_close(exported.module()(x[:3]), expected[:3])
        assert len(ours) == 3
        torch.testing.assert_close(make_fx(model)(x)(x), expected)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_transformed_calls_and_replicas_are_torchs_own(ours):
    model, x = Block(), torch.randn(5, 4, 32)
    expected = model(x).detach()
    accelerate(model, backend="tuner")
    with torch.no_grad():
        torch.testing.assert_close(torch.func.vmap(model)(x), expected)
        torch.testing.assert_close(model.gate(x[0, 0]), nn.functional.linear(x[0, 0], model.gate.weight))
        for layout in (torch.strided, torch.jagged):
            rows = torch.nested.nested_tensor([x[0], x[1, :2]], layout=layout)
            torch.testing.assert_close(model.gate(rows)[1], nn.functional.linear(x[1, :2], model.gate.weight))
        replica = model.gate._replicate_for_data_parallel()
        replica.weight, replica._parameters["bias"] = model.gate.weight.detach(), None  # as torch's `replicate` does
        torch.testing.assert_close(replica(x), nn.functional.linear(x, model.gate.weight))
        assert not ours
        parameters = {name: 2 * value for name, value in model.named_parameters()}
        doubled = torch.func.functional_call(model.gate, {"weight": parameters["gate.weight"]}, x)
        torch.testing.assert_close(doubled, nn.functional.linear(x, parameters["gate.weight"]))


def test_a_forward_that_somebody_keeps_is_torchs_after_the_layer_was_restored(ours):
    layer, x = Named(32, 48), torch.randn(4, 32)
    accelerate(layer, backend="tuner")
    layer.forward = lambda x, kept=layer.forward: kept(x)  # as libraries wrap a layer to move its operands
    with torch.no_grad():
        expected = layer(x)
        assert len(ours) == 1
        restore(layer)
        torch.testing.assert_close(layer(x), expected)
    assert len(ours) == 1


def test_operands_that_do_not_fit_are_torchs_error():
    layer = nn.Linear(32, 48)
    accelerate(layer, backend="tuner")
    with torch.no_grad(), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        layer(torch.randn(4, 31))
    with torch.no_grad(), pytest.raises(RuntimeError, match="dtype"):
        layer(torch.randn(4, 32, dtype=torch.bfloat16))


def test_wrong_arguments_are_one_clear_line(refused, caplog):
    model = Block()
    for change in (accelerate, restore):
        refused(lambda change=change: change("gpt2"), "model is of type str: expected a torch.nn.Module")
    refused(lambda: accelerate(model, backend="cublas"), "unknown backend 'cublas': expected one of auto, tuner, torch")
    refused(
        lambda: accelerate(model, only="mlp.*"), "only: 'mlp.*' names no linear layer, norm, MLP or experts: expected"
    )
    for only in (5, [], [nn.Linear]):
        refused(lambda only=only: accelerate(model, only=only), "expected a pattern of names, or several")
    assert str(accelerate(nn.ReLU())) == "on tuned kernels (backend 'auto'): 0 layers"
    assert "0 layers" in caplog.text
    accelerate(model, backend="tuner")
    assert accelerate(model, backend="torch").exchanged == ()
    assert type(model.gate) is nn.Linear


JOINED = """
import sys
import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from tuner.kernels.ops import gated_linear
from tuner.kernels.ops import matmul as ops
from tuner.models import accelerate

folder, launches, gated = sys.argv[1], [], []
sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
plain = AutoModelForCausalLM.from_config(LlamaConfig(num_hidden_layers=1, vocab_size=64, **sizes)).eval()
plain.save_pretrained(folder)
exec(sys.stdin.read())
launch = ops.launch
ops.launch = lambda *given: launches.append(given) or launch(*given)
call = gated_linear.checked_call
gated_linear.checked_call = lambda *given, **named: gated.append(given) or call(*given, **named)
tokens = torch.arange(6).reshape(2, 3)
accelerate(model, backend="tuner")
with torch.inference_mode():
    torch.testing.assert_close(model(tokens).logits, plain(tokens).logits)
print("launches:", len(launches), len(gated))
"""


@pytest.mark.long
def test_layers_that_transformers_joined_as_the_page_shows_are_one_launch(tmp_path):
    pytest.importorskip("transformers.monkey_patching", reason="no transformers that exchanges modules")
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    (shown,) = re.findall(r"```python\n([^`]*register_patch_mapping[^`]*)```", page)
    # A process of its own: what is registered holds for every model that the process loads.
    command = [sys.executable, "-c", JOINED, str(tmp_path)]
    done = subprocess.run(command, input=shown, capture_output=True, text=True, check=False)
    assert "launches: 4 1\n" in done.stdout, done.stderr  # qkv, o, down and lm_head; gate and up


def test_a_shape_that_torch_serves_leaves_exports_and_nested_tensors_to_torch(tuned):
    tuned(48, 32, {64: 1.2, 1000: 0.8})
    layer = nn.Linear(32, 48, bias=False)
    own = copy.deepcopy(layer)
    accelerate(nn.Sequential(layer))
    with torch.no_grad():
        layer(torch.randn(100, 32))
        rows = {"x": {0: torch.export.Dim("rows", min=2, max=1000)}}

        class Whole(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = layer

            def forward(self, x):
                return self.layer(x)

        torch.export.export(Whole(), (torch.randn(7, 32),), dynamic_shapes=rows, strict=False)
        pieces = [torch.randn(rows, 32) for rows in (2, 3)]
        for ours, theirs in zip(
            *(each(torch.nested.nested_tensor(pieces)).unbind() for each in (layer, own)), strict=True
        ):
            torch.testing.assert_close(ours, theirs)


def test_a_layer_takes_its_input_by_torchs_name(ours):
    layer = nn.Linear(32, 48)
    accelerate(nn.Sequential(layer), backend="tuner")
    x = torch.randn(5, 32)
    with torch.no_grad():
        torch.testing.assert_close(layer(input=x), nn.functional.linear(x, layer.weight, layer.bias))
    assert len(ours) == 1


@pytest.mark.parametrize("bias", [torch.randn(96)[::2], torch.randn(1).expand(48), torch.randn(1), torch.randn(1, 48)])
def test_a_bias_that_torch_broadcasts_or_copies_is_torchs_own(bias):
    layer = nn.Linear(32, 48)
    layer.bias = nn.Parameter(bias)
    layer.bias.data = bias
    accelerate(nn.Sequential(layer), backend="tuner")
    x = torch.randn(5, 32)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), nn.functional.linear(x, layer.weight, bias))


def test_weights_that_are_no_matrices_are_left_and_named():
    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_proj, self.up_proj = nn.Linear(32, 48, bias=False), nn.Linear(32, 48, bias=False)
            self.down_proj = nn.Linear(48, 32, bias=False)

        def forward(self, x):
            return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))

    model = nn.ModuleDict({"mlp": Mlp()})
    for weight in model.parameters():
        weight.data = torch.empty(0)  # as a rank that has no part of it holds it
    done = accelerate(model, backend="tuner")
    assert done.exchanged == done.mlps == ()
    assert "(the weight has shape [0])" in str(done)
    assert "(gates of MLPs: the weights have shapes [0], [0])" in str(done)


def test_a_layer_whose_class_was_made_anew_is_given_back_and_copied(ours):
    layer = nn.Linear(32, 48)
    model = nn.Sequential(layer)
    accelerate(model, backend="tuner")
    layer.__class__ = type("Sharded", (type(layer),), {})
    for copied in (copy.copy(layer), copy.deepcopy(layer)):
        assert type(copied) is type(layer)
    with torch.no_grad():
        for give_back in (lambda: accelerate(model, backend="torch"), lambda: restore(model)):
            give_back()
            layer(torch.randn(5, 32))
    assert ours == []
    assert restore(model) == 0


def test_tables_that_are_no_longer_named_are_freed(tuned):
    held = []
    for _ in range(2):
        tuned(48, 32, {64: 1.2})
        accelerate(nn.Sequential(nn.Linear(32, 48, bias=False)))
        held.append(weakref.ref(lookup.resolver()))
    tuner.use(None)
    gc.collect()
    assert [each() for each in held] == [None, None]
