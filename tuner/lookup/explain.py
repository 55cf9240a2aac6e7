"""Explain how a lookup came to its answer: every source, every row refused, the evidence, what to type."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from tuner.hardware.device import Device
from tuner.lookup import strict
from tuner.lookup.advice import command, how_to_tune
from tuner.lookup.decision import TUNED, Decision
from tuner.lookup.device_winners import DeviceWinners
from tuner.lookup.lookup import resolver
from tuner.lookup.row import Row
from tuner.problem import Problem

NEAREST = 3
"""How many tuned problems are shown where this one is none of them."""


def explain(problem: Problem, device: Device | str | None = None, *, kernel: str | None = None) -> str:
    """Return how `lookup` comes to its answer for a problem, as text of several lines.

    It lists every source asked and what it holds, every row refused and why, the config, the rule and the grade, the
    evidence, the most similar tuned problems, and the command that tunes this one.

    Args:
        problem: what is to be computed.
        device: as `lookup` takes it.
        kernel: how that command is to name a kernel under `tuner.tuned`; None: by its module.

    Raises:
        DeviceError, KernelError, ProblemError: see `lookup`.
    """
    device, by_source, decision = resolver().explanation(problem, device)
    lines = [f"{problem} on {device.slug}", "sources, in the order they are asked:"]
    lines += [f"  {number}. {winners.source}: {winners.note}" for number, winners in enumerate(by_source, start=1)]
    lines += [
        f"refused by rule {refused.rule}: {refused.row.config} for {refused.row.problem} from {refused.source}: "
        f"{refused.reason}"
        for refused in decision.refused
    ]
    lines += decision.fallen
    lines += _answer(decision)
    if strict.is_on() and not device.is_interpreter:
        instead = "another config whose binary does" if problem.is_keyed else "torch's library"
        lines.append(f"strict: nothing is compiled; where no binary of this config ships, {instead} serves")
    if decision.match.rule not in TUNED:
        near = nearest(problem, by_source)
        none = f" none, nothing of the op {problem.op} is tuned for this device"
        lines.append(f"nearest tuned problems:{'' if near else none}")
        lines += [f"  {known}" for known in near]
        lines.append(how_to_tune(problem, command(problem, decision.untuned, kernel=kernel)))
    return "\n".join(lines)


def _answer(decision: Decision) -> Iterator[str]:
    match, row = decision.match, decision.row
    yield f"config: {match.config}"
    if row is None:
        first, last = decision.ms
        asked = f", asked once for M {first} to {last}" if first < last else ""
        yield f"rule: default (nobody tuned this problem: the kernel's formula{asked})"
        return
    yield f"rule: {match.rule} ({served(decision)}), from {match.source}"
    made = row.made.environment
    yield f"grade: {match.grade} (measured under Triton {made.triton}, {made.backend}, protocol {row.made.protocol})"
    yield f"evidence: {evidence(row)}"
    if match.regret is not None:
        yield f"at random Ms of the family its configs took {match.regret:.3f} times as long as a race's winners"


def served(decision: Decision) -> str:
    """Which problem or range of Ms an answer's row is for, and on which other device it was measured, in words."""
    row, held = decision.row, decision.range
    assert row is not None
    if decision.match.rule == "exact":
        return "tuned for this problem"
    where = f" on {decision.measured_on}" if decision.match.rule == "same_arch" else ""
    if held is None:
        return f"tuned for {row.problem}{where}"
    batches = f", batch {decision.batches[0]}-{decision.batches[1]}" if decision.batches else ""
    return f"M {held.first_m}-{held.last_m}{batches}, {held.evidence}, tuned for {row.problem}{where}"


def evidence(row: Row) -> str:
    """A row's figures in words."""
    parts = [f"{row.median_us:.2f} us"]
    if row.vs_default is not None:
        parts.append(f"{row.vs_default:.3f} times as fast as the default config")
    if row.vs_vendor is not None:
        parts.append(f"{row.vs_vendor:.3f} times as fast as torch's own")
    if row.ties > 1:
        parts.append(f"{row.ties} configs within 0.5%")
    return ", ".join(parts)


def nearest(problem: Problem, by_source: Iterable[DeviceWinners]) -> list[Problem]:
    """The tuned problems of the op that are most like this one, the nearest first."""
    tuned = {known for winners in by_source for known in winners.rows if known != problem and known.op == problem.op}

    def far(known: Problem) -> tuple[bool, bool, float, str]:
        unlike = known.a_dtype != problem.a_dtype, known.layout != problem.layout
        # In the end as text: one key may be a number in one problem and a word in the other.
        return *unlike, math.dist(map(math.log2, known.shape), map(math.log2, problem.shape)), str(known)

    return sorted(tuned, key=far)[:NEAREST]
