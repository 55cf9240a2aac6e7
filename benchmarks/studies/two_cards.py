"""Whether one calibration serves two cards: trials of an H100 ranked by forests of an H200's trials and of both.

    python benchmarks/studies/two_cards.py --out RESULT.json

The H100's trials are those of benchmarks/data/shipped-h100.db.xz: 16-bit products that ladders raced through, about a
dozen configs of each, which the H200's forests had put first. So a ranking is held against what was tried alone: how
much slower than a problem's fastest trial is the trial that it puts first. Held out are whole weights (N and K) of both
cards, a fifth at a time; the H200's forests alone have seen its own trials of an H100's weights. `additive` is these
and, fitted to what they leave on the H100, trees of one question each. Needs CatBoost and no GPU.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tuner.kernels.cost import calibration

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "fit"))
import calibrate
import record
from recorded import shipped

FILE = calibrate.DATA / "shipped-h100.db.xz"
FEW = calibrate.BOOSTING | {"iterations": 100, "depth": 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, help="the result, as JSON")
    args = parser.parse_args()
    theirs, device = trials()
    ours = calibrate.recorded()
    parts, base = calibrate.parts_of(theirs, device), calibrate.parts_of(ours)
    weights = sorted({(each.n, each.k) for each in (*theirs, *ours)})
    part_of = dict(zip(weights, calibrate.drawn(len(weights), 0), strict=True))
    fold, own_fold = (np.array([part_of[each.n, each.k] for each in some]) for some in (theirs, ours))
    joined = {name: calibrate.Part([*base[name].rows, *moved(part, len(ours))]) for name, part in parts.items()}
    of_both = calibrate.held_out(joined, np.concatenate([own_fold, fold]))
    of_h200 = {name: ranked(base[name], part) for name, part in parts.items()}
    of_h100 = {
        "cost model": {name: part.estimates for name, part in parts.items()},
        "the H200's forests": of_h200,
        "forests of both": {name: of_both[name][len(base[name].rows) :] for name in parts},
        "additive": {name: additive(part, of_h200[name], fold) for name, part in parts.items()},
    }
    alone = calibrate.held_out(base, own_fold)
    own_both = {name: of_both[name][: len(part.rows)] for name, part in base.items()}
    summary: dict[str, Any] = {
        "problems": {"H100": len(theirs), "H200": len(ours)},
        "weights of the H100": len({(each.n, each.k) for each in theirs}),
        "trials of the H100": {name: len(part.rows) for name, part in parts.items()},
        "H100": {name: losses(theirs, parts, estimates) for name, estimates in of_h100.items()},
        "H200": {"its forests": losses(ours, base, alone), "forests of both": losses(ours, base, own_both)},
    }
    for card in ("H100", "H200"):
        for name, figures in summary[card].items():
            print(f"{card} {name:20} {figures}")
    record.write(args.out, {"figures": "recorded trials; this script needs no GPU", "summary": summary})


def losses(problems: dict[Any, Any], parts: dict[str, Any], estimates: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = calibrate.losses([calibrate.chosen(problems, parts, estimates)])
    return found


def trials() -> tuple[dict[Any, dict[Any, float]], Any]:
    """Every 16-bit product that was tried, with the microseconds of each config, and the card."""
    device, every = shipped(FILE)
    found = {
        problem: {config: us for config, us in times.items() if config.kernel in calibrate.KERNELS}
        for problem, times in every.items()
        if calibration.applies(problem, device)
    }
    return {problem: times for problem, times in found.items() if len(times) > 1}, device


def ranked(base: Any, part: Any) -> Any:
    every = np.ones(len(part.rows), dtype=bool)
    return calibrate.predicted(part, every, calibrate.fitted(base, np.ones(len(base.rows), dtype=bool)))


def moved(part: Any, problems: int) -> list[Any]:
    """A part's rows behind those of other problems."""
    return [(number + problems, *rest) for number, *rest in part.rows]


def additive(part: Any, estimates: Any, fold: Any) -> Any:
    found = np.zeros(len(part.rows))
    left = calibrate.Part(part.rows)
    left.errors = part.errors + part.estimates - estimates
    for number in range(calibrate.FOLDS):
        out = fold[part.problems] == number
        if out.any():
            forests = calibrate.fitted(left, ~out, FEW)
            found[out] = estimates[out] + np.mean([each.predict(part.values[out]) for each in forests], axis=0)
    return found


if __name__ == "__main__":
    main()
