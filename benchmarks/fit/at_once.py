"""What draws of tiles that all run at once say of `any_height`'s order of tiles, and of today's defaults. Needs no GPU.

    python benchmarks/fit/at_once.py --out RESULT.json

The draws are those of benchmarks/studies/cluster_tiles.py, with every config's median. `groups_over_one` is the time
of a tile's best order in groups (GROUP_SIZE_M above 1) over that of GROUP_SIZE_M 1, in one play: of tiles that all run
at once, up to 640 rows of A and beyond. `default_over_fastest` is the time of today's default over that of the fastest
config of a problem, where the draw has played it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tuner import Config, Problem
from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.kernels.gemm.any_tile.any_height_space import MOST_ROWS_AT_ONCE
from tuner.kernels.gemm.any_tile.any_height_tile import NAME
from tuner.kernels.gemm.hopper.resources import tiles

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

RESULTS = Path(__file__).parents[1] / "results"
DRAWS = [RESULTS / f"{name}-h200.json" for name in ("cluster-tiles", "cluster-tiles-again", "cluster-tiles-third")]
DEVICE = KNOWN["sm_90"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--draw", type=Path, nargs="+", default=DRAWS, metavar="RESULT", help="of cluster_tiles.py")
    parser.add_argument("--out", required=True, help="the result, as JSON")
    args = parser.parse_args()
    result = {draw.stem: summary_of(json.loads(draw.read_text())["found"]) for draw in args.draw}
    print(json.dumps(result, indent=1))
    record.write(args.out, result)


def summary_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    few, many, over = list[float](), list[float](), dict[str, float]()
    unplayed = 0
    for each in found:
        problem = Problem(*each["shape"], dtype="bf16", layout="nt")
        us = dict(medians(each))
        (few if problem.m <= MOST_ROWS_AT_ONCE else many).extend(groups_over_one(us, problem))
        default = registry.default_config(problem, DEVICE)
        unplayed += default not in us
        if default in us:
            over[str(problem)] = us[default] / min(us.values())
    worst = max(over, key=lambda problem: over[problem])
    return {
        "groups_over_one": {f"up to {MOST_ROWS_AT_ONCE} rows": spread(few), "more": spread(many)},
        "default_over_fastest": spread(list(over.values())) | {"where": worst, "not played": unplayed},
    }


def medians(found: dict[str, Any]) -> Iterator[tuple[Config, float]]:
    for each in found["us"]:
        yield Config(each["kernel"], **{k: v for k, v in each.items() if k not in ("kernel", "us")}), each["us"]


def groups_over_one(us: dict[Config, float], problem: Problem) -> list[float]:
    """Of each tile that was played in both ways, and of which all run at once, the best group's time over 1's."""
    by_tile = defaultdict[Config, dict[int, float]](dict)
    for config, median in us.items():
        if config.kernel == NAME and tiles(config, problem) <= DEVICE.sm_count:
            by_tile[config.replace(GROUP_SIZE_M=1)][config.integer("GROUP_SIZE_M")] = median
    played = (groups for groups in by_tile.values() if 1 in groups and len(groups) > 1)
    return [min(median for group, median in groups.items() if group > 1) / groups[1] for groups in played]


def spread(ratios: list[float]) -> dict[str, Any]:
    if not ratios:
        return {"count": 0}
    geomean, least, most = (round(each, 4) for each in (record.geomean(ratios), min(ratios), max(ratios)))
    return {"count": len(ratios), "geomean": geomean, "least": least, "most": most}


if __name__ == "__main__":
    main()
