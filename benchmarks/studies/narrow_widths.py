"""Tiles of 128 rows and 80 to 128 columns in one wave: what `any_width` would gain by them, in paired rounds.

    python benchmarks/studies/narrow_widths.py --out RESULT.json

129 to 256 rows of A are two tiles of 128 rows. The weights' columns fill one wave in tiles of the widths that are
played, alone and in pairs that share the loads of A or of B. `over_torch` is a config's time over torch's, the table's
config first.
"""

from __future__ import annotations

import argparse
from typing import Any

from any_height import play_all

from tuner import Config, Problem
from tuner.hardware.device import Device
from tuner.kernels.gemm.hopper import any_width_space

SHAPES = (
    *((5120, 8192), (5120, 25600), (4608, 3584), (6144, 4096), (7168, 8192), (7168, 16384)),
    *((5120, 5120), (4096, 14336), (3584, 8192), (8192, 7168), (10240, 8192)),
)
MS = (144, 208, 256)
WIDTHS = (80, 96, 112, 128)
WAYS: tuple[dict[str, Any], ...] = ({}, {"num_ctas": 2}, {"num_ctas": 2, "SHARE_B": True})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, help="the result, as JSON")
    parser.add_argument("--gpu", type=int, default=0)
    args = parser.parse_args()
    problems = [Problem(m, n, k, dtype="bf16", layout="nt") for n, k in SHAPES for m in MS]
    play_all(args, problems, narrow)


def narrow(problem: Problem, device: Device) -> list[Config]:
    """The configs of every width and way whose tiles fill most of one wave."""
    found = []
    for width in WIDTHS:
        tiles = 2 * -(-problem.n // width)
        if not 0.7 * device.sm_count <= tiles <= device.sm_count:
            continue
        for way in WAYS:
            sides = {"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": width, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 2}
            config = Config("any_width", **sides, num_warps=8, launch_pdl=True, num_stages=2, **way)
            found.append(config.replace(num_stages=any_width_space.deepest(config, problem, device)))
    return found


if __name__ == "__main__":
    main()
