"""A suite raced twice, and what came of it in one short table: wall time, speed against torch, do the two agree.

    python benchmarks/two_races.py --suite benchmarks/suites/public.csv --rows bfloat16/nt --folder races

The first race begins with an empty database and an empty compile cache, the second with a new database and the first
one's binaries; then the winners are paired. FOLDER must not be there yet; it holds the databases, the cache and the
results: race-h200.json, race-again-h200.json (tune_suite.py) and race-agreement-h200.json (agreement.py).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

FIRST, AGAIN, AGREEMENT = "race-h200.json", "race-again-h200.json", "race-agreement-h200.json"
_LABEL = 44
"""Characters of a winner's label that the table shows."""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--suite", required=True)
    parser.add_argument("--rows", default="", help="as tune_suite.py takes them")
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--gpus", default="0", help="as tune_suite.py takes them; -1: the interpreter, no agreement")
    args = parser.parse_args()
    folder = args.folder
    folder.mkdir(parents=True)
    os.environ["TRITON_CACHE_DIR"] = str(folder.resolve() / "cache")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # modules come compiled, as installers leave them
    suite = ["--suite", args.suite, *(["--rows", args.rows] if args.rows else []), "--strategy", "race"]
    walls_s = []
    for name, out in (("first.db", FIRST), ("second.db", AGAIN)):
        command = [*suite, "--gpus", args.gpus, "--db", str(folder / name), "--out", str(folder / out)]
        walls_s.append(run("tune_suite.py", command))
    first, again = (json.loads((folder / name).read_text()) for name in (FIRST, AGAIN))
    ratios = {}
    if args.gpus != "-1":
        databases = ["--first", str(folder / "first.db"), "--second", str(folder / "second.db")]
        run("agreement.py", [*databases, "--out", str(folder / AGREEMENT)])
        agreement = json.loads((folder / AGREEMENT).read_text())
        ratios = {row["problem"]: row["second_over_first"] for row in agreement["rows"]}
        print(agreement["summary"])
    print("shape, seconds of both, torch's time over ours in both, second's time over first's, first's winner")
    for one, two in zip(first["rows"], again["rows"], strict=True):
        print(line(one, two, ratios.get(one["problem"], 0.0)))
    for document, wall_s in zip((first, again), walls_s, strict=True):
        told = document["summary"]
        figures = ("wall_s", "start_s", "binaries", "compile_wall_s", "compile_sum_s", "geomean_vs_vendor")
        print(f"process {wall_s:.1f}", *(f"{name} {told[name]}" for name in figures), told["phases_s"])


def run(script, arguments):
    """One benchmark in a process of its own, what it prints left out; its wall time, seconds."""
    begin = time.perf_counter()
    # As it was called itself: the command goes into the result file.
    command = [sys.executable, str(Path(sys.argv[0]).with_name(script)), *arguments]
    ended = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ended.returncode:
        sys.exit(f"{script} ended with {ended.returncode}: {ended.stdout[-1500:]}")
    return time.perf_counter() - begin


def line(one, two, ratio):
    """A problem's row of both races."""
    shape = one["problem"].split()[1]
    speeds = " ".join(f"{row.get('vs_vendor') or 0:6.3f}" for row in (one, two))
    label = one.get("winner", one["reason"])[:_LABEL]
    return f"{shape:16} {one['seconds']:5.2f} {two['seconds']:5.2f} {speeds} {ratio:6.3f} {label}"


if __name__ == "__main__":
    main()
