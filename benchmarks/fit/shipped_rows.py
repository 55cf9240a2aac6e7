"""Play rows of a table that ships beside what a kernel estimates best since then, and put the faster configs in.

    python benchmarks/fit/shipped_rows.py --kernel any_height --rows 97-256 --out RESULT.json
    python benchmarks/fit/shipped_rows.py --put RESULT.json

For a kernel whose space got configs that the table's runs never tried, or that became faster. The first command needs
the table's GPU: each row with so many rows of A that the kernel serves plays, in paired rounds, beside the kernel's
best other configs, by its estimates, and torch's library. The second puts in those that took less than `FASTER` of the
row's time, with their figures, unless the row serves a range whose last M would take a tile more along M. `vs_default`
is what the row's run measured, over what this play did; configs as fast as the new one were not looked for, so it ties
with itself alone. No database has these winners: put them in again after benchmarks/fit/shipped.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from tuner import Config
from tuner.kernel import registry
from tuner.lookup import table as tables_of
from tuner.lookup.row import Row
from tuner.problem import Problem
from tuner.sweep import finals
from tuner.sweep.paired import PairedRunner

sys.path.insert(0, str(Path(__file__).parents[1]))
import plays
import record

TABLES = Path(__file__).parents[2] / "tuner" / "tables" / "shipped"
FASTER = 0.985


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--table", type=Path, default=TABLES / "matmul--nvidia-h200-sm90-132.json")
    parser.add_argument("--kernel", default="any_height", help="whose configs play")
    parser.add_argument("--rows", default="97-256", metavar="FIRST-LAST", help="rows of A of the rows that play")
    parser.add_argument("--scaling", help="of the rows that play; any by default")
    parser.add_argument("--best", type=int, default=4, help="configs that play beside a row's")
    parser.add_argument("--out", help="the plays, as JSON")
    parser.add_argument("--put", type=Path, metavar="RESULT", help="write the table anew with what these plays found")
    parser.add_argument("--gpu", type=int, default=0)
    args = parser.parse_args()
    table = tables_of.load(args.table)
    if args.put:
        put(table, json.loads(args.put.read_text()), args.table.parent)
        return
    spec = registry.find(table.op, args.kernel)
    first, last = map(int, args.rows.split("-"))
    found = list[dict[str, Any]]()
    with PairedRunner(args.gpu) as runner:
        todo = dict[Problem, list[Config]]()
        for row in table.rows:
            wanted = first <= row.problem.m <= last and args.scaling in (None, row.problem.scaling)
            if wanted and not spec.unserved(row.problem, runner.device):
                configs = spec.space(row.problem, runner.device).configs()
                estimates = {one: spec.estimate_us(one, row.problem, runner.device) for one in configs}
                best = sorted((one for one in configs if one != row.config), key=lambda one: estimates[one])
                todo[row.problem] = [row.config, *best[: args.best]]
        runner.compile((problem, config) for problem, configs in todo.items() for config in configs)
        for problem, configs in todo.items():
            found.append(played(runner, problem, configs))
            print(found[-1]["problem"], found[-1]["over_row"], found[-1]["vs_vendor"], flush=True)
            record.write(args.out, {"summary": summary(found), "found": found})
    print(summary(found))


def played(runner: PairedRunner, problem: Problem, configs: list[Config]) -> dict[str, Any]:
    """The fastest config's time over the row's, which is the first, and torch's over both."""
    result = plays.play(runner, problem, configs)
    times, medians = result.times, result.medians
    row, fastest = configs[0], min(medians, key=lambda one: medians[one])
    torch = result.torch
    return {
        "problem": str(problem),
        "kernel": fastest.kernel,
        "config": dict(fastest.pairs),
        "median_us": round(medians[fastest], 4),
        "over_row": round(finals.ratio(times[fastest], times[row]), 4),
        "vs_vendor": round(finals.ratio(torch, times[fastest]), 4) if torch else None,
        "row_vs_vendor": round(finals.ratio(torch, times[row]), 4) if torch else None,
    }


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    faster = [each for each in found if each["over_row"] < FASTER]
    beside_torch = [each for each in found if each["vs_vendor"]]
    return {
        "rows": len(found),
        "faster": len(faster),
        "their_time_over_the_rows": round(record.geomean([each["over_row"] for each in faster]), 4) if faster else None,
        "torch_over_rows": round(record.geomean([each["row_vs_vendor"] for each in beside_torch]), 4),
        "torch_over_fastest": round(record.geomean([each["vs_vendor"] for each in beside_torch]), 4),
    }


def put(table: tables_of.Table, result: dict[str, Any], folder: Path) -> None:
    faster = {each["problem"]: each for each in result["found"] if each["over_row"] < FASTER}
    last_m: dict[Problem, int] = {}
    far: set[Problem] = set()
    for family in table.families:
        for each in family.ranges:
            row = family.at(each.row_m)
            last_m[row] = max(each.last_m, last_m.get(row, 0))
            far |= set() if each.first_m <= each.row_m <= each.last_m else {row}

    def renewed(row: Row) -> Row:
        each = faster.get(str(row.problem))
        if each is None or row.problem in far:  # where it serves other Ms, this play says nothing
            return row
        config = Config(each["kernel"], **each["config"])
        tile, m = config.integer("BLOCK_SIZE_M"), row.problem.m
        if -(-last_m.get(row.problem, m) // tile) > -(-m // tile):
            return row
        version = registry.find(table.op, config.kernel).version
        figures = {"median_us": each["median_us"], "vs_vendor": each["vs_vendor"], "ties": 1}
        vs_default = row.vs_default and row.vs_default / each["over_row"]
        return dataclasses.replace(row, config=config, kernel_version=version, vs_default=vs_default, **figures)

    rows = tuple(renewed(row) for row in table.rows)
    print(sum(one is not other for one, other in zip(rows, table.rows, strict=True)), "rows of", len(rows))
    date = max(table.date, f"{result['date']}T00:00:00Z")  # of two tables the newer one's rows stay
    print(dataclasses.replace(table, rows=rows, date=date).write(folder))


if __name__ == "__main__":
    main()
