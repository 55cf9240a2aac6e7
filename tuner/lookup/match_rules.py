"""The match rules of a lookup: which row serves a problem, or whether the default formula is the better guess.

A row of the problem itself is taken as it is. A neighbour's row is weighed against the formula: close to the problem,
by what was measured for the neighbour; further away, by what the kernels' cost model says of both (docs/lookup.md).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from tuner.errors import KernelError
from tuner.hardware import device as devices
from tuner.hardware.device import Device
from tuner.kernel import KernelSpec, registry
from tuner.kernel.config import Config
from tuner.lookup.decision import Decision, Match, Offer, Refusal
from tuner.lookup.device_winners import DeviceWinners
from tuner.lookup.neighbours import MOST, REACH, Neighbour
from tuner.lookup.regret import Regret
from tuner.lookup.row import BAD_VALUE, Row
from tuner.problem import Problem
from tuner.problem.distance import key_distance
from tuner.problem.generic_key import SOURCE

NEAR_M = 2.0
"""The largest factor between the two Ms of `near_m`. Within it the best tile height differs by one step."""
NEAREST = 8
"""How many neighbours, each with another config, one match rule weighs."""
MARGIN = 0.15
"""How much faster than the formula's config a distant neighbour's must look, in log time."""
MODELLED = 0.3
"""The share that counts of the advantage which the cost model gives a neighbour's config over the formula's.

MARGIN and MODELLED were chosen on 30 shapes held out of a sweep of an H200, as the pair that borrowed least where
borrowing lost time.
"""
BEYOND = 0.1
"""How much slower than the formula's config a neighbour's may be by the cost model, in log time.

It is about twice the error of calibrated estimates on problems held out (benchmarks/results/calibration.json). A larger
gap means that a boundary lies between the two problems: tiles of 64 rows gained time for 64 rows of A, and took 1.78
times as long for 68.
"""
ACROSS = 0.3
"""The share that counts of a gain measured on the other side of such a boundary, in log time.

Over recorded trials (150 problems of three races on an H200, November 2026) it does as little harm as a share of 0, and
a config that was many times as fast there is still borrowed.
"""
BLIND = 1.0
"""The distance within which a row is borrowed although its kernel has no cost model: less than twice one size."""
OTHER_DEVICE = 1.0
"""What another GPU model of the architecture adds to the distance, besides log2 of the multiprocessors' ratio."""

_Found = tuple[Neighbour, DeviceWinners]
"""A neighbour, and the winners it is one of."""

FAILED = "failed at its first launch in this process"
failed: dict[tuple[str, Problem, Config], str] = {}
"""What could not be launched in this process (the device's slug, the problem and the config), and why."""


def decide(
    problem: Problem,
    device: Device,
    by_source: Iterable[DeviceWinners],
    relatives: Iterable[tuple[int, DeviceWinners]] = (),
) -> Decision:
    """Apply the match rules in their order, each to what every source holds.

    Args:
        problem, device: what is looked up, and where.
        by_source: what each source holds for this device, in order. It may be lazy, and must start anew each time: it
            is gone through once for the problem's own rows, and again for neighbours.
        relatives: what sources hold for other devices of the architecture, each with its multiprocessors; gone through
            when nothing else serves.

    Raises:
        KernelError: no kernel serves the problem.
    """
    weighing = _Weighing(problem, device)
    for own in _own(problem):
        for winners in by_source:
            for row in sorted(winners.rows.get(own, ()), key=grade, reverse=True):  # "exact" before "compatible"
                if weighing.usable("exact", winners, row):
                    return weighing.decision("exact", winners, row)
    if problem.is_keyed:
        for winners, row in _by_key(problem, device, by_source):
            if weighing.usable("near_key", winners, row):
                return weighing.decision("near_key", winners, row)
        return weighing.default(_figure_of_default(problem, by_source))
    borrowed: dict[str, Callable[[], Iterator[_Found]]] = {
        "near_m": lambda: _by_m(problem, device, by_source),
        "near_shape": lambda: _by_shape(problem, device, by_source),
        "same_arch": lambda: _related(problem, device, relatives),
    }
    for rule, found in borrowed.items():
        best = weighing.best(rule, found())
        if best is not None:
            return weighing.decision(rule, best.winners, best.row)
    return weighing.default(_figure_of_default(problem, by_source))


def refusal(row: Row, problem: Problem, device: Device, *, borrowed: bool = False) -> str | None:
    """Why a row's config cannot be used for a problem on a device, or None when it can.

    Args:
        row: the row whose config is checked.
        problem, device: what it is to be used for, and where.
        borrowed: whether the row belongs to another problem or device. Then a config that no search would try for this
            problem is refused too.
    """
    try:
        if (why := failed.get((device.slug, problem, row.config))) is not None:
            raise KernelError(f"{FAILED}: {why}")
        spec = registry.find(problem.op, row.config.kernel, problem.source)
        if spec.version != row.kernel_version:
            return f"stale: measured with version {row.kernel_version} of {spec.name}, here is {spec.version}"
        if (reason := spec.supports(problem, device) or _of_another_source(row, problem, spec)) is not None:
            return reason
        space = spec.space(problem, device)
        if odd := space.odd_parameters(row.config):
            return f"{spec.name} takes other parameters: {', '.join(sorted(odd))} missing or unknown"
        config = space.canonicalize(row.config) if borrowed else row.config
        return space.rejection(config, fatal_only=not borrowed)
    except KernelError as e:
        return str(e)
    except BAD_VALUE as e:
        return f"not a config of {row.config.kernel}: {row.config} ({type(e).__name__}: {e})"


def _of_another_source(row: Row, problem: Problem, spec: KernelSpec) -> str | None:
    """Why a row of a database that names no sources in its problems was not measured with this kernel, or None."""
    if not problem.source or row.problem.source or row.source_hash in ("", spec.former_source_hash()):
        return None
    return f"stale: measured with another source of {spec.name}"


def grade(row: Row) -> str:
    """Whether a row was measured under this process's Triton."""
    return "exact" if row.made.environment.triton == devices.triton_version() else "compatible"


class _Weighing:
    """One problem's decision while it is made: what was refused and what was offered so far."""

    def __init__(self, problem: Problem, device: Device) -> None:
        self._problem, self._device = problem, device
        self._refused: list[Refusal] = []
        self._offers: list[Offer] = []
        self._formula: Config | None = None
        # A copy: another thread may add to it meanwhile.
        known = failed.copy().items()
        self._lost = {config: why for (slug, its, config), why in known if (slug, its) == (device.slug, problem)}

    def usable(self, rule: str, winners: DeviceWinners, row: Row) -> bool:
        """Whether a row's config can run here; where it cannot, the refusal is noted."""
        reason = refusal(row, self._problem, self._device, borrowed=rule != "exact")
        if reason is not None:
            self._refused.append(Refusal(winners.source, rule, row, reason))
        return reason is None

    def best(self, rule: str, offered: Iterable[_Found]) -> Offer | None:
        """The most promising of a match rule's neighbours; None where the formula promises more."""
        offers: dict[Config, Offer] = {}
        for near, winners in itertools.islice(sorted(offered, key=_distance), MOST):
            if len(offers) == NEAREST:
                break
            if near.row.config in offers or not self.usable(rule, winners, near.row):
                continue
            promise = self._promise(rule, near)
            if promise is not None:
                offers[near.row.config] = Offer(rule, winners, near.row, near.distance, promise)
        ranked = sorted(offers.values(), key=lambda offer: (-offer.promise, offer.distance))
        self._offers += ranked
        return ranked[0] if ranked and ranked[0].promise >= 1 else None

    def decision(self, rule: str, winners: DeviceWinners, row: Row) -> Decision:
        """Decide for a row."""
        figure = winners.figure(row.problem.op, rule)
        regret = None if figure is None else figure.geomean
        match = Match(row.config.kernel, row.config, rule, winners.source, grade(row), regret)
        return Decision(match, row, tuple(self._refused), tuple(self._offers))

    def default(self, figure: Regret | None) -> Decision:
        """Decide for the formula."""
        config = self._default()
        match = Match(config.kernel, config, "default", "formula", "none", figure.geomean if figure else None)
        return Decision(match, None, tuple(self._refused), tuple(self._offers), self._lost)

    def _promise(self, rule: str, near: Neighbour) -> float | None:
        """How many times as fast as the formula's config a neighbour's is expected to be here; None where nobody knows.

        What was measured for the neighbour counts with a weight of e^-distance, and what the cost model says here with
        the rest. Where the model puts the neighbour's config behind by more than `BEYOND`, that counts in full, and
        what was measured only with a weight of `ACROSS`.
        """
        trust, measured = math.exp(-near.distance), near.row.vs_default
        here_us, formula_us = self._estimate(near.row.config), self._estimate(self._default())
        if here_us is None or formula_us is None:
            if rule != "near_m" and near.distance >= BLIND:
                return None
            return float((measured or 1.0) ** trust)
        modelled = math.log(formula_us / here_us)
        if modelled < -BEYOND:
            return math.exp(modelled + ACROSS * math.log(measured or 1.0))
        same = near.row.config == self._default()
        claimed = 0.0 if same else MODELLED * modelled - MARGIN
        if measured is None:
            return math.exp(claimed)
        return math.exp((1 - trust) * claimed + trust * math.log(measured))

    def _default(self) -> Config:
        if self._formula is None:
            self._formula = registry.default_config(self._problem, self._device, self._lost)
        return self._formula

    def _estimate(self, config: Config) -> float | None:
        model = registry.find(self._problem.op, config.kernel).estimate_us
        if model is None:
            return None
        try:
            estimate = float(model(config, self._problem, self._device))
        except BAD_VALUE:  # a row's value that no rule of its kernel asked for
            return None
        return estimate if 0 < estimate < math.inf else None


def _own(problem: Problem) -> Iterator[Problem]:
    """The problem itself; of one that was made by hand, without a source, then that of the only kernel of its name."""
    yield problem
    if problem.is_keyed and not problem.source and len(specs := registry.of(problem.op)) == 1:
        (spec,) = specs.values()
        extras = {**dict(problem.extras), SOURCE: spec.source_hash()[:16]}
        yield Problem.keyed(problem.op, extras, dtype=problem.a_dtype)


def _by_key(
    problem: Problem, device: Device, by_source: Iterable[DeviceWinners]
) -> Iterator[tuple[DeviceWinners, Row]]:
    """Rows for the other keys of an op, the nearest first, whatever their distance.

    They are not weighed: the formula of such a kernel is the first config of its list, which promises nothing.
    """
    borrows = all(spec.borrows for spec in registry.serving(problem, device))
    lenders = _lenders(by_source, problem, "near_key")
    known = ((key_distance(tuned, problem), tuned, winners) for winners in lenders for tuned in winners.rows)
    # A row of this key that does not say for which source it was tuned is no neighbour's, and not exact either.
    near = (found for found in known if found[0] is not None and found[1] != problem and (borrows or not found[0]))
    for _, tuned, winners in sorted(near, key=lambda found: found[:2]):
        for row in winners.rows[tuned]:
            yield winners, row


def _by_m(problem: Problem, device: Device, by_source: Iterable[DeviceWinners]) -> Iterator[_Found]:
    for winners in _lenders(by_source, problem, "near_m"):
        for near in winners.near.by_m(problem, device.sm_count):
            if _is_near_m(near.row.problem, problem):
                yield near, winners


def _by_shape(problem: Problem, device: Device, by_source: Iterable[DeviceWinners]) -> Iterator[_Found]:
    group = problem.group()
    for winners in _lenders(by_source, problem, "near_shape"):
        for near in winners.near.around(problem, device.sm_count):
            tuned = near.row.problem
            if tuned != problem and not (_is_near_m(tuned, problem) and tuned.group() == group):
                yield near, winners


def _related(problem: Problem, device: Device, relatives: Iterable[tuple[int, DeviceWinners]]) -> Iterator[_Found]:
    """Rows of other devices of the architecture, for the problem itself and for those near it."""
    for sm_count, winners in relatives:
        if not winners.may_lend(problem.op, "same_arch"):
            continue
        unlike = OTHER_DEVICE + abs(math.log2(sm_count / device.sm_count))
        for near in winners.near.around(problem, device.sm_count):
            if near.distance + unlike <= REACH:
                yield replace(near, distance=near.distance + unlike), winners


def _figure_of_default(problem: Problem, by_source: Iterable[DeviceWinners]) -> Regret | None:
    figures = (winners.figure(problem.op, "default") for winners in by_source)
    return next((figure for figure in figures if figure is not None), None)


def _lenders(by_source: Iterable[DeviceWinners], problem: Problem, rule: str) -> Iterator[DeviceWinners]:
    return (winners for winners in by_source if winners.may_lend(problem.op, rule))


def _is_near_m(tuned: Problem, problem: Problem) -> bool:
    """Whether the Ms of two problems, which differ in nothing else, are close enough for `near_m`."""
    return tuned.m != problem.m and max(tuned.m, problem.m) <= NEAR_M * min(tuned.m, problem.m)


def _distance(found: _Found) -> float:
    return found[0].distance
