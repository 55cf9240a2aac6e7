"""What `tuner moe` gains for vLLM's fused experts, over the files that vLLM ships and over its default configs.

    python benchmarks/claims/experts.py --out FOLDER
    python benchmarks/claims/experts.py --out FOLDER --layers tiny --m 1,2 --trials 2 --device interpreter

Each layer's file is made from nothing, in a new database with an empty compile cache, under each routing. vllm has to
be installed, or its Python files on the path. FOLDER must not exist yet; it receives everything, and experts.json.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from commands import new_folder, tuner

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
    parser.add_argument("--limit-s", type=float, default=1e9, help="begin no layer after so long")
    args = parser.parse_args()
    folder = new_folder(parser, args.out)
    os.environ["TRITON_CACHE_DIR"] = str(folder / "cache")
    began, runs = time.monotonic(), list[dict[str, Any]]()
    for name in args.layers.split(","):
        for routing in args.routing.split(","):
            if time.monotonic() - began < args.limit_s:
                runs.append(tuned(folder, name, routing, args))
                print_run(runs[-1])
                record.write(folder / RESULT, {"summary": summary(runs), "runs": runs})
    print(summary(runs))


def tuned(folder: Path, name: str, routing: str, args: argparse.Namespace) -> dict[str, Any]:
    experts, hidden, intermediate, top_k, ranks, precision = LAYERS[name]
    sizes = {"experts": experts, "hidden": hidden, "intermediate": intermediate, "topk": top_k, "tp": ranks}
    words = [word for size, value in sizes.items() for word in (f"--{size}", str(value))] + list(precision)
    more = [word for option in ("m", "trials") if (said := getattr(args, option)) for word in (f"--{option}", said)]
    place = f"{name}-{routing}"
    began = time.monotonic()
    told = tuner(
        folder,
        *("moe", *words, "--routing", routing, "--for", "vllm", "--out", place, "--db", f"{place}.db"),
        *("--device", args.device, *more),
        accept=(0, 1),
    )
    rows = [{name: row[name] for name in ("m", "origin", "us", "ratios")} for row in told["rows"]]
    return {"layer": name, "routing": routing, "seconds": round(time.monotonic() - began, 1), "rows": rows}


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Times of others over ours: geometric means over all rows, and the rows where others are faster."""
    found: dict[str, Any] = {"seconds_of_a_file": [run["seconds"] for run in runs]}
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
        f"{other} {record.geomean([row['ratios'][other] for row in run['rows'] if other in row['ratios']]):.3f}"
        for other in ("file", "default")
    ]
    print(f"{run['layer']:24} {run['routing']:8} {run['seconds']:6.1f} s  {'  '.join(means)}", flush=True)


if __name__ == "__main__":
    main()
