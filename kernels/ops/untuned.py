"""Makes ready what a family that nobody tuned launches at any small M, once a process has called two of its ranges."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

from tuner.errors import KernelError
from tuner.hardware.device import Device
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.launch import compile_threads
from tuner.launch.alike import alike_ms
from tuner.launch.failure import failures
from tuner.launch.launch import Launch
from tuner.launch.plan import AlikeMs, Recording, recorded
from tuner.lookup import strict
from tuner.lookup.decision import Match
from tuner.lookup.lookup import foresee, on_change
from tuner.lookup.match_rules import can_run, default_range
from tuner.problem import Problem
from tuner.problem.family import ms_of_each_kind

MOST_M = 256
"""Ms beyond it, those of a prompt, vary too much for all of their ranges to be compiled."""
_called: dict[Hashable, tuple[int, int]] = {}
"""By families and devices' indices, the range of the M that was called first."""
_prepared: set[Hashable] = set()
_alike: dict[Hashable, list[AlikeMs]] = {}
"""By families, devices and configs, the Ms that are launched alike."""
for _kept in (_called, _prepared, _alike):
    on_change(_kept.clear)


def prepare(problem: Problem, model: Device, index: int | None, config: Config, made: Recording) -> None:
    """Ask the formula for all Ms of a family up to `MOST_M` and compile what they launch, once M has varied.

    It has at the first call of an M up to `MOST_M` whose default range is not that of the family's first call. A
    process that calls one M alone never waits for others.

    Args:
        problem, config: what was launched, by the formula's config.
        model, index: the device, and its index.
        made: the launches.
    """
    if problem.is_keyed or model.is_interpreter or strict.is_on():
        return
    family, ms = (problem.family, model.slug, index), default_range(problem.m)
    if _called.setdefault(family, ms) == ms or problem.m > MOST_M or family in _prepared:
        return
    _prepared.add(family)
    answers = foresee(problem, model, MOST_M)
    alike = [launch.key for launch, _ in _compiled_for(problem, config, made.find)]
    if alike == [launch.key for launch, _ in made.launches]:
        compile_threads.load(_missing(problem, model, answers, made.find), index)
    list(answers)  # operands that lie in another way than a problem says have other binaries, but the same configs


def alike(problem: Problem, model: Device, config: Config) -> AlikeMs | None:
    """The Ms around a problem's for which the formula's config is launched alike, where a family was prepared."""
    known = _alike.get((problem.family, model.slug, config), ())
    return next((each for each in known if each.first_m <= problem.m <= each.last_m), None)


def _missing(
    problem: Problem, model: Device, answers: Iterable[tuple[range, Match]], find: Callable[[Launch], Any] | None
) -> Iterator[Launch]:
    """One launch for each binary that a family's Ms need and that does not ship; those that ship are loaded."""
    seen: set[tuple[Any, str]] = set()
    for ms, match in answers:
        with contextlib.suppress(KernelError, NotImplementedError, *failures()):
            found = alike_ms(problem, match.config, ms[0], ms[-1])
            _alike.setdefault((problem.family, model.slug, match.config), []).extend(found)
        for each in map(problem.with_m, ms_of_each_kind(ms[0], ms[-1])):
            if can_run(match.config, each, model):
                for launch, shipped in _compiled_for(each, match.config, find):
                    if shipped is None and (launch.function, launch.key) not in seen:
                        seen.add((launch.function, launch.key))
                        yield launch


def _compiled_for(problem: Problem, config: Config, find: Callable[[Launch], Any] | None) -> list[tuple[Launch, Any]]:
    """What a config launches for a problem's operands, each with its shipped binary or None; nothing is compiled."""
    with recorded(find or (lambda _: None)) as seen, contextlib.suppress(KernelError, NotImplementedError, *failures()):
        registry.find(problem.op, config.kernel).compile(problem, config)
    return seen.launches
