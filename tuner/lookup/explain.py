"""Explain how a lookup came to its answer: every source, every row refused, the evidence, what to type."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from tuner.hardware.device import Device
from tuner.lookup.advice import command
from tuner.lookup.decision import Decision
from tuner.lookup.device_winners import DeviceWinners
from tuner.lookup.lookup import resolver
from tuner.lookup.row import Row
from tuner.problem import Problem, distance

NEAREST = 3
"""How many tuned problems are shown where none was near enough for borrowing."""


def explain(problem: Problem, device: Device | str | None = None) -> str:
    """How `lookup` comes to its answer for a problem, as text of several lines.

    Every source that was asked and what it holds, every row refused and why, the config, the rule and the grade, its
    evidence, the neighbours that were weighed against the formula, and the command that tunes the problem.

    Args:
        problem: what is to be computed.
        device: as `lookup` takes it.

    Raises:
        DeviceError, KernelError: see `lookup`.
    """
    device, by_source, decision = resolver().explanation(problem, device)
    lines = [f"{problem} on {device.slug}", "sources, in the order they are asked:"]
    lines += [f"  {number}. {winners.source}: {winners.note}" for number, winners in enumerate(by_source, start=1)]
    lines += [
        f"refused by rule {refused.rule}: {refused.row.config} for {refused.row.problem} from {refused.source}: "
        f"{refused.reason}"
        for refused in decision.refused
    ]
    lines += _answer(decision)
    if decision.match.regret is not None:
        slower = 100 * (decision.match.regret - 1)
        lines.append(f"expected regret: {slower:.1f}% slower than a tuned config, on problems held out of that table")
    if decision.match.rule != "exact":
        lines += _weighed(decision) if decision.offers else _nearest(problem, by_source)
        lines.append(f"to tune it: {command(problem)}")
    return "\n".join(lines)


def _answer(decision: Decision) -> Iterator[str]:
    match, row = decision.match, decision.row
    yield f"config: {match.config}"
    if row is None:
        why = "no neighbour promises more than the kernel's formula" if decision.offers else "the kernel's formula"
        yield f"rule: default (nobody tuned this problem: {why})"
        return
    meaning = "tuned for this problem" if match.rule == "exact" else f"tuned for {row.problem}"
    yield f"rule: {match.rule} ({meaning}), from {match.source}"
    made = row.made.environment
    yield f"grade: {match.grade} (measured under Triton {made.triton}, {made.backend}, protocol {row.made.protocol})"
    yield f"evidence: {evidence(row)}"


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


def _weighed(decision: Decision) -> Iterator[str]:
    """The neighbours that were weighed against the formula."""
    yield "neighbours, how far each is, and how fast its config is expected to be here, the formula's being 1:"
    for offer in decision.offers:
        yield (
            f"  {offer.rule} {offer.row.problem}: distance {offer.distance:.2f}, {offer.promise:.3f} times as fast, "
            f"{offer.row.config.label}, from {offer.winners.source}"
        )


def _nearest(problem: Problem, by_source: Iterable[DeviceWinners]) -> Iterator[str]:
    """The nearest tuned problems of the op, all too far away or too different for borrowing."""
    tuned = {known for winners in by_source for known in winners.rows if known != problem and known.op == problem.op}
    if not tuned:
        yield "nearest tuned problems: none, nothing is tuned for this device"
        return
    yield "nearest tuned problems:"
    here = distance.place(problem)

    def far(known: Problem) -> tuple[bool, bool, float, tuple[int, int, int], str]:
        place = distance.place(known)
        away = math.dist(place.sizes[:3], here.sizes[:3])
        # In the end as text: one key may be a number in one problem and a word in the other.
        return place.kind != here.kind, place.family != here.family, away, known.shape, str(known)

    yield from (f"  {known}" for known in sorted(tuned, key=far)[:NEAREST])
