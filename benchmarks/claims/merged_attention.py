"""What products that take in more bring to a decode step: steps with them and without, against torch's.

    python benchmarks/claims/merged_attention.py --out RESULT.json --tables DIR [--model llama-8b] [--part residual]
    python benchmarks/claims/merged_attention.py --out RESULT.json --rehearse

The models are those of model_play.py, and DIR/tables what its part `tune` exported. All three models have the same
weights: torch's, an accelerated one, and one that is accelerated but for one part. Of `--part attention` its q, k and v
are three launches; of `--part residual` each addition of the residual is a launch, and torch.compile fuses its norms.
Steps of few sequences, called from Python (by the host's clock), as a CUDA graph, and as a graph of what torch.compile
made: torch's time over each, the time without that part over the time with it, and the norm of the difference from
torch's result over its norm. Each pair takes turns.
"""

from __future__ import annotations

import argparse
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import model_play

sys.path.insert(0, str(Path(__file__).parents[1]))
import record
import torch
import turns

PARTS = {
    "attention": ("three launches", "one launch", "three over one"),
    "residual": ("apart", "added", "apart over added"),
}
"""What a result calls the steps without a part and with it, and their ratio."""
WAYS = ("from Python", "captured", "compiled, captured")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="the result, as JSON")
    parser.add_argument("--tables", help="the folder of model_play.py")
    parser.add_argument("--model", default="llama-8b")
    parser.add_argument("--part", choices=PARTS, default="attention")
    parser.add_argument("--batches", type=turns.numbers, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rehearse", action="store_true", help="a tiny model under the interpreter, not compiled")
    args = parser.parse_args()
    if args.tables:
        os.environ["TUNER_TABLES"] = str(Path(args.tables) / "tables")
    rehearsed = {"model": "tiny", "layers": 1, "backend": "tuner"}
    options = types.SimpleNamespace(
        **(rehearsed if args.rehearse else {"model": args.model, "layers": 6, "backend": "auto"}),
        rehearse=args.rehearse,
    )
    plain, whole, done = model_play.models(options)
    apart = turns.shared_copy(whole)
    print(done)
    restored = give_back(apart, args.part)
    assert restored > 0, done
    found: dict[str, Any] = {}
    without, with_it, over = PARTS[args.part]
    with torch.inference_mode():
        for batch in args.batches:
            ids = torch.ones((batch, 1), dtype=torch.long, device=next(plain.parameters()).device)
            for way in WAYS[:1] if args.rehearse else WAYS:
                clock = turns.host_seconds if way == "from Python" else turns.device_seconds
                theirs, slower, faster = (step_of(model, ids, way) for model in (plain, apart, whole))
                exact = theirs().float()
                of_step = found[f"{way}, batch {batch}"] = {
                    name: turns.paired(theirs, step, clock, args.rounds)
                    | {"difference": float(((step().float() - exact).norm() / exact.norm()).item())}
                    for name, step in ((without, slower), (with_it, faster))
                }
                pair = turns.paired(slower, faster, clock, args.rounds)
                of_step[over] = {
                    f"{without.split()[0]}_ms": pair["torch_ms"],
                    f"{with_it.split()[0]}_ms": pair["tuner_ms"],
                    over.replace(" ", "_"): pair["torch_over_tuner"],
                    **{name: pair[name] for name in ("least", "most")},
                }
                print(way, batch, of_step, flush=True)
                record.write(args.out, {"model": options.model, "part": args.part, "steps": found})


def give_back(model: Any, part: str) -> int:
    """Give the layers of a model that a part is about their own forward back, and nothing else; how many those are."""
    from tuner.models.accelerate_attention import TunedAttention
    from tuner.models.accelerate_residual import AddingLayer
    from tuner.models.class_patch import restore_class

    kind = TunedAttention if part == "attention" else AddingLayer
    return sum(restore_class(layer) for layer in model.modules() if isinstance(layer, kind))


def step_of(model: Any, ids: torch.Tensor, way: str) -> Callable[[], Any]:
    def step() -> Any:
        return called(input_ids=ids, use_cache=False, logits_to_keep=1).logits

    torch._dynamo.reset()
    called = torch.compile(model, dynamic=False) if way.startswith("compiled") else model
    step()
    return step if way == "from Python" else turns.captured(step)


if __name__ == "__main__":
    main()
