"""What shapes that nobody tuned lose: the default for them, played against the winners that tuning finds.

    python benchmarks/claims/unseen.py --out FOLDER
    python benchmarks/claims/unseen.py --held-out unseen-fifth --out FOLDER

The shapes of the held-out suites are tuned into a new database. Then each is looked up as if it were not there, and
`tuner verify --regret` plays the answer and the winner in paired rounds. The calibration's fit knows trials of the
weights of unseen.csv, unseen-again.csv and unseen-third.csv, and of some of unseen-fourth.csv; those of
unseen-fifth.csv no fit has seen. FOLDER must not exist yet. It receives the database, the compile cache, the log, and
the result, unseen.json.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from commands import new_folder, tuner
from written import write_suite

from tuner.errors import TunerError
from tuner.problem import Problem, suite

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

SUITES = Path(__file__).parents[1] / "suites"
HELD_OUT = ("unseen", "unseen-again", "unseen-third", "unseen-fourth", "unseen-fifth")
RESULT = "unseen.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--held-out", action="append", metavar="SUITE", help="all five unless given; may be repeated")
    parser.add_argument("--device", default="cuda:0", help="as `tuner run` takes it")
    parser.add_argument("--time-budget", default="420s", help="of the tuning, as `tuner run` takes it")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="a new folder")
    args = parser.parse_args()
    try:
        held_out = {name: suite.load(place(name)) for name in args.held_out or HELD_OUT}
    except TunerError as e:
        parser.error(str(e))
    folder = new_folder(parser, args.out)
    asked = folder / "held-out.csv"
    write_suite(asked, [problem for problems in held_out.values() for problem in problems])
    begin = time.monotonic()
    options = ["--device", args.device, "--db", "unseen.db", "--time-budget", args.time_budget]
    run = tuner(folder, "run", "--suite", str(asked), *options, accept=(0, 1))
    tuning_s = time.monotonic() - begin
    options = ["--regret", "--suite", str(asked), "--device", args.device]
    told = tuner(folder, "verify", "unseen.db", *options, accept=(0, 1))
    rows = [{"suite": suite_of(row, held_out), **row} for row in told["problems"]]
    body = {
        "device": told["device"],
        "protocol": told["protocol"],
        "tuned_problems": len(run["problems"]),
        "tuning_s": round(tuning_s, 1),
        "seconds": round(time.monotonic() - begin, 1),
        "summary": summaries(rows),
        "problems": rows,
    }
    record.write(folder / RESULT, body)
    show(body)


def place(name: str) -> str:
    """A suite by the name of its file in benchmarks/suites, or as `tuner` knows it."""
    path = SUITES / f"{name}.csv"
    return str(path) if path.exists() else name


def suite_of(row: dict[str, Any], held_out: dict[str, list[Problem]]) -> str:
    asked = Problem.from_fields(row["problem"])
    return next(name for name, problems in held_out.items() if asked in problems)


def summaries(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The figures of each suite, then of all by each rule, then of all."""
    measured = [row for row in rows if not row["failure"] and row["answer_regret"] is not None]
    parts = {
        **{name: [row for row in measured if row["suite"] == name] for name in unique(rows, "suite")},
        **{f"all, {rule}": [row for row in measured if row["rule"] == rule] for rule in sorted(unique(rows, "rule"))},
        "all": measured,
    }
    return [{"part": name, **summary(chosen)} for name, chosen in parts.items() if chosen]


def unique(rows: list[dict[str, Any]], name: str) -> list[str]:
    return list(dict.fromkeys(row[name] for row in rows))


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How much slower than the fastest the lookup's configs are, and the formula's."""
    answers, formulas = ([row[name] for row in rows] for name in ("answer_regret", "formula_regret"))
    return {
        "problems": len(rows),
        "lookup_geomean": round(record.geomean(answers), 4),
        "lookup_worst": round(max(answers), 4),
        "formula_geomean": round(record.geomean(formulas), 4),
        "formula_worst": round(max(formulas), 4),
    }


def show(body: dict[str, Any]) -> None:
    failed = sum(bool(row["failure"]) for row in body["problems"])
    print(f"{body['tuned_problems']} problems tuned in {body['tuning_s']} s; {failed} could not be played")
    print(*body["summary"], sep="\n")


if __name__ == "__main__":
    main()
