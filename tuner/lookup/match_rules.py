"""The match rules of a lookup: which row serves a problem, and with which config the formula does where none does."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from tuner.errors import BrokenKernelError, KernelError, in_short
from tuner.hardware import device as devices
from tuner.hardware.device import Device
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.lookup.decision import Decision, Match, Refusal
from tuner.lookup.device_winners import DeviceWinners
from tuner.lookup.families import TunedFamily
from tuner.lookup.row import BAD_VALUE, Row
from tuner.problem import Problem
from tuner.problem.batches import batch_of, split
from tuner.problem.distance import key_distance
from tuner.problem.family import Family, Range
from tuner.problem.gemm_fields import MAX_SIZE
from tuner.problem.generic_key import SOURCE

if TYPE_CHECKING:
    from tuner.kernel import KernelSpec
    from tuner.kernel.space import SearchSpace

FAILED = "failed at its first launch in this process"
failed: dict[tuple[str, Problem, Config], str] = {}
"""What could not be launched in this process (the device's slug, the problem and the config), and why."""
MOST_FAILED = 1024
"""A decision goes through all of `failed`, to which a range whose config fails adds each of its Ms."""


_row_checks: list[Callable[[Row, Problem, Device], bool]] = []


def trust_rows_by(serves: Callable[[Row, Problem, Device], bool]) -> None:
    """Have a function asked first whether a row's config can be used for a problem: then no kernel is imported.

    `kernels/ops/ready.py` has, for configs whose launches ship complete.
    """
    _row_checks.append(serves)


def decide(
    problem: Problem,
    device: Device,
    by_source: Iterable[DeviceWinners],
    relatives: Iterable[DeviceWinners] = (),
    ours: Iterable[DeviceWinners] = (),
) -> Decision:
    """Apply the match rules in order, first to all sources that the user named, then to the tables of triton-tuner.

    Each iterable may be lazy, and must start anew each time: it is gone through once for the problem's own rows, and
    again for the ranges of its family.

    Args:
        problem, device: what is looked up, and where.
        by_source: what each source holds for this device, in order.
        relatives: what sources hold for other devices of the architecture; gone through when nothing else serves.
        ours: what triton-tuner's own tables hold for this device; gone through where `by_source` does not serve.

    Raises:
        KernelError: no kernel serves the problem.
    """
    search = _Search(problem, device)
    if problem.is_keyed:
        found = search.exact("exact", by_source) or search.exact("exact", ours)
        found = found or search.near_key(itertools.chain(by_source, ours))
    else:
        found = search.exact("exact", by_source) or search.family("family", by_source)
        found = found or search.exact("exact", ours) or search.family("family", ours)
        found = found or search.exact("same_arch", relatives) or search.family("same_arch", relatives)
    return found or search.default()


def of_family(problem: Problem, device: Device, by_source: Iterable[DeviceWinners]) -> Decision | None:
    """The decision of the range that holds a problem's M, even where a row is exact; None where no range serves it."""
    return _Search(problem, device).family("family", by_source)


def default_range(m: int) -> tuple[int, int]:
    """The Ms that get one default config: 1, to 16 and 32, halves of octaves, from 128 quarters, from 256 sixteenths.

    So a process that nobody tuned for asks few formulas a weight, whatever Ms it calls. docs/benchmarks.md has what
    that loses.
    """
    if m <= 16:
        return (1, 1) if m == 1 else (2, 16)
    octave = 1 << ((m - 1).bit_length() - 1)
    step = octave // (1 if m <= 32 else 2 if m <= 128 else 4 if m <= 256 else 16)
    last = -(-m // step) * step
    return last - step + 1, min(last, MAX_SIZE)


def default_config(
    problem: Problem, device: Device, without: Mapping[Config, str] | None = None
) -> tuple[Config, tuple[int, int]]:
    """The formula's config for a problem that nobody tuned, and the first and the last M that get the same.

    Args:
        problem, device: what is looked up, and where.
        without: configs that could not be launched for it, and why: then the formula is asked for this M alone.
    """
    if not (without or problem.is_keyed):
        span = default_range(problem.m)
        with contextlib.suppress(KernelError, *BAD_VALUE):  # this M may be served where others are not
            config, asked = _for_range(problem, device, *span)
            if asked == problem.m or can_run(config, problem, device):
                return config, span
    return registry.default_config(problem, device, without), (problem.m, problem.m)


def _for_range(problem: Problem, device: Device, first: int, last: int) -> tuple[Config, int]:
    """The formula's config for the last M of a range or for its middle, and that M: which is estimated to lose less.

    Where a new tile or a new wave begins just before the last M, its config suits no other M of the range.
    """
    ms = [last - (last - first) * step // 4 for step in range(5)]
    asked = {registry.default_config(problem.with_m(m), device): m for m in dict.fromkeys((ms[2], last))}
    if len(asked) == 1:
        return next(iter(asked.items()))
    configs = list(asked)
    models = [registry.find(problem.op, config.kernel) for config in configs]
    losses = [
        sum(math.log(registry.ask(model, "estimate_us", config, problem.with_m(m), device)) for m in ms)
        if model.estimate_us
        else math.inf
        for config, model in zip(configs, models, strict=True)
    ]
    # Where there is no model, the last M's, which is the best of a power of two.
    config = configs[-1] if math.inf in losses else configs[losses.index(min(losses))]
    return config, asked[config]


def refusal(row: Row, problem: Problem, device: Device, *, borrowed: bool = False) -> str | None:
    """Why a row's config cannot be used for a problem on a device, or None when it can.

    Args:
        row: the row whose config is checked.
        problem, device: what it is to be used for, and where.
        borrowed: whether the row belongs to another key or device. Then a config that no search would try for this
            problem is refused too.
    """
    try:
        if (why := failed.get((device.slug, problem, row.config))) is not None:
            raise KernelError(f"{FAILED}: {why}")
        spec = registry.find(problem.op, row.config.kernel, problem.source)
        if spec.version != row.kernel_version:
            return f"stale: measured with version {row.kernel_version} of {spec.name}, here is {spec.version}"
        unserved: str | None = registry.ask(spec, "unserved", problem, device)
        if (reason := unserved or _of_another_source(row, problem, spec)) is not None:
            return reason
        space: SearchSpace = registry.ask(spec, "space", problem, device)
        if odd := space.odd_parameters(row.config):
            return f"{spec.name} takes other parameters: {', '.join(sorted(odd))} missing or unknown"
        return _rejection(space, row.config, borrowed=borrowed)
    except KernelError as e:
        return str(e)
    except BAD_VALUE as e:
        return f"not a config of {row.config.kernel}: {row.config} ({type(e).__name__}: {e})"


def _rejection(space: SearchSpace, config: Config, *, borrowed: bool) -> str | None:
    try:
        return space.rejection(space.canonicalize(config) if borrowed else config, fatal_only=not borrowed)
    except BrokenKernelError as e:  # more often than its kernel, somebody edited the row
        return f"not a config of {config.kernel}: {config} ({in_short(e.__cause__ or e)})"


def can_run(config: Config, problem: Problem, device: Device) -> bool:
    """Whether a formula's config can be used for a problem that differs from the formula's own in M."""
    try:
        spec = registry.find(problem.op, config.kernel)
        if registry.ask(spec, "unserved", problem, device) is not None:
            return False
        space: SearchSpace = registry.ask(spec, "space", problem, device)
        return space.rejection(config, fatal_only=True) is None
    except (KernelError, *BAD_VALUE):
        return False


def near_configs(problem: Problem, device: Device, by_source: Iterable[DeviceWinners]) -> list[Config]:
    """The configs of other keys' rows that may be used for a problem, those of the nearest key first, each once."""
    near = (row for winners, tuned in _by_key(problem, device, by_source) for row in winners.rows[tuned])
    return list(dict.fromkeys(row.config for row in near if refusal(row, problem, device, borrowed=True) is None))


def _of_another_source(row: Row, problem: Problem, spec: KernelSpec) -> str | None:
    """Why a row of a database that names no sources in its problems was not measured with this kernel, or None."""
    if not problem.source or row.problem.source or row.source_hash in ("", spec.former_source_hash()):
        return None
    return f"stale: measured with another source of {spec.name}"


def grade(row: Row) -> str:
    """Whether a row was measured under this process's Triton."""
    return "exact" if row.made.environment.triton == devices.triton_version() else "compatible"


class _Search:
    """One problem's decision while it is made: what was refused, and for which other Ms it will hold."""

    def __init__(self, problem: Problem, device: Device) -> None:
        self._problem, self._device = problem, device
        self._refused: list[Refusal] = []
        self._fallen: list[str] = []
        # A copy: another thread may add to it meanwhile.
        known = failed.copy().items()
        self._failed = {config: why for (slug, its, config), why in known if (slug, its) == (device.slug, problem)}
        self._ms = (problem.m, problem.m) if self._failed else (1, MAX_SIZE)
        self._first_batch = 1

    def exact(self, rule: str, by_source: Iterable[DeviceWinners]) -> Decision | None:
        """The best row of the problem itself."""
        for own, winners in ((own, winners) for own in _own(self._problem) for winners in by_source):
            row = self._usable(rule, winners, own, (self._problem,))
            if row is not None:
                self._ms = (self._problem.m, self._problem.m)
                return self._decision(rule, winners, row)
        return None

    def near_key(self, by_source: Iterable[DeviceWinners]) -> Decision | None:
        """The row of the nearest key, whatever its distance."""
        for winners, tuned in _by_key(self._problem, self._device, by_source):
            row = self._usable("near_key", winners, tuned, (self._problem,))
            if row is not None:
                return self._decision("near_key", winners, row)
        return None

    def family(self, rule: str, by_source: Iterable[DeviceWinners]) -> Decision | None:
        """The row of the range that holds M, or of the range nearest to it where that cannot be used."""
        m, (key, batch) = self._problem.m, split(self._problem)
        for winners in by_source:
            tuned = winners.families.get(key)
            family = tuned.at(batch) if tuned else None
            if family is None:
                self._first_batch = max(self._first_batch, tuned.first_untuned(batch) if tuned else 1)
                continue
            place = family.place(m)
            if place is None:
                self._narrow(*family.gap(m))
                continue
            held = family.ranges[place]
            self._narrow(held.first_m, held.last_m)
            ends = (*family.family(place).corners(held.first_m, held.last_m), self._problem)
            for near in family.outward(place):
                row = self._usable(rule, winners, family.row(near), ends)
                if row is not None:
                    self._note_fallen(winners, family, place, near)
                    return self._decision(rule, winners, row, held, family.family(place))
            self._note_fallen(winners, family, place, None)
        return None

    def default(self) -> Decision:
        """Decide for the formula."""
        first_m = None if self._problem.is_keyed else 1 if self._failed else self._ms[0]
        config, ms = default_config(self._problem, self._device, self._failed)
        self._narrow(*ms)
        match = Match(config.kernel, config, "default", "formula", "none")
        fallen = tuple(self._fallen)
        first_batch = None if batch_of(self._problem) is None else self._first_batch
        refused = tuple(self._refused)
        return Decision(match, None, refused, self._ms, (first_m, first_batch), fallen=fallen, failed=self._failed)

    def _usable(self, rule: str, winners: DeviceWinners, tuned: Problem, wanted: Iterable[Problem]) -> Row | None:
        """The best row of a tuned problem whose config can be used for others; what cannot is noted."""
        for row in sorted(winners.rows.get(tuned, ()), key=grade, reverse=True):  # "exact" before "compatible"
            borrowed = rule in ("near_key", "same_arch")
            reasons = (self._refusal(row, problem, borrowed=borrowed) for problem in wanted)
            reason = next((reason for reason in reasons if reason is not None), None)
            if reason is None:
                return row
            self._refused.append(Refusal(winners.source, rule, row, reason))
        return None

    def _refusal(self, row: Row, problem: Problem, *, borrowed: bool) -> str | None:
        """As `refusal`, but the kernel is not asked where a function of `trust_rows_by` says that the row serves."""
        may_be_trusted = not borrowed and (self._device.slug, problem, row.config) not in failed
        if may_be_trusted and any(serves(row, problem, self._device) for serves in _row_checks):
            return None
        return refusal(row, problem, self._device, borrowed=borrowed)

    def _note_fallen(self, winners: DeviceWinners, family: TunedFamily, place: int, near: int | None) -> None:
        """Note that a range is not served by its own config."""
        if near == place:
            return
        held, tuned = family.ranges[place], family.row(place)
        reasons = [each.reason for each in self._refused if each.row.problem == tuned]
        why = reasons[-1] if reasons else f"there is no row of {tuned}"
        served = "no other range of its family can serve it"
        if near is not None:
            served = f"that of M {family.ranges[near].row_m} serves it"
        said = f"the config of M {held.first_m} to {held.last_m} from {winners.source} cannot be used ({why}): {served}"
        self._fallen.append(said)

    def _decision(
        self, rule: str, winners: DeviceWinners, row: Row, held: Range | None = None, family: Family | None = None
    ) -> Decision:
        regret = family.check.geomean if rule == "family" and family and family.check else None
        match = Match(row.config.kernel, row.config, rule, winners.source, grade(row), regret)
        refused, fallen, batches = tuple(self._refused), tuple(self._fallen), family.batches if family else None
        on = winners.device
        return Decision(match, row, refused, self._ms, range=held, batches=batches, fallen=fallen, measured_on=on)

    def _narrow(self, first: int, last: int | None) -> None:
        """The answer holds between these Ms alone."""
        self._ms = max(self._ms[0], first), min(self._ms[1], last or MAX_SIZE)


def _own(problem: Problem) -> Iterator[Problem]:
    """The problem itself; of one that was made by hand, without a source, then that of the only kernel of its name."""
    yield problem
    if problem.is_keyed and not problem.source and len(specs := registry.of(problem.op)) == 1:
        (spec,) = specs.values()
        extras = {**dict(problem.extras), SOURCE: registry.ask(spec, "source_hash")[:16]}
        yield Problem.keyed(problem.op, extras, dtype=problem.a_dtype)


def _by_key(
    problem: Problem, device: Device, by_source: Iterable[DeviceWinners]
) -> Iterator[tuple[DeviceWinners, Problem]]:
    """Tuned problems of other keys of an op, the nearest first, whatever their distance."""
    borrows = all(spec.borrows for spec in registry.serving(problem, device))
    known = ((key_distance(tuned, problem), tuned, winners) for winners in by_source for tuned in winners.rows)
    # A row of this key that does not say for which source it was tuned is no neighbour's, and not exact either.
    near = (found for found in known if found[0] is not None and found[1] != problem and (borrows or not found[0]))
    for _, tuned, winners in sorted(near, key=lambda found: found[:2]):
        yield winners, tuned
