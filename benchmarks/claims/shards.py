"""A suite tuned in one run, and in parts that are merged, each from nothing: whether their winners are equally fast.

    python benchmarks/claims/shards.py --out FOLDER
    python benchmarks/claims/shards.py --suite demo --shards 2 --device interpreter --out FOLDER   # without a GPU

FOLDER must not exist yet. It receives a folder for each way, with its databases, log and compile cache, and
shards.json. Each part is one `tuner run --shard I/N` into a database of its own; then both winners of each problem
play each other in this process.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from commands import new_folder, tuner
from two_races import PUBLIC, compared, race
from written import write_suite

from tuner.errors import TunerError
from tuner.problem import suite

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

RESULT = "shards.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--suite", default=str(PUBLIC), help="a suite's name or file; public.csv unless given")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every N-th row alone")
    parser.add_argument("--shards", type=int, default=8, metavar="N", help="the number of parts")
    parser.add_argument("--device", default="cuda:0", help="as `tuner run` takes it")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="a new folder")
    args = parser.parse_args()
    try:
        problems = suite.load(args.suite)[:: args.every]
    except TunerError as e:
        parser.error(str(e))
    folder = new_folder(parser, args.out)
    write_suite(folder / "suite.csv", problems)
    options = ["--suite", str(folder / "suite.csv"), "--device", args.device]
    whole, parts = folder / "whole", folder / "parts"
    for way in (whole, parts):
        way.mkdir()
    one = race(whole, [*options, "--db", "whole.db"])
    many = sharded(parts, options, args.shards)
    os.environ["TRITON_CACHE_DIR"] = str(whole / "cache")  # most winners are compiled there
    played = compared(one, many, gpu=None if args.device == "interpreter" else 0)
    ratios = [each["second_over_first"] for each in played["rows"] if each["second_over_first"]]
    summary = {
        **played["summary"],
        "in_one_run_s": one["summary"]["process_s"],
        **many["summary"],
        "parts_over_one_run": round(record.geomean(ratios), 4),
        "worst": max(ratios),
    }
    print(summary)
    record.write(folder / RESULT, {"summary": summary, "rows": played["rows"]})


def sharded(folder: Path, options: list[str], count: int) -> dict[str, Any]:
    """One `tuner run` of each part, merged, as a result."""
    databases = [f"part-{number}.db" for number in range(1, count + 1)]
    parts = [
        race(folder, [*options, "--shard", f"{number}/{count}", "--db", database])
        for number, database in enumerate(databases, 1)
    ]
    merged = tuner(folder, "merge", "merged.db", *databases)
    seconds = [part["summary"]["process_s"] for part in parts]
    summary = {
        "parts": count,
        "longest_part_s": max(seconds),
        "all_parts_s": round(sum(seconds), 1),
        "winners_merged": merged["winners"],
    }
    return {"summary": summary, "rows": [row for part in parts for row in part["rows"]]}


if __name__ == "__main__":
    main()
