"""What joined weights would add to `tuner.models.accelerate`: gate and up in one product, and q, k and v in one.

    python benchmarks/studies/joined_layers.py --out RESULT.json
    python benchmarks/studies/joined_layers.py --out RESULT.json --rehearse

A captured decode step of the models of claims/model_play.py, by the tables that come with triton-tuner: torch's time
over that of the accelerated model, of that model with gate and up joined, and with q, k and v joined too. Joined
weights are copies here, and torch's own joined model is timed as well: what joining brings without tuned kernels.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "claims"))
import model_play

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

PRODUCTS = ["*.self_attn.*", "*.mlp.*", "lm_head"]
"""Norms keep their own forward on both sides."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", choices=model_play.MODELS)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batches", type=model_play.numbers, default=[1, 8, 32, 128])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    options.model = options.model or ("tiny" if options.rehearse else "llama-8b")
    import torch

    from tuner.models import accelerate

    plain = model_play.plain_model(options)
    variants = {
        "exchanged": model_play.shared_copy(plain),
        "gate and up joined": with_mlps_joined(model_play.shared_copy(plain)),
        "q, k and v joined too": with_attention_joined(with_mlps_joined(model_play.shared_copy(plain))),
        "torch, all joined": with_attention_joined(with_mlps_joined(model_play.shared_copy(plain))),
    }
    said = {
        name: str(accelerate(each, only=PRODUCTS)) for name, each in variants.items() if not name.startswith("torch")
    }
    ready = (lambda step: step) if options.rehearse else model_play.captured
    clock = model_play.host_seconds if options.rehearse else model_play.device_seconds
    found: dict[str, dict[str, Any]] = {}
    with torch.inference_mode():
        for batch in options.batches:
            theirs = ready(model_play.step_of(plain, batch, 1))
            for name, model in variants.items():
                ours = ready(model_play.step_of(model, batch, 1))
                same(theirs(), ours())
                found.setdefault(name, {})[f"decode {batch}"] = model_play.paired(theirs, ours, clock, options.rounds)
    record.write(options.out, {"model": options.model, "accelerate": said, "captured": found})
    for name, steps in found.items():
        print(f"{name:24}", *(f"{step['torch_over_tuner']:.3f}" for step in steps.values()))


def with_mlps_joined(model: Any) -> Any:
    """The model with one product for gate and up in each MLP."""
    import torch

    class Joined(torch.nn.Module):
        def __init__(self, mlp: Any) -> None:
            super().__init__()
            self.gate_up, self.down, self.act = joined(mlp.gate_proj, mlp.up_proj), mlp.down_proj, mlp.act_fn

        def forward(self, x: Any) -> Any:
            gate, up = self.gate_up(x).chunk(2, dim=-1)
            return self.down(self.act(gate) * up)

    for layer in model.model.layers:
        layer.mlp = Joined(layer.mlp)
    return model


def with_attention_joined(model: Any) -> Any:
    """The model with one product for q, k and v: the first asked for makes all three."""
    import torch

    class Query(torch.nn.Module):
        def __init__(self, attention: Any) -> None:
            super().__init__()
            parts = attention.q_proj, attention.k_proj, attention.v_proj
            self.all, self.sizes = joined(*parts), [each.out_features for each in parts]
            self.rest: list[Any] = []

        def forward(self, x: Any) -> Any:
            query, *self.rest = self.all(x).split(self.sizes, dim=-1)
            return query

    class Taken(torch.nn.Module):
        def __init__(self, query: Query, at: int) -> None:
            super().__init__()
            self.of, self.at = [query], at  # in a list: it is a part of the attention already

        def forward(self, _x: Any) -> Any:
            return self.of[0].rest[self.at]

    for layer in model.model.layers:
        query = Query(layer.self_attn)
        layer.self_attn.q_proj = query
        layer.self_attn.k_proj, layer.self_attn.v_proj = Taken(query, 0), Taken(query, 1)
    return model


def joined(*linears: Any) -> Any:
    """One linear layer with the outputs of all."""
    import torch

    first = linears[0]
    with torch.device("meta"):
        layer = torch.nn.Linear(first.in_features, sum(each.out_features for each in linears), first.bias is not None)
    layer.weight = torch.nn.Parameter(torch.cat([each.weight for each in linears]), requires_grad=False)
    if first.bias is not None:
        layer.bias = torch.nn.Parameter(torch.cat([each.bias for each in linears]), requires_grad=False)
    return layer.eval()


def same(theirs: Any, ours: Any) -> None:
    error = ((theirs.double() - ours.double()).norm() / theirs.double().norm()).item()
    if not error < 0.05:
        sys.exit(f"results differ by {error}")


if __name__ == "__main__":
    main()
