"""What a lookup loses on shapes that nobody tuned: replayed on recorded landscapes, each problem held out in turn.

    python benchmarks/unseen.py --out RESULT.json

The rules are the product's own code. A problem's row, and those of the same M, N and K in other dtypes or layouts, are
held out; what a lookup then says is timed by what was recorded for that config on an H200. Beside it: the default
formula alone, the nearest winner taken without weighing, and the best of all winners and the formula, which no rule
can beat. These problems lie far apart (the nearest of a kind is 1.1 to 3.4 away); `tuner verify --regret` measures
the same on tables as they ship.
"""

from __future__ import annotations

import argparse
import statistics

import record
from recorded import H200, ROOT, landscapes

from tuner import registry, suite
from tuner.device import Environment
from tuner.runtime import rules
from tuner.runtime.row import Provenance, Row
from tuner.runtime.shelf import Shelf, by_problem

MADE = Provenance(Environment(rules.triton_version(), "", "", "", ""), 1, "")
RULES = ("near_m", "near_shape", "default")


class Held:
    """A recorded problem: its row, and the true times of what may be said of it."""

    def __init__(self, land):
        self.land, self.problem = land, land.problem
        winner = min(land.us, key=land.us.get)
        self.formula = self.program(registry.default_config(land.problem, H200))
        formula_us = land.us.get(self.formula)
        version = registry.find(land.problem.op, winner.kernel).version
        measured = formula_us / land.best_us if formula_us else None
        self.row = Row(land.problem, winner, version, MADE, land.best_us, measured, None, 1)

    def program(self, config):
        return registry.find(self.problem.op, config.kernel).space(self.problem, H200).canonicalize(config)

    def regret(self, config):
        """Time over the best, None where that config was not recorded."""
        us = self.land.us.get(self.program(config))
        return us and us / self.land.best_us


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default=str(ROOT / "data" / "landscapes-h200.json.gz"))
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    apart = set(suite.load(str(ROOT / "suites" / "held-out.csv")))
    everyone = [Held(land) for land in landscapes(args.data)]
    rows = [row(held, everyone, never_fitted=held.problem in apart) for held in everyone]
    for found in rows:
        print(" ".join(f"{value!s:>12}" for value in found.values()))
    parts = {"all": rows, "never fitted": [found for found in rows if found["never_fitted"]]}
    parts |= {f"rule {rule}": [found for found in rows if found["rule"] == rule] for rule in RULES}
    parts["bfloat16 nt"] = [found for found in rows if found["problem"].endswith(" bfloat16 nt")]
    summaries = {part: summary(chosen) for part, chosen in parts.items() if chosen}
    for part, figures in summaries.items():
        print(part, figures)
    constants = {name: getattr(rules, name) for name in ("NEAR_M", "NEAREST", "MARGIN", "BLIND", "REACH")}
    replayed = "replayed from landscapes that were recorded on an H200; nothing was measured here"
    record.write(args.out, {"figures": replayed, "constants": constants, "summary": summaries, "rows": rows})


def row(held, everyone, *, never_fitted):
    others = [other for other in everyone if other.problem.shape != held.problem.shape]
    shelf = Shelf("held out", *by_problem(other.row for other in others), "")
    decision = rules.decide(held.problem, H200, [shelf])
    near = [offer for offer in decision.offers if offer.distance <= rules.REACH]
    nearest = min(near, key=lambda offer: offer.distance, default=None)
    offered = [regret for offer in near if (regret := held.regret(offer.row.config)) is not None]
    formula = held.regret(held.formula)
    return {
        "problem": held.land.label,
        "never_fitted": never_fitted,
        "rule": decision.match.rule,
        "neighbours": len(near),
        "nearest_distance": nearest and round(nearest.distance, 3),
        "lookup": rounded(held.regret(decision.match.config)),
        "formula": rounded(formula),
        "nearest": rounded(formula if nearest is None else held.regret(nearest.row.config)),
        "best_offered": rounded(min([*offered, *([formula] if formula else [])], default=None)),
        "config": decision.match.config.label,
    }


def summary(rows):
    """Geometric means and worst of each way to answer, over the problems where both were recorded."""
    whole = [found for found in rows if found["lookup"] and found["formula"]]
    figures = {"problems": len(rows), "not_recorded": len(rows) - len(whole)}
    for way in ("lookup", "formula", "nearest", "best_offered"):
        ratios = [found[way] for found in whole if found[way]]
        figures |= {f"{way}_geomean": rounded(record.geomean(ratios)), f"{way}_worst": max(ratios, default=None)}
    borrowed = [found["nearest_distance"] for found in rows if found["nearest_distance"]]
    return figures | {"median_nearest_distance": borrowed and round(statistics.median(borrowed), 2)}


def rounded(ratio):
    return ratio and round(ratio, 4)


if __name__ == "__main__":
    main()
