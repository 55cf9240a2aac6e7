"""flash-linear-attention's layers under adoption: outputs and gradients are those of the library alone.

    python benchmarks/claims/adopted_layers.py --out FOLDER
    python benchmarks/claims/adopted_layers.py --out FOLDER --layers HGRNAttention --interpreter --workers 1

flash-linear-attention, fla-core and what they need must be importable. Every layer of `fla.layers` that can be made by
its default arguments plays forward and backward, of the same weights and inputs, twice in each of two processes:
without triton-tuner, and started by `tuner exec --adopt fla --on-miss first`. On both sides a kernel runs by the first
of its configs that launches (`chosen_configs.py` sees to it without triton-tuner), so bits may be compared. Where a
side does not repeat its own bits, the sums of its tensors' magnitudes are compared instead, with what they differ by
between two plays of one process. A layer that cannot be made or played must fail on both sides; one that loses the
GPU's context ends its process. Both sides share a compile cache, so that a config is compiled once. FOLDER must not
exist yet.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from chosen_configs import plugin
from commands import LAUNCHER, environment, new_folder

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

RESULT = "adopted-layers.json"
ADOPT = ("exec", "--adopt", "fla", "--on-miss", "first", "--")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("--layers", default="", help="names separated by commas; all of them otherwise")
    parser.add_argument("--workers", type=int, default=14, help="processes at once")
    parser.add_argument("--limit-s", type=float, default=100.0, help="begin no layer of a side after so long")
    parser.add_argument("--interpreter", action="store_true", help="rehearse without a GPU")
    args = parser.parse_args()
    folder = new_folder(parser, args.out)
    sides = {"alone": side(folder, args, "alone", ()), "adopted": side(folder, args, "adopted", ADOPT)}
    alone, adopted = (sides[name].pop("layers") for name in ("alone", "adopted"))
    layers = {name: compared(alone[name], adopted[name]) for name in sorted(alone.keys() & adopted.keys())}
    verdicts = [each["verdict"] for each in layers.values()]
    counts = {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))}
    print(sides, counts, flush=True)
    late = sorted(alone.keys() ^ adopted.keys())
    record.write(folder / RESULT, {"sides": sides, "verdicts": counts, "one_side_only": late, "layers": layers})


def side(folder: Path, args: argparse.Namespace, name: str, before: tuple[str, ...]) -> dict[str, Any]:
    """Play every layer, some in each of several processes; the compile cache is that of the folder."""
    out, began = folder / name, time.monotonic()
    out.mkdir()
    values = {
        "CHOSEN_FIRST": "" if before else "1",
        "PYTHONPATH": ":".join([plugin(folder), *filter(None, [environment().get("PYTHONPATH")])]),
        "TRITON_CACHE_DIR": folder / "cache",
        "TUNER_DB": folder / "none.db",
        **({"TRITON_INTERPRET": "1"} if args.interpreter else {}),
    }
    started = [sys.executable, "-c", LAUNCHER, *before] if before else []
    processes = []
    with (folder / "log.txt").open("a") as log:
        for part in range(args.workers):
            told = [args.layers, str(part), str(args.workers), str(time.time() + args.limit_s), str(out)]
            command = [*started, sys.executable, "-c", CHILD, *told]
            processes.append(subprocess.Popen(command, cwd=folder, env=environment(**values), stdout=log, stderr=log))
        codes = [each.wait() for each in processes]
    if any(codes):
        sys.exit(f"{name} ended with {codes}:\n{(folder / 'log.txt').read_text()[-2000:]}")
    parts = [json.loads(path.read_text()) for path in out.glob("*.json")]
    layers = {layer: each for part in parts for layer, each in part["layers"].items()}
    return {
        "seconds": round(time.monotonic() - began, 1),
        "measured": sum(part["measured"] for part in parts),
        "compiled": sum(part["compiled"] for part in parts),
        "keys": sum(len(part["configs"]) for part in parts),
        "keys_by_tuner": sum(len(part["served"]) for part in parts),
        "layers": layers,
    }


def compared(alone: dict[str, Any], adopted: dict[str, Any]) -> dict[str, Any]:
    """What two plays of a layer on each side say of it."""
    if "error" in alone or "error" in adopted:
        same = "error" in alone and "error" in adopted
        verdict = "fails on both sides" if same else "DIFFERS"
        return {"verdict": verdict, "alone": alone.get("error"), "adopted": adopted.get("error")}
    keys = alone["configs"].keys() & adopted["configs"].keys()
    others = sorted(key for key in keys if alone["configs"][key] != adopted["configs"][key])
    told = {"tensors": len(alone["digests"][0]), "keys": len(keys), "other_configs": others}
    if alone["digests"][0] == adopted["digests"][0]:
        return {"verdict": "equal bit for bit", **told}
    between = spread(alone["sums"][0], adopted["sums"][0])
    within = max(spread(*alone["sums"]), spread(*adopted["sums"]))
    repeats = [each["digests"][0] == each["digests"][1] for each in (alone, adopted)]
    verdict = "DIFFERS" if all(repeats) or between > 10 * within else "equal as far as it repeats itself"
    return {"verdict": verdict, "between": between, "within": within, "repeats_itself": repeats, **told}


def spread(one: list[float], two: list[float]) -> float:
    """The largest relative difference of sums; NaN beside NaN is none."""
    both = [(a, b) for a, b in zip(one, two, strict=True) if a == a or b == b]
    return max((abs(a - b) / max(abs(a), abs(b), 1e-30) if a == a and b == b else 1.0 for a, b in both), default=0.0)


CHILD = '''
import hashlib, inspect, json, os, sys, time
from collections.abc import Mapping
import chosen_configs
chosen_configs.begin()
import torch
import fla.layers

names, part, parts, until, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5]
device = "cuda" if torch.cuda.is_available() else "cpu"
dtype, B, T = (torch.bfloat16, 2, 256) if device == "cuda" else (torch.float32, 1, 32)
NEEDED = {"hidden_size": 1024, "num_heads": 8}  # where a layer has no default
names = names.split(",") if names else list(fla.layers.__all__)

def tensors(value):
    """The tensors of a nested value, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else []
    return [each for inner in values for each in tensors(inner)]

def play(layer, x):
    layer.zero_grad()
    x.grad = None
    given = {"attention_mask": None} if "attention_mask" in inspect.signature(layer.forward).parameters else {}
    outputs = [each for each in tensors(layer(x, **given)) if each.is_floating_point()]
    wanted = [each.float().square().mean() for each in outputs if each.requires_grad]
    sum(wanted).backward()
    grads = [x.grad, *(each.grad for each in layer.parameters())]
    return outputs + [each for each in grads if each is not None]

def digest(tensor):
    return hashlib.sha256(tensor.detach().float().cpu().numpy().tobytes()).hexdigest()[:16]

def judged(name):
    torch.manual_seed(0)
    kind = getattr(fla.layers, name)
    named = inspect.signature(kind).parameters
    missing = {each for each in NEEDED if each in named and named[each].default is inspect.Parameter.empty}
    given = {each: NEEDED[each] for each in missing} | ({"layer_idx": 0} if "layer_idx" in named else {})
    layer = kind(**given).to(device, dtype)
    width = given.get("hidden_size") or getattr(layer, "hidden_size", None) or named["hidden_size"].default
    x = torch.randn(B, T, width, device=device, dtype=dtype, requires_grad=True)
    before = chosen_configs.told()["configs"]
    plays = [play(layer, x) for _ in range(2)]
    configs = {key: each for key, each in chosen_configs.told()["configs"].items() if key not in before}
    return {
        "digests": [[digest(each) for each in one] for one in plays],
        "sums": [[each.detach().double().abs().sum().item() for each in one] for one in plays],
        "configs": configs,
    }

found = {}
for name in names[part::parts]:
    if time.time() > until:
        break
    start = time.time()
    try:
        found[name] = judged(name)
    except Exception as e:
        found[name] = {"error": f"{type(e).__name__}: {e}".partition("\\n")[0][:300]}
    print(name, found[name].get("error", ""), round(time.time() - start, 1), flush=True)
    with open(os.path.join(out, f"{part}.json"), "w") as file:
        json.dump({"layers": found, **chosen_configs.told()}, file)
    if "CUDA error" in found[name].get("error", "") or "Error [CUDA]" in found[name].get("error", ""):
        break  # the context is lost, and all that follows would fail
'''


if __name__ == "__main__":
    main()
