"""`tuner.models.accelerate` on the norms of models: which run on one kernel, that they are right, and what stays."""

from __future__ import annotations

import copy
import pickle
from importlib import import_module

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import tuner
from tuner.hardware.device import INTERPRETER
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.lookup.row import Row
from tuner.models import accelerate, accelerate_norm, restore
from tuner.models.accelerate_norm import rms_norm
from tuner.problem import Problem

NORMS = {
    "llama": "LlamaRMSNorm",
    "qwen2": "Qwen2RMSNorm",
    "qwen3": "Qwen3RMSNorm",
    "mistral": "MistralRMSNorm",
    "mixtral": "MixtralRMSNorm",
    "phi3": "Phi3RMSNorm",
    "deepseek_v3": "DeepseekV3RMSNorm",
    "gpt_oss": "GptOssRMSNorm",
    "t5": "T5LayerNorm",
}


GEMMAS = {
    "gemma": "GemmaRMSNorm",
    "gemma2": "Gemma2RMSNorm",
    "gemma3": "Gemma3RMSNorm",
    "qwen3_next": "Qwen3NextRMSNorm",
}
"""Those that add one to their weight."""


def norm_of(model, size=48):
    name = {**NORMS, **GEMMAS}[model]
    return getattr(import_module(f"transformers.models.{model}.modeling_{model}"), name)(size)


@pytest.fixture(autouse=True)
def seeded(no_tables):
    torch.manual_seed(0)


@pytest.fixture
def fused(monkeypatch):
    """The shapes that torch's own norm was called with."""
    seen, own = [], nn.functional.rms_norm
    monkeypatch.setattr(nn.functional, "rms_norm", lambda x, *rest: seen.append(x.shape) or own(x, *rest))
    return seen


@pytest.fixture
def ours(monkeypatch):
    """The shapes that the op was called with."""
    seen, own = [], rms_norm.checked_call
    monkeypatch.setattr(
        rms_norm, "checked_call", lambda x, *rest, **named: seen.append(x.shape) or own(x, *rest, **named)
    )
    return seen


def test_of_norms_that_are_alike_one_is_tried(monkeypatch):
    seen, own = [], accelerate_norm.form_of
    monkeypatch.setattr(accelerate_norm, "form_of", lambda layer: seen.append(layer) or own(layer))
    norms = nn.ModuleList(norm_of("llama") for _ in range(8))
    for norm in norms:
        nn.init.normal_(norm.weight)
    norms[3].variance_epsilon = 1e-5
    norms[4] = norm_of("llama", 32)
    norms[5].bfloat16()
    norms[6] = norm_of("gemma")
    assert len(accelerate(norms, backend="tuner").norms) == 8
    assert [norms[0], *norms[3:7]] == seen


@pytest.mark.parametrize("backend", ["auto", "tuner"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("model", NORMS)
def test_the_norms_of_models_are_one_call_and_no_less_exact(model, dtype, backend, fused, ours):
    norm = norm_of(model).to(dtype)
    nn.init.normal_(norm.weight)
    x, exact = torch.randn(2, 3, 48).to(dtype), copy.deepcopy(norm).double()
    with torch.no_grad():
        before = norm(x)
        done = accelerate(norm, backend=backend)
        fused.clear()
        after = norm(x)
        called = [fused.copy(), ours.copy()]
        wanted = exact.weight * torch.rms_norm(x.double(), (48,), eps=1e-6)
    assert done.norms == ("",)
    assert called == ([[(2, 3, 48)], []] if backend == "auto" else [[], [(2, 3, 48)]])
    assert after.dtype == dtype
    error, theirs = ((each.double() - wanted).norm() for each in (after, before))
    assert error <= 1.01 * theirs


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("model", GEMMAS)
def test_norms_that_add_one_to_their_weight_are_one_launch_and_no_less_exact(model, dtype, fused, ours):
    norm = norm_of(model).to(dtype)
    nn.init.normal_(norm.weight, std=2**-6)
    x = torch.randn(2, 3, 48).to(dtype)
    wanted = (1 + norm.weight.double()) * torch.rms_norm(x.double(), (48,), eps=1e-6)
    with torch.no_grad():
        before = norm(x)
        done = accelerate(norm, backend="tuner")
        fused.clear()
        after = [norm(x), norm(x)]
    assert done.norms == ("",)
    assert (fused, ours) == ([], [(2, 3, 48)] * 2)  # no plan under the interpreter
    error, theirs = ((each.double() - wanted).norm() for each in (after[0], before))
    assert error <= 1.01 * theirs
    assert torch.equal(*after)
    assert after[0].dtype == dtype


def test_without_a_table_norms_that_add_one_to_their_weight_are_left_under_auto(fused, ours):
    norm = norm_of("gemma2")
    done = accelerate(norm)
    assert not done.norms
    why = f"no table of {INTERPRETER.slug} has the family: `tuner model` lists what to tune"
    assert done.left == {why: ("",)}
    assert "norm" not in str(done)
    fused.clear()
    with torch.no_grad():
        norm(torch.randn(4, 48))
    assert type(norm).__name__ == "Gemma2RMSNorm"
    assert not fused
    assert not ours


@pytest.mark.parametrize("backend", ["auto", "tuner"])
def test_norms_that_add_one_to_their_weight_are_left_where_no_kernel_takes_them(backend):
    odd, long, wide = norm_of("gemma2"), norm_of("gemma2", 32769), norm_of("gemma2").double()
    odd.eps = 0.0
    left = accelerate(nn.ModuleDict({"odd": odd, "long": long, "wide": wide}), backend=backend).left
    reason = "one is added to a weight that `rms_norm` does not take: {}"
    assert left == {
        reason.format("float32 [48], eps 0.0"): ("odd",),
        reason.format("float32 [32769], eps 1e-06"): ("long",),
        "Gemma2RMSNorm is no RMSNorm of its weight": ("wide",),
    }


def test_a_model_is_told_apart_by_its_norms_and_given_back(fused):
    from transformers import AutoModelForCausalLM, Qwen3Config

    sizes = {"hidden_size": 48, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = Qwen3Config(num_hidden_layers=1, vocab_size=64, head_dim=16, **sizes)
    model = AutoModelForCausalLM.from_config(config).eval()
    tokens = torch.arange(6).reshape(2, 3)
    with torch.inference_mode():
        expected = model(tokens).logits
        done = accelerate(model)
        assert len(done.norms) == 5
        assert "; on one kernel each, tuned or torch's: 5 norms (model.layers.0.self_attn.q_norm, " in str(done)
        fused.clear()
        torch.testing.assert_close(model(tokens).logits, expected)
        assert len(fused) == 5
        assert restore(model) == 5
        torch.testing.assert_close(model(tokens).logits, expected, rtol=0, atol=0)
    assert len(fused) == 5
    assert not accelerate(model, backend="torch").norms


def test_what_is_no_rms_norm_of_its_weight_is_left_and_named():
    class PlusTwoNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.eps = nn.Parameter(torch.ones(48)), 1e-6

        def forward(self, x):
            return nn.functional.rms_norm(x, (48,), 2 + self.weight, self.eps)

    class FailingNorm(PlusTwoNorm):
        def forward(self, x):
            return x.flatten(1, 2) * self.weight

    class WideNorm(PlusTwoNorm):
        def forward(self, x):
            return nn.functional.rms_norm(x.float(), (48,), self.weight.float(), self.eps)

    class WithoutEpsilonNorm(PlusTwoNorm):
        def __init__(self):
            super().__init__()
            self.eps = None

    replaced, moved = norm_of("llama"), norm_of("llama").to("meta")
    replaced.forward = lambda x: x
    layers = {
        "plus_two": PlusTwoNorm(),
        "failing": FailingNorm(),
        "wide": WideNorm().bfloat16(),
        "without_epsilon": WithoutEpsilonNorm(),
        "replaced": replaced,
        "moved": moved,
        "torchs": nn.RMSNorm(48),
        "layer_norm": nn.LayerNorm(48, bias=False),
    }
    done = accelerate(nn.ModuleDict(layers))
    assert not done.norms
    left = {name: why for why, names in done.left.items() for name in names}
    no_norm = "{} is no RMSNorm of its weight"
    assert left == {
        "plus_two": no_norm.format("PlusTwoNorm"),
        "failing": no_norm.format("FailingNorm"),
        "wide": no_norm.format("WideNorm"),
        "without_epsilon": no_norm.format("WithoutEpsilonNorm"),
        "replaced": "the forward was replaced",
        "moved": "on meta: move the model to a GPU first",
    }


def test_a_subclass_of_a_patched_class_stays():
    norm, x = norm_of("llama"), torch.randn(2, 48)
    accelerate(norm, backend="tuner")
    norm.__class__ = type("FSDPNorm", (type(norm),), {})
    done = accelerate(norm, backend="tuner")
    assert done.left == {"FSDPNorm is a subclass made after accelerate()": ("",)}
    torch.testing.assert_close(norm(x), norm_of("llama")(x))


@pytest.fixture
def table(tmp_path, make_row, make_table):
    """A table by which a norm of 48 float32 is faster than torch's for 6 rows, and slower for 5."""
    parts = {"dtype": "float32", "op": "rms_norm", "extras": {"eps": 1e-6}}
    version = registry.find("rms_norm", "rms_norm_whole").version
    config = Config("rms_norm_whole", BLOCK_SIZE_M=4, num_warps=4)
    rows = [
        Row(Problem(m, 48, 1, **parts), config, version, make_row().made, 10.0, 1.0, ratio, 1)
        for m, ratio in ((6, 1.2), (5, 0.9))
    ]
    return make_table(*rows, op="rms_norm", device=INTERPRETER).write(tmp_path)


def test_auto_follows_the_evidence_of_norms_that_add_one_to_their_weight(table, ours, fused):
    tuner.use(table)
    norm, own, plain = norm_of("gemma2"), norm_of("gemma2"), norm_of("llama")
    for each in (norm, own):
        nn.init.constant_(each.weight, 0.5)
    assert accelerate(norm).norms == accelerate(plain).norms == ("",)
    fused.clear()
    given = [torch.randn(2, 3, 48), torch.randn(5, 48), torch.randn(7, 48)]
    with torch.no_grad():
        for x in (*given, *given):
            torch.testing.assert_close(norm(x), own(x))
            torch.testing.assert_close(plain(x), torch.rms_norm(x, (48,), eps=1e-6))
        assert ours == [(2, 3, 48)] * 4
        assert fused == [(5, 48), (7, 48)] * 2, "of the one without an offset"
        tuner.use(None)
        torch.testing.assert_close(norm(given[0]), own(given[0]), rtol=0, atol=0)
    assert (len(ours), len(fused)) == (4, 4)


def test_auto_follows_the_evidence_of_each_number_of_rows(table, ours, fused):
    norm = norm_of("llama")
    accelerate(norm)
    fused.clear()
    given = [torch.randn(2, 3, 48), torch.randn(5, 48), torch.randn(7, 48)]
    with torch.no_grad():
        for x in given:
            norm(x)
        assert (len(ours), len(fused)) == (0, 3), "nothing is known yet"
        tuner.use(table)
        for x in (*given, *given):
            norm(x)
        assert ours == [(2, 3, 48), (2, 3, 48)]
        assert fused[3:] == [(5, 48), (7, 48)] * 2
        norm.variance_epsilon = 1e-5
        norm(given[0])  # is another family
        assert (len(ours), len(fused)) == (2, 8)
        tuner.use(None)
        norm.variance_epsilon = 1e-6
        norm(given[0])
    assert (len(ours), len(fused)) == (2, 9)


def test_what_is_left_to_torch_on_one_gpu_is_asked_about_anew_on_another():
    norm = norm_of("llama")
    accelerate(norm, backend="auto")
    with torch.no_grad():
        norm(torch.randn(2, 48))
    left = accelerate_norm.choice_of("variance_epsilon", 0.0, True).left_to_torch
    assert (torch.Size((2, 48)), torch.float32, torch.device("cpu"), norm.variance_epsilon) in left
    assert (torch.Size((2, 48)), torch.float32, torch.device("cuda", 1), norm.variance_epsilon) not in left


def test_what_no_kernel_takes_is_torchs(ours, fused):
    wide, norm = norm_of("llama", size=32769), norm_of("llama")
    for each in (wide, norm):
        accelerate(each, backend="tuner")
    fused.clear()
    x = torch.randn(4, 48)
    with torch.no_grad():
        wide(torch.randn(1, 32769))
        norm(torch.empty(0, 48))
        norm.variance_epsilon = 0.0
        norm(x)
        norm.double()(x.double())
        assert (len(ours), len(fused)) == (0, 4)
        norm.float().variance_epsilon = 1e-5
        torch.testing.assert_close(norm(x), nn.functional.rms_norm(x, (48,), norm.weight, 1e-5))
    assert ours == [(4, 48)]


@pytest.mark.parametrize("backend", ["auto", "tuner"])
def test_gradients_autocast_compilers_and_other_dtypes_get_the_norms_own_forward(backend, fused, ours):
    norm, own, x = norm_of("llama"), norm_of("llama"), torch.randn(4, 48)
    accelerate(norm, backend=backend)
    fused.clear()
    torch.testing.assert_close(norm(x), own(x), rtol=0, atol=0)
    norm(x).sum().backward()
    assert norm.weight.grad is not None
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            assert norm(x).dtype == own(x).dtype
        assert norm(x.bfloat16()).dtype == torch.float32
        compiled = torch.compile(norm, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), own(x), rtol=0, atol=0)
        assert "rms_norm" not in make_fx(norm)(x).code
        with pytest.raises(RuntimeError):
            norm(x[:, :47])
        assert not fused
        assert not ours
        norm(x)
    assert (len(fused), len(ours)) == ((1, 0) if backend == "auto" else (0, 1))


@pytest.mark.parametrize("backend", ["auto", "tuner"])
def test_hooks_names_copies_and_pickles_stay(backend, fused, ours):
    model = nn.Sequential(norm_of("llama"), nn.Linear(48, 8))
    seen, kind = [], type(model[0])
    model[0].register_forward_hook(lambda *given: seen.append(given[2].shape))
    names = list(model.state_dict())
    accelerate(model, only="0", backend=backend)
    called = fused if backend == "auto" else ours
    assert type(model[1]) is nn.Linear
    assert isinstance(model[0], kind)
    assert type(model[0]).__name__ == "FusedLlamaRMSNorm"
    assert list(model.state_dict()) == names
    x, kept = torch.randn(4, 48), model[0].forward
    with torch.no_grad():
        for each in (model, copy.deepcopy(model)):
            called.clear()
            each(x)
            assert len(called) == 1
        assert seen == [(4, 48), (4, 48)]
        model[0]._forward_hooks.clear()
        loaded = pickle.loads(pickle.dumps(model[0]))
        assert type(loaded) is type(model[0])
        model[0].variance_epsilon = 1.0
        assert model[0](x).norm() < 0.9 * loaded(x).norm()
        called.clear()
        restore(model)
        torch.testing.assert_close(kept(x), model[0](x))
    assert type(model[0]) is kind
    assert not called


def test_a_norm_without_a_weight_here_keeps_its_own_forward():
    """Of a sharded model a rank may hold no part of a weight: then nothing shows what the norm computes."""
    norm = norm_of("gemma")
    norm.weight.data = torch.empty(0)
    assert accelerate(nn.Sequential(norm), backend="tuner").norms == ()


def test_a_norm_that_raises_or_is_tried_under_another_device_is_no_error():
    class CudaRMSNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.eps = nn.Parameter(torch.ones(48)), 1e-6

        def forward(self, x):
            assert x.is_cuda
            return x

    assert accelerate(nn.Sequential(CudaRMSNorm()), backend="tuner").norms == ()
    norm = norm_of("llama")
    with torch.device("meta"):
        assert accelerate(nn.Sequential(norm), backend="tuner").norms == ("0",)


def test_a_norm_takes_its_input_by_name():
    norm = norm_of("llama")
    x = torch.randn(5, 48)
    with torch.no_grad():
        expected = norm(x)
        accelerate(nn.Sequential(norm), backend="tuner")
        torch.testing.assert_close(norm(hidden_states=x), expected)
