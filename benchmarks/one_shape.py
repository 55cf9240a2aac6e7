"""What one new shape costs: `tuner run` of it in a process of its own, its binaries made by a neighbour's run.

python benchmarks/one_shape.py --warm 3072x6144x2048 --shape 3072x5120x2048 --dtype bf16 --layout nt --out RESULT.json

The neighbour is tuned first, from empty caches, then each shape, into the same database; then each again with an empty
database, when every binary is there. Seconds: the process as the shell sees it; of these what the sweep reports (its
start until the GPU is open and the problem's phases), and the rest, which is the process' own start and end.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import record


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--warm", required=True)
    parser.add_argument("--shape", action="append", required=True)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--layout", default="nt")
    parser.add_argument("--device", default="cuda:0", help="interpreter: to rehearse")
    parser.add_argument("--trials", type=int)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    kind = ["--dtype", args.dtype, "--layout", args.layout, "--device", args.device]
    kind += ["--trials", str(args.trials)] if args.trials else []
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # modules come compiled, as installers leave them
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = str(Path(folder, "cache"))
        first = Path(folder, "first.db")
        rows = [row("neighbour", args.warm, first, kind)]
        rows += [row("new", shape, first, kind) for shape in args.shape]
        rows += [row("empty database", shape, Path(folder, f"{shape}.db"), kind) for shape in args.shape]
    for each in rows:
        print(" ".join(f"{value!s:>14}" for value in each.values() if not isinstance(value, dict)), each["phases_s"])
    record.write(args.out, {"summary": summary(rows), "rows": rows})
    print(summary(rows))


def row(what, shape, db, kind):
    """One `tuner run`, and where its seconds went."""
    command = [sys.executable, "-m", "tuner", "run", "--shape", shape, *kind, "--db", str(db), "--json"]
    begin = time.perf_counter()
    shown = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    wall_s = time.perf_counter() - begin
    report = json.loads(shown)
    (problem,) = report["problems"]
    return {
        "what": what,
        "shape": shape,
        "process_s": round(wall_s, 2),
        "outside_s": round(wall_s - report["seconds"], 2),
        "start_s": round(report["start_seconds"], 2),
        "problem_s": round(problem["seconds"], 2),
        "draft_s": round(problem["draft_s"], 2),
        "trials": problem["measured"],
        "binaries": problem["binaries"],
        "phases_s": {phase: round(seconds, 2) for phase, seconds in problem["phases_s"].items()},
    }


def summary(rows):
    """Medians over the shapes."""
    figures = ("process_s", "outside_s", "start_s", "problem_s")
    return {
        what: {name: round(statistics.median(r[name] for r in rows if r["what"] == what), 2) for name in figures}
        for what in ("new", "empty database")
    }


if __name__ == "__main__":
    main()
