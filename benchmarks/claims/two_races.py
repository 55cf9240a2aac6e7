"""A suite tuned twice from an empty database: how long that takes, how fast the winners are, whether the two agree.

    python benchmarks/claims/two_races.py --out FOLDER
    python benchmarks/claims/two_races.py --suite demo --device interpreter --out FOLDER     # rehearses without a GPU

The first race begins with an empty compile cache, the second with a new database and the binaries of the first. Then
the winners of both play each other in this process. FOLDER must not exist yet. It receives the databases, the compile
cache, the log, and three results that are named by the card, as race-h200.json, race-again-h200.json and
race-agreement-h200.json. Torch's time over ours is that of the finals, in which torch's library plays beside the
winner.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from commands import card, new_folder, tuner, where_time_went
from written import write_suite

from tuner.bench import held_out
from tuner.errors import TunerError
from tuner.kernel.config import Config
from tuner.problem import Problem, suite
from tuner.sweep.paired import PairedRunner

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

PUBLIC = Path(__file__).parents[1] / "suites" / "public.csv"
RESULTS = ("race", "race-again", "race-agreement")
UNALIGNED = "1023x2047x4093"
"""The row of public.csv that alone raises the geometric mean by 6%."""
_LABEL = 48
"""Characters of a winner's label that the table shows."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--suite", default=str(PUBLIC), help="a suite's name or file; public.csv unless given")
    parser.add_argument("--kind", help="only its rows of this dtype and layout; bfloat16/nt of public.csv unless given")
    parser.add_argument("--device", default="cuda:0", help="as `tuner run` takes it")
    parser.add_argument("--time-budget", default="300s", help="of each race, as `tuner run` takes it")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="a new folder")
    args = parser.parse_args()
    kind = args.kind or ("bfloat16/nt" if args.suite == str(PUBLIC) else "")
    try:
        listed = suite.load(args.suite)
    except TunerError as e:
        parser.error(str(e))
    problems = [each for each in listed if kind in ("", f"{each.a_dtype}/{each.layout}")]
    if not problems:
        parser.error(f"{args.suite} has no rows of {kind}: write it as dtype/layout, for instance bfloat16/nt")
    folder = new_folder(parser, args.out)
    os.environ["TRITON_CACHE_DIR"] = str(folder / "cache")  # the winners that play each other are compiled already
    raced = folder / "suite.csv"
    write_suite(raced, problems)
    options = ["--suite", str(raced), "--device", args.device, "--time-budget", args.time_budget]
    races = [race(folder, [*options, "--db", database]) for database in ("first.db", "second.db")]
    agreement = compared(*races, gpu=None if args.device == "interpreter" else 0)
    name_of_card = card(races[0]["summary"]["device"])
    for name, body in zip(RESULTS, (*races, agreement), strict=True):
        record.write(folder / f"{name}-{name_of_card}.json", body)
    show(*races, {row["problem"]: row["second_over_first"] or 0.0 for row in agreement["rows"]})


def race(folder: Path, options: list[str]) -> dict[str, Any]:
    """One `tuner run` of the suite, as a result."""
    begin = time.perf_counter()
    told = tuner(folder, "run", *options, accept=(0, 1))
    process_s = time.perf_counter() - begin
    rows = [row(problem) for problem in told["problems"]]
    states = sum((Counter(problem["states"]) for problem in told["problems"]), Counter())
    summary = {
        "device": told["device"],
        "process_s": round(process_s, 1),
        **where_time_went(told),
        "trials_by_state": dict(states),
        "geomean_vs_default": geomean(rows, "vs_default"),
        "geomean_vs_vendor": geomean(rows, "vs_vendor"),
        f"geomean_vs_vendor_without_{UNALIGNED}": geomean(
            [each for each in rows if UNALIGNED not in each["problem"]], "vs_vendor"
        ),
    }
    return {"summary": summary, "rows": rows}


def row(told: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a problem."""
    names = ("reason", "considered", "measured", "stopped", "states", "seconds", "phases_s")
    found = {"problem": str(Problem.from_fields(told["problem"])), **{name: told[name] for name in names}}
    winner = told["winner"]
    if winner is None:
        return found
    config = Config(winner["kernel"], **winner["config"])
    figures = {name: winner[name] and round(winner[name], 4) for name in ("tflops", "vs_default", "vs_vendor")}
    return found | {
        "fields": told["problem"],
        "kernel": winner["kernel"],
        "config": winner["config"],
        "winner": config.label,
        "median_us": round(winner["median_us"], 3),
        **figures,
    }


def geomean(rows: list[dict[str, Any]], figure: str) -> float:
    return round(record.geomean([each[figure] for each in rows if each.get(figure)]), 4)


def compared(first: dict[str, Any], again: dict[str, Any], *, gpu: int | None) -> dict[str, Any]:
    """The winners of both races in paired rounds, as `tuner verify --regret` plays them."""
    cases = []
    for one, two in pairs(first, again):
        if "winner" in one and "winner" in two:
            before, after = (Config(each["kernel"], **each["config"]) for each in (one, two))
            problem = Problem.from_fields(one["fields"])
            cases.append(held_out.Case(problem, "", answer=after, formula=before, winner=before))
    rows = []
    with PairedRunner(gpu) as runner:
        for found in held_out.play(cases, runner):
            ratio = found.answer / found.formula if found.answer and found.formula else None
            same = found.case.answer == found.case.winner
            ratio = ratio and round(ratio, 4)
            rows.append({"problem": str(found.case.problem), "same_config": same, "second_over_first": ratio})
    summary = {
        "problems": len(rows),
        "same_config": sum(each["same_config"] for each in rows),
        "within_1_percent": sum(is_close(each["second_over_first"]) for each in rows),
    }
    return {"summary": summary, "rows": rows}


def pairs(first: dict[str, Any], again: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The rows of both races, as far as both came."""
    others = {each["problem"]: each for each in again["rows"]}
    return [(one, others[one["problem"]]) for one in first["rows"] if one["problem"] in others]


def is_close(ratio: float | None) -> bool:
    return ratio is not None and abs(ratio - 1) < 0.01


def show(first: dict[str, Any], again: dict[str, Any], ratios: dict[str, float]) -> None:
    """Print a line a shape (torch's time over ours in both races), then a line a race."""
    for one, two in pairs(first, again):
        speeds = (one.get("vs_vendor"), two.get("vs_vendor"), ratios.get(one["problem"]))
        print(f"{one['problem']:40}", *speeds, one.get("winner", one["reason"])[:_LABEL])
    for body in (first, again):
        print(body["summary"])
    print(f"{sum(map(is_close, ratios.values()))} of {len(ratios)} winners are within 1% of each other")


if __name__ == "__main__":
    main()
