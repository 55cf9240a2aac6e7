"""What tuned rows say of torch's own library: whether the winner that serves a problem was measured to be faster."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable

from tuner.bounded import make_room
from tuner.errors import KernelError
from tuner.hardware.device import Device
from tuner.lookup.decision import TUNED
from tuner.lookup.device_winners import DeviceWinners
from tuner.lookup.lookup import on_change, resolver
from tuner.lookup.resolver import Resolver
from tuner.problem import Problem
from tuner.problem.batches import split

_verdicts: dict[Hashable, list[tuple[int, int, bool]]] = {}
"""By family and device the ranges of M that were asked about, ascending, and whether their winners beat the library."""
_MOST = 1024
on_change(_verdicts.clear)
_of_rows: dict[tuple[Resolver, str, int], set[Hashable]] = {}
"""By resolver, device and the place of a source the families of which it has a row."""
on_change(_of_rows.clear)


def is_tuned(problem: Problem, device: Device) -> bool:
    """Whether any source has a row or a range for a problem's family on this very device."""
    (key, _), asked = split(problem), resolver()
    for place, winners in enumerate(asked.sources.own(device.slug)):
        if key in winners.families:
            return True
        known = _of_rows.get((asked, device.slug, place))
        if known is None:  # gone through once: a large table makes a problem for each of its rows
            known = _of_rows[asked, device.slug, place] = {row.family for row in winners.rows}
        if problem.family in known:
            return True
    return False


def beats_vendor(problem: Problem, device: Device) -> bool:
    """Whether a winner that was tuned on this device serves a problem, and was no slower than torch's library.

    The evidence of a range is that of its row, divided by what the family was measured to lose between its rows. A row
    whose problem the library does not have counts as faster. An M outside of every range has no evidence.
    """
    asked = resolver()
    is_exact, is_held = _held(problem, asked.sources.own(device.slug, ours=False))
    if not (is_exact or is_held):  # what the user named comes before triton-tuner's own tables
        is_exact, is_held = _held(problem, asked.sources.own(device.slug, ours=True))
    if is_exact:
        return _decide(problem, device)[1]
    if not is_held:
        return False  # without asking for the formula, which takes long
    verdicts = _verdicts.get((device.slug, problem.family), [])
    place = bisect_left(verdicts, problem.m, key=lambda verdict: verdict[1])
    if place < len(verdicts) and verdicts[place][0] <= problem.m:
        return verdicts[place][2]
    (first, last), verdict = _decide(problem, device)
    make_room(_verdicts, _MOST)
    _verdicts[device.slug, problem.family] = sorted({*verdicts, (first, last, verdict)})
    if resolver() is not asked:
        _verdicts.clear()  # other tables were named meanwhile
    return verdict


def _held(problem: Problem, by_source: Iterable[DeviceWinners]) -> tuple[bool, bool]:
    """Whether any source has a row of the problem itself, and if none has, whether any has a range with its M."""
    key, batch = split(problem)
    is_held = False
    for winners in by_source:
        if problem in winners.rows:
            return True, is_held
        family = tuned.at(batch) if (tuned := winners.families.get(key)) else None
        is_held = is_held or (family is not None and family.place(problem.m) is not None)
    return False, is_held


def _decide(problem: Problem, device: Device) -> tuple[tuple[int, int], bool]:
    """The Ms for which a decision holds, and whether it is for a tuned winner that beat the library."""
    try:
        decision = resolver().decide(problem, device)
    except KernelError:
        return (problem.m, problem.m), False
    row, match = decision.row, decision.match
    if row is None or match.rule not in TUNED:
        return decision.ms, False
    return decision.ms, row.vs_vendor is None or row.vs_vendor >= (match.regret or 1.0)
