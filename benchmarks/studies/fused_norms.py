"""What one kernel for each RMSNorm adds to `tuner.models.accelerate`, and which kernel.

    python benchmarks/studies/fused_norms.py --out RESULT.json
    python benchmarks/studies/fused_norms.py --out RESULT.json --rehearse

Transformers computes an RMSNorm in eight steps, each a kernel. A decode step of the models of claims/model_play.py, by
the tables that come with triton-tuner: torch's time over that of the model with accelerated linear layers; with norms
by torch's fused kernel too; and with norms by a Triton kernel of one row a program, which lets the next kernel start at
once. Norms by torch's fused kernel are timed alone as well.
"""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "claims"))
import model_play

sys.path.insert(0, str(Path(__file__).parents[1]))
import record
import torch
import triton
import triton.language as tl

LINEARS = ["*_proj", "lm_head"]


@triton.jit
def _norm_kernel(x_ptr, weight_ptr, out_ptr, columns, eps, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    x = tl.load(x_ptr + row * columns + at, at < columns, 0.0).to(tl.float32)
    weight = tl.load(weight_ptr + at, at < columns, 0.0).to(tl.float32)
    scaled = (x * tl.rsqrt(tl.sum(x * x) / columns + eps)).to(out_ptr.dtype.element_ty).to(tl.float32)
    tl.store(out_ptr + row * columns + at, (scaled * weight).to(out_ptr.dtype.element_ty), at < columns)


def by_kernel(norm: Any, x: Any, overlaps: bool) -> Any:
    columns, out = x.shape[-1], torch.empty_like(x)
    block = triton.next_power_of_2(columns)
    options = {"num_warps": max(1, min(16, block // 512)), **({"launch_pdl": True} if overlaps else {})}
    given = (x, norm.weight, out, columns, norm.variance_epsilon, block, overlaps)
    _norm_kernel[(x.numel() // columns,)](*given, **options)
    return out


def by_torch(norm: Any, x: Any) -> Any:
    return torch.nn.functional.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)


def with_norms(model: Any, by: Any) -> Any:
    """The model with every RMSNorm by a function."""
    for layer in model.modules():
        if type(layer).__name__.endswith("RMSNorm"):
            layer.forward = functools.partial(by, layer)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", choices=model_play.MODELS)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batches", type=model_play.numbers, default=[1, 8, 32, 128])
    parser.add_argument("--prefills", type=model_play.numbers, default=[1024])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    options.model = options.model or ("tiny" if options.rehearse else "llama-8b")
    if options.rehearse:
        options.layers, options.batches, options.prefills, options.rounds = 1, [1], [], 2
    from tuner.models import accelerate

    plain = model_play.plain_model(options)
    copies = [model_play.shared_copy(plain) for _ in range(5)]
    alone, overlapping = (functools.partial(by_kernel, overlaps=each) for each in (False, not options.rehearse))
    with_norms(copies[4], by_torch)
    said = {
        "linear layers": str(accelerate(copies[0], only=LINEARS)),
        "norms by torch too": str(accelerate(with_norms(copies[1], by_torch))),
        "norms by Triton too": str(accelerate(with_norms(copies[2], alone))),
        "the same, overlapping": str(accelerate(with_norms(copies[3], overlapping))),
        "norms by torch alone": "nothing",
    }
    variants = dict(zip(said, copies, strict=True))
    found: dict[str, dict[str, Any]] = {"eager": {}, "captured": {}}
    with torch.inference_mode():
        for name, batch, length in model_play.sizes(options):
            steps = {each: model_play.step_of(model, batch, length) for each, model in variants.items()}
            play("eager", model_play.step_of(plain, batch, length), steps, name, found, options)
            if not options.rehearse:
                graphs = {each: model_play.captured(step) for each, step in steps.items()}
                theirs = model_play.captured(model_play.step_of(plain, batch, length))
                play("captured", theirs, graphs, name, found, options)
                del graphs, theirs
    record.write(options.out, {"model": options.model, "accelerate": said, **found})
    for kind, names in found.items():
        for name, sized in names.items():
            print(f"{kind:9} {name:24}", *(f"{step['torch_over_tuner']:.3f}" for step in sized.values()))


def play(kind: str, theirs: Any, steps: dict[str, Any], size: str, found: Any, options: argparse.Namespace) -> None:
    clock = model_play.host_seconds if kind == "eager" else model_play.device_seconds
    for name, step in steps.items():
        timed = model_play.paired(theirs, step, clock, options.rounds)
        timed["difference"] = difference(theirs(), step())
        found[kind].setdefault(name, {})[size] = timed


def difference(theirs: Any, ours: Any) -> float:
    error = ((theirs.double() - ours.double()).norm() / theirs.double().norm()).item()
    if not error < 0.05:
        sys.exit(f"results differ by {error}")
    return round(error, 6)


if __name__ == "__main__":
    main()
