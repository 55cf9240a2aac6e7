"""Kill a run half-way, start it again: nothing committed is lost, nothing is measured twice.

python benchmarks/checks/killed_run.py --kills 3 --out RESULT.json
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

SHAPES = ["16x8192x1024", "64x256x7168", "1024x1024x1024"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each killed run")
    parser.add_argument("--shape", action="append")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "tuner.db"
        os.environ["TUNER_DB"] = str(database)
        shapes = [part for shape in args.shape or SHAPES for part in ("--shape", shape)]
        launcher = "from tuner.cli import main; main()"
        command = [sys.executable, "-c", launcher, "run", *shapes, "--dtype", "bf16", "--layout", "nt", "--json"]
        command += ["--device", args.device]
        kept = []
        for _ in range(args.kills):
            process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(args.seconds)
            process.kill()
            process.wait()
            kept.append(count(database))
        last = json.loads(subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, check=True).stdout)
        again = json.loads(subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, check=True).stdout)
        with closing(sqlite3.connect(database)) as connection:
            twice = connection.execute(
                "select count(*) from (select 1 from trial group by problem_id, config_id having count(*) > 1)"
            ).fetchone()[0]
            sound = connection.execute("pragma integrity_check").fetchone()[0]
        summary = {
            "trials_after_each_kill": kept,
            "taken_over_by_the_last_run": sum(problem["resumed"] for problem in last["problems"]),
            "measured_by_the_last_run": sum(problem["measured"] for problem in last["problems"]),
            "trials": count(database),
            "measured_twice": twice,
            "integrity_check": sound,
            "winners": sum(problem["winner"] is not None for problem in last["problems"]),
            "measured_by_a_run_after_it": sum(problem["measured"] for problem in again["problems"]),
        }
    print(summary)
    record.write(args.out, {"summary": summary})


def count(database):
    if not database.exists():
        return 0
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        try:
            return connection.execute("select count(*) from trial").fetchone()[0]
        except sqlite3.OperationalError:
            return 0


if __name__ == "__main__":
    main()
