"""Batch-invariant families: whether a row's bits depend on its batch, and what that costs beside torch's own products.

    python benchmarks/claims/invariance.py --out FOLDER
    python benchmarks/claims/invariance.py --suite tiny.csv --problems 8 --device interpreter --out FOLDER

The families of the suite are tuned invariant into a new database; a trial whose bits differ from the family's own is a
WRONG_RESULT there. At random Ms the served configs then play torch's library, which is not invariant, in paired rounds.
Random problems of other N and K, which nobody tuned, are computed whole and in a part of their rows, and those are
counted of which any bit of these rows differs. Orders that the rule leaves out are held against the family's own: how
many problems have the same bits in two parts, or by mma.sync. Last, `tuner verify --invariance` compares the families'
rows between Ms, under the configs that lookups give. FOLDER must not exist yet; it receives the database, the compile
cache, the log and invariance.json, which is written anew after each of these.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import math
import random
import sqlite3
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from commands import new_folder, tuner

from tuner.cli.options import gpus_of
from tuner.hardware.device import Device
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.lookup.lookup import lookup, use
from tuner.problem import Problem, suite
from tuner.problem.family import Ladder
from tuner.sweep import finals
from tuner.sweep.measure import VENDOR
from tuner.sweep.paired import PairedRunner

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

RESULT = "invariance.json"
PLAYED = 4
"""Ms of a family that play torch's library."""
OTHERS = {
    "two parts": {"kernel": "split_k", "LOADS": "pointer", "SPLIT_K": 2},
    "mma.sync": {"BLOCK_SIZE_M": 32},
}
"""Other orders of 16-bit operands on Hopper, by what they change in the witness's config."""
WITNESS = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "num_stages": 3, "num_warps": 4}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--suite", default="decode", help="whose families are tuned, a name or a file")
    parser.add_argument("--problems", type=int, default=1000, help="how many random problems are compared bit for bit")
    parser.add_argument("--device", default="cuda:0", help="as `tuner run` takes it")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="a new folder")
    args = parser.parse_args()
    named = suite.load_with_ladders(Path(args.suite).resolve() if args.suite.endswith(".csv") else args.suite)
    folder = new_folder(parser, args.out)
    asked = args.suite if not args.suite.endswith(".csv") else str(Path(args.suite).resolve())
    on = ("--device", args.device)
    begin = time.monotonic()
    run = tuner(folder, "run", "--suite", asked, "--invariant", "--db", "invariant.db", *on, accept=(0, 1))
    tuning_s = time.monotonic() - begin
    body: dict[str, Any] = {"tuning_s": round(tuning_s, 1), "tuned_problems": len(run["problems"])}
    with contextlib.closing(sqlite3.connect(folder / "invariant.db")) as database:
        body["trials"] = dict(database.execute("SELECT state, count(*) FROM trial GROUP BY state"))
    use(folder / "invariant.db")
    logging.getLogger("tuner.lookup").setLevel(logging.ERROR)  # the random problems are untuned on purpose
    with PairedRunner(gpus_of(args.device)[0]) as runner:
        body["device"] = runner.device
        played = [row for ladder in named if isinstance(ladder, Ladder) for row in against_torch(ladder, runner)]
        ratios = [row["torch_over_ours"] for row in played if row["torch_over_ours"]]
        geomean, worst = record.geomean(ratios), min(ratios, default=None)
        body["against_torch"] = {"geomean": geomean, "worst": worst, "rows": played}
        record.write(folder / RESULT, body)
        compared = list(compare(args.problems, runner))
        wrong = [row for row in compared if row["changed_rows"] or row["failure"]]
        body["random_problems"] = {"compared": len(compared), "mismatches": len(wrong), "wrong": wrong}
        record.write(folder / RESULT, body)
        body["other_orders"] = {} if runner.device.arch != "sm_90" else other_orders(runner)
    body["families"] = tuner(folder, "verify", "invariant.db", "--invariance", *on, accept=(0, 1))["families"]
    body["seconds"] = round(time.monotonic() - begin, 1)
    record.write(folder / RESULT, body)
    show(body)


def against_torch(ladder: Ladder, runner: PairedRunner) -> Iterator[dict[str, Any]]:
    """Torch's time over that of the served config, at a family's ends and at Ms between."""
    draw, first, last = random.Random(str(ladder)), ladder.first_m, ladder.last_m
    ms = sorted({first, last, *(draw.randint(first, last) for _ in range(PLAYED - 2))})
    for problem in (ladder.at(m).as_invariant() for m in ms):
        match = lookup(problem, runner.device)
        runner.compile([(problem, match.config)])
        reply = runner.play(problem, (match.config,))
        times = {} if isinstance(reply, str) else reply.times
        ours, torchs = times.get(match.config.digest), times.get(VENDOR)
        ratio = finals.ratio(torchs, ours) if ours and torchs else None
        median_us = statistics.median(ours) if ours else None
        failure = reply if isinstance(reply, str) else "; ".join(reply.rejected.values())
        row = {"problem": str(problem), "rule": match.rule, "config": str(match.config), "median_us": median_us}
        yield {**row, "torch_over_ours": ratio, "failure": failure}


def compare(count: int, runner: PairedRunner) -> Iterator[dict[str, Any]]:
    """Random problems: how many of the first rows have other bits than in the whole product."""
    cases = [
        (problem, {m: lookup(problem.with_m(m), runner.device).config for m in ms})
        for problem, ms in drawn(count, runner)
    ]
    runner.compile([(problem.with_m(m), config) for problem, configs in cases for m, config in configs.items()])
    print(f"{count} random problems are looked up and compiled", file=sys.stderr)
    for problem, configs in cases:
        reply = runner.compare(problem, tuple(configs.items()))
        changed, failure = (0, reply) if isinstance(reply, str) else (sum(reply.values()), "")
        yield {"problem": str(problem), "ms": [*configs], "changed_rows": changed, "failure": failure}


def drawn(count: int, runner: PairedRunner) -> Iterator[tuple[Problem, list[int]]]:
    """Random problems, and the Ms at which each is computed."""
    draw = random.Random(17)
    largest = 64 if runner.device.is_interpreter else 8192
    for _ in range(count):
        whole, n, k = (round(math.exp(draw.uniform(math.log(16), math.log(largest)))) for _ in "mnk")
        if draw.random() < 0.75:
            n, k = (-(-size // 64) * 64 for size in (n, k))
        dtype, layout = draw.choice(("bfloat16", "float16")), draw.choice(("nt", "nt", "nn"))
        problem = Problem(whole, n, k, dtype=dtype, layout=layout, invariant=True)
        yield problem, sorted({1, draw.randint(1, whole), whole})


def other_orders(runner: PairedRunner) -> dict[str, Any]:
    """By orders that the rule leaves out, of how many problems all bits are those of the family's own order."""
    found: dict[str, Any] = {}
    for name, changes in OTHERS.items():
        same, failures = [], []
        for n, k in ((4096, 4096), (1024, 8192), (8192, 1024), (2048, 14336)):
            problem = Problem(64, n, k, dtype="bfloat16", layout="nt", out_dtype="float32", invariant=True)
            own = config_of(problem, runner.device, "pointer", WITNESS)
            kernel = changes.get("kernel", "pointer")
            other = config_of(problem, runner.device, str(kernel), {**WITNESS, **changes})
            # 32 rows of another order beside all 64 of the family's own.
            reply = runner.compare(problem, ((32, other), (64, own)))
            same += [] if isinstance(reply, str) else [not any(reply.values())]
            failures += [reply] if isinstance(reply, str) else []
        found[name] = {"problems": len(same), "same_bits": sum(same), "failures": failures}
    return found


def config_of(problem: Problem, device: Device, kernel: str, parts: dict[str, Any]) -> Config:
    """The first config of a kernel's whole space with some parameters set."""
    plain = Problem.from_fields({**problem.fields(), "extras": {}})
    axes = {name: (value,) for name, value in parts.items() if name != "kernel"}
    return registry.find("matmul", kernel).space(plain, device).narrowed(**axes).smallest()


def show(body: dict[str, Any]) -> None:
    for family in body["families"]:
        problem = Problem.from_fields(family["problem"])
        print(f"{problem}: rows that differ {family['changed']} {family['failure']}")
    for row in body["against_torch"]["rows"]:
        ratio = row["torch_over_ours"]
        print(f"{row['problem']:60} {row['rule']:8} {f'{ratio:.3f}' if ratio else row['failure']}")
    print(f"torch's time over ours: {body['against_torch']['geomean']:.3f}")
    print(f"{body['random_problems']['mismatches']} of {body['random_problems']['compared']} random problems differ")
    for name, one in body["other_orders"].items():
        print(f"{name}: the same bits in {one['same_bits']} of {one['problems']}")


if __name__ == "__main__":
    main()
