"""What a compiled decode step gains where kernels start while the one before them ends, and how norms take part.

    python benchmarks/studies/compiled_norms.py --out RESULT.json
    python benchmarks/studies/compiled_norms.py --out RESULT.json --rehearse

Captured, compiled steps of Llama 3 8B at batch 1 by the tables that come with triton-tuner: torch's time over ours. As
they are, Inductor fuses each norm with the addition before it, and its kernel lets no other start early. `operator` has
each norm by `triton_tuner::rms_norm`, and the addition as a kernel of Inductor's. `added` has both in one kernel of
Triton's that lets the next start at once. Each, and torch's own step, is compiled once more with Inductor's
`triton.enable_pdl`, by which its kernels start early too. Every ratio is over torch's step as it is.
"""

from __future__ import annotations

import argparse
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1] / "claims"))
import model_play

sys.path.insert(0, str(Path(__file__).parents[1]))
import record
import torch
import triton
import triton.language as tl

from tuner.models import accelerate_norm


@triton.jit
def _add_norm_kernel(x_ptr, residual_ptr, weight_ptr, sum_ptr, out_ptr, columns, eps, BLOCK: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip  # noqa: E501
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row + at, at < columns, 0.0).to(tl.float32)
    residual = tl.load(residual_ptr + row + at, at < columns, 0.0).to(tl.float32)
    weight = tl.load(weight_ptr + at, at < columns, 0.0).to(tl.float32)
    rounded = (x + residual).to(sum_ptr.dtype.element_ty)
    tl.store(sum_ptr + row + at, rounded, at < columns)
    exact = rounded.to(tl.float32)
    scaled = exact * tl.rsqrt(tl.sum(exact * exact) / columns + eps) * weight
    tl.store(out_ptr + row + at, scaled.to(out_ptr.dtype.element_ty), at < columns)


@torch.library.custom_op("study::add_norm", mutates_args=())
def add_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of x and the residual, and its norm."""
    total, out, columns = torch.empty_like(residual), torch.empty_like(residual), x.shape[-1]
    pdl = x.is_cuda
    block = triton.next_power_of_2(columns)
    options = {"num_warps": max(1, min(16, block // 512)), **({"launch_pdl": True} if pdl else {})}
    given = (x, residual, weight, total, out, columns, eps, block, pdl)
    _add_norm_kernel[(x.numel() // columns,)](*given, **options)
    return total, out


@add_norm.register_fake
def _(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ARG001
    return torch.empty_like(residual), torch.empty_like(residual)


def by_operator(norm: Any, x: torch.Tensor) -> torch.Tensor:
    """A norm's forward in a compiled program."""
    normalized: torch.Tensor = torch.ops.triton_tuner.rms_norm(x, norm.weight, norm.variance_epsilon, 0.0)
    return normalized


def with_added_norms(model: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """The model's logits of a step, with each norm and the addition before it in one kernel."""
    inner, eps = model.model, model.config.rms_norm_eps
    layers = list(inner.layers)

    def logits(ids: torch.Tensor) -> torch.Tensor:
        residual = inner.embed_tokens(ids)
        places = inner.rotary_emb(residual, torch.arange(residual.shape[1], device=residual.device)[None])
        x = by_operator(layers[0].input_layernorm, residual)
        for layer, norm in zip(layers, [*(each.input_layernorm for each in layers[1:]), inner.norm], strict=True):
            x, _ = layer.self_attn(hidden_states=x, position_embeddings=places, attention_mask=None)
            residual, x = add_norm(x, residual, layer.post_attention_layernorm.weight, eps)
            residual, x = add_norm(layer.mlp(x), residual, norm.weight, eps)
        result: torch.Tensor = model.lm_head(x[:, -1:])
        return result

    return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="the result, as JSON")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rehearse", action="store_true", help="a tiny model under the interpreter, not compiled")
    args = parser.parse_args()
    options = types.SimpleNamespace(
        model="tiny" if args.rehearse else "llama-8b", layers=1 if args.rehearse else 6, rehearse=args.rehearse
    )
    options.backend = "tuner" if args.rehearse else "auto"
    plain, ours, done = model_play.models(options)
    print(done)
    ids = torch.tensor([[1]], device=next(plain.parameters()).device)
    norms = {type(each) for each in ours.modules() if isinstance(each, accelerate_norm.FusedNorm)}

    def step_of(forward: Callable[[torch.Tensor], Any], pdl: bool) -> Callable[[], Any]:
        torch._dynamo.reset()
        program = torch.compile(forward, backend="eager" if args.rehearse else "inductor", dynamic=False)
        with torch._inductor.config.patch({"triton.enable_pdl": pdl}):
            program(ids)
        return (lambda: program(ids)) if args.rehearse else model_play.captured(lambda: program(ids))

    forwards: dict[str, Callable[[torch.Tensor], Any]] = {
        "torch": lambda ids: plain(input_ids=ids, use_cache=False, logits_to_keep=1).logits,
        "as it is": lambda ids: ours(input_ids=ids, use_cache=False, logits_to_keep=1).logits,
        "added": with_added_norms(ours),
        "operator": lambda ids: ours(input_ids=ids, use_cache=False, logits_to_keep=1).logits,
    }
    steps = {}
    with torch.inference_mode():
        for name, forward in forwards.items():
            if name == "operator":
                for kind in norms:
                    mock.patch.object(kind, "forward", by_operator).start()
            for pdl in (False, True):
                steps[name + ", pdl" * pdl] = step_of(forward, pdl)
        theirs = steps.pop("torch")
        exact = theirs().float()
        clock = model_play.host_seconds if args.rehearse else model_play.device_seconds
        found = {}
        for name, step in steps.items():
            found[name] = model_play.paired(theirs, step, clock, args.rounds)
            found[name]["difference"] = float(((step().float() - exact).norm() / exact.norm()).item())
            print(name, found[name])
    record.write(args.out, {"steps": found})


if __name__ == "__main__":
    main()
