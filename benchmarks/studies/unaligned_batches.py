"""What the default config of unaligned batches loses to the fastest trial of `bmm_pointer`.

    python benchmarks/studies/unaligned_batches.py --out TRIALS.json
    python benchmarks/studies/unaligned_batches.py --replay TRIALS.json

The first command needs a GPU: it plays the likeliest tiles of each problem, by their estimates, with every num_stages
and num_warps of the search space. The second says what today's default takes of the fastest trial's time, in two
halves of the problems, so that a constant chosen by one can be held against the other.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tuner import Config, Problem
from tuner.hardware.device import KNOWN, Device
from tuner.kernel import registry
from tuner.sweep.paired import PairedRunner

sys.path.insert(0, str(Path(__file__).parents[1]))
import plays
import record

KERNEL = "bmm_pointer"
_FORMS = ("scores", "values", "gradients")
_DTYPES = ("bf16", "fp16", "fp32", "bf16", "fp16", "fp32", "bf16", "bf16", "fp32", "bf16", "fp16", "bf16")
_HEADS = (32, 64, 64, 64, 80, 96, 128)
_OUTPUTS = (5e5, 1.2e8)
"""Elements of all scores together, least and most."""
_TILES, _CONFIGS = 12, 48


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", help="the trials, as JSON")
    parser.add_argument("--replay", type=Path, metavar="TRIALS", help="what today's defaults are held against")
    parser.add_argument("--seed", type=int, default=1790, help="of the problems")
    parser.add_argument("--count", type=int, default=42, help="of the problems")
    parser.add_argument("--gpu", type=int, default=0)
    args = parser.parse_args()
    if args.replay:
        print(json.dumps(replayed(json.loads(args.replay.read_text())["found"]), indent=1))
        return
    found = list[dict[str, Any]]()
    with PairedRunner(args.gpu) as runner:
        todo = {problem: (form, candidates(problem, runner.device)) for form, problem in drawn(args.seed, args.count)}
        runner.compile((problem, config) for problem, (_, configs) in todo.items() for config in configs)
        for problem, (form, configs) in todo.items():
            found.append({"form": form, "fields": problem.fields(), "us": played(runner, problem, configs)})
            record.write(args.out, {"summary": replayed(found), "found": found})


def drawn(seed: int, count: int) -> Iterator[tuple[str, Problem]]:
    """Yield products of attention over sequences of which 8 is no divisor, and what each is."""
    chosen, found = random.Random(seed), dict[Problem, str]()
    while len(found) < count:
        form, name = _FORMS[len(found) % 3], _DTYPES[len(found) // 3 % 12]
        length = round(2 ** chosen.uniform(5, 10.7))
        if length % 8 == 0:
            continue
        head, batch = chosen.choice(_HEADS), int(2 ** chosen.uniform(3, 11))
        if not _OUTPUTS[0] <= batch * length * length <= _OUTPUTS[1]:
            continue
        shape = (length, length, head) if form == "scores" else (length, head, length)
        layout = {"scores": "nt", "values": "nn", "gradients": "tn"}[form]
        precision = {"precision": "tf32"} if name == "fp32" else {}
        found.setdefault(
            Problem(*shape, dtype=name, layout=layout, op="bmm", extras={"batch": batch}, **precision), form
        )
    yield from ((form, problem) for problem, form in found.items())


def candidates(problem: Problem, device: Device) -> list[Config]:
    """The default, and the likeliest tiles with all their pipelines and warps."""
    spec = registry.find("bmm", KERNEL)
    estimates = {one: spec.estimate_us(one, problem, device) for one in spec.space(problem, device).configs()}
    likeliest = sorted(estimates, key=lambda one: estimates[one])
    tiles = list(dict.fromkeys(map(_tile, likeliest)))[:_TILES]
    some = [one for one in likeliest if _tile(one) in tiles][:_CONFIGS]
    return list(dict.fromkeys([spec.default_config(problem, device), *some]))


def _tile(config: Config) -> tuple[int, ...]:
    return tuple(config.integer(name) for name in ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"))


def played(runner: PairedRunner, problem: Problem, configs: list[Config]) -> list[tuple[dict[str, Any], float]]:
    medians = plays.play(runner, problem, configs).medians
    return [(dict(config.pairs), round(us, 3)) for config, us in medians.items()]


def replayed(found: list[dict[str, Any]]) -> dict[str, Any]:
    """By half of the problems and form: how many, and the default's time over the fastest trial's, mean and worst."""
    losses = dict[str, list[float]]()
    for number, each in enumerate(found):
        problem = Problem.from_fields(each["fields"])
        times = {Config(KERNEL, **pairs): us for pairs, us in each["us"]}
        default = registry.find("bmm", KERNEL).default_config(problem, KNOWN["sm_90"])
        if default in times:
            for form in ("all", each["form"]):
                losses.setdefault(f"{('first', 'second')[number % 2]} half, {form}", []).append(
                    times[default] / min(times.values())
                )
    return {
        name: {"problems": len(them), "geomean": round(record.geomean(them), 4), "worst": round(max(them), 4)}
        for name, them in sorted(losses.items())
    }


if __name__ == "__main__":
    main()
