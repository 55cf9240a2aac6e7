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
from tuner.hardware import device
from tuner.kernel import registry
from tuner.problem import suite
from tuner.sweep import finals, nvml, verify
from tuner.sweep.timer import GraphTimer

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

SUITE = Path(__file__).parents[1] / "suites" / "bandwidth.csv"
OURS, DEFAULT, TORCH, COPY = "tuner", "default", "torch", "copy"
COPIES = {"copy_": lambda to, of: to.copy_(of), "neg": lambda to, of: torch.neg(of, out=to)}


def contest(problem, here, timer, monitor):
    """Bytes per second of each contestant, and ours and torch's over the copy's by paired medians."""
    match, default = tuner.lookup(problem, here), registry.default_config(problem, here)
    spec = registry.serving(problem, here)[0]
    sets = [spec.make_inputs(problem, "cuda", 0)]
    sets += [spec.make_inputs(problem, "cuda", seed) for seed in range(1, timer.buffer_sets(sets[0].nbytes))]
    moved = spec.bytes_moved(problem)
    copies = [copy_of(moved, sets[0].output.dtype) for _ in sets]
    calls = {
        OURS: functools.partial(_launched, problem.op, match.config, sets),
        DEFAULT: functools.partial(_launched, problem.op, default, sets),
        TORCH: lambda index: spec.vendor(sets[index]),
    }
    reference = spec.reference(sets[0])
    for name, call in calls.items():
        verify.poison(sets[0])
        call(0)
        timer.synchronize()
        found = verify.check(sets[0], reference, problem.k, spec.tolerance(problem))
        assert found.failure is None, f"{problem} by {name}: {found.failure}"
    del reference
    calls |= {name: functools.partial(_copied, copy, copies) for name, copy in COPIES.items()}
    shots = {}
    for name, call in calls.items():
        call(0)
        timer.synchronize()
        shots[name] = timer.capture(call, len(sets))
    times = finals.play(
        list(shots),
        lambda names: timer.replay([shots[name] for name in names]),
        seed=1,
        rounds=timer.final_rounds,
        max_rounds=timer.max_final_rounds,
        throttled=lambda: monitor.read().throttled,
    )
    times[COPY] = min((times[name] for name in COPIES), key=statistics.median)
    us = {name: round(statistics.median(figures), 3) for name, figures in times.items()}
    row = {
        "name": str(problem),
        "kernel": match.kernel,
        "config": str(match.config),
        "rule": match.rule,
        "bytes_moved": moved,
        "us": us,
        "share_of_copy": {name: round(finals.ratio(times[COPY], times[name]), 4) for name in (OURS, DEFAULT, TORCH)},
        "vs_torch": round(finals.ratio(times[TORCH], times[OURS]), 4),
    }
    print(row, flush=True)
    return row


def _launched(op, config, sets, index):
    registry.find(op, config.kernel).launch(sets[index], config)


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
    torch.cuda.set_device(0)
    here, uuid = device.current(0), getattr(torch.cuda.get_device_properties(0), "uuid", None)
    rows = []
    with torch.cuda.stream(torch.cuda.Stream()), nvml.open_monitor(f"GPU-{uuid}" if uuid else None) as monitor:
        for problem in suite.load(args.suite):
            rows.append(contest(problem, here, GraphTimer(here.l2_bytes), monitor))
            torch.cuda.empty_cache()
    ours = [row["share_of_copy"][OURS] for row in rows]
    against = [row["vs_torch"] for row in rows]
    summary = {
        "rows_tuned": sum(row["rule"] == "exact" for row in rows),
        "worst_share_of_copy": min(ours),
        "geomean_share_of_copy": round(record.geomean(ours), 4),
        "worst_vs_torch": min(against),
        "geomean_vs_torch": round(record.geomean(against), 4),
    }
    print(summary)
    record.write(args.out, {**summary, "rows": rows})


if __name__ == "__main__":
    main()
