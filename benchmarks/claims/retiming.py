"""What `tuner retime` catches: rows as they are, and rows whose config was exchanged for a slower one.

    python benchmarks/claims/retiming.py --out FOLDER
    python benchmarks/claims/retiming.py --out FOLDER --suite TINY.csv --device interpreter --passes 1    # a rehearsal

Two suites, of 65 problems, are tuned in a new database with an empty compile cache, and their rows are retimed several
times: none of them should be called lost. All passes see one tuning, so a row that it flattered is lost in most of
them; the result has each row's config and what it was recorded to be worth. Then each row's config is exchanged for one
that was recorded to be 3 to 10% slower, its evidence left as it is: all of them should be lost. What the search
recorded of a config that left the race early is no more than a quick look, so each exchanged config also plays the
row's own in paired rounds. FOLDER must not exist yet; it receives everything, and a result that is named by the card,
as retiming-h100.json is.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from commands import card, new_folder, tuner

from tuner.bench.held_out import Case, play
from tuner.kernel import registry
from tuner.lookup.table import Table, load
from tuner.problem import Problem
from tuner.store.records import State
from tuner.store.store import Store
from tuner.sweep.paired import PairedRunner

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

SUITES = [str(Path(__file__).parents[1] / "suites" / name) for name in ("public.csv", "unseen-fourth.csv")]
SLOWER = (1.03, 1.10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("--suite", action="append", metavar="NAME|FILE.csv", help="may be repeated")
    parser.add_argument("--device", default="cuda:0", help="as `tuner run` takes it")
    parser.add_argument("--passes", type=int, default=4)
    parser.add_argument("--fail-above", default="2%")
    args = parser.parse_args()
    folder = new_folder(parser, args.out)
    os.environ["TRITON_CACHE_DIR"] = str(folder / "cache")
    slug = ["--device", "interpreter"] if args.device == "interpreter" else []
    began = time.monotonic()
    suites = [part for suite in args.suite or SUITES for part in ("--suite", suite)]
    tuner(folder, "run", *suites, "--device", args.device, "--db", "runs.db", accept=(0, 1))
    tuned_s = time.monotonic() - began
    (written,) = tuner(folder, "export", "tables", "--db", "runs.db", *slug)["written"]
    table = load(folder / written["path"])
    unchanged = [retimed(folder, Path(written["path"]).parent, args) for _ in range(args.passes)]
    exchanged = planted(folder, table)
    found: dict[str, Any] = {"seconds": 0.0, "rows": []}
    if exchanged.rows:  # a rehearsal may find none
        (folder / "planted").mkdir()
        exchanged.write(folder / "planted")
        found = retimed(folder, Path("planted"), args)
        slower = played(exchanged, table, args.device)
        for row in found["rows"]:
            row["slower"] = slower[row["problem"]]
    told = summary(unchanged, found)
    body = {"fail_above": args.fail_above, "summary": told, "tuned_s": round(tuned_s, 1), "recorded": recorded(table)}
    record.write(
        folder / f"retiming-{card(table.device.slug)}.json", {**body, "unchanged": unchanged, "planted": found}
    )
    print(told)


def summary(unchanged: list[dict[str, Any]], found: dict[str, Any]) -> dict[str, Any]:
    rows = [row for each in unchanged for row in each["rows"]]
    truly = [row for row in found["rows"] if (row.get("slower") or 0) >= SLOWER[0]]
    return {
        "unchanged": len(rows),
        "called_lost": sum(row["state"] in ("lost", "failed") for row in rows),
        "nothing_to_compare_with": sum(row["state"] == "unknown" for row in rows),
        "seconds_for_100_rows": round(100 * sum(each["seconds"] for each in unchanged) / len(rows), 1),
        "planted": len(found["rows"]),
        "caught": sum(row["state"] == "lost" for row in found["rows"]),
        "planted_and_slower_when_played": len(truly),
        "caught_of_these": sum(row["state"] == "lost" for row in truly),
    }


def recorded(table: Table) -> list[dict[str, Any]]:
    """The evidence of each row, which retiming compares with."""
    kept = ("median_us", "vs_default", "vs_vendor")
    return [
        {"problem": str(row.problem), "config": str(row.config)} | {name: getattr(row, name) for name in kept}
        for row in table.rows
    ]


def retimed(folder: Path, place: Path, args: argparse.Namespace) -> dict[str, Any]:
    began = time.monotonic()
    told = tuner(folder, "retime", str(place), "--fail-above", args.fail_above, "--device", args.device, accept=(0, 1))
    kept = ("state", "reason", "loss", "ratios", "median_us")
    rows = [
        {"problem": str(Problem.from_fields(row["problem"]))} | {name: row[name] for name in kept}
        for row in told["rows"]
    ]
    return {"seconds": time.monotonic() - began, "rows": rows}


def planted(folder: Path, table: Table) -> Table:
    """The table with a slower config in each row that has one on record."""
    draw = random.Random(5)
    with Store.open(str(folder / "runs.db"), read_only=True) as store:
        trials = list(store.trials())
    rows = []
    for row in table.rows:
        own = {
            each.config: each.outcome.median_us
            for each in trials
            if each.problem == row.problem and each.outcome.state is State.COMPLETE and each.outcome.median_us
        }
        best = own[row.config]
        slower = sorted((c for c, us in own.items() if SLOWER[0] <= us / best <= SLOWER[1]), key=str)
        if slower:
            rows.append(dataclasses.replace(row, config=draw.choice(slower)))
    rows = [dataclasses.replace(r, kernel_version=registry.find(r.problem.op, r.config.kernel).version) for r in rows]
    return dataclasses.replace(table, rows=tuple(rows), families=())


def played(exchanged: Table, table: Table, device: str) -> dict[str, float | None]:
    """By problem, the exchanged config's time over the faster of its own and the row's; None where it has none."""
    own = {row.problem: row.config for row in table.rows}
    cases = [Case(row.problem, "planted", row.config, row.config, own[row.problem]) for row in exchanged.rows]
    with PairedRunner(None if device == "interpreter" else int(device.partition(":")[2] or 0)) as runner:
        return {str(one.case.problem): one.answer for one in play(cases, runner)}


if __name__ == "__main__":
    main()
