"""Calls whose launches ship ready to run (`tuner.launch.ready`), so that no kernel's host code is imported."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Container, Hashable, Iterator
from typing import TYPE_CHECKING

import torch

from tuner.hardware import triton_settings
from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernels.base import sources
from tuner.kernels.ops.checked_call import CheckedCall
from tuner.launch.call_cache import has_launch_hooks
from tuner.launch.failure import UNREADABLE, failures, is_no_fault
from tuner.launch.plan import LAST_M, LaunchPlan, PreparedLaunches, PreparedRange, Recording, operands_of
from tuner.launch.ready import ReadyLaunches, ReadyRange, ready_launches
from tuner.launch.step import RecordedLaunch
from tuner.lookup import match_rules
from tuner.lookup.decision import TUNED
from tuner.lookup.lookup import counter, lookup, on_change, ranges_of_family
from tuner.lookup.row import Row
from tuner.problem import Problem

if TYPE_CHECKING:
    from tuner.kernel import Inputs

MEASURED = ("exact", "family")
"""The rules by which a call gets what was tuned for its own device."""
_families: dict[Hashable, list[PreparedRange]] = {}
"""By families and the device's index, what their ranges launch."""
_lost: set[Hashable] = set()
"""Families, devices and configs that failed to launch, though they ship: then the kernels' host code is asked."""
for _kept in (_families, _lost):
    on_change(_kept.clear)


def launch(call: CheckedCall) -> Recording | None:
    """Launch what ships ready to run; None where nothing does for this call."""
    operands, problem, device, index, match = call.operands, call.problem, call.device, call.index, call.match
    held = _held(problem, device) if is_of_problem(operands) else None
    if held is None or match.rule not in MEASURED or (problem.family, device.slug, match.config) in _lost:
        return None
    if has_launch_hooks() or triton_settings.hears_of_loads():
        return None  # who listens hears of what Triton launches
    found = held.range_of(problem, match.config)
    if found is None or not found.lies_like(operands) or not _is_whole(held, call):
        return None
    recording = Recording()
    try:
        recording.ready = held.launches(found, problem.m, index)
        addresses = [each.data_ptr() for each in operands_of(operands) or ()]
        plan = LaunchPlan(index or 0, [each.step() for each in recording.ready], ())
        plan.launch(plan.stream_of(plan.index), *addresses)
    except failures(*UNREADABLE) as e:
        if is_no_fault(e):
            raise
        _lost.add((problem.family, device.slug, match.config))
        return None
    recording.launch_range = found.launch_range._replace(serves=serves(problem, device, match.config, TUNED))
    family = (problem.family, device.slug, index)
    ranges = _families.get(family)  # another thread may name other tables, and so empty it, at any time
    if ranges is None:
        ranges = _families[family] = [*_ready_ranges(held, call)]
    recording.ahead = PreparedLaunches(recording.ready, ranges)
    recording.count = counter(problem, device)
    return recording


def is_of_problem(operands: Inputs) -> bool:
    """Whether what is launched follows from the problem, and from how the operands lie.

    `rms_norm` compiles an offset in, which no problem has: what was exported or compiled ahead has none.
    """
    return not getattr(operands, "offset", 0.0)


def _held(problem: Problem, device: Device) -> ReadyLaunches | None:
    """What ships ready to run for the op of a problem; None where Triton is to make what is launched."""
    if problem.is_keyed or not problem.aligned or device.is_interpreter or triton_settings.is_instrumented():
        return None
    return ready_launches(problem.op, device, sources.digest)


def _is_whole(held: ReadyLaunches, call: CheckedCall) -> bool:
    """Whether all that a server decodes by ships ready; if not, the family's first call must prepare the rest."""
    ranges = ranges_of_family(call.problem, call.device, call.match)
    rows = dict.fromkeys(row for each, row in ranges if each.first_m <= LAST_M)
    return all(held.ranges(row.problem, row.config) for row in rows)


def _ready_ranges(held: ReadyLaunches, call: CheckedCall) -> Iterator[PreparedRange]:
    """What the ranges of a problem's family launch; a binary is loaded for the first M that needs it."""
    seen: set[Config] = set()
    for row in dict.fromkeys(row for _, row in ranges_of_family(call.problem, call.device, call.match)):
        for each in () if row.config in seen else held.ranges(row.problem, row.config):
            launch_range = each.launch_range._replace(serves=serves(row.problem, call.device, row.config, TUNED))
            yield PreparedRange(launch_range, functools.partial(_loaded, held, each, call.index))
        seen.add(row.config)


def _loaded(held: ReadyLaunches, found: ReadyRange, index: int | None) -> list[RecordedLaunch]:
    """What the first M of a range launches, loaded onto a device by its CUDA index, which need not be the current."""
    with contextlib.nullcontext() if index is None else torch.cuda.device(index):
        return held.launches(found, found.launch_range.first_m, index)


def _is_ready(row: Row, problem: Problem, device: Device) -> bool:
    """Whether launches of a row's config ship for another M of its family: these kernels were asked at export."""
    held = _held(problem, device)
    if held is None or problem.family != row.problem.family:
        return False
    found = held.range_of(problem, row.config)
    return found is not None and row.kernel_version == found.kernel_version


def serves(problem: Problem, device: Device, config: Config, rules: Container[str]) -> Callable[[int], bool]:
    """Whether a lookup gives a config for another M, by one of some rules."""

    def serves_m(m: int) -> bool:
        found = lookup(problem.with_m(m), device)
        return found.rule in rules and found.config == config

    return serves_m


match_rules.trust_rows_by(_is_ready)
