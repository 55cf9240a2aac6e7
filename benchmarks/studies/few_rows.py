"""Default configs of few rows of A beside what each kernel estimates best and torch's library, in paired rounds.

    python benchmarks/studies/few_rows.py --list BEFORE.json
    python benchmarks/studies/few_rows.py --before BEFORE.json --out RESULT.json

Problems are drawn as benchmarks/fit/scattered.py draws them, of each kind of operands that `KINDS` names, or come from
--suites, whose groups are their kinds. No table is asked. --list writes the default of every problem, which needs no
GPU. Such a file of another version plays along as `before`: `gain` is its time over that of today's default.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import earlier_defaults

from tuner import Config, Problem
from tuner.hardware.device import Device
from tuner.kernel import registry
from tuner.problem import suite
from tuner.sweep import finals
from tuner.sweep.paired import PairedRunner

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "fit"))
import plays
import record
import scattered

_STEP = 64
_MOST_SUMS = 2e8
"""M * N of a size drawn evenly: an output of 400 MB."""
_MOST_PRODUCTS = 2e11
FIGURES = ("default_over_fastest", "gain", "torch_over_default", "torch_over_fastest")
Result = dict[str, Any]


class Kind(NamedTuple):
    """Operands, how many problems of them are drawn, and M's least and most.

    gradients: whether rows, in whole steps of 64, are K instead: as of gradients of weights, whose K are tokens.
    columns: N's least and most, where tiles are few.
    step: what M is rounded up to, of an A stored [K, M].
    sums: K's least and most; all sizes are then spread evenly in their logarithms.
    unit: what divides each size where K has such limits; by 1 no operand is aligned, but for a few.
    """

    operands: dict[str, Any]
    count: int
    rows: tuple[int, int] = (1, 256)
    gradients: bool = False
    columns: tuple[int, int] | None = None
    step: int = _STEP
    sums: tuple[int, int] | None = None
    unit: int = 8

    def shapes(self, seed: int) -> list[tuple[int, int, int]]:
        """Drawn shapes."""
        if self.sums and self.columns:
            return self._spread(random.Random(seed), (self.rows, self.columns, self.sums))
        return scattered.shapes(self.count, seed, (self.rows,), columns=self.columns)

    def _spread(self, chosen: random.Random, limits: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
        found = dict[tuple[int, int, int], None]()
        while len(found) < self.count:
            m, n, k = (
                max(1, round(math.exp(chosen.uniform(*map(math.log, ends))) / self.unit)) * self.unit for ends in limits
            )
            if m * n <= _MOST_SUMS and m * n * k <= _MOST_PRODUCTS:
                found[m, n, k] = None
        return list(found)

    def problem(self, m: int, n: int, k: int) -> Problem:
        """The problem of a drawn shape."""
        if self.operands["layout"][0] == "t" and not (self.gradients or self.sums):
            m = -(-m // self.step) * self.step
        shape = (n, k, m // _STEP * _STEP) if self.gradients else (m, n, k)
        return Problem(*shape, **self.operands)


_BF16, _TF32 = {"dtype": "bf16"}, {"dtype": "fp32", "precision": "tf32"}
_E4M3 = {"dtype": "e4m3", "layout": "nt"}
_LONG = (6144, 65536)
KINDS = {
    "e4m3": Kind(_E4M3, 24),
    "e4m3, scales of rows": Kind(_E4M3 | {"scaling": "row"}, 24),
    "e4m3, sums in float32": Kind(_E4M3 | {"fast_accum": False}, 20),
    "e4m3, scales of rows, sums in float32": Kind(_E4M3 | {"scaling": "row", "fast_accum": False}, 20),
    "int8": Kind({"dtype": "int8", "layout": "nt"}, 24),
    "int8 nn": Kind({"dtype": "int8", "layout": "nn"}, 16),
    "bf16 nn": Kind({"dtype": "bf16", "layout": "nn"}, 16, (1, 8)),
    "bf16 to float32": Kind({"dtype": "bf16", "layout": "nt", "out_dtype": "fp32"}, 20),
    "tf32": Kind({"dtype": "fp32", "layout": "nt", "precision": "tf32"}, 20),
    "tf32 nn": Kind({"dtype": "fp32", "layout": "nn", "precision": "tf32"}, 16),
    "float32": Kind({"dtype": "fp32", "layout": "nt"}, 20, (1, 128)),
    "float32 nn": Kind({"dtype": "fp32", "layout": "nn"}, 16, (1, 128)),
    "float32, many rows": Kind({"dtype": "fp32", "layout": "nt"}, 12, (257, 1500)),
    "float32 nn, many rows": Kind({"dtype": "fp32", "layout": "nn"}, 12, (257, 1500)),
    "float32 tn, many rows": Kind({"dtype": "fp32", "layout": "tn"}, 12, (257, 1500)),
    "bf16 nn, up to 256 rows": Kind({"dtype": "bf16", "layout": "nn"}, 24, (9, 256)),
    "bf16 nn, many rows": Kind({"dtype": "bf16", "layout": "nn"}, 32, (257, 4096)),
    "bf16 tn, gradients of weights": Kind({"dtype": "bf16", "layout": "tn"}, 32, (512, 8192), gradients=True),
    "bf16 nt, short K": Kind({"dtype": "bf16", "layout": "nt"}, 16, (256, 1024), gradients=True),
    "bf16 nt, few tiles": Kind({"dtype": "bf16", "layout": "nt"}, 24, (257, 2048), columns=(64, 2304)),
    "bf16 nt, few tiles, up to 256 rows": Kind({"dtype": "bf16", "layout": "nt"}, 16, (65, 256), columns=(64, 2304)),
    "bf16 nn, few tiles": Kind({"dtype": "bf16", "layout": "nn"}, 16, (257, 2048), columns=(64, 2304)),
    "bf16 tn, few tiles": Kind({"dtype": "bf16", "layout": "tn"}, 20, (128, 2048), columns=(64, 1024)),
    "tf32 nn, many rows": Kind({"dtype": "fp32", "layout": "nn", "precision": "tf32"}, 8, (257, 4096)),
    "tf32 tn, gradients of weights": Kind(
        {"dtype": "fp32", "layout": "tn", "precision": "tf32"}, 8, (512, 8192), gradients=True
    ),
    "int8 nn, many rows": Kind({"dtype": "int8", "layout": "nn"}, 6, (257, 4096)),
    "bf16 nt, 65 to 256 rows": Kind({"dtype": "bf16", "layout": "nt"}, 40, (65, 256), columns=(768, 10240)),
    "bf16 nn, 65 to 256 rows": Kind({"dtype": "bf16", "layout": "nn"}, 16, (65, 256), columns=(768, 10240)),
    "bf16 tn, 65 to 640 rows": Kind({"dtype": "bf16", "layout": "tn"}, 32, (65, 640), step=16),
    "bf16 nt, K up to 64": Kind(_BF16 | {"layout": "nt"}, 16, (64, 32768), columns=(64, 16384), sums=(8, 64)),
    "bf16 nn, K up to 64": Kind(_BF16 | {"layout": "nn"}, 12, (64, 32768), columns=(64, 16384), sums=(8, 64)),
    "bf16 nt, K 65 to 256": Kind(_BF16 | {"layout": "nt"}, 12, (64, 32768), columns=(8, 4096), sums=(65, 256)),
    "bf16 nn, K 65 to 256": Kind(_BF16 | {"layout": "nn"}, 12, (64, 32768), columns=(8, 4096), sums=(65, 256)),
    "bf16 tn, K 65 to 256": Kind(_BF16 | {"layout": "tn"}, 12, (64, 32768), columns=(8, 4096), sums=(65, 256)),
    "bf16 unaligned, K 65 to 256": Kind(
        _BF16 | {"layout": "nt"}, 12, (64, 32768), columns=(8, 4096), sums=(65, 256), unit=1
    ),
    "bf16 nt, N up to 64": Kind(_BF16 | {"layout": "nt"}, 20, (64, 32768), columns=(8, 64), sums=(128, 16384)),
    "bf16 nn, N up to 64": Kind(_BF16 | {"layout": "nn"}, 12, (64, 32768), columns=(8, 64), sums=(128, 16384)),
    "bf16 tn, N up to 64": Kind(_BF16 | {"layout": "tn"}, 12, (64, 32768), columns=(8, 64), sums=(128, 16384)),
    "bf16 tn, M up to 64": Kind(_BF16 | {"layout": "tn"}, 12, (8, 64), columns=(64, 32768), sums=(128, 16384)),
    "bf16 nt, unaligned": Kind(_BF16 | {"layout": "nt"}, 24, (16, 16384), columns=(1, 8192), sums=(8, 8192), unit=1),
    "bf16 nn, unaligned": Kind(_BF16 | {"layout": "nn"}, 12, (16, 16384), columns=(1, 8192), sums=(8, 8192), unit=1),
    "bf16 tn, unaligned": Kind(_BF16 | {"layout": "tn"}, 12, (16, 16384), columns=(1, 8192), sums=(8, 8192), unit=1),
    "tf32 nt, unaligned": Kind(_TF32 | {"layout": "nt"}, 12, (16, 16384), columns=(1, 8192), sums=(8, 8192), unit=1),
    "bf16 nt, few tiles, long K": Kind(_BF16 | {"layout": "nt"}, 24, (65, 1024), columns=(65, 1536), sums=_LONG),
    "bf16 nn, few tiles, long K": Kind(_BF16 | {"layout": "nn"}, 16, (65, 1024), columns=(65, 1536), sums=_LONG),
    "bf16 tn, few tiles, long K": Kind(_BF16 | {"layout": "tn"}, 24, (65, 1024), columns=(65, 1536), sums=_LONG),
    "bf16 nt, few tiles, K up to 6144": Kind(
        _BF16 | {"layout": "nt"}, 12, (257, 1024), columns=(65, 1536), sums=(1024, 6144)
    ),
    "bf16 tn, few tiles, K up to 6144": Kind(
        _BF16 | {"layout": "tn"}, 12, (257, 1024), columns=(65, 1536), sums=(1024, 6144)
    ),
    "bf16 tn to float32, few tiles, long K": Kind(
        _BF16 | {"layout": "tn", "out_dtype": "fp32"}, 12, (257, 1024), columns=(65, 1536), sums=_LONG
    ),
    "e4m3, few tiles, long K": Kind(_E4M3, 12, (257, 1024), columns=(65, 1536), sums=(2048, 65536), unit=16),
    "int8, few tiles, long K": Kind(
        {"dtype": "int8", "layout": "nt"}, 8, (257, 1024), columns=(65, 1536), sums=(2048, 65536), unit=16
    ),
    "tf32, few tiles, long K": Kind(_TF32 | {"layout": "nt"}, 8, (257, 1024), columns=(65, 1536), sums=(2048, 32768)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", help="the result, as JSON")
    parser.add_argument("--seed", type=int, default=160, help="of the problems")
    earlier_defaults.add_options(parser)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, metavar="KIND", default=list(KINDS), help="all by default")
    parser.add_argument("--suites", nargs="+", metavar="SUITE", help="problems of these, in place of drawn ones")
    parser.add_argument("--best", type=int, default=3, help="configs of each kernel, by its estimates")
    parser.add_argument("--gpu", type=int, default=0)
    args = parser.parse_args()
    if args.suites:
        problems = listed(args.suites)
    else:
        problems = {problem: kind for problem, kind in drawn(args.seed).items() if kind in args.kinds}
    if args.list:
        earlier_defaults.write(args.list, problems)
        return
    before = earlier_defaults.read(args.before)
    found = list[Result]()
    with PairedRunner(args.gpu) as runner:
        todo = {
            problem: candidates(problem, runner.device, [before[str(problem)]] if before else [], args.best)
            for problem in problems
        }
        failed = runner.compile((problem, config) for problem, configs in todo.items() for config in configs)
        print(len(todo), "problems", sum(map(len, todo.values())), "configs, not compiled:", len(failed), flush=True)
        for problem, configs in todo.items():
            found.append(played(runner, problem, configs, before.get(str(problem)), problems[problem]))
            print({name: each for name, each in found[-1].items() if name != "us"}, flush=True)
            record.write(args.out, {"summary": summary(found), "found": found})
    print(json.dumps(summary(found), indent=1))


def drawn(seed: int) -> dict[Problem, str]:
    """The problems, each with its kind."""
    return {
        kind.problem(*shape): name
        for offset, (name, kind) in enumerate(KINDS.items())
        for shape in kind.shapes(seed + offset)
    }


def listed(suites: list[str]) -> dict[Problem, str]:
    """The problems of suites, each with its group."""
    return {one.problem: ", ".join(one.groups) or name for name in suites for one in suite.entries(name)}


def candidates(problem: Problem, device: Device, before: list[Config], best: int) -> list[Config]:
    """Today's default, that of before, and what each kernel estimates best."""
    found = [registry.default_config(problem, device), *before]
    for spec in registry.serving(problem, device):
        estimates = {one: spec.estimate_us(one, problem, device) for one in spec.space(problem, device).configs()}
        found += sorted(estimates, key=lambda config: estimates[config])[:best]
    return list(dict.fromkeys(found))


def played(runner: PairedRunner, problem: Problem, configs: list[Config], before: Config | None, kind: str) -> Result:
    result = plays.play(runner, problem, configs)
    times, medians = result.times, result.medians
    torch, default = result.torch, registry.default_config(problem, runner.device)
    fastest, kernels = min(medians, key=lambda config: medians[config]), sorted({config.kernel for config in medians})
    return {
        "kind": kind,
        "problem": str(problem),
        "default": str(default),
        "before": str(before) if before else None,
        "fastest": str(fastest),
        "default_over_fastest": round(finals.ratio(times[default], times[fastest]), 4),
        "gain": round(finals.ratio(times[before], times[default]), 4) if before in times else None,
        "torch_over_default": round(finals.ratio(torch, times[default]), 4) if torch else None,
        "torch_over_fastest": round(finals.ratio(torch, times[fastest]), 4) if torch else None,
        "us": {kernel: round(min(us for one, us in medians.items() if one.kernel == kernel), 3) for kernel in kernels},
        "rejected": result.rejected,
    }


def summary(found: list[Result]) -> Result:
    """By kind of operands: how many problems, geometric means, and the worst of each figure."""
    kinds = dict.fromkeys(each["kind"] for each in found)
    return {kind: figures([each for each in found if each["kind"] == kind]) for kind in kinds}


def figures(found: list[Result]) -> Result:
    columns = {name: [each[name] for each in found if each[name]] for name in FIGURES}
    worst = {name: max if name == "default_over_fastest" else min for name in FIGURES}
    told = {
        name: {"geomean": round(record.geomean(them), 4), "worst": worst[name](them)}
        for name, them in columns.items()
        if them
    }
    return {
        "problems": len(found),
        "changed": sum(each["before"] not in (None, each["default"]) for each in found),
        **told,
    }


if __name__ == "__main__":
    main()
