"""How much longer the default formula's config takes than the fastest trial on record, by card and rows of A.

    python benchmarks/claims/defaults.py --out RESULT.json

The trials are those from which the tables were made that come with triton-tuner (benchmarks/data/shipped-*.db.xz), of
which the formulas' constants know nothing but those of `any_height`, fitted to ten of the H200's weights. A search
tries few configs, so the fastest on record is not the fastest there is; and where today's default was never tried, the
problem is left out and counted. Needs no GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import lzma
import sqlite3
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from tuner import Config, Problem
from tuner.hardware.device import KNOWN, Device
from tuner.kernel import registry

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

DATA = Path(__file__).parents[1] / "data"
H200 = KNOWN["sm_90"]
H100 = dataclasses.replace(
    H200, slug="nvidia-h100-80gb-hbm3-sm90-132", l2_bytes=50 * 2**20, clock_mhz=1980, memory_gb_per_s=3352
)
CARDS = {"shipped-h200.db.xz": H200, "shipped-h100.db.xz": H100}
ROWS = ((1, 1), (2, 16), (17, 64), (65, 128), (129, 256))
TRIALS = """
    SELECT p.m, p.n, p.k, p.a_dtype, p.epilogue, k.name, c.parameters, min(t.median_us)
    FROM trial t JOIN problem p USING (problem_id) JOIN config c USING (config_id) JOIN kernel k USING (kernel_id)
    WHERE t.state = 'COMPLETE' AND p.a_dtype = 'bfloat16' GROUP BY t.problem_id, t.config_id
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, help="the result, as JSON")
    args = parser.parse_args()
    found = {device.slug: losses(recorded(DATA / file), device) for file, device in CARDS.items()}
    for slug, figures in found.items():
        for rows, each in figures.items():
            print(slug, rows, each)
    record.write(args.out, {"cards": found})


def recorded(path: Path) -> dict[Problem, dict[Config, float]]:
    """The time of every config that was tried, by problem."""
    times: dict[Problem, dict[Config, float]] = defaultdict(dict)
    with tempfile.NamedTemporaryFile(suffix=".db") as file:
        file.write(lzma.decompress(path.read_bytes()))
        file.flush()
        for m, n, k, dtype, epilogue, kernel, parameters, us in sqlite3.connect(file.name).execute(TRIALS):
            problem = Problem(m, n, k, dtype=dtype, layout="nt", epilogue=epilogue)
            times[problem][Config.from_json(kernel, parameters)] = us
    return times


def losses(times: dict[Problem, dict[Config, float]], device: Device) -> dict[str, dict[str, Any]]:
    found = {}
    for first, last in ROWS:
        some = [problem for problem in times if first <= problem.m <= last]
        defaults = {problem: registry.default_config(problem, device) for problem in some}
        over = {
            problem: times[problem][config] / min(times[problem].values())
            for problem, config in defaults.items()
            if config in times[problem]
        }
        worst = max(over, key=over.__getitem__)
        found[f"{first} to {last} rows"] = {
            "problems": len(over),
            "default_never_tried": len(some) - len(over),
            "geomean": round(record.geomean(over.values()), 4),
            "worst": round(over[worst], 3),
            "at": f"{worst.m}x{worst.n}x{worst.k}",
            "beyond_6_percent": round(sum(each > 1.06 for each in over.values()) / len(over), 3),
        }
    return found


if __name__ == "__main__":
    main()
