"""What loads through descriptors bring `fused_experts`: the trials behind the tables that come with triton-tuner.

    python benchmarks/studies/experts_kernels.py --out RESULT.json

Of every problem for which both kernels were tried, the least microseconds by `experts_pointer` over those by
`experts_tma`, as trials found them: by numbers of tokens, the geometric mean, the least, the most and how many there
are. A search gives each kernel's configs a place in its first wave and goes on where it is fastest.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import record
import recorded

DATA = Path(__file__).parents[1] / "data" / "shipped-h100.db.xz"
BELOW = (256, 512, 1024, 2048, 4097)
"""One past the last number of tokens of each line."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    device, found = recorded.database(DATA)
    ratios = defaultdict(list)
    for problem, times in found.items():
        best: dict[str, float] = {}
        for config, us in times.items():
            best[config.kernel] = min(us, best.get(config.kernel, us))
        if problem.op == "fused_experts" and len(best) == 2:
            ratios[min(below for below in BELOW if problem.m < below)].append(
                best["experts_pointer"] / best["experts_tma"]
            )
    lines = {
        f"below {below}": {
            "geomean": round(record.geomean(each), 3),
            "least": round(min(each), 3),
            "most": round(max(each), 3),
            "problems": len(each),
        }
        for below, each in sorted(ratios.items())
    }
    for tokens, line in lines.items():
        print(tokens, line)
    record.write(options.out, {"trials of": device.slug, "pointer over tma, by tokens": lines})


if __name__ == "__main__":
    main()
