"""`tuner model`: the families it names are what the model multiplies, whole and sharded."""

from __future__ import annotations

import csv
import importlib
import json
import re
import subprocess
import sys
import types
from collections import Counter

import pytest
import torch

from tuner.entry_points import entry_points
from tuner.errors import ModelError, UsageError
from tuner.lookup import sources
from tuner.models import config as configs
from tuner.models import families, sharding
from tuner.models.config import Precision
from tuner.models.sizes import SEQUENCES, TOKENS, Sizes
from tuner.problem import suite
from tuner.problem.family import Ladder
from tuner.tables.importing import tables

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # transformers and torch.profiler deprecate much of their own

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16}
MODELS = {
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    "qwen": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True},
    "qwen_moe": {"model_type": "qwen3_moe", "num_experts": 4, **EXPERTS, "mlp_only_layers": [1]},
    "gemma": {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "sliding_window_pattern": 2},
    "gemma_4": {"model_type": "gemma4_text", "architectures": ["Gemma4ForCausalLM"]},
    "lfm": {"model_type": "lfm2", "architectures": ["Lfm2ForCausalLM"], "layer_types": ["full_attention"] * 4},
    "bamba": {"model_type": "bamba", "architectures": ["BambaForCausalLM"], **MAMBA},
    "mistral": {"model_type": "mistral", "architectures": ["MistralForCausalLM"]},
    "phi": {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"]},
    "phi_1": {"model_type": "phi", "architectures": ["PhiForCausalLM"]},
    "mixtral": {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 4, **EXPERTS},
    "deepseek": {
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "n_routed_experts": 8,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        **EXPERTS,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "v_head_dim": 16,
        "num_key_value_heads": 4,
    },
    "gpt_oss": {"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "num_local_experts": 4, **EXPERTS},
}
"""Configs of real architectures, small enough to run on a CPU."""
BFLOAT16 = Precision("bfloat16")
TAKEN = "float32, float16, bfloat16, float8_e4m3fn, bf16, fp16, fp32, e4m3"


@pytest.fixture(scope="module", autouse=True)
def _what_ships_is_read_once():
    """Every command counts its families among those of all shipped tables, which takes it a third of its time."""
    read, known = tables.families_held, {}

    def families_held(package):
        paths = tuple(package.tables())
        if paths not in known:
            known[paths] = read(package)
        return known[paths]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "families_held", families_held)
        yield


@pytest.fixture
def written(tmp_path):
    """Write a config of MODELS, with other fields; returns its path."""

    def write(name, **fields):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({**SMALL, **MODELS[name], **fields}))
        return path

    return write


def built(path, dtype="bfloat16"):
    return configs.build(configs.load(str(path)), dtype)


def profiled(config, sequences, length):
    """The GEMMs of a forward on the CPU as torch's profiler sees them, without those of attention's own operators."""
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.no_grad(), torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        model(input_ids=torch.ones(sequences, length, dtype=torch.long), use_cache=False, logits_to_keep=1)
    found = Counter()
    for event in profile.events():
        # Where a model has no fused attention, its scores are the only `bmm`; grouped_mm calls mm on a CPU.
        if event.name in ("aten::mm", "aten::addmm", "aten::_grouped_mm") and not within(event, "aten::_grouped_mm"):
            a, b = [shape for shape in event.input_shapes if len(shape) > 1][:2]
            found[event.name == "aten::_grouped_mm", a[0], b[-1], a[-1]] += 1
    return found


def within(event, name):
    while (event := event.cpu_parent) is not None:
        if event.name == name:
            return True
    return False


@pytest.mark.parametrize("name", MODELS)
def test_the_families_are_the_products_that_a_profiler_sees(name, written):
    path = written(name)
    seen = profiled(configs.load(str(path)), 2, 9)
    named = Counter()
    for each in families.find(built(path), BFLOAT16).families:
        m = {TOKENS: 18, SEQUENCES: 2}[each.of] * each.factor
        named[each.product.op == "grouped_mm", m, each.product.n, each.product.k] += each.count
    assert sum(seen.values()) > 4 * 4
    assert named == seen


SHARDED = """
import json, re, sys
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.distributed.tensor_parallel import apply_tensor_parallelism
from tuner.errors import ModelError, UsageError
from tuner.models import config as configs
dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
found = {}
for path in sys.argv[1:]:
    model = configs.build(configs.load(path), "bfloat16")
    parameters = dict(model.named_parameters())
    plan = {}
    for name in (*parameters, *dict(model.named_modules())):
        generic = re.sub(r"\\.\\d+(?=\\.|$)", ".*", name)
        rule = model.tp_plan.get(generic)
        if rule is None and name in parameters:
            rule = model.tp_plan.get(generic.rpartition(".")[0])
        if rule is not None:
            plan[name] = rule
    apply_tensor_parallelism(model, mesh, plan)
    found[path] = {
        re.sub(r"\\.\\d+(?=\\.)", ".*", name): list(p.to_local().shape if hasattr(p, "to_local") else p.shape)
        for name, p in model.named_parameters(remove_duplicate=False)
    }
print(json.dumps(found))
"""
"""Prints the shapes that transformers itself gives one GPU of two."""


@pytest.mark.long
def test_two_gpus_share_the_weights_as_transformers_itself_shards_them(written, start):
    paths = {name: str(written(name)) for name in ("llama", "qwen_moe", "phi", "phi_1", "mixtral", "deepseek")}
    process = start("-c", SHARDED, *paths.values())
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    for name, shapes in ((name, json.loads(out)[path]) for name, path in paths.items()):
        found = families.find(built(paths[name]), BFLOAT16, tp=2)
        assert found.families
        for each in found.families:
            for weight in each.weights:
                assert shapes[weight][-2:] == [each.product.n, each.product.k], (name, weight)


def test_a_bias_is_added_after_the_sum_where_gpus_share_the_inputs(written):
    whole, half = (families.find(built(written("phi_1")), BFLOAT16, tp=tp).families for tp in (1, 2))

    def epilogue(found):
        return {name.split(".")[-2]: each.product.epilogue for each in found for name in each.weights}

    assert epilogue(whole)["fc2"] == epilogue(whole)["fc1"] == epilogue(half)["fc1"] == "bias"
    assert epilogue(half)["fc2"] == "none"


def test_heads_need_not_be_divisible_where_the_plan_gathers_them_again(written):
    found = families.find(built(written("phi")), BFLOAT16, tp=4)  # two heads of keys and values
    assert {name.split(".")[-2]: each.product.n for each in found.families for name in each.weights}["qkv_proj"] == 32


def test_the_heads_of_each_layer_are_checked_where_layers_differ():
    config = transformers.AutoConfig.for_model("llama", **SMALL, per_layer_config={1: {"num_key_value_heads": 4}})
    plan = {"model.layers.*.self_attn.k_proj": "colwise"}
    model = types.SimpleNamespace(tp_plan=plan, config=config)
    sharding.check(model, 2)
    with pytest.raises(UsageError, match="--tp 4 does not divide the 2 key-value heads"):
        sharding.check(model, 4)


def test_a_part_of_a_weight_is_aligned_where_its_own_rows_are(written):
    path = written("llama", intermediate_size=72)
    for tp, aligned in ((1, True), (2, False)):
        found = families.find(built(path), BFLOAT16, tp=tp).families
        assert {each.product.aligned for each in found if each.product.k in (72, 36)} == {aligned}


def test_json_has_the_families_as_numbers(run, tmp_path, written):
    code, said, _ = run("model", written("llama"), "--m", "1-4", "--out", tmp_path / "out.csv", "--json")
    assert code == 0
    *_, last, _, added, merged, mlp, norm = json.loads(said)["families"]
    assert (added["m"], added["epilogue"], added["n"], added["k"], added["count"]) == ("1", "bias", 64, 96, 4)
    assert (merged["m"], merged["op"], merged["n"], merged["parts"], merged["count"]) == (
        *("1-2", "merged_linear", 128, "64+32+32", 4),
    )
    assert (mlp["op"], mlp["n"], mlp["k"], mlp["epilogue"], mlp["count"]) == ("gated_linear", 96, 64, "silu", 4)
    assert (last["m"], last["n"], last["k"], last["count"], last["note"]) == ("1-4", 128, 64, 1, "lm_head")
    assert (norm["op"], norm["n"], norm["k"], norm["eps"], norm["count"]) == ("rms_norm", 64, 1, 1e-6, 9)


def rows(path):
    return list(csv.DictReader(line for line in path.read_text().splitlines() if not line.startswith("#")))


ADDED = ("bfloat16", "nt", "bias", "", "", "")
"""The dtype, layout, epilogue, op, eps and parts of a product that adds the residual."""


def test_families_that_come_tuned_are_counted_and_one_command_brings_them(run, tmp_path, written, monkeypatch):
    monkeypatch.setattr(sources, "entry_points", entry_points)  # those of this environment
    layers = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "head_dim": 128}
    path = written("llama", **layers, num_key_value_heads=8, num_hidden_layers=2, vocab_size=1000, rms_norm_eps=1e-5)
    code, said, err = run("model", path, "--m", "1-4", "--out", tmp_path / "llama.csv")
    assert code == 0, err
    told, slug = said.splitlines()[-1], "nvidia-h200-sm90-132"
    assert f"9 of these for {slug}; to bring them: tuner import triton-tuner --suite " in told  # not the last layer
    options = ["--suite", tmp_path / "llama.csv", "--device", slug, "--out", tmp_path / "tables", "--json"]
    code, said, err = run("import", "triton-tuner", *options)
    assert (code, len(json.loads(said)["absent"])) == (0, 1), err
    code, said, err = run("model", path, "--m", "1-4", "--out", tmp_path / "llama.csv", "--json")
    assert json.loads(said)["shipped"][slug] == 9
    odd = written(
        "llama",
        **{**layers, "hidden_size": 4128, "intermediate_size": 96},
        num_key_value_heads=8,
        num_hidden_layers=2,
        vocab_size=9,
    )
    code, said, err = run("model", odd, "--m", "1-4", "--out", tmp_path / "odd.csv")
    assert (code, "own tables" in said, "tuner import" in said) == (0, False, False), err


def test_what_somebody_edited_or_another_program_wrote_is_kept(run, tmp_path, written):
    out = tmp_path / "llama.csv"
    typed = ("model", written("llama"), "--m", "1", "--out", out)
    assert run(*typed)[0] == 0
    assert run(*typed)[0] == 0, "nobody edited it"
    for text in (out.read_text() + "# edited\n", "important,data\n"):
        out.write_text(text)
        code, _, err = run(*typed)
        assert (code, err.strip()) == (
            2,
            f"tuner: {out} was edited, or another program's: name another with --out, or move it away",
        )
        assert out.read_text() == text


def test_only_families_that_are_written_are_counted(run, tmp_path, written):
    """Some are for an M of 1 or 2 alone."""
    path, out = written("llama"), tmp_path / "llama.csv"
    code, said, err = run("model", path, "--m", "5", "--out", out)
    assert code == 0, err
    assert f"{len(rows(out))} families of LlamaForCausalLM" in said


def test_a_suite_has_each_family_with_its_ms_and_calls(run, tmp_path, written):
    layers = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "head_dim": 128}
    path = written("llama", **layers, num_key_value_heads=8, num_hidden_layers=32, vocab_size=128256)
    out = tmp_path / "llama.csv"
    code, said, err = run("model", path, "--m", "1-512,8192", "--out", out)
    assert code == 0, err
    assert f"10 families of LlamaForCausalLM; to tune them: tuner run --suite {out}" in said
    columns = ("m", "n", "k", "dtype", "layout", "count", "note")
    *listed, after_attention, after_mlp, merged, gated, gated_of_prefill, norms, norms_of_prefill = rows(out)
    assert [tuple(row[name] for name in columns) for row in listed] == [
        ("1-512", "4096", "4096", "bfloat16", "nt", "64", "self_attn.q_proj self_attn.o_proj"),
        ("8192", "4096", "4096", "bfloat16", "nt", "64", "self_attn.q_proj self_attn.o_proj"),
        ("1-512", "1024", "4096", "bfloat16", "nt", "64", "self_attn.k_proj self_attn.v_proj"),
        ("8192", "1024", "4096", "bfloat16", "nt", "64", "self_attn.k_proj self_attn.v_proj"),
        ("1-512", "14336", "4096", "bfloat16", "nt", "64", "mlp.gate_proj mlp.up_proj"),
        ("8192", "14336", "4096", "bfloat16", "nt", "64", "mlp.gate_proj mlp.up_proj"),
        ("1-512", "4096", "14336", "bfloat16", "nt", "32", "mlp.down_proj"),
        ("8192", "4096", "14336", "bfloat16", "nt", "32", "mlp.down_proj"),
        ("1-512", "128256", "4096", "bfloat16", "nt", "1", "lm_head"),  # a prefill needs its last tokens alone
    ]
    names = "input_layernorm post_attention_layernorm model.norm"
    mlps = ("1-512", "14336", "4096", "bfloat16", "nt", "silu", "gated_linear", "", "", "32", "mlp")
    joined = ("1-2", "6144", "4096", "bfloat16", "nt", "", "merged_linear", "", "4096+1024+1024", "32", "self_attn")
    assert tuple(after_attention.values()) == ("1", "4096", "4096", *ADDED, "32", "self_attn.o_proj")
    assert tuple(after_mlp.values()) == ("1", "4096", "14336", *ADDED, "32", "mlp.down_proj")
    assert tuple(merged.values()) == joined
    assert tuple(gated.values()) == mlps
    assert gated_of_prefill == gated | {"m": "8192"}
    assert tuple(norms.values()) == ("1-512", "4096", "1", "bfloat16", "nn", "", "rms_norm", "1e-06", "", "65", names)
    assert norms_of_prefill == norms | {"m": "8192"}
    found = suite.load_with_ladders(out)
    assert [(str(each), isinstance(each, Ladder)) for each in found][:2] == [
        ("matmul 1-512x4096x4096 bfloat16 nt", True),
        ("matmul 8192x4096x4096 bfloat16 nt", False),
    ]


def test_experts_are_grouped_products_of_each_tokens_rows_and_a_command(run, tmp_path, written):
    out = tmp_path / "moe.csv"
    code, said, err = run("model", written("mixtral"), "--m", "1-8", "--tp", 2, "--out", out)
    assert code == 0, err
    assert f"{len(rows(out))} families of MixtralForCausalLM" in said
    experts = [row for row in rows(out) if row["op"] == "grouped_mm"]
    assert [(row["m"], row["n"], row["k"], row["groups"], row["count"]) for row in experts] == [
        ("2-16", "96", "64", "4", "4"),
        ("2-16", "64", "48", "4", "4"),
    ]
    (fused,) = (row for row in rows(out) if row["op"] == "fused_experts")
    assert [fused[name] for name in ("m", "n", "k", "epilogue", "groups", "top_k", "count", "note")] == [
        *("1-8", "48", "64", "silu", "4", "2", "4", "mlp.experts")
    ]
    assert "tuner moe --experts 4 --intermediate 48 --hidden 64 --topk 2 --for vllm --out DIR" in err
    assert "whole on each GPU by the model's own plan: model.layers.*.mlp.gate.weight" in err


def gated_rows(path):
    names = ("m", "n", "k", "epilogue", "count", "note")
    return [tuple(row[name] for name in names) for row in rows(path) if row.get("op") == "gated_linear"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama", [("96", "silu", "4", "mlp")]),
        ("gemma", [("96", "gelu", "4", "mlp")]),
        ("phi", [("96", "silu", "4", "mlp")]),
        ("qwen_moe", [("96", "silu", "1", "mlp")]),
        ("deepseek", [("96", "silu", "1", "mlp"), ("32", "silu", "3", "mlp.shared_experts")]),
        *((name, []) for name in ("phi_1", "mixtral", "gpt_oss")),
    ],
)
def test_gated_mlps_are_families_beside_their_products(name, expected, run, tmp_path, written):
    out = tmp_path / "out.csv"
    assert run("model", written(name), "--m", "1-8", "--out", out)[0] == 0
    assert gated_rows(out) == [("1-8", n, "64", *rest) for n, *rest in expected]
    problems = [each for each in suite.load(out) if each.op == "gated_linear"]
    assert {each.n for each in problems} == {int(n) for n, *_ in expected}
    products = [row for row in rows(out) if not row.get("op") and re.search("gate_proj|gate_up_proj", row["note"])]
    assert len(products) == len(expected)


def merged_rows(path):
    names = ("m", "n", "epilogue", "parts", "count")
    return [tuple(row[name] for name in names) for row in rows(path) if row.get("op") == "merged_linear"]


def test_attention_is_a_family_of_few_rows_beside_its_products(run, tmp_path, written):
    out = tmp_path / "out.csv"
    for name, typed, fields, expected in (
        ("llama", [], {}, [("1-2", "128", "", "64+32+32", "4")]),
        ("llama", [], {"attention_bias": True}, [("1-2", "128", "bias", "64+32+32", "4")]),
        ("llama", ["--tp", 2], {}, [("1-2", "64", "", "32+16+16", "4")]),
        ("llama", ["--dtype", "e4m3"], {}, []),
        ("phi", [], {}, []),  # one weight has all of them
        ("deepseek", [], {}, [("1-2", "80", "", "32+48", "4")]),  # what q and both k and v are made of
    ):
        assert run("model", written(name, **fields), *typed, "--m", "1-8", "--out", out)[0] == 0
        assert merged_rows(out) == expected, (name, typed)
        assert all(each.m <= 2 for each in suite.load(out) if each.op == "merged_linear")
    for typed, m in (("2,64", ["2"]), ("2-64", ["2"]), ("1,2,8", ["1,2"]), ("8-64", [])):
        assert run("model", written("llama"), "--m", typed, "--out", out)[0] == 0
        assert [row[0] for row in merged_rows(out)] == m


def test_products_of_one_row_that_add_the_residual_are_families_of_their_own(run, tmp_path, written):
    out, attended, both = tmp_path / "out.csv", [("64", "64", "4")], [("64", "64", "4"), ("64", "96", "4")]
    for name, typed, fields, expected in (
        ("llama", [], {}, both),
        ("llama", ["--tp", 2], {}, []),  # each GPU has a part of the sum
        ("llama", ["--dtype", "e4m3"], {}, []),
        ("llama", [], {"mlp_bias": True}, attended),
        ("llama", [], {"attention_bias": True}, [("64", "96", "4")]),
        ("qwen", [], {}, [("64", "96", "4")]),  # q, of as many rows, has a bias
        ("gemma", [], {}, []),  # what is added goes through a norm
        ("mixtral", [], {}, attended),
    ):
        assert run("model", written(name, **fields), *typed, "--m", "1-8", "--out", out)[0] == 0
        added = [row for row in rows(out) if row["m"] == "1" and row.get("epilogue") == "bias"]
        assert [(row["n"], row["k"], row["count"]) for row in added] == expected, (name, typed)
    assert run("model", written("llama"), "--m", "2-8", "--out", out)[0] == 0
    assert not any(row.get("epilogue") == "bias" for row in rows(out))


def test_gated_mlps_that_no_kernel_computes_are_no_families(run, tmp_path, written):
    out = tmp_path / "out.csv"
    for name, typed, fields, expected in (
        ("llama", ["--tp", 2], {}, [("1-8", "48", "64", "silu", "4", "mlp")]),
        ("phi", ["--tp", 2], {}, []),  # a GPU has other rows of gate than of up
        ("llama", ["--dtype", "e4m3"], {}, []),
        ("llama", [], {"mlp_bias": True}, []),
        ("llama", [], {"hidden_act": "gelu"}, []),  # the exact form
    ):
        assert run("model", written(name, **fields), *typed, "--m", "1-8", "--out", out)[0] == 0
        assert gated_rows(out) == expected


def test_norms_of_heads_have_a_row_for_each_head_of_a_gpu(run, tmp_path, written):
    for tp, heads in ((1, ["4-32", "2-16"]), (2, ["2-16", "1-8"])):
        out = tmp_path / f"{tp}.csv"
        assert run("model", written("qwen_moe"), "--m", "1-8", "--tp", tp, "--out", out)[0] == 0
        norms = [row for row in rows(out) if row["op"] == "rms_norm"]
        assert [(row["m"], row["n"], row["count"]) for row in norms if row["n"] == "16"] == [
            (heads[0], "16", "4"),
            (heads[1], "16", "4"),
        ]
        assert [(row["m"], row["count"]) for row in norms if row["n"] == "64"] == [("1-8", "9")]
        assert {row["eps"] for row in norms} == {"1e-06"}


def test_norms_of_one_name_may_have_several_lengths(run, tmp_path, written):
    layers = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "global_head_dim": 32}
    for tp, heads in ((1, ["4-32", "2-16"]), (2, ["2-16", "1-8"])):
        out = tmp_path / f"{tp}.csv"
        config = written("gemma_4", **layers, hidden_size_per_layer_input=8)
        assert run("model", config, "--m", "1-8", "--tp", tp, "--out", out)[0] == 0
        norms = [(row["m"], row["n"], row["note"]) for row in rows(out) if row["op"] == "rms_norm" and row["n"] != "64"]
        assert norms == [
            (heads[0], "16", "self_attn.q_norm"),
            (heads[1], "16", "self_attn.k_norm"),
            (heads[0], "32", "self_attn.q_norm"),
            (heads[1], "32", "self_attn.k_norm"),
            ("2-16", "8", "model.per_layer_projection_norm"),  # of each layer, not of heads: every GPU has all
        ]


def test_norms_of_heads_that_no_plan_divides_have_every_row(run, tmp_path, written):
    out = tmp_path / "out.csv"
    assert run("model", written("lfm"), "--m", "1-8", "--tp", 2, "--out", out)[0] == 0
    norms = [(row["m"], row["note"]) for row in rows(out) if row["op"] == "rms_norm" and row["n"] == "16"]
    assert norms == [("4-32", "self_attn.q_layernorm"), ("2-16", "self_attn.k_layernorm")]


def test_norms_that_accelerate_leaves_are_no_families(run, tmp_path, written):
    out = tmp_path / "out.csv"
    assert run("model", written("bamba"), "--dtype", "fp32", "--m", "1-8", "--out", out)[0] == 0  # gates within norms
    (norms,) = (row for row in rows(out) if row.get("op") == "rms_norm")
    assert norms["note"] == "input_layernorm pre_ff_layernorm model.final_layernorm"
    assert run("model", written("phi_1"), "--m", "1-8", "--out", out)[0] == 0  # it has layer norms
    assert not [row for row in rows(out) if row.get("op") == "rms_norm"]


def test_norms_that_add_one_to_their_weight_are_families_as_others_are(run, tmp_path, written):
    out = tmp_path / "out.csv"
    assert run("model", written("gemma"), "--m", "1-8", "--out", out)[0] == 0
    norms = [row for row in rows(out) if row["op"] == "rms_norm"]
    assert [(row["m"], row["n"], row["count"], row["eps"]) for row in norms] == [
        ("4-32", "16", "4", "1e-06"),
        ("2-16", "16", "4", "1e-06"),
        ("1-8", "64", "17", "1e-06"),
    ]


def test_layers_that_tokens_do_not_reach_are_named(run, tmp_path, written):
    seeing = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64}
    config = written(
        "llama",
        model_type="qwen2_5_vl",
        architectures=["Qwen2_5_VLForConditionalGeneration"],
        vision_config=seeing,
        rope_parameters={"rope_type": "default", "mrope_section": [2, 3, 3]},
    )
    code, said, err = run("model", config, "--m", "1-8", "--out", tmp_path / "out.csv", "--json")
    assert code == 0, err
    blocks = [f"attn.{name}" for name in ("qkv", "proj")] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    expected = {f"model.visual.blocks.*.{name}": 2 for name in blocks} | {"model.visual.merger.mlp.*": 2}
    assert json.loads(said)["uncalled"] == expected
    err = run("model", config, "--m", "1-8", "--out", tmp_path / "out.csv")[2]
    assert "does not call them: 12 linear layers (model.visual.blocks.*.attn.qkv, " in err
    for name in ("llama", "qwen", "qwen_moe"):  # the second ties its last layer to its embedding
        assert json.loads(run("model", written(name), "--out", tmp_path / "out.csv", "--json")[1])["uncalled"] == {}


@pytest.mark.parametrize(
    ("fields", "typed", "said"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, [], " --dtype int4_w4a16 --group-size 32 --for"),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True},
            [],
            " --dtype int4_w4a16 --group-size 32 --zero-points --for",
        ),
        ({"quant_method": "fp8", "weight_block_size": [32, 32]}, [], " --dtype fp8_w8a8 --block-shape 32,32 --for"),
        ({"quant_method": "fp8", "weight_block_size": [32, 32]}, ["--dtype", "bf16"], " --topk 2 --for"),
        ({"quant_method": "mxfp4"}, [], " --dtype DTYPE --for"),
        ({"quant_method": "mxfp4"}, ["--dtype", "e4m3"], " --dtype fp8_w8a8 --for"),
    ],
)
def test_the_command_for_experts_has_the_quantization_of_the_config(fields, typed, said, run, tmp_path, written):
    name = written("mixtral", quantization_config=fields)
    code, _, err = run("model", name, *typed, "--m", "8", "--out", tmp_path / "moe.csv")
    assert code == 0, err
    (line,) = [line for line in err.splitlines() if "tuner moe" in line]
    assert said in line
    why = f"DTYPE of {name}: quantized by mxfp4: expected fp8, gptq or awq: type what the server multiplies"
    assert (why in err) is ("DTYPE" in said)


@pytest.mark.parametrize(
    ("config", "typed", "scaling"),
    [
        ({}, ["--dtype", "e4m3"], "row"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, [], "block"),
    ],
)
def test_linear_layers_in_fp8_are_scaled_and_the_last_one_is_not_in_fp8(config, typed, scaling, run, tmp_path, written):
    out = tmp_path / "fp8.csv"
    code, _, err = run("model", written("deepseek", **config), *typed, "--m", "1-64", "--out", out)
    assert code == 0, err
    found = {name: row for row in rows(out) for name in row["note"].split()}
    assert {found[name]["dtype"] for name in ("self_attn.o_proj", "shared_experts.up_proj")} == {"float8_e4m3fn"}
    assert found["self_attn.o_proj"]["scaling"] == scaling
    assert found["lm_head"]["dtype"] == found["experts.down_proj"]["dtype"] == "bfloat16"
    assert found["mlp.gate"]["dtype"] == "float32"
    assert ("fp8_w8a8 --block-shape 128,128" in err) == (scaling == "block")
    assert suite.load(out)


def test_the_quantization_of_a_text_model_within_another_counts(run, tmp_path):
    text = {**SMALL, "quantization_config": {"quant_method": "fp8"}}
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    path, out = tmp_path / "gemma.json", tmp_path / "gemma.csv"
    path.write_text(json.dumps({"model_type": "gemma3", "text_config": text, "vision_config": vision}))
    code, _, err = run("model", path, "--m", "8", "--out", out)
    assert code == 0, err
    assert {row["scaling"] for row in rows(out) if not row["op"] and row["note"] != "lm_head"} == {"scalar"}


def test_blocks_of_another_size_than_kernels_scale_are_a_line(run, tmp_path, written):
    quantization = {"quant_method": "fp8", "weight_block_size": [64, 32]}
    code, _, err = run("model", written("llama", quantization_config=quantization), "--out", tmp_path / "llama.csv")
    assert code == 0, err
    assert "its scales are of blocks of 64,32: taken as of 128,128" in err.splitlines()


def test_a_size_beyond_the_ranges_is_a_prefill_and_without_ranges_every_size_is_meant():
    assert Sizes.parse("1-4,8,64").cells(TOKENS, 2) == ["2-8", "16,128"]
    assert Sizes.parse("1-4,3,64").cells(SEQUENCES, 1) == ["1-4", "3"]
    assert Sizes.parse("8,64").cells(SEQUENCES, 1) == ["8,64"]


def test_families_that_differ_in_their_number_of_experts_are_told_apart(run, tmp_path, written):
    _, said, _ = run("model", written("deepseek"), "--m", "8", "--out", tmp_path / "out.csv")
    assert {"groups", "top_k"} <= set(said.splitlines()[0].split())


def test_a_class_that_transformers_does_not_have_is_named(run, tmp_path):
    path, out = tmp_path / "config.json", tmp_path / "out.csv"
    path.write_text(json.dumps(MODELS["llama"] | SMALL | {"architectures": ["NopeForCausalLM"]}))
    code, _, err = run("model", path, "--m", "8", "--out", out)
    assert (code, "transformers builds no NopeForCausalLM: this is LlamaForCausalLM\n" in err) == (0, True)
    path.write_text(json.dumps(MODELS["llama"] | SMALL | {"architectures": ["LlamaForCausalLM"]}))
    assert "builds no" not in run("model", path, "--m", "8", "--out", out)[2]


def test_a_folder_that_is_not_there_is_told_before_a_model_is_built(run, tmp_path):
    code, out, err = run("model", tmp_path / "none.json", "--out", tmp_path / "gone" / "out.csv")
    assert (code, out) == (1, "")
    assert err.endswith(f"out.csv: there is no folder {tmp_path / 'gone'}: make it, or name another\n")


def quantized(**fields):
    return json.dumps(MODELS["llama"] | SMALL | {"quantization_config": {"quant_method": "fp8", **fields}})


@pytest.mark.parametrize(
    ("text", "typed", "code", "words"),
    [
        ("{", [], 1, "not JSON"),
        ("[]", [], 1, 'expected a "model_type"'),
        ('{"model_type": 3}', [], 1, 'expected a "model_type"'),
        ('{"model_type": "nobody"}', [], 1, "does not know the model type 'nobody'"),
        ('{"model_type": "ours", "auto_map": {"AutoConfig": "c.C"}}', [], 1, "code that comes with the model"),
        (json.dumps(MODELS["llama"] | SMALL | {"hidden_size": "many"}), [], 1, "damaged config of a llama model"),
        (json.dumps(MODELS["llama"] | SMALL | {"architectures": [3]}), [], 1, "architectures is [3], not a list of"),
        (quantized(weight_block_size=128), [], 1, "weight_block_size is 128, not two sizes such as [128, 128]"),
        (quantized(weight_block_size=[128]), [], 1, "weight_block_size is [128], not two sizes"),
        (quantized(weight_block_size=[128, 0]), [], 1, "weight_block_size is [128, 0], not two sizes"),
        (quantized(modules_to_not_convert=3), [], 1, "modules_to_not_convert is 3, not a list of names"),
        (
            json.dumps(MODELS["llama"] | SMALL),
            ["--tp", 3],
            2,
            "the 4 attention heads of LlamaForCausalLM: expected 2\n",
        ),
        (json.dumps(MODELS["llama"] | SMALL), ["--tp", 4], 2, "the 2 key-value heads of LlamaForCausalLM: expected"),
        (json.dumps(MODELS["llama"] | SMALL | {"vocab_size": 129}), ["--tp", 2], 2, "the 129 outputs of lm_head"),
        (json.dumps({**SMALL, "model_type": "bert"}), ["--tp", 2], 2, "has no tensor-parallel plan: leave --tp out"),
        ('{"model_type": "musicgen"}', [], 1, "is several in one (text_encoder, audio_encoder, decoder), with more"),
        (json.dumps({"model_type": "vit"}), [], 1, "cannot be run without weights"),
        (json.dumps(MODELS["llama"] | SMALL), ["--m", "1-"], 2, "M must be an integer"),
        (json.dumps(MODELS["llama"] | SMALL), ["--m", "0-4"], 2, "M must be from 1"),
        (json.dumps(MODELS["llama"] | SMALL), ["--m", "8,-1"], 2, "M must be from 1"),
        (json.dumps(MODELS["llama"] | SMALL), ["--m", "1-1500000000"], 2, "a ladder of 82 Ms to tune, more than 64"),
        (
            json.dumps(MODELS["mixtral"] | SMALL),
            ["--m", "8,1500000000"],
            2,
            "has 2 times the M of --m: M must be from 1 to 2147483647, got 3000000000: type smaller ones",
        ),
        (json.dumps(MODELS["llama"] | SMALL), ["--dtype", "int3"], 2, "unknown dtype 'int3'"),
        *(
            (json.dumps(MODELS["llama"] | SMALL), ["--dtype", name], 2, f"{name!r}: expected one of {TAKEN}\n")
            for name in ("fp64", "int8", "e5m2")
        ),
        ('{"model_type": "autoformer"}', [], 1, "The `prediction_length` config needs to be specified."),
        ('{"model_type": "align_vision_model"}', [], 1, "builds no model of 'align_vision_model' by itself: name the"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(text, typed, code, words, run, tmp_path):
    path, out = tmp_path / "config.json", tmp_path / "out.csv"
    path.write_text(text)
    found, said, err = run("model", path, *typed, "--out", out)
    assert (found, said, err.count("\n")) == (code, "", 1), err
    assert words in err
    assert not out.exists()


def test_a_model_without_linear_layers_is_one_line():
    class Empty(torch.nn.Module):
        main_input_name = "input_ids"
        config = transformers.AutoConfig.for_model("llama")

        def forward(self, input_ids):
            return input_ids

    with pytest.raises(ModelError, match="Empty has no linear layers"):
        families.find(Empty(), BFLOAT16)


KERNELS = """
def __getattr__(name):
    def kernel(*_, **__):
        raise RuntimeError("no GPU")
    if name.startswith("__"):
        raise AttributeError(name)
    return kernel
"""


@pytest.mark.parametrize("package", ["causal_conv1d", "fla"])
def test_kernels_that_transformers_prefers_where_they_are_installed_are_not_asked(package, tmp_path, monkeypatch):
    (tmp_path / f"{package}.py").write_text(KERNELS)
    monkeypatch.syspath_prepend(tmp_path)
    for module in (package, "transformers.models.qwen3_next.modeling_qwen3_next"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    layers = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "num_experts": 4, **EXPERTS}
    config = transformers.AutoConfig.for_model("qwen3_next", **{**SMALL, **layers})
    found = {
        name for each in families.find(configs.build(config, "bfloat16"), BFLOAT16).families for name in each.weights
    }
    assert "model.layers.*.linear_attn.in_proj_qkvz.weight" in found
    assert importlib.import_module(package).anything


class Compared(torch.nn.Module):
    """Takes two inputs, as OneFormer does, which names them in a list."""

    main_input_name = ("input_ids", "other_ids")
    config = transformers.AutoConfig.for_model("llama")

    def __init__(self):
        super().__init__()
        with torch.device("meta"):
            self.embed, self.linear = torch.nn.Embedding(8, 16), torch.nn.Linear(16, 32)

    def forward(self, input_ids, other_ids):
        return self.linear(self.embed(input_ids)) * self.embed(other_ids)[..., :1]


def test_a_model_may_name_several_inputs():
    assert [each.weights for each in families.find(Compared(), BFLOAT16).families] == [("linear.weight",)]


class Scan(torch.nn.Module):
    """Multiplies activations token by token, as state-space models do, then by a weight; or by it token by token."""

    main_input_name = "input_ids"
    config = transformers.AutoConfig.for_model("llama")

    def __init__(self, *, by_weight):
        super().__init__()
        self.by_weight = by_weight
        with torch.device("meta"):
            self.embed = torch.nn.Embedding(8, 16)
            self.linear = torch.nn.Linear(16, 32)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for token in x.unbind(1):
            self.linear(token) if self.by_weight else token @ token.t()
        return self.linear(x)


def test_a_loop_over_tokens_may_multiply_activations_but_not_by_weights():
    found = families.find(Scan(by_weight=False), BFLOAT16)
    assert [(each.weights, each.of, each.count) for each in found.families] == [(("linear.weight",), TOKENS, 1)]
    with pytest.raises(ModelError, match="Scan multiplies by other weights where there are more tokens"):
        families.find(Scan(by_weight=True), BFLOAT16)


def test_a_library_that_a_model_needs_is_to_be_installed(written, monkeypatch):
    def missing(*_, **__):
        raise ImportError("TimmWrapperModel requires the PIL library: `pip install timm`")

    monkeypatch.setattr(transformers.PreTrainedModel, "_from_config", missing)
    with pytest.raises(ModelError, match=r"`pip install timm`.*: install what it needs$"):
        built(written("llama"))


CACHED = """
import sys
sys.addaudithook(lambda event, args: event in ("socket.connect", "socket.getaddrinfo") and sys.exit("network"))
from tuner.cli import main
main(sys.argv[1:])
"""


@pytest.mark.long
def test_a_name_is_read_from_the_local_cache_and_never_from_the_network(tmp_path, written, monkeypatch):
    cache = tmp_path / "cache" / "models--us--tiny"
    (cache / "snapshots" / "abc").mkdir(parents=True)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("abc")
    written("llama").rename(cache / "snapshots" / "abc" / "config.json")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    for name, code, words in (("us/tiny", 0, "LlamaForCausalLM"), ("us/other", 1, "hf download us/other config.json")):
        command = [sys.executable, "-c", CACHED, "model", name, "--m", "1-4", "--out", str(tmp_path / "out.csv")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == code, done.stderr
        assert words in done.stdout + done.stderr
    assert "not in the local cache of models" in done.stderr


def test_without_transformers_one_line_says_what_to_install(tmp_path, written):
    code = "import sys; sys.modules['transformers'] = None; from tuner.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "model", str(written("llama")), "--out", str(tmp_path / "out.csv")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "pip install 'triton-tuner[models]'" in done.stderr


def test_the_room_is_imported_without_torch_and_transformers():
    code = "import sys, tuner.models; assert not {'torch', 'transformers', 'click'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
