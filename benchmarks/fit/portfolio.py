"""Makes tuner/sweep/portfolio.json: of recorded landscapes, the configs that between them are close to every best.

python benchmarks/fit/portfolio.py --data benchmarks/data/landscapes-h200.json.gz

Greedy set cover over the problems that suites/held-out.csv does not hold out; the file says which problem each covers.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from pathlib import Path

from tuner.problem import suite

sys.path.insert(0, str(Path(__file__).parents[1]))
from recorded import H200, ROOT, covering, landscapes

TARGET = ROOT.parent / "tuner" / "sweep" / "portfolio.json"
WITHIN = 1.02


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default=str(ROOT / "data" / "landscapes-h200.json.gz"))
    parser.add_argument("--out", default=str(TARGET))
    args = parser.parse_args()
    held = set(suite.load(str(ROOT / "suites" / "held-out.csv")))
    lands = [land for land in landscapes(args.data) if land.problem not in held]
    recorded = json.loads(gzip.decompress(Path(args.data).read_bytes()))
    listed = [
        {
            "kernel": config.kernel,
            "parameters": dict(config.pairs),
            "covers": [lands[number].label for number in covered],
        }
        for config, covered in covering(lands, within=WITHIN)
    ]
    document = {
        "provenance": {
            "made_by": "benchmarks/fit/portfolio.py",
            "recorded_on": recorded["gpus"][:1],
            "date": recorded["date"],
            "triton": recorded["triton"],
            "torch": recorded["torch"],
            "problems": len(lands),
            "within": WITHIN,
        },
        "architectures": {H200.arch: listed},
    }
    Path(args.out).write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    print(f"{len(listed)} configs cover {sum(len(entry['covers']) for entry in listed)} of {len(lands)} problems")


if __name__ == "__main__":
    main()
