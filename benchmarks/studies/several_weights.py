"""What one launch for q, k and v would bring to a decode step: a kernel that reads three weights where they lie.

    python benchmarks/studies/several_weights.py --out RESULT.json
    python benchmarks/studies/several_weights.py --out RESULT.json --rehearse

Captured steps of Llama 3 8B at batch 1 by the tables that come with triton-tuner, called from Python and compiled:
torch's time over ours as it is, and with q, k and v of each layer by one kernel that takes the three weights, whose
rows its programs share out. k and v are handed over within one forward of the block here, as only a study may.
"""

from __future__ import annotations

import argparse
import functools
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "claims"))
import model_play

sys.path.insert(0, str(Path(__file__).parents[1]))
import record
import torch
import triton
import triton.language as tl


@triton.jit
def _rows_kernel(x_ptr, q_ptr, k_ptr, v_ptr, out_ptr, n_q, n_k, columns, BLOCK: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    row = tl.program_id(0)
    weight_ptr, first = q_ptr, row
    if row >= n_q:
        weight_ptr, first = k_ptr, row - n_q
    if row >= n_q + n_k:
        weight_ptr, first = v_ptr, row - n_q - n_k
    at = tl.arange(0, BLOCK)
    begin = weight_ptr + first.to(tl.int64) * columns
    sums = tl.zeros((BLOCK,), tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
    for step in range(0, columns, BLOCK):
        inside = step + at < columns
        weight = tl.load(begin + step + at, inside, 0.0, eviction_policy="evict_first")
        x = tl.load(x_ptr + step + at, inside, 0.0, eviction_policy="evict_last")
        sums += weight.to(tl.float32) * x.to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    tl.store(out_ptr + row, tl.sum(sums, 0).to(out_ptr.dtype.element_ty))


@torch.library.custom_op("study::qkv", mutates_args=())
def qkv(x: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """x times the three weights, side by side; x has one row."""
    out = x.new_empty((*x.shape[:-1], len(q) + len(k) + len(v)))
    columns = x.shape[-1]
    options = {"num_warps": 4, **({"launch_pdl": True} if x.is_cuda else {})}
    block = min(2048, triton.next_power_of_2(columns))
    _rows_kernel[(out.shape[-1],)](x, q, k, v, out, len(q), len(k), columns, block, x.is_cuda, **options)
    return out


@qkv.register_fake
def _(x: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], len(q) + len(k) + len(v)))


def hand_over(model: Any) -> None:
    """Have q of each layer compute k and v too, which find their part of the result."""
    for layer in model.model.layers:
        layers = [layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj]
        parts: list[torch.Tensor] = []
        for place, each in enumerate(layers):
            each.layers_of_study, each.parts_of_study, each.place_of_study = [layers], parts, place
            each.__class__ = taking_part(type(each))


@functools.cache
def taking_part(kind: type) -> type:
    """A kind of layer whose first one computes, and whose others hand out. (Of a class, since Dynamo asks that.)"""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        if self.place_of_study == 0:
            weights = [each.weight for each in self.layers_of_study[0]]
            self.parts_of_study[:] = qkv(x, *weights).split([len(each) for each in weights], dim=-1)
        found: torch.Tensor = self.parts_of_study[self.place_of_study]
        return found

    return type(kind.__name__, (kind,), {"forward": forward})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="the result, as JSON")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rehearse", action="store_true", help="a tiny model under the interpreter, not compiled")
    args = parser.parse_args()
    options = types.SimpleNamespace(
        model="llama-8b", layers=1 if args.rehearse else 6, rehearse=args.rehearse, backend="auto"
    )
    if args.rehearse:
        model_play.MODELS["llama-8b"] = ("LlamaConfig", {**model_play.TINY, "vocab_size": 256})
        options.backend = "tuner"
    plain, ours, done = model_play.models(options)
    joined = model_play.shared_copy(ours)
    hand_over(joined)
    print(done)
    ids = torch.tensor([[1]], device=next(plain.parameters()).device)
    clock = model_play.host_seconds if args.rehearse else model_play.device_seconds

    def step_of(model: Any, compiled: bool) -> Callable[[], Any]:
        def forward(ids: torch.Tensor) -> Any:
            return model(input_ids=ids, use_cache=False, logits_to_keep=1).logits

        torch._dynamo.reset()
        program = torch.compile(forward, dynamic=False) if compiled else forward
        program(ids)
        return (lambda: program(ids)) if args.rehearse else model_play.captured(lambda: program(ids))

    found: dict[str, Any] = {}
    with torch.inference_mode():
        for compiled in (False,) if args.rehearse else (False, True):
            theirs = step_of(plain, compiled)
            exact = theirs().float()
            for name, model in (("as it is", ours), ("one launch for q, k and v", joined)):
                step = step_of(model, compiled)
                key = f"{name}, compiled" if compiled else name
                found[key] = model_play.paired(theirs, step, clock, args.rounds)
                found[key]["difference"] = float(((step().float() - exact).norm() / exact.norm()).item())
                print(key, found[key], flush=True)
    record.write(args.out, {"steps": found})


if __name__ == "__main__":
    main()
