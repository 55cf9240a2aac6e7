"""Fit what multiply-adds and copies of the kernel `simt` take, and hold its estimates against trials on record.

    python benchmarks/fit/simt.py --out RESULT.json

The trials are those of 51 random products of float32 on an H200 (benchmarks/data/scattered-float32-h200.db.xz), a race
and a random sample of each. The two constants of kernels/cost/products.py are fitted to unsplit trials of at least
`LARGE` multiply-adds whose programs fill the multiprocessors. `loss` is the time of the trial that the estimates, as
they are, rank first, over that of the fastest trial of the kernel; of trials with a default's BLOCK_SIZE_K and at most
its num_stages. Since then `simt` has got a rule of its own for launch_pdl, and rules that leave out some of these
trials. Needs no GPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import numpy as np

from tuner.kernel import registry
from tuner.kernels.space import tile_resources

sys.path.insert(0, str(Path(__file__).parents[1]))
import record
from recorded import ROOT, database

DATA = ROOT / "data" / "scattered-float32-h200.db.xz"
LARGE = 6e9
ROWS = ((1, 16), (17, 256), (257, 4096))
SPEC = registry.find("matmul", "simt")
_LANES = 128
"""Multiply-adds of a multiprocessor in a cycle."""
_FULL_WARPS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, help="the result, as JSON")
    args = parser.parse_args()
    device, trials = database(DATA)
    own = {problem: {c: us for c, us in times.items() if c.kernel == SPEC.name} for problem, times in trials.items()}
    body = {"constants": fitted(own, device), "loss": losses(own, device)}
    print(body)
    record.write(args.out, body)


def fitted(own, device):
    """Cycles for each sum and element along K, and for each copy, by least squares of relative errors."""
    found = [row for problem, times in own.items() for row in rows_of(problem, times, device)]
    terms, ratios = np.array([row[:2] for row in found]), np.array([row[2] for row in found])
    constants, *_ = np.linalg.lstsq(terms / ratios[:, None], np.ones(len(found)), rcond=None)
    errors = np.log(terms @ constants / ratios)
    return {"trials": len(found), "sum": constants[0], "copy": constants[1], "error": float(errors.std())}


def rows_of(problem, times, device):
    """Of trials that fill the device: what the constants are multiplied by, and the time over that at full rate."""
    if problem.m * problem.n * problem.k < LARGE:
        return
    space = SPEC.space(problem, device)
    for config, us in times.items():
        tiles_m, tiles_n, _ = tile_resources.tile_counts(config, problem)
        sums = tile_resources.accumulator_registers(config, device)
        by_memory = device.shared_bytes // SPEC.shared_bytes(config, problem, device)
        block_m, block_n, block_k = tile_resources.tile(config)
        warps = config["num_warps"]
        resident = min(by_memory, tile_resources.simt_programs(block_m, block_n, warps, device)) * warps
        if config["SPLIT_K"] > 1 or tiles_m * tiles_n < 3 * device.sm_count or resident < _FULL_WARPS:
            continue
        if space.rejection(config.replace(GROUP_SIZE_M=1)) is not None:
            continue
        copies = tile_resources.loads_per_thread(config, problem, device)
        full_us = tiles_m * tiles_n * block_m * block_n * problem.k / (device.sm_count * _LANES * device.sustained_mhz)
        yield 1.0, copies / sums / block_k, us / full_us


def losses(own, device):
    """By rows of A and how B is stored: problems, geometric mean and worst."""
    found = {}
    for least, most in ROWS:
        for along_k in (True, False):
            ratios = [
                loss
                for problem, times in own.items()
                if least <= problem.m <= most
                and (problem.layout[1] == "t") == along_k
                and (loss := loss_of(problem, times, device))
            ]
            if ratios:
                name = f"{least} to {most} rows, B [{'N, K' if along_k else 'K, N'}]"
                found[name] = {
                    "problems": len(ratios),
                    "geomean": round(statistics.geometric_mean(ratios), 4),
                    "worst": round(max(ratios), 4),
                }
    return found


def loss_of(problem, times, device):
    """The loss of one problem, None where fewer than three such trials are on record."""
    default = SPEC.default_config(problem, device)
    space = SPEC.space(problem, device)
    tried = [
        config
        for config in times
        if config["BLOCK_SIZE_K"] == default["BLOCK_SIZE_K"]
        and config["num_stages"] <= default["num_stages"]
        and space.rejection(config) is None
    ]
    if len(tried) < 3:
        return None
    first = min(tried, key=lambda config: SPEC.estimate_us(config, problem, device))
    return times[first] / min(times.values())


if __name__ == "__main__":
    main()
