"""Say how a lookup came to its answer: every source, every row refused, the evidence, what to type."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from tuner.device import Device
from tuner.problem import Problem
from tuner.runtime.lookup import Decision, command, desk
from tuner.runtime.row import Row
from tuner.runtime.shelf import Shelf

NEAREST = 3
"""How many tuned neighbours are shown."""


def explain(problem: Problem, device: Device | None = None) -> str:
    """How `lookup` comes to its answer for a problem, as text of several lines.

    Every source that was asked and what it holds, every row refused and why, the config, the rule and the grade, its
    evidence, the nearest tuned problems, and for a miss the command that tunes the problem.

    Args:
        problem: what is to be computed.
        device: the GPU model to look up for; None is this process's own.

    Raises:
        DeviceError, KernelError: see `lookup`.
    """
    device, shelves, decision = desk().explanation(problem, device)
    lines = [f"{problem} on {device.slug}", "sources, in the order they are asked:"]
    lines += [f"  {number}. {shelf.source}: {shelf.note}" for number, shelf in enumerate(shelves, start=1)]
    lines += [
        f"refused by rule {refused.rule}: {refused.row.config} for {refused.row.problem} from {refused.source}: "
        f"{refused.reason}"
        for refused in decision.refused
    ]
    lines += _answer(decision)
    if decision.row is None or decision.match.rule != "exact":
        lines += _nearest(problem, shelves)
        lines.append(f"to tune it: {command(problem)}")
    return "\n".join(lines)


def _answer(decision: Decision) -> Iterator[str]:
    match, row = decision.match, decision.row
    yield f"config: {match.config}"
    if row is None:
        yield "rule: default (nobody tuned this problem or one near it: the kernel's formula)"
        return
    meaning = "tuned for this problem" if match.rule == "exact" else f"tuned for {row.problem}"
    yield f"rule: {match.rule} ({meaning}), from {match.source}"
    made = row.made.environment
    yield f"grade: {match.grade} (measured under Triton {made.triton}, {made.backend}, protocol {row.made.protocol})"
    yield f"evidence: {evidence(row)}"


def evidence(row: Row) -> str:
    """A row's figures, for people."""
    parts = [f"{row.median_us:.2f} us"]
    if row.vs_default is not None:
        parts.append(f"{row.vs_default:.3f} times as fast as the default config")
    if row.vs_vendor is not None:
        parts.append(f"{row.vs_vendor:.3f} times as fast as torch's own")
    if row.ties > 1:
        parts.append(f"{row.ties} configs within 0.5%")
    return ", ".join(parts)


def _nearest(problem: Problem, shelves: Iterable[Shelf]) -> Iterator[str]:
    tuned = {known for shelf in shelves for known in shelf.rows if known != problem and known.op == problem.op}
    if not tuned:
        yield "nearest tuned problems: none, nothing is tuned for this device"
        return
    yield "nearest tuned problems:"
    yield from (f"  {known}" for known in sorted(tuned, key=lambda known: _far(known, problem))[:NEAREST])


def _far(known: Problem, problem: Problem) -> tuple[int, float, Problem]:
    """Other classes (dtype, layout ...) after this one, then by the powers of two between the sizes."""
    other = known.with_shape(*problem.shape) != problem
    away = sum(abs(math.log2(a / b)) for a, b in zip(known.shape, problem.shape, strict=True))
    return other, away, known
