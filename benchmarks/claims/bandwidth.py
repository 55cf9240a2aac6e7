"""vector_add and softmax beside torch and a device copy, in paired rounds: bytes per second as a share of the copy's.

    tuner run --suite benchmarks/suites/bandwidth.csv --db bandwidth.db
    python benchmarks/claims/bandwidth.py --db bandwidth.db --out RESULT.json

The copy reads and writes as many bytes as the op moves in all: the faster of torch's `copy_`, which some sizes slow
down by half, and a kernel of torch's that reads each element and writes one. Every other contestant is checked against
float64 first.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
from pathlib import Path

import torch

import tuner
from tuner.kernel import registry
from tuner.problem import suite
from tuner.sweep import finals, verify

sys.path.insert(0, str(Path(__file__).parents[1]))
import paired
import record

SUITE = Path(__file__).parents[1] / "suites" / "bandwidth.csv"
OURS, DEFAULT, TORCH, COPY = "tuner", "default", "torch", "copy"
COPIES = {"copy_": lambda to, of: to.copy_(of), "neg": lambda to, of: torch.neg(of, out=to)}
GOAL = 0.9
"""Of the copy's bytes per second."""


def contest(bench, problem):
    """Bytes per second of each contestant, and ours and torch's over the copy's by paired medians."""
    match = tuner.lookup(problem, bench.device)
    default = registry.default_config(problem, bench.device)
    spec, sets = bench.operands(problem)
    moved = spec.bytes_moved(problem)
    copies = [copy_of(moved, sets[0].output.dtype) for _ in sets]
    calls = {
        OURS: bench.launcher(problem, match.config, sets),
        DEFAULT: bench.launcher(problem, default, sets),
        TORCH: lambda index: spec.vendor(sets[index]),
    }
    reference = spec.reference(sets[0])
    for name, call in calls.items():
        verify.poison(sets[0])
        call(0)
        bench.timer.synchronize()
        found = verify.check(sets[0], reference, problem.k, spec.tolerance(problem))
        assert found.failure is None, f"{problem} by {name}: {found.failure}"
    del reference
    calls |= {name: functools.partial(_copied, copy, copies) for name, copy in COPIES.items()}
    times = bench.play(calls, len(sets))
    times[COPY] = min((times[name] for name in COPIES), key=statistics.median)
    us = {name: sorted(figures)[len(figures) // 2] for name, figures in times.items()}
    row = {
        "name": str(problem),
        "problem": problem.fields(),
        "kernel": match.kernel,
        "config": dict(match.config),
        "rule": match.rule,
        "default": str(default),
        "bytes_moved": moved,
        "us": {name: round(figure, 3) for name, figure in us.items()},
        "gb_per_s": {name: round(moved / figure * 1e-3, 1) for name, figure in us.items()},
        "share_of_copy": {name: round(finals.ratio(times[COPY], times[name]), 4) for name in (OURS, DEFAULT, TORCH)},
        "vs_torch": round(finals.ratio(times[TORCH], times[OURS]), 4),
    }
    print(f"{problem!s:48} {match.rule:8} of copy {row['share_of_copy']} torch/ours {row['vs_torch']} {match.config}")
    return row


def _copied(copy, copies, index):
    copy(*copies[index])


def copy_of(moved, dtype):
    """Two tensors: copying one to the other reads and writes `moved` bytes in all."""
    elements = moved // (2 * dtype.itemsize)
    return torch.empty(elements, dtype=dtype, device="cuda"), torch.randn(elements, device="cuda").to(dtype)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--db", help="where to look configs up; the standing sources unless given")
    parser.add_argument("--suite", default=str(SUITE))
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    if args.db:
        tuner.use(args.db)
    rows = []
    with paired.gpu() as bench:
        for problem in suite.load(args.suite):
            rows.append(contest(bench, problem))
            torch.cuda.empty_cache()
    ours = [row["share_of_copy"][OURS] for row in rows]
    against = [row["vs_torch"] for row in rows]
    summary = {
        "goal_share_of_copy": GOAL,
        "rows_tuned": sum(row["rule"] == "exact" for row in rows),
        "worst_share_of_copy": min(ours),
        "geomean_share_of_copy": round(record.geomean(ours), 4),
        "worst_vs_torch": min(against),
        "geomean_vs_torch": round(record.geomean(against), 4),
        "below_goal": [row["name"] for row in rows if row["share_of_copy"][OURS] < GOAL],
        "below_torch": [row["name"] for row in rows if row["vs_torch"] < 1],
    }
    for name, value in summary.items():
        print(f"{name:24} {value}")
    record.write(args.out, {**summary, "rows": rows})


if __name__ == "__main__":
    main()
