"""Compiles what a family without binaries launches at other small Ms, once a process has called two of its ranges.

Its configs are the formula's, or those of tables that have none: the tables in triton-tuner's own wheel are such.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

from tuner.bounded import make_room
from tuner.errors import KernelError
from tuner.hardware.device import Device
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.kernels.ops.checked_call import CheckedCall
from tuner.launch import compile_threads
from tuner.launch.failure import failures
from tuner.launch.launch import Launch
from tuner.launch.launch_range import launch_ranges
from tuner.launch.plan import LaunchRange, Recording, recorded
from tuner.lookup import strict
from tuner.lookup.decision import Match
from tuner.lookup.lookup import defaults_up_to, on_change, ranges_of_family
from tuner.lookup.match_rules import can_run, default_range
from tuner.problem import Problem
from tuner.problem.family import ms_of_each_kind

MOST_M = 256
"""Ms beyond it, those of a prompt, vary too much for all of their ranges to be compiled."""
_MOST = 65_536
"""Families that are known here: every length of a growing cache may be one of its own."""
_called: dict[Hashable, tuple[tuple[int, int], Config | None]] = {}
"""By families and devices' indices, the formula's range of the M that was called first, and its config if tuned."""
_prepared: set[Hashable] = set()
_launch_range: dict[Hashable, list[LaunchRange]] = {}
"""By families, devices and configs, the Ms that are launched alike."""
for _kept in (_called, _prepared, _launch_range):
    on_change(_kept.clear)


def prepare(call: CheckedCall, recording: Recording) -> None:
    """Compile what a family launches at all Ms up to `MOST_M`, once M has varied.

    It has at the first call of such an M that has another config than the family's first call, or lies in another of
    the formula's ranges. A process that calls one M alone never waits for others.

    Args:
        call: The family's call that was launched.
        recording: Its launches.
    """
    problem, device, index, match = call.problem, call.device, call.index, call.match
    if problem.is_keyed or device.is_interpreter or strict.is_on():
        return
    is_tuned = match.rule != "default"
    family = (problem.family, device.slug, index, is_tuned)
    called = default_range(problem.m), match.config if is_tuned else None
    for kept in (_called, _prepared, _launch_range):
        make_room(kept, _MOST)
    if _called.setdefault(family, called) == called or problem.m > MOST_M or family in _prepared:
        return
    _prepared.add(family)
    described = _compiled_for(problem, match.config, recording.find)
    if is_tuned and all(shipped is not None for _, shipped in described):
        return  # its ranges' binaries ship too
    answers = _tuned(problem, device, match) if is_tuned else _foreseen(problem, device)
    if [launch.key for launch, _ in described] == [launch.key for launch, _ in recording.launches]:
        compile_threads.load(_missing(problem, device, answers, recording.find), index)
    list(answers)  # operands that lie in another way than a problem says have other binaries, but the same configs


def _foreseen(problem: Problem, device: Device) -> Iterator[tuple[range, Config]]:
    """The formula's ranges and configs, for which it is asked as they are needed."""
    return ((ms, match.config) for ms, match in defaults_up_to(problem, device, MOST_M))


def _tuned(problem: Problem, device: Device, match: Match) -> Iterator[tuple[range, Config]]:
    """The ranges and configs of tables."""
    for each, row in ranges_of_family(problem, device, match):
        if each.first_m <= MOST_M:
            yield range(each.first_m, min(each.last_m, MOST_M) + 1), row.config


def launch_range(problem: Problem, device: Device, config: Config) -> LaunchRange | None:
    """The Ms around a problem's for which a config is launched alike, where a family was prepared."""
    known = _launch_range.get((problem.family, device.slug, config), ())
    return next((each for each in known if each.first_m <= problem.m <= each.last_m), None)


def _missing(
    problem: Problem, device: Device, answers: Iterable[tuple[range, Config]], find: Callable[[Launch], Any] | None
) -> Iterator[Launch]:
    """One launch for each binary that a family's Ms need and that does not ship; those that ship are loaded."""
    seen: set[tuple[Any, str]] = set()
    for ms, config in answers:
        with contextlib.suppress(KernelError, NotImplementedError, *failures()):
            found = launch_ranges(problem, config, ms[0], ms[-1])
            _launch_range.setdefault((problem.family, device.slug, config), []).extend(found)
        for each in map(problem.with_m, ms_of_each_kind(problem, ms[0], ms[-1])):
            if can_run(config, each, device):
                for launch, shipped in _compiled_for(each, config, find):
                    if shipped is None and (launch.function, launch.key) not in seen:
                        seen.add((launch.function, launch.key))
                        yield launch


def _compiled_for(problem: Problem, config: Config, find: Callable[[Launch], Any] | None) -> list[tuple[Launch, Any]]:
    """What a config launches for a problem's operands, each with its shipped binary or None; nothing is compiled."""
    with recorded(find or (lambda _: None)) as seen, contextlib.suppress(KernelError, NotImplementedError, *failures()):
        registry.find(problem.op, config.kernel).compile(problem, config)
    return seen.launches
