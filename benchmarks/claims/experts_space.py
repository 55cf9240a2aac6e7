"""What is left to find for vLLM's fused experts: the winners of searches beside the fastest of all their configs.

    python benchmarks/claims/experts_space.py --out FOLDER
    python benchmarks/claims/experts_space.py --out FOLDER --rows tiny:1 --device interpreter   # a rehearsal

Each row is searched, then every config of its search space is measured, in another database, and the two winners play
each other in paired rounds. vllm has to be installed, or its Python files on the path. FOLDER must not exist yet; it
receives everything, and experts-space.json.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from commands import new_folder
from experts import LAYERS

from tuner.bench import held_out
from tuner.moe import kernel
from tuner.moe.layer import Layer
from tuner.problem import Problem
from tuner.store.records import Winner
from tuner.store.store import Store
from tuner.sweep.paired import PairedRunner
from tuner.sweep.plan import Plan
from tuner.sweep.report import ProblemReport
from tuner.sweep.run import sweep
from tuner.sweep.strategies import STRATEGIES

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

ROWS = "gpt-oss-20b:16,64,256 mixtral-8x7b-fp8-tp4:16,64 qwen3-30b-tp2:16,256"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("--rows", default=ROWS, help="layers of experts.py, each with its Ms")
    parser.add_argument("--device", default="cuda:0", choices=("cuda:0", "interpreter"))
    args = parser.parse_args()
    folder = new_folder(parser, args.out)
    gpu = None if args.device == "interpreter" else 0
    if gpu is None:
        os.environ["TRITON_INTERPRET"] = "1"  # for the kernel that this process parses
    os.environ["TRITON_CACHE_DIR"] = str(folder / "cache")
    kernel.register("vllm")
    listed = list(problems(args.rows))
    searched, everything = (tuned(folder, strategy, listed, gpu) for strategy in ("race", "exhaustive"))
    rows = []
    with PairedRunner(gpu) as runner:
        for one, every in zip(searched, everything, strict=True):
            row = {"problem": str(one.problem), "searched": one.measured, "of": every.measured}
            if one.winner and every.winner:
                row |= over_the_fastest(one.winner, every.winner, runner)
            rows.append(row)
            print(rows[-1], flush=True)
            record.write(folder / "experts-space.json", {"rows": rows})


def problems(rows: str) -> Iterator[Problem]:
    for row in rows.split():
        name, _, ms = row.partition(":")
        experts, hidden, intermediate, top_k, ranks, precision = LAYERS[name]
        said = dict(zip(precision[::2], precision[1::2], strict=True))
        blocks = tuple(map(int, said["--block-shape"].split(","))) if "--block-shape" in said else None
        layer = Layer(experts, hidden, intermediate, top_k, said.get("--dtype", "bf16"), blocks, ranks)
        for m in ms.split(","):
            yield from layer.problems("vllm", int(m), "uniform")


def tuned(folder: Path, strategy: str, listed: list[Problem], gpu: int | None) -> list[ProblemReport]:
    """What a sweep from nothing says of each problem, in their order."""
    began = time.monotonic()
    with Store.open(str(folder / f"{strategy}.db")) as store:
        told = sweep(store, lambda _device: listed, [gpu], Plan(strategy=STRATEGIES[strategy]), argv=sys.argv)
    print(f"{strategy}: {time.monotonic() - began:.1f} s", flush=True)
    found = {each.problem: each for each in told.problems}
    return [found[problem] for problem in listed]


def over_the_fastest(searched: Winner, best: Winner, runner: PairedRunner) -> dict[str, Any]:
    """The times of the search's winner and of vLLM's default over the fastest that was played."""
    default = kernel.default_config(best.problem, runner.device)
    case = held_out.Case(best.problem, "", answer=default, formula=searched.config, winner=best.config)
    (played,) = held_out.play([case], runner)
    times = {"search_over_fastest": played.formula, "default_over_fastest": played.answer}
    return {
        **{name: ratio and round(ratio, 4) for name, ratio in times.items()},
        "found": searched.config.label,
        "best": best.config.label,
    }


if __name__ == "__main__":
    main()
