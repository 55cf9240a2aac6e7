"""Plays what ships again, under the versions that are installed: which rows hold, which lost, which fail."""

from __future__ import annotations

import math
import platform
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from tuner.errors import DeviceError, KernelError, SweepError
from tuner.hardware.device import Device
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.lookup import match_rules
from tuner.lookup.row import Row
from tuner.lookup.sources import Source
from tuner.store import records
from tuner.store.records import Outcome, Trial, Verdict
from tuner.store.store import Run, RunStatus, Store
from tuner.sweep import finals
from tuner.sweep.job import version_of
from tuner.sweep.measure import VENDOR
from tuner.sweep.paired import PairedRunner
from tuner.version import __version__

DEFAULT = "default"
_SEED = 1


class State(str, Enum):
    """What became of a row."""

    HOLDS = "holds"
    LOST = "lost"
    """It is slower, beside what it was compared with when it was tuned, than may be."""
    UNKNOWN = "unknown"
    """There is nothing to compare it with: no other config and no library ran both then and now. Or it is of an adopted
    library's kernel, whose arguments a capture alone has."""
    FAILED = "failed"
    """A lookup refuses it, it does not compile any more, or its result is wrong."""


@dataclass(frozen=True, slots=True)
class Retimed:
    """A row that was played again.

    Attributes:
        row: the row.
        state: what became of it.
        reason: why it failed, or was not played; otherwise "".
        median_us: its time now, microseconds a call; None where it failed.
        ratios: the time of the default config ("default") and of torch's library ("vendor") over its own, now.
        loss: how much slower it is than the row says beside these, 0.03 for 3%; negative for faster. None if unknown.
        samples: how many rounds were played, in all processes.
    """

    row: Row
    state: State
    reason: str = ""
    median_us: float | None = None
    ratios: Mapping[str, float] | None = None
    loss: float | None = None
    samples: int = 0


def rows_of(source: Source, device: Device, sample: int | None) -> list[Row]:
    """The best row of each problem that a source has for a device, sorted; with `sample`, so many, always the same."""
    rows = [row for held in source.winners(device.slug).rows.values() for row in held[:1]]
    rows.sort(key=lambda row: str(row.problem))
    if sample is None or sample >= len(rows):
        return rows
    return sorted(random.Random(_SEED).sample(rows, sample), key=lambda row: str(row.problem))


def retime(rows: Sequence[Row], runner: PairedRunner, fail_above: float) -> Iterator[Retimed]:
    """Play each row in paired rounds with its default config and torch's library; binaries are compiled first.

    A row that seems lost is played once more, in another process, because a config may be a few percent slower in one
    process than in the next. Both together then say what became of it; such rows come last.

    Args:
        rows: what to play.
        runner: where.
        fail_above: the loss above which a row is lost, 0.05 for 5%.
    """
    device = runner.device
    yield from (Retimed(row, State.UNKNOWN, registry.CAPTURED) for row in rows if _is_adopted(row.problem.op))
    rows = [row for row in rows if not _is_adopted(row.problem.op)]
    refused = {row: match_rules.refusal(row, row.problem, device) for row in rows}
    defaults = {row: _default(row, device) for row in rows if refused[row] is None}
    todo = [(row.problem, config) for row, default in defaults.items() for config in _contestants(row, default)]
    broken = runner.compile(todo)
    doubted: list[Retimed] = []
    for row in rows:
        reason = refused[row] or broken.get((row.problem, row.config))
        one = Retimed(row, State.FAILED, reason) if reason else _played(row, defaults[row], runner, fail_above)
        if one.state is State.LOST:
            doubted.append(one)
        else:
            yield one
    if doubted:
        runner.restart()
    for one in doubted:
        try:
            again = _played(one.row, defaults[one.row], runner, fail_above)
        except (DeviceError, SweepError):
            yield one  # no other process could be started
        else:
            yield _together(one, again, fail_above)


def _is_adopted(op: str) -> bool:
    return registry.is_of_library(op) and op not in {known for known, _ in registry.specs()}


def keep(store: Store, played: Sequence[Retimed], runner: PairedRunner, argv: Sequence[str]) -> int:
    """Store what was measured as winners of the installed versions, except where these have a winner already.

    That is one transaction, so that a sweep may hold the file meanwhile.

    Returns:
        How many are new.
    """
    assert runner.environment is not None
    with store.in_one_transaction():
        run = store.begin_run(runner.device, runner.environment, argv=argv, host=platform.node())
        kept = sum(_decide(store, run, one) for one in played)
        store.end_run(run, RunStatus.DONE)
    return kept


def _decide(store: Store, run: Run, one: Retimed) -> bool:
    row, ratios = one.row, one.ratios or {}
    if one.median_us is None or store.winner(run.device, run.environment, row.problem) is not None:
        return False
    spec = registry.find(row.problem.op, row.config.kernel, row.problem.source)
    kernel = version_of(spec)
    outcome = Outcome(records.State.COMPLETE, median_us=one.median_us, samples=one.samples)
    store.record(run, [Trial(row.problem, row.config, kernel, outcome)])
    default_us, vendor_us = (ratios[name] * one.median_us if name in ratios else None for name in (DEFAULT, VENDOR))
    store.decide(run, row.problem, kernel, Verdict(row.config, one.median_us, default_us, vendor_us, (row.config,)))
    return True


def _played(row: Row, default: Config | None, runner: PairedRunner, fail_above: float) -> Retimed:
    contestants = _contestants(row, default)
    found = runner.play(row.problem, contestants)
    if isinstance(found, str) and len(contestants) > 1:
        found = runner.play(row.problem, (row.config,))  # it may have been the default that ended the process
    if isinstance(found, str):
        return Retimed(row, State.FAILED, found)
    own = found.times.get(row.config.digest)
    if not own:
        return Retimed(row, State.FAILED, found.rejected.get(row.config.digest, "it was not timed"))
    others = {VENDOR: found.times.get(VENDOR), DEFAULT: found.times.get(default.digest) if default else None}
    if default == row.config:
        others[DEFAULT] = None
    ratios = {name: finals.ratio(times, own) for name, times in others.items() if times}
    return _judged(row, ratios, statistics.median(own), len(own), fail_above)


def _together(one: Retimed, again: Retimed, fail_above: float) -> Retimed:
    """Judge a row by what two processes measured of it, each as much as the other."""
    if again.ratios is None or one.ratios is None or again.median_us is None or one.median_us is None:
        return again
    ratios = {name: math.sqrt(one.ratios[name] * again.ratios[name]) for name in one.ratios if name in again.ratios}
    if _loss(one.row, ratios) is None:
        return one  # what it was compared with did not run again
    median_us = math.sqrt(one.median_us * again.median_us)
    return _judged(one.row, ratios, median_us, one.samples + again.samples, fail_above)


def _judged(row: Row, ratios: Mapping[str, float], median_us: float, samples: int, fail_above: float) -> Retimed:
    loss = _loss(row, ratios)
    state = State.UNKNOWN if loss is None else State.LOST if loss > fail_above else State.HOLDS
    return Retimed(row, state, "", median_us, ratios, loss, samples)


def _loss(row: Row, ratios: Mapping[str, float]) -> float | None:
    """How much slower a row is beside others than it was: the geometric mean over those that took part then and now.

    The default formula of another version of this package may give another config, so that its time says nothing.
    """
    recorded = {VENDOR: row.vs_vendor, DEFAULT: row.vs_default if row.made.tool_version == __version__ else None}
    logs = [math.log(before / ratios[name]) for name, before in recorded.items() if before and name in ratios]
    return math.exp(sum(logs) / len(logs)) - 1 if logs else None


def _default(row: Row, device: Device) -> Config | None:
    try:
        return registry.default_config(row.problem, device)
    except KernelError:
        return None


def _contestants(row: Row, default: Config | None) -> tuple[Config, ...]:
    return tuple(dict.fromkeys(config for config in (row.config, default) if config is not None))
