"""What `tuner moe` gains for the fused experts of vLLM or SGLang, over the files they ship and their default configs.

    python benchmarks/claims/experts.py --out FOLDER
    python benchmarks/claims/experts.py --out FOLDER --for sglang --again
    python benchmarks/claims/experts.py --out FOLDER --layers tiny --m 1,2 --trials 2 --device interpreter --again

Each layer's file is made from nothing, in a new database with an empty compile cache, under each routing. With --again
it is made twice, the second time in another database with the binaries of the first, and what both files say plays
each other. The package has to be installed, or its Python files on the path. FOLDER must not exist yet; it receives
everything, and experts.json.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from commands import new_folder, tuner

from tuner.kernel.config import Config
from tuner.moe import kernel
from tuner.moe.layer import PACKAGES, Layer
from tuner.moe.package import load
from tuner.moe.tuning import Configs, Task
from tuner.sweep import finals
from tuner.sweep.paired import PairedRunner

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

RESULT = "experts.json"
FP8 = ("--dtype", "fp8_w8a8")
INT4 = ("--dtype", "int4_w4a16", "--group-size", "128")
BLOCKS = (*FP8, "--block-shape", "128,128")
LAYERS: dict[str, tuple[int, int, int, int, int, tuple[str, ...]]] = {
    "tiny": (4, 32, 32, 2, 1, ()),
    "mixtral-8x7b": (8, 4096, 14336, 2, 1, ()),
    "mixtral-8x7b-tp8": (8, 4096, 14336, 2, 8, ()),
    "mixtral-8x7b-fp8-tp4": (8, 4096, 14336, 2, 4, FP8),
    "qwen3-30b": (128, 2048, 768, 8, 1, ()),
    "qwen3-30b-blocks": (128, 2048, 768, 8, 1, BLOCKS),
    "qwen3-30b-tp2": (128, 2048, 768, 8, 2, ()),
    "qwen3-next": (512, 2048, 512, 10, 1, ()),
    "deepseek-v3-tp8": (256, 7168, 2048, 8, 8, BLOCKS),
    "scout-fp8-tp8": (16, 5120, 8192, 1, 8, FP8),
    "gpt-oss-20b": (32, 2880, 2880, 4, 1, ()),
    "qwen3-30b-int4": (128, 2048, 768, 8, 1, INT4),
}
"""Experts, hidden, intermediate, top-k, ranks and precision; vLLM 0.33 ships an H200's file for all but the first and
the last two; of int4 it has none for any GPU of NVIDIA."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("--layers", default=",".join(list(LAYERS)[1:]), help="comma-separated")
    parser.add_argument("--routing", default="uniform,zipf")
    parser.add_argument("--m", help="as `tuner moe` takes it")
    parser.add_argument("--trials")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--for", dest="package", default="vllm", choices=PACKAGES)
    parser.add_argument("--again", action="store_true", help="tune each layer twice, and play both against each other")
    parser.add_argument("--limit-s", type=float, default=1e9, help="begin no layer after so long")
    args = parser.parse_args()
    folder = new_folder(parser, args.out)
    if args.device == "interpreter":
        os.environ["TRITON_INTERPRET"] = "1"  # for the kernels that this process parses
    os.environ["TRITON_CACHE_DIR"] = str(folder / "cache")
    began, runs = time.monotonic(), list[dict[str, Any]]()
    for name in args.layers.split(","):
        for routing in args.routing.split(","):
            if time.monotonic() - began < args.limit_s:
                runs.append(run(folder, name, routing, args))
                print_run(runs[-1])
                record.write(folder / RESULT, {"package": args.package, "summary": summary(runs), "runs": runs})
    print(summary(runs))


def run(folder: Path, name: str, routing: str, args: argparse.Namespace) -> dict[str, Any]:
    """One layer's file made, and made again where that was asked for."""
    place = f"{name}-{routing}"
    told, seconds = tuned(folder, place, name, routing, args)
    rows = [{name: row[name] for name in ("m", "origin", "us", "ratios")} for row in told["rows"]]
    found = {"layer": name, "routing": routing, "seconds": seconds, "rows": rows}
    if args.again:
        again, found["seconds_again"] = tuned(folder, f"{place}-again", name, routing, args)
        found["again_over_first"] = agreement(told, again, args)
    return found


def tuned(folder: Path, place: str, name: str, routing: str, args: argparse.Namespace) -> tuple[dict[str, Any], float]:
    """What `tuner moe` said of a layer, and after how many seconds."""
    experts, hidden, intermediate, top_k, ranks, precision = LAYERS[name]
    sizes = {"experts": experts, "hidden": hidden, "intermediate": intermediate, "topk": top_k, "tp": ranks}
    words = [word for size, value in sizes.items() for word in (f"--{size}", str(value))] + list(precision)
    more = [word for option in ("m", "trials") if (said := getattr(args, option)) for word in (f"--{option}", said)]
    began = time.monotonic()
    told = tuner(
        folder,
        *("moe", *words, "--routing", routing, "--for", args.package, "--out", place, "--db", f"{place}.db"),
        *("--device", args.device, *more),
        accept=(0, 1),
    )
    return told, round(time.monotonic() - began, 1)


def agreement(first: dict[str, Any], again: dict[str, Any], args: argparse.Namespace) -> dict[int, float]:
    """By M, the time of what the second file says over that of the first's, in paired rounds."""
    blocks = first["layer"]["block_shape"]
    layer = Layer(**{**first["layer"], "block_shape": blocks and tuple(blocks)})
    kernel.register(args.package)
    task = Task(load(args.package), layer, tuple(row["m"] for row in first["rows"]), first["routing"])
    ratios = {}
    with PairedRunner(None if args.device == "interpreter" else 0) as runner:
        for one, two in zip(first["rows"], again["rows"], strict=True):
            both = configs(one), configs(two)
            if both[0] and both[1]:
                ratio = 1.0 if both[0] == both[1] else over(task, one["m"], *both, runner)
                ratios[one["m"]] = round(ratio, 4)
    return ratios


def configs(row: dict[str, Any]) -> Configs:
    return tuple(Config(each["kernel"], **each["config"]) for each in row["configs"])


def over(task: Task, m: int, first: Configs, again: Configs, runner: PairedRunner) -> float:
    """The time of the second's configs for a row's GEMMs over that of the first's."""
    sums: list[list[float]] = [[], []]
    for problem, *both in zip(task.problems(m), first, again, strict=True):
        played = runner.play(problem, list(dict.fromkeys(both)))
        if isinstance(played, str) or played.rejected:
            raise SystemExit(f"{problem}: {played if isinstance(played, str) else dict(played.rejected)}")
        for at, config in enumerate(both):
            figures = played.times[config.digest]
            sums[at] = [sum(each) for each in zip(sums[at] or [0.0] * len(figures), figures, strict=False)]
    return finals.ratio(sums[1], sums[0])


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Times of others over ours: geometric means over all rows, and the rows where others are faster."""
    found: dict[str, Any] = {"seconds_of_a_file": [run["seconds"] for run in runs]}
    twice = [ratio for run in runs for ratio in run.get("again_over_first", {}).values()]
    if twice:
        close = sum(max(ratio, 1 / ratio) <= 1.01 for ratio in twice)
        found["again"] = {"rows": len(twice), "within_1%": close, "seconds": [run["seconds_again"] for run in runs]}
    for other in ("file", "default"):
        ratios = [row["ratios"][other] for run in runs for row in run["rows"] if other in row["ratios"]]
        tuned = [
            row["ratios"][other] / row["ratios"]["tuned"]
            for run in runs
            for row in run["rows"]
            if {other, "tuned"} <= row["ratios"].keys()
        ]
        found[other] = {
            "rows": len(ratios),
            "over_what_ships": record.geomean(ratios),
            "over_what_was_tuned": record.geomean(tuned),
            "tuned_slower_by_1%": sum(ratio < 0.99 for ratio in tuned),
        }
    return found


def print_run(run: dict[str, Any]) -> None:
    means = [
        f"{other} {record.geomean(ratios):.3f}"
        for other in ("file", "default")
        if (ratios := [row["ratios"][other] for row in run["rows"] if other in row["ratios"]])
    ]
    print(f"{run['layer']:24} {run['routing']:8} {run['seconds']:6.1f} s  {'  '.join(means)}", flush=True)


if __name__ == "__main__":
    main()
