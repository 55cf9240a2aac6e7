"""What a lookup's borrowed answers lose against the formula's, over recorded trials: shapes held out of a race's rows.

    python benchmarks/lending.py --out RESULT.json

Of the problems of three races (runs 4 to 6 of data/unseen-trials-h200.csv.gz, and what `tuner verify --regret` played
of them) one of four is held out at a time, and the others' fastest trials are the table; then the 30 of
unseen-third.csv are and those of unseen-fourth.csv, and the 60 of unseen-tuned.csv are the table. Answers that nobody
measured are counted and left out.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from pathlib import Path

import record
from recorded import H200, ROOT, trials
from table_of_trials import RACES, row

import tuner
from tuner.kernel import registry
from tuner.lookup.row import Provenance
from tuner.lookup.table import Table
from tuner.problem import Problem, suite

RUNS = ("4", "5", "6")
PLAYS = ("unseen-again-h200.json", "unseen-third-h200.json", "unseen-fourth-h200.json")
BLIND = ("third", "fourth")
PARTIES = ("answer", "declined", "formula")
PARTS = 4


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    logging.disable(logging.WARNING)  # every answer is a miss
    times = {}
    for run in RUNS:
        times |= trials(str(ROOT / "data" / "unseen-trials-h200.csv.gz"), run)
    made = Provenance(RACES["3"], 1, "0.1.0")
    rows = {problem: row(problem, of_one, made) for problem, of_one in sorted(times.items())}
    known = played()
    problems = list(rows)
    found = []
    for part in range(PARTS):
        out = problems[part::PARTS]
        found += [answer(problem, times, known) for problem in lent(out, [rows[p] for p in problems if p not in out])]
    summary = {"one of four held out": losses(found)}
    tuned = [rows[problem] for problem in load("tuned")]
    for name in BLIND:
        blind = [answer(problem, times, known) for problem in lent(load(name), tuned)]
        summary[f"unseen-{name}.csv"] = losses(blind)
    for name, figures in summary.items():
        print(name, figures)
    record.write(args.out, {"figures": "recorded trials; this script needs no GPU", "summary": summary, "rows": found})


def load(name):
    return suite.load(str(ROOT / "suites" / f"unseen-{name}.csv"))


def played():
    """Regrets that were played: {problem: {config: regret}}."""
    found = {}
    for name in PLAYS:
        for entry in json.loads((ROOT / "results" / name).read_text())["problems"]:
            of_one = found.setdefault(Problem.from_fields(entry["problem"]), {})
            of_one |= {
                entry[part]: entry[f"{part}_regret"] for part in ("answer", "declined", "formula") if entry[part]
            }
    return found


def lent(out, rows):
    """The problems held out, one after the other, while a table holds the rows."""
    with tempfile.TemporaryDirectory() as folder:
        Table("matmul", H200, "2026-11-22T00:00:00Z", tuple(rows)).write(Path(folder))
        tuner.use(None)
        tuner.use(folder)
        yield from sorted(out)


def answer(problem, times, known):
    match, formula = tuner.lookup(problem, H200), registry.default_config(problem, H200)
    return {
        "problem": str(problem),
        "rule": match.rule,
        "answer": match.config.label,
        "lookup": regret(problem, match.config, times, known),
        "formula": regret(problem, formula, times, known),
        "differs": match.config != formula,
    }


def regret(problem, config, times, known):
    """How many times as long as the fastest a config took; None where nobody measured it."""
    if (one := known.get(problem, {}).get(str(config))) is not None:
        return round(one, 4)
    config = registry.find(problem.op, config.kernel).space(problem, H200).canonicalize(config)
    took = times[problem].get(config)
    return took and round(took / min(times[problem].values()), 4)


def losses(found):
    both = [one for one in found if one["lookup"] and one["formula"]]
    borrowed = [one for one in both if one["rule"] != "default"]
    return {
        "problems": len(found),
        "measured": len(both),
        "lookup": round(record.geomean([one["lookup"] for one in both]), 4),
        "formula": round(record.geomean([one["formula"] for one in both]), 4),
        "worst": {name: max(one[name] for one in both) for name in ("lookup", "formula")},
        "borrowed": len(borrowed),
        "borrowed_lookup": round(record.geomean([one["lookup"] for one in borrowed]), 4),
        "borrowed_formula": round(record.geomean([one["formula"] for one in borrowed]), 4),
        "answers_unlike_the_formula": sum(one["differs"] for one in found),
    }


if __name__ == "__main__":
    main()
