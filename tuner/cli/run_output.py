"""What `tuner run` prints: a progress bar on a terminal, a line for each problem, a closing table."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any, TypeVar

import click
import rich.progress
from rich.console import Console

from tuner.cli.output import FIGURES, by_name, figures, how_to_resume, print_table, quantity, span, winner_document
from tuner.hardware.device import Device, Environment
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.problem.family import ESTIMATED, Family
from tuner.store.records import Outcome
from tuner.sweep.job import SPENT, Job
from tuner.sweep.observer import Observer
from tuner.sweep.plan import Forecast
from tuner.sweep.report import ProblemReport, Report

_LONG_S = 30.0
"""A search that ends sooner needs no estimate."""
Drawn = TypeVar("Drawn", bound="Live")


class Live:
    """Bars on stderr where it is a terminal, and lines above them; a context manager."""

    def __init__(self, *columns: rich.progress.ProgressColumn) -> None:
        """Columns follow what is done; a task's `told` is text."""
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(bar_width=24),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TextColumn("{task.fields[told]}"),
            *columns,
            console=Console(stderr=True),
            disable=sys.stderr is None or not sys.stderr.isatty(),  # FORCE_COLOR in a log wants no bar there
        )

    def __enter__(self: Drawn) -> Drawn:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def _say(self, line: str) -> None:
        self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)


class Progress(Live, Observer):
    """Draws a sweep on stderr; a context manager."""

    def __init__(self) -> None:
        super().__init__(rich.progress.TimeRemainingColumn())
        self._tasks: dict[Problem, rich.progress.TaskID] = {}

    def started(self, device: Device, environment: Environment, problems: Sequence[Problem]) -> None:
        """Say what the sweep runs on."""
        self._say(
            f"{device.name} ({device.slug}), Triton {environment.triton}, torch {environment.torch}: "
            f"{quantity(len(problems), 'problem')}"
        )

    def problem_started(self, job: Job, gpu: int | None) -> None:
        """Add a bar."""
        where = "" if gpu is None else f" cuda:{gpu}"
        self._tasks[job.problem] = self._bar.add_task(
            f"{job.problem}{where}", total=job.most, completed=len(job.outcomes), told=""
        )

    def trial_ended(self, job: Job, config: Config, outcome: Outcome) -> None:  # noqa: ARG002
        """Advance the bar; where the interpreter will take long, say how long after the first trial."""
        best = "" if job.best_us is None else f"best {job.best_us:.2f} us"
        self._bar.update(self._tasks[job.problem], total=job.most, completed=len(job.outcomes), told=best)
        left = job.most - len(job.outcomes)
        rest_s = left * job.stopwatch.phases_s.get("search", 0.0)
        if job.device.is_interpreter and job.measured == 1 and rest_s > _LONG_S:
            told = f"up to {quantity(left, 'trial')} to go, about {span(rest_s)}, then the final measurements"
            self._say(f"{job.problem}: {told}")

    def problem_ended(self, report: ProblemReport) -> None:
        """Replace the bar by one line."""
        if (task := self._tasks.pop(report.problem, None)) is not None:
            self._bar.remove_task(task)
        self._say(problem_line(report))

    def family_decided(self, family: Family) -> None:
        """Say what a ladder gave."""
        self._say(family_line(family))


def problem_line(report: ProblemReport) -> str:
    """One problem's end in one line."""
    if (winner := report.winner) is None:
        best = (
            "" if report.best_us is None else f"; best of {sum(report.states.values())} trials {report.best_us:.2f} us"
        )
        return f"{report.problem}: no winner: {report.reason}{best}"
    ratios = "".join(
        f", {ratio:.2f}x {name}" if ratio >= 0.01 else f", {ratio:.1g}x {name}"
        for name, ratio in (("default", winner.vs_default), ("vendor", winner.vs_vendor))
        if ratio is not None
    )
    trials = f"{report.measured} of {quantity(report.considered, 'config')} in {report.seconds:.1f} s"
    if report.resumed:
        trials += f", {report.resumed} known"
    if report.binaries:
        trials += f", {report.binaries} binaries"
    if report.stopped:
        trials += f"; {report.stopped}"
    tail = report.reason or trials
    return f"{report.problem}: {winner.config.label}, {winner.median_us:.2f} us{ratios} ({tail})"


def family_line(family: Family) -> str:
    """One ladder's end in one line."""
    estimated = sum(each.evidence == ESTIMATED for each in family.ranges)
    ranges = quantity(len(family.ranges), "range") + (f", {estimated} of them estimated" if estimated else "")
    if (check := family.check) is None:
        return f"{family}: {ranges}"
    lost = f"{check.geomean - 1:.1%} in the mean, {check.worst - 1:.1%} at most"
    return f"{family}: {ranges}; at {quantity(check.played, 'random M')} they lost {lost}"


def closing_table(report: Report) -> None:
    """Print the winners on stdout, and on stderr what is left and how to go on."""
    rows = [
        (str(ended.problem), ended.winner.config.label, *figures(ended.winner))
        for ended in report.problems
        if ended.winner is not None
    ]
    with contextlib.suppress(BrokenPipeError):  # the exit code tells how the run ended, read or not
        others = _kept(report) or report.fresh_since is not None  # may have a winner of an earlier run
        none = "no problem that was begun has a winner" if others else "no problem has a winner"
        if report.problems or report.untried:  # an empty shard has neither
            print_table(
                ("problem", "winner", *FIGURES), rows, empty=none if report.problems else "no problem was begun"
            )
    if report.interrupted or report.deserted or report.is_spent:
        click.echo(_left(report), err=True)


def _left(report: Report) -> str:
    """Say what a sweep that was cut short leaves undone, and how to go on."""
    why = "interrupted" if report.interrupted else "no node is left" if report.deserted else SPENT
    further = f"every trial is kept, the same command {how_to_resume(report.fresh_since)}goes on from here"
    if report.is_spent and not any(problem.measured for problem in report.problems):
        further = f"nothing was measured (the start took {report.start_s:.1f} s): give it more by --time-budget"
    new = "" if report.fresh_since is None else "new "
    left = [f"{quantity(report.undecided_count, 'problem')} without a {new}winner"] if report.undecided_count else []
    left += [f"{quantity(kept, 'problem')} with an earlier winner not begun"] if (kept := _kept(report)) else []
    return f"{why}: {', '.join(left) or 'every problem has a winner'}; {further}"


def _kept(report: Report) -> int:
    """How many problems have a winner of an earlier run and were not begun."""
    return len(report.untried) - len(report.untuned)


def report_json(report: Report) -> dict[str, Any]:
    """Return a sweep's report as a JSON document."""
    return {
        "device": report.device.slug,
        "interrupted": report.interrupted,
        "fresh_since": report.fresh_since,
        "seconds": round(report.seconds, 3),
        "start_seconds": round(report.start_s, 3),
        "compiled": report.compiled,
        "compile_seconds": round(report.compile_s, 3),
        "problems": [
            {
                **by_name(problem),
                "winner": None if problem.winner is None else winner_document(problem.winner),
                "seconds": round(problem.seconds, 3),
                "phases_s": {phase: round(seconds, 3) for phase, seconds in problem.phases_s.items()},
                "draft_s": round(problem.draft_s, 3),
            }
            for problem in report.problems
        ],
        "untried": report.untried,
        "families": [
            {**by_name(family), "check": family.check and family.check._asdict()} for family in report.families
        ],
    }


def forecast_table(forecasts: Sequence[Forecast]) -> None:
    """Print what a run would try."""
    rows = [
        (
            str(forecast.problem),
            forecast.reason or (forecast.default.label if forecast.default else ""),
            str(forecast.considered),
            str(forecast.to_try),
            str(forecast.known),
        )
        for forecast in forecasts
    ]
    print_table(("problem", "default config", "configs", "to try", "known"), rows, empty="no problem")
