"""Measures lookups of problems whose rows are held out, in paired rounds with their winners and the defaults."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from tuner.errors import KernelError
from tuner.hardware.device import Device, of_one_arch
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.kernel.space import SearchSpace
from tuner.lookup import match_rules
from tuner.lookup.decision import Decision
from tuner.lookup.device_winners import by_problem
from tuner.lookup.sources import Source
from tuner.problem import Problem
from tuner.sweep import finals
from tuner.sweep.measure import VENDOR
from tuner.sweep.messages import FinalsPlayed
from tuner.sweep.paired import PairedRunner

_SEED = 1


@dataclass(frozen=True, slots=True)
class Case:
    """A tuned problem, and what a lookup answers without its row.

    Attributes:
        problem: the problem whose row is held out.
        rule: the rule that answered.
        answer, formula, winner: the lookup's config, the default formula's, and the one tuned for the problem.
    """

    problem: Problem
    rule: str
    answer: Config
    formula: Config
    winner: Config

    @property
    def contestants(self) -> tuple[Config, ...]:
        """The configs to measure, each once."""
        return tuple(dict.fromkeys((self.winner, self.answer, self.formula)))


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What was measured for a case.

    Attributes:
        case: the case.
        answer, formula: the time over the fastest contestant's, 1 for no regret; None where it could not be measured,
            and for both where the winner could not: what is left of the contestants says nothing about the loss.
        fastest_us: microseconds a call of the fastest; None where all are one config, or nothing was measured.
        failure: why a figure is missing; "" where none is.
    """

    case: Case
    answer: float | None
    formula: float | None
    fastest_us: float | None
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Regret:
    """How one match rule did on problems held out: its time over that of the fastest config played, 1 for no regret.

    Attributes:
        count: how many problems the rule answered.
        geomean, worst: the geometric mean and the worst of its answers.
        formula_geomean, formula_worst: the same figures for the default formula's configs on these problems.
    """

    count: int
    geomean: float
    worst: float
    formula_geomean: float
    formula_worst: float


def cases(source: Source, device: Device, suite: Sequence[Problem] | None, sample: int) -> list[Case]:
    """Choose problems that a source has usable rows for, and ask what a lookup answers without these.

    Args:
        source: whose rows are held out; nothing else is asked but what it holds for others of the architecture.
        device: what is looked up for.
        suite: problems that are all held out together; those without a row are passed over. None draws a sample, of
            which each is held out alone.
        sample: how many problems are drawn, always the same ones.

    Raises:
        KernelError: no kernel serves one of them on the device.
    """
    winners = source.winners(device.slug)
    relatives = [source.winners(slug) for slug in of_one_arch(device, source.slugs())]
    rows = [row for found in winners.rows.values() for row in found[:1]]
    usable = {row.problem for row in rows if match_rules.refusal(row, row.problem, device) is None}
    if suite is None:
        chosen = random.Random(_SEED).sample(sorted(usable, key=str), min(sample, len(usable)))
    else:
        chosen = [problem for problem in dict.fromkeys(suite) if problem in usable]
    found: list[Case] = []
    for problem in chosen:
        hidden = {problem} if suite is None else set(chosen)
        left = winners._replace(rows=by_problem(row for row in rows if row.problem not in hidden))
        decision = match_rules.decide(problem, device, [left], relatives)
        found.append(_case(problem, device, decision, winners.rows[problem][0].config))
    return found


def summary(played: Iterable[CaseResult]) -> dict[str, Regret]:
    """Return the figures by rule, those of all cases under "all"; what could not be measured is left out."""
    by_rule: dict[str, list[tuple[float, float]]] = {}
    for one in played:
        if one.answer is not None and one.formula is not None:
            for rule in (one.case.rule, "all"):
                by_rule.setdefault(rule, []).append((one.answer, one.formula))
    found = {}
    for rule, pairs in by_rule.items():
        answers, formulas = zip(*pairs, strict=True)
        found[rule] = Regret(len(pairs), geometric_mean(answers), max(answers), geometric_mean(formulas), max(formulas))
    return found


def _case(problem: Problem, device: Device, decision: Decision, winner: Config) -> Case:
    def program(config: Config) -> Config:
        """Return the representative of a config's program, so that equal programs compare equal."""
        with contextlib.suppress(KernelError):
            space: SearchSpace = registry.ask(registry.find(problem.op, config.kernel), "space", problem, device)
            return space.canonicalize(config)
        return config

    match = decision.match
    return Case(
        problem,
        match.rule,
        program(match.config),
        program(registry.default_config(problem, device)),
        program(winner),
    )


def play(todo: Sequence[Case], runner: PairedRunner) -> Iterator[CaseResult]:
    """Measure cases one after the other; their binaries are compiled first, on all cores.

    A case whose contestants are one config is not measured: its regrets are 1.
    """
    runner.compile((case.problem, config) for case in todo if len(case.contestants) > 1 for config in case.contestants)
    for case in todo:
        if len(case.contestants) == 1:
            yield CaseResult(case, 1.0, 1.0, None)
            continue
        played = runner.play(case.problem, case.contestants)
        yield CaseResult(case, None, None, None, played) if isinstance(played, str) else _judged(case, played)


def _judged(case: Case, reply: FinalsPlayed) -> CaseResult:
    times = {name: figures for name, figures in reply.times.items() if name != VENDOR and figures}
    failure = "; ".join(sorted(reply.rejected.values()))
    if case.winner.digest not in times:
        return CaseResult(case, None, None, None, failure)
    ratios = finals.compare_to_fastest(times)

    def ratio(config: Config) -> float | None:
        found = ratios.get(config.digest)
        return None if found is None else max(1.0, found.ratio)

    fastest_us = min(paired.median_us for paired in ratios.values())
    return CaseResult(case, ratio(case.answer), ratio(case.formula), fastest_us, failure)
