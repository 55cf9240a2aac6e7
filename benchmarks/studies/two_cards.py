"""Whether one calibration serves two cards: trials of an H100 ranked by forests of an H200's trials and of both.

    python benchmarks/studies/two_cards.py --out RESULT.json

The H100's trials are those of benchmarks/data/shipped-h100.db.xz: 16-bit products that ladders raced through, about a
dozen configs of each, which the H200's forests had put first. So a ranking is held against what was tried alone: how
much slower than a problem's fastest trial is the trial that it puts first. Held out are whole weights (N and K), a
fifth at a time. `additive` is the H200's forests and, fitted to what they leave, trees of one question each. Needs
CatBoost and no GPU.
"""

from __future__ import annotations

import argparse
import lzma
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from tuner.kernels.cost import calibration
from tuner.store.records import State
from tuner.store.store import Store

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "fit"))
import calibrate
import record

FILE = calibrate.DATA / "shipped-h100.db.xz"
FOLDS = 5
FEW = calibrate.BOOSTING | {"iterations": 100, "depth": 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, help="the result, as JSON")
    args = parser.parse_args()
    theirs, device = trials()
    ours = calibrate.recorded()
    parts, base = calibrate.parts_of(theirs, device), calibrate.parts_of(ours)
    fold = folds(list(theirs))
    rankings = {
        "cost model": {name: part.estimates for name, part in parts.items()},
        "an H200's forests": {name: ranked(base[name], part) for name, part in parts.items()},
        "forests of both": {name: of_both(base[name], part, fold) for name, part in parts.items()},
    }
    rankings["additive"] = {
        name: additive(part, rankings["an H200's forests"][name], fold) for name, part in parts.items()
    }
    summary: dict[str, Any] = {
        "device": device.slug,
        "problems": len(theirs),
        "weights": len({(each.n, each.k) for each in theirs}),
        "trials": {name: len(part.rows) for name, part in parts.items()},
    }
    summary |= {
        name: calibrate.losses([calibrate.chosen(theirs, parts, estimates)]) for name, estimates in rankings.items()
    }
    for name, figures in summary.items():
        print(f"{name:20} {figures}")
    record.write(args.out, {"figures": "recorded trials; this script needs no GPU", "summary": summary})


def trials() -> tuple[dict[Any, dict[Any, float]], Any]:
    """Every 16-bit product that was tried, with the microseconds of each config, and the card."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "shipped.db"
        database.write_bytes(lzma.decompress(FILE.read_bytes()))
        with Store.open(str(database), read_only=True) as store:
            (device,) = (row.device for row in store.devices())
            found: dict[Any, dict[Any, float]] = defaultdict(dict)
            for row in store.trials():
                known = calibration.applies(row.problem, device) and row.outcome.state is State.COMPLETE
                if known and row.config.kernel in calibrate.KERNELS:
                    found[row.problem][row.config] = row.outcome.median_us
    return dict(sorted((problem, times) for problem, times in found.items() if len(times) > 1)), device


def folds(problems: list[Any]) -> np.ndarray[Any, Any]:
    weights = sorted({(each.n, each.k) for each in problems})
    drawn = np.random.default_rng(0).permutation(len(weights)) % FOLDS
    by_weight = dict(zip(weights, drawn, strict=True))
    return np.array([by_weight[each.n, each.k] for each in problems])


def ranked(base: Any, part: Any) -> Any:
    every = np.ones(len(part.rows), dtype=bool)
    return calibrate.predicted(part, every, calibrate.fitted(base, np.ones(len(base.rows), dtype=bool)))


def of_both(base: Any, part: Any, fold: Any) -> Any:
    found = np.zeros(len(part.rows))
    both = calibrate.Part([*base.rows, *part.rows])
    for number in range(FOLDS):
        out = fold[part.problems] == number
        if out.any():
            known = np.concatenate([np.ones(len(base.rows), dtype=bool), ~out])
            found[out] = calibrate.predicted(part, out, calibrate.fitted(both, known))
    return found


def additive(part: Any, estimates: Any, fold: Any) -> Any:
    found = np.zeros(len(part.rows))
    left = calibrate.Part(part.rows)
    left.errors = part.errors + part.estimates - estimates
    for number in range(FOLDS):
        out = fold[part.problems] == number
        if out.any():
            forests = calibrate.fitted(left, ~out, FEW)
            found[out] = estimates[out] + np.mean([each.predict(part.values[out]) for each in forests], axis=0)
    return found


if __name__ == "__main__":
    main()
