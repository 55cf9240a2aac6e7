"""What else a race could do, replayed on recorded landscapes beside what it does (decisions 135, 138). Needs no GPU.

    python benchmarks/studies/races.py --out RESULT.json

The problems are those on which the search is designed, and the price is claims/search_replay.py's.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from pathlib import Path
from unittest import mock

import numpy as np

from tuner.problem import suite
from tuner.sweep import finals, race
from tuner.sweep.race import FULL, RACE, Race, Share
from tuner.sweep.strategies import EXHAUSTIVE

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "claims"))
import record
from recorded import ROOT, landscapes
from replay import Course, play
from search_replay import summary

SEEDS = 5
FIRST = FULL._replace(first=Share(80, 12, 24))
SPREAD = 0.15
"""The standard deviation of the model's log errors that the Gaussian process assumes."""
NUGGET, BONUS = 0.02, 0.1


class Kriging(Race):
    """A Gaussian process over the log errors in place of their distance-weighted mean."""

    def _learn(self, outcomes):
        super()._learn(outcomes)  # counts the trials without a gain
        known = {self._index[config]: error for config, error in self._errors.items()}
        for config, outcome in outcomes.items():
            if outcome.median_us and config in self._index:
                number = self._index[config]
                known[number] = (math.log(outcome.median_us) - self._estimates[number], 1.0)
        if not known:
            return
        errors, trust = np.array(list(known.values())).T
        near = self._near(list(known))
        weights = np.linalg.solve(near[:, list(known)] + np.diag(NUGGET + 1 / trust - 1), near)
        middle = np.median(errors)
        unknown = np.sqrt(np.maximum(0.0, 1 - (near * weights).sum(axis=0)))
        self._predicted = self._estimates + middle + (errors - middle) @ weights - BONUS * SPREAD * unknown
        self._ranking = ()


VARIANTS = {
    "as it is": {},
    "a first wave of one in 80": {"pace": FIRST},
    "the simplest within 0.5%": {"close": 0.005},
    "both": {"pace": FIRST, "close": 0.005},
    "the simplest within 0.3%": {"close": 0.003},
    "the simplest within 0.1%": {"close": 0.001},
    "the fastest": {"close": 0.0},
    "30 rounds": {"strategy": {"rounds": 30}},
    "10 rounds": {"strategy": {"rounds": 10}},
    "less patience": {"pace": FULL._replace(patience=Share(200, 10, 24))},
    "fewer replays": {"strategy": {"drop": (1.05,)}},
    "three finalists within 2%": {"strategy": {"finalists": 3, "margin": 1.02}},
    "a Gaussian process": {"strategy": {"start": Kriging}},
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    held = set(suite.load(str(ROOT / "suites" / "held-out.csv")))
    design = [land for land in landscapes() if land.problem not in held]
    courses = [Course(land, [other for other in design if other is not land]) for land in design]
    exhaustive = {course.land.label: play(course, EXHAUSTIVE)["seconds"] for course in courses}
    rows = []
    for name, changes in VARIANTS.items():
        strategy = dataclasses.replace(RACE, **changes.get("strategy", {}))
        with (
            mock.patch.object(race, "FULL", changes.get("pace", FULL)),
            mock.patch.object(finals, "CLOSE", changes.get("close", finals.CLOSE)),
        ):
            found = [
                {"exhaustive_s": exhaustive[course.land.label], **play(course, strategy, seed=seed)}
                for course in courses
                for seed in range(SEEDS)
            ]
        rows.append({"race": name, **summary(found)})
        print(rows[-1], flush=True)
    record.write(args.out, {"rows": rows})


if __name__ == "__main__":
    main()
