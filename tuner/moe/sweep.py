"""Tunes a layer of experts for one package: its problems, as every other kernel's, and what belongs in its files."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.hardware.device import INTERPRETER, Device, Environment
from tuner.kernel.config import Config
from tuner.moe import routing
from tuner.moe import space as spaces
from tuner.moe.kernel import register
from tuner.moe.layer import LADDER, Layer
from tuner.problem import Problem
from tuner.store.records import Winner
from tuner.store.store import Store
from tuner.sweep.report import Plan, Report
from tuner.sweep.run import sweep


@dataclass(frozen=True, slots=True)
class Tuning:
    """What to tune.

    Attributes:
        package: "vllm" or "sglang".
        layer: the layer on one rank.
        ms: the numbers of tokens.
        routing: "uniform" or "zipf"; with a recording, it says nothing.
        recording: a file of recorded expert ids (`tuner.moe.routing.record`).
        contestants: by problem, configs that play its finals however fast they are: those of a shipped file. The
            package's default always plays.
    """

    package: str
    layer: Layer
    ms: Sequence[int] = LADDER
    routing: str = routing.UNIFORM
    recording: Path | None = None
    contestants: Mapping[Problem, Sequence[Config]] = field(default_factory=dict)

    def routing_name(self) -> str:
        """Return the name of the routing that the problems have.

        Raises:
            ProblemError: the recording cannot be read or does not fit the layer, or the name is unknown.
        """
        if self.recording is None:
            return routing.check(self.routing)
        return routing.record(self.recording, self.layer.experts, self.layer.top_k)

    def problems(self, m: int) -> tuple[Problem, ...]:
        """Return the problems of M tokens: one for vLLM, gate-up and down for SGLang."""
        return self.layer.problems(self.package, m, self.routing_name())


def tune(store: Store, tuning: Tuning, gpus: Sequence[int | None], plan: Plan, **options: Any) -> list[Report]:
    """Tune a layer: trials and winners are in the store as those of every other kernel, and a second call goes on.

    Args:
        store: open for writing.
        tuning: what to tune.
        gpus: CUDA indices, or [None] for the interpreter. No `Crew` that was started before: its processes would not
            know the kernel, which is registered here.
        plan: what to do for each problem; the tuning's contestants are added to the plan's.
        options: `argv`, `observer` and `stop` of `tuner.sweep.run.sweep`.

    Returns:
        The report of each sweep. SGLang's has a second one, where the two GEMMs' winners differ in BLOCK_SIZE_M.

    Raises:
        KernelError: the package is not installed, or its version has another kernel.
        ProblemError: the routing or a size is none.
        DeviceError, SweepError, StoreError, KeyboardInterrupt: see `tuner.sweep.run.sweep`.
    """
    register(tuning.package, tuning.recording, tuning.layer)
    problems = [problem for m in tuning.ms for problem in tuning.problems(m)]
    plan = dataclasses.replace(plan, contestants={**plan.contestants, **_canonical(tuning)})
    reports = [sweep(store, problems, gpus, plan, **options)]
    first = reports[0]
    if tuning.package == "sglang" and not first.interrupted:
        found = _winners(store, first.device, first.environment)
        pinned = [other for m in tuning.ms for pair in _other_pairs(tuning, m, found.get) for other in pair[1:]]
        if pinned:
            reports.append(sweep(store, pinned, gpus, plan, **options))
    return reports


def chosen(store: Store, tuning: Tuning, device: Device, environment: Environment) -> dict[int, tuple[Winner, ...]]:
    """Return what belongs in the package's file: by M, the winner, or SGLang's pair with one BLOCK_SIZE_M.

    An M without winners is missing.
    """
    found, rows = _winners(store, device, environment), {}
    for m in tuning.ms:
        free = tuple(found.get(problem) for problem in tuning.problems(m))
        pairs = [free] if len({each.config["BLOCK_SIZE_M"] for each in free if each}) == 1 else []
        for winner, other in _other_pairs(tuning, m, found.get):
            pair = {winner["gemm"]: found.get(winner), other["gemm"]: found.get(other)}
            pairs.append((pair["gate_up"], pair["down"]))
        whole = [tuple(each for each in pair if each is not None) for pair in pairs if None not in pair]
        if whole:
            rows[m] = min(whole, key=lambda pair: sum(each.median_us for each in pair))
    return rows


def _other_pairs(tuning: Tuning, m: int, found: Callable[[Problem], Winner | None]) -> list[tuple[Problem, Problem]]:
    """Return for winners that differ in BLOCK_SIZE_M each problem, and the other GEMM's with its winner's alone."""
    pairs = []
    for problem, other in itertools.permutations(tuning.problems(m), 2):
        winner, theirs = found(problem), found(other)
        if winner is None or theirs is None or winner.config["BLOCK_SIZE_M"] == theirs.config["BLOCK_SIZE_M"]:
            continue
        block_m = winner.config.integer("BLOCK_SIZE_M")
        gemm = str(other["gemm"])
        pairs.append((problem, tuning.layer.problem(tuning.package, m, gemm, tuning.routing_name(), block_m)))
    return pairs


def _winners(store: Store, device: Device, environment: Environment) -> dict[Problem, Winner]:
    listed = store.winners(device_slug=device.slug)
    return {winner.problem: winner for winner in listed if winner.environment == environment}


def _canonical(tuning: Tuning) -> dict[Problem, list[Config]]:
    """Return the contestants as they are launched, which is how trials name them."""
    given = tuning.contestants.items()
    # For any device: what is launched depends on the problem alone.
    return {problem: [spaces.canonical(each, problem, INTERPRETER) for each in configs] for problem, configs in given}
