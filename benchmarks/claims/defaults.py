"""How much longer the default formula's config takes than the fastest trial on record, by card and rows of A.

    python benchmarks/claims/defaults.py --out RESULT.json [--without KERNEL] [--op gated_linear] [--data FILE ...]

The trials are those from which the tables were made that come with triton-tuner (benchmarks/data/shipped-*.db.xz), or
those named: merged-h200.db.xz has all configs of `merged_linear` for benchmarks/suites/merged.csv. The calibration was
fitted on them too, so these figures do not say what the formula loses on weights that it never saw:
benchmarks/claims/unseen.py and benchmarks/fit/calibrate.py do. They say what a kernel's default brings: with --without
the default is that of the other kernels. But scattered-fp8-h200.db.xz, of random problems, no forest was fitted on. A
search tries few configs, so the fastest on record is not the fastest there is; and where today's default was never
tried, the problem is left out and counted. Needs no GPU.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from tuner import Config, Problem
from tuner.hardware.device import Device
from tuner.kernel import registry
from tuner.kernels.cost import calibration
from tuner.problem import dtype

sys.path.insert(0, str(Path(__file__).parents[1]))
import record
from recorded import database

DATA = Path(__file__).parents[1] / "data"
CARDS = ("shipped-h200.db.xz", "shipped-h100.db.xz")
ROWS = ((1, 1), (2, 16), (17, 64), (65, 128), (129, 256), (257, 4096))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, help="the result, as JSON")
    parser.add_argument("--without", metavar="KERNEL", help="whose default is not among the choices")
    parser.add_argument("--op", default="matmul")
    parser.add_argument("--data", nargs="+", default=CARDS, help="files of benchmarks/data that have the trials")
    args = parser.parse_args()
    found = {}
    with serving_without(args.without):
        for device, trials in (database(DATA / file) for file in args.data):
            of_op = {problem: times for problem, times in trials.items() if is_counted(problem, device, args.op)}
            for name in sorted({kind_of(problem) for problem in of_op}):
                some = {problem: times for problem, times in of_op.items() if kind_of(problem) == name}
                found[f"{device.slug}, {name}"] = losses(some, device)
    for slug, figures in found.items():
        for rows, each in figures.items():
            print(slug, rows, each)
    record.write(args.out, {"op": args.op, "without": args.without, "cards": found})


def is_counted(problem: Problem, device: Device, op: str) -> bool:
    """Whether a problem is the op's; of products of 16 bits those of which the calibration says something."""
    known = op != "matmul" or kind_of(problem) != "16 bits" or calibration.is_alike(problem, device)
    return problem.op == op and known


def kind_of(problem: Problem) -> str:
    """What a problem is counted with: its operands' scales or size, or all that its name says beside the shape."""
    if problem.scaling == "block":
        return "scales of blocks"
    sizes = {dtype.ITEMSIZE[name] for name in (problem.a_dtype, problem.b_dtype, problem.out_dtype)}
    if sizes == {2}:
        return "16 bits"
    if dtype.is_fp8(problem.a_dtype) and problem.fast_accum and problem.scaling in ("none", "row"):
        return "fp8" if problem.scaling == "none" else "fp8, scales of rows"
    return str(problem).split(" ", 2)[2]


def serving_without(kernel: str | None) -> Any:
    """A context in which one kernel gives no default; its trials count as before."""
    serving = registry.serving
    return mock.patch.object(
        registry,
        "serving",
        lambda problem, device, **how: [spec for spec in serving(problem, device, **how) if spec.name != kernel],
    )


def losses(times: dict[Problem, dict[Config, float]], device: Device) -> dict[str, dict[str, Any]]:
    found = {}
    for first, last in ROWS:
        some = [problem for problem in times if first <= problem.m <= last]
        if not some:
            continue
        defaults = {problem: registry.default_config(problem, device) for problem in some}
        over = {
            problem: times[problem][config] / min(times[problem].values())
            for problem, config in defaults.items()
            if config in times[problem]
        }
        counts = {"problems": len(over), "default_never_tried": len(some) - len(over)}
        found[f"{first} to {last} rows"] = counts
        if not over:
            continue
        worst = max(over, key=over.__getitem__)
        found[f"{first} to {last} rows"] = counts | {
            "geomean": round(record.geomean(over.values()), 4),
            "worst": round(over[worst], 3),
            "at": f"{worst.m}x{worst.n}x{worst.k}",
            "beyond_6_percent": round(sum(each > 1.06 for each in over.values()) / len(over), 3),
        }
    return found


if __name__ == "__main__":
    main()
