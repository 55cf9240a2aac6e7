"""Suites where torch was faster: their winners, from an empty database, beside torch's library and the default config.

    python benchmarks/claims/ceilings.py --out FOLDER
    python benchmarks/claims/ceilings.py --suites demo --device interpreter --out FOLDER     # rehearses without a GPU

FOLDER must not exist yet. It receives the database, the compile cache, the log and ceilings.json. Torch's time
over ours is that of the finals, in which torch's library plays beside the winner in paired rounds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from commands import new_folder, tuner
from two_races import geomean, row

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

RESULT = "ceilings.json"
SUITES = Path(__file__).parents[1] / "suites"
NAMED = ("block-scales", "attention", "last-wave")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--suites", nargs="+", default=[str(SUITES / f"{name}.csv") for name in NAMED], metavar="SUITE")
    parser.add_argument("--device", default="cuda:0", help="as `tuner run` takes it")
    parser.add_argument("--time-budget", default="300s", help="of each suite, as `tuner run` takes it")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="a new folder")
    args = parser.parse_args()
    folder = new_folder(parser, args.out)
    on = ["--device", args.device, "--time-budget", args.time_budget, "--db", "runs.db"]
    body: dict[str, Any] = {}
    for suite in args.suites:
        told = tuner(folder, "run", "--suite", suite, *on, accept=(0, 1))
        rows = [row(problem) for problem in told["problems"]]
        figures = {name: geomean(rows, name) for name in ("vs_vendor", "vs_default")}
        least = min((each["vs_vendor"] for each in rows if each.get("vs_vendor")), default=None)
        body[Path(suite).stem] = {**figures, "least": least, "wall_s": round(told["seconds"], 1), "rows": rows}
        record.write(folder / RESULT, body)  # what is there stays if a later suite is stopped
        show(suite, body[Path(suite).stem])


def show(suite: str, found: dict[str, Any]) -> None:
    for each in found["rows"]:
        figures = [each.get(name) or 0 for name in ("median_us", "vs_vendor", "vs_default")]
        tried = f"{each['measured']}/{each['considered']}"
        shown = "{:9.2f} us {:6.3f} {:6.3f}".format(*figures)
        print(f"{each['problem']:52} {shown} {tried:>9} {each.get('winner', '')}")
    figures = {name: found[name] for name in ("vs_vendor", "least", "vs_default", "wall_s")}
    print(f"{suite}: {figures}")


if __name__ == "__main__":
    main()
