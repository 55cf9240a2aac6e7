"""`tuner.models.accelerate` on the norms of models: which run on one kernel, that they are right, and what stays."""

from __future__ import annotations

import copy
import pickle
from importlib import import_module

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from tuner.models import accelerate, restore

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


def norm_of(model, name=None):
    return getattr(import_module(f"transformers.models.{model}.modeling_{model}"), name or NORMS[model])(48)


@pytest.fixture(autouse=True)
def seeded(no_tables):
    torch.manual_seed(0)


@pytest.fixture
def fused(monkeypatch):
    """The shapes that torch's own norm was called with."""
    seen, own = [], nn.functional.rms_norm
    monkeypatch.setattr(nn.functional, "rms_norm", lambda x, *rest: seen.append(x.shape) or own(x, *rest))
    return seen


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("model", NORMS)
def test_the_norms_of_models_are_one_call_and_no_less_exact(model, dtype, fused):
    norm = norm_of(model).to(dtype)
    nn.init.normal_(norm.weight)
    x, exact = torch.randn(2, 3, 48).to(dtype), copy.deepcopy(norm).double()
    with torch.no_grad():
        before = norm(x)
        done = accelerate(norm)
        fused.clear()
        after = norm(x)
        wanted = exact.weight * torch.rms_norm(x.double(), (48,), eps=1e-6)
    assert done.norms == ("",)
    assert fused == [(2, 3, 48)]
    assert after.dtype == dtype
    error, theirs = ((each.double() - wanted).norm() for each in (after, before))
    assert error <= 1.01 * theirs


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
    class PlusOneNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.eps = nn.Parameter(torch.ones(48)), 1e-6

        def forward(self, x):
            return nn.functional.rms_norm(x, (48,), 1 + self.weight, self.eps)

    class FailingNorm(PlusOneNorm):
        def forward(self, x):
            return x.flatten(1, 2) * self.weight

    class WideNorm(PlusOneNorm):
        def forward(self, x):
            return nn.functional.rms_norm(x.float(), (48,), self.weight.float(), self.eps)

    class WithoutEpsilonNorm(PlusOneNorm):
        def __init__(self):
            super().__init__()
            self.eps = None

    replaced, moved = norm_of("llama"), norm_of("llama").to("meta")
    replaced.forward = lambda x: x
    layers = {
        "gemma": norm_of("gemma2", "Gemma2RMSNorm"),
        "plus_one": PlusOneNorm(),
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
    no_norm = "norms that are no RMSNorm of their weight ({})"
    assert left == {
        "gemma": no_norm.format("Gemma2RMSNorm"),
        "plus_one": no_norm.format("PlusOneNorm"),
        "failing": no_norm.format("FailingNorm"),
        "wide": no_norm.format("WideNorm"),
        "without_epsilon": no_norm.format("WithoutEpsilonNorm"),
        "replaced": "whose forward somebody replaced",
        "moved": "on meta (move the model to a GPU first)",
    }


def test_gradients_autocast_compilers_and_other_dtypes_get_the_norms_own_forward(fused):
    norm, own, x = norm_of("llama"), norm_of("llama"), torch.randn(4, 48)
    accelerate(norm)
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
        norm(x)
    assert len(fused) == 1


def test_hooks_names_copies_and_pickles_stay(fused):
    model = nn.Sequential(norm_of("llama"), nn.Linear(48, 8))
    seen, kind = [], type(model[0])
    model[0].register_forward_hook(lambda *given: seen.append(given[2].shape))
    names = list(model.state_dict())
    accelerate(model, only="0")
    assert type(model[1]) is nn.Linear
    assert isinstance(model[0], kind)
    assert type(model[0]).__name__ == "FusedLlamaRMSNorm"
    assert list(model.state_dict()) == names
    x, kept = torch.randn(4, 48), model[0].forward
    with torch.no_grad():
        for each in (model, copy.deepcopy(model)):
            fused.clear()
            each(x)
            assert len(fused) == 1
        assert seen == [(4, 48), (4, 48)]
        model[0]._forward_hooks.clear()
        loaded = pickle.loads(pickle.dumps(model[0]))
        assert type(loaded) is type(model[0])
        model[0].variance_epsilon = 1.0
        assert model[0](x).norm() < 0.9 * loaded(x).norm()
        fused.clear()
        restore(model)
        torch.testing.assert_close(kept(x), model[0](x))
    assert type(model[0]) is kind
    assert not fused
