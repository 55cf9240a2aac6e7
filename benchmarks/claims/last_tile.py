"""What a last tile of rows that reaches beyond M costs: a few configs at Ms around multiples of their tiles.

    python benchmarks/claims/last_tile.py --out RESULT.json

Each problem's configs and the default play paired rounds. To compare two editions, run it once with each.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tuner.bench.held_out import Case, play
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.sweep.paired import PairedRunner

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

MS = (96, 129, 139, 160, 176, 192, 201, 216, 240, 256, 300, 384, 500, 1000, 1024)


def swap_ab(rows: int, columns: int, stages: int) -> Config:
    tile = {"BLOCK_SIZE_M": rows, "BLOCK_SIZE_N": columns, "BLOCK_SIZE_K": 64, "num_stages": stages, "num_warps": 4}
    return Config("swap_ab", LOADS="tma", PDL_TRIGGER=8, SPLIT_K=1, launch_pdl=True, **tile)


CONFIGS = {
    (4096, 14336): (swap_ab(64, 128, 9), swap_ab(128, 64, 9)),
    (6144, 4096): (swap_ab(128, 128, 7), swap_ab(32, 128, 5)),
    (4096, 4096): (swap_ab(64, 128, 9), swap_ab(128, 64, 9)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="where the result is written")
    args = parser.parse_args()
    with PairedRunner(0) as runner:
        cases = []
        for (n, k), (first, second) in CONFIGS.items():
            for m in MS:
                problem = Problem(m, n, k, dtype="bfloat16", layout="nt")
                cases.append(Case(problem, "", first, second, registry.default_config(problem, runner.device)))
        rows = []
        for one in play(cases, runner):
            if one.fastest_us is None or one.answer is None or one.formula is None:
                print(f"{one.case.problem}: {one.failure}")
                continue
            times = {"first_us": one.answer * one.fastest_us, "second_us": one.formula * one.fastest_us}
            rows.append({"problem": str(one.case.problem), **times, "fastest_us": one.fastest_us})
            print(one.case.problem, *(f"{us:.1f}" for us in (*times.values(), one.fastest_us)))
    record.write(args.out, {"problems": rows})


if __name__ == "__main__":
    main()
