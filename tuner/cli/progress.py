"""What `tuner run` shows: a progress bar on a terminal, a line a problem elsewhere, a closing table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import rich.progress
from rich.console import Console
from rich.table import Table

from tuner.config import Config
from tuner.device import Device, Environment
from tuner.problem import Problem
from tuner.records import Outcome, Winner
from tuner.sweep.job import Job
from tuner.sweep.run import Forecast, Observer, ProblemReport, Report


def stdout_console() -> Console:
    """A console for tables on stdout: as wide as the terminal, wide enough for any row when there is none."""
    return Console(width=None if sys.stdout.isatty() else 200)


class Progress(Observer):
    """Draws a sweep on stderr; a context manager."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(bar_width=24),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TextColumn("{task.fields[best]}"),
            rich.progress.TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._tasks: dict[Problem, rich.progress.TaskID] = {}

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def started(self, device: Device, environment: Environment, problems: Sequence[Problem]) -> None:
        """Say what the sweep runs on."""
        self._say(
            f"{device.name} ({device.slug}), Triton {environment.triton}, torch {environment.torch}: "
            f"{len(problems)} problem{'s' * (len(problems) != 1)}"
        )

    def problem_started(self, job: Job, gpu: int | None) -> None:
        """Add a bar."""
        where = "" if gpu is None else f" cuda:{gpu}"
        self._tasks[job.problem] = self._bar.add_task(
            f"{job.problem}{where}", total=len(job.candidates), completed=len(job.outcomes), best=""
        )

    def trial_ended(self, job: Job, config: Config, outcome: Outcome) -> None:  # noqa: ARG002
        """Advance the bar."""
        best = "" if job.best_us is None else f"best {job.best_us:.4g} us"
        self._bar.update(self._tasks[job.problem], completed=len(job.outcomes), best=best)

    def problem_ended(self, report: ProblemReport) -> None:
        """Replace the bar by one line."""
        if (task := self._tasks.pop(report.problem, None)) is not None:
            self._bar.remove_task(task)
        self._say(problem_line(report))

    def _say(self, line: str) -> None:
        self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)


def problem_line(report: ProblemReport) -> str:
    """One problem's end in one line."""
    if (winner := report.winner) is None:
        return f"{report.problem}: no winner: {report.reason}"
    ratios = "".join(
        f", {ratio:.2f}x {name}"
        for name, ratio in (("default", winner.vs_default), ("vendor", winner.vs_vendor))
        if ratio is not None
    )
    trials = f"{report.measured} trials in {report.seconds:.1f} s"
    if report.resumed:
        trials += f", {report.resumed} known"
    tail = report.reason or trials
    return f"{report.problem}: {winner.config.label}, {winner.median_us:.4g} us{ratios} ({tail})"


def closing_table(report: Report) -> None:
    """Print the winners on stdout, and on stderr what is left and how to go on."""
    table = Table("problem", "winner", title=f"{report.device.name}, {report.seconds:.0f} s", title_justify="left")
    for name in ("us", "TFLOPS", "vs default", "vs vendor", "ties"):
        table.add_column(name, justify="right", no_wrap=True)
    for problem in report.problems:
        table.add_row(str(problem.problem), *_cells(problem))
    if report.problems:
        stdout_console().print(table, markup=False)
    errors = Console(stderr=True, soft_wrap=True)
    if report.untried or report.interrupted:
        left = len(report.untried) + sum(problem.winner is None for problem in report.problems)
        why = "interrupted" if report.interrupted else "the time budget is spent"
        errors.print(
            f"{why}: {left} problem{'s' * (left != 1)} without a winner; every trial is kept, "
            "the same command goes on from here",
            highlight=False,
        )


def report_json(report: Report) -> dict[str, Any]:
    """A sweep's end as a JSON document."""
    return {
        "device": report.device.slug,
        "interrupted": report.interrupted,
        "seconds": round(report.seconds, 3),
        "compiled": report.compiled,
        "problems": [
            {
                "problem": problem.problem.fields(),
                "winner": None if problem.winner is None else _winner_json(problem.winner),
                "reason": problem.reason,
                "considered": problem.considered,
                "measured": problem.measured,
                "resumed": problem.resumed,
                "states": {str(state): count for state, count in sorted(problem.states.items())},
                "seconds": round(problem.seconds, 3),
            }
            for problem in report.problems
        ],
        "untried": [problem.fields() for problem in report.untried],
    }


def forecast_table(forecasts: Sequence[Forecast]) -> None:
    """Print what a run would try."""
    table = Table("problem", "default config")
    for name in ("configs", "to try", "known"):
        table.add_column(name, justify="right")
    for forecast in forecasts:
        table.add_row(
            str(forecast.problem),
            forecast.reason or (forecast.default.label if forecast.default else ""),
            str(forecast.considered),
            str(forecast.to_try),
            str(forecast.known),
        )
    stdout_console().print(table, markup=False)


def forecast_json(forecasts: Sequence[Forecast]) -> list[dict[str, Any]]:
    """What a run would try, as a JSON document."""
    return [
        {
            "problem": forecast.problem.fields(),
            "default": None if forecast.default is None else _config_json(forecast.default),
            "considered": forecast.considered,
            "to_try": forecast.to_try,
            "known": forecast.known,
            "reason": forecast.reason,
        }
        for forecast in forecasts
    ]


def _cells(report: ProblemReport) -> list[str]:
    if (winner := report.winner) is None:
        return [f"none: {report.reason}", "", "", "", "", ""]
    return [
        winner.config.label,
        f"{winner.median_us:.4g}",
        f"{winner.tflops:.4g}",
        *("" if ratio is None else f"{ratio:.3f}" for ratio in (winner.vs_default, winner.vs_vendor)),
        str(winner.ties),
    ]


def _winner_json(winner: Winner) -> dict[str, Any]:
    return {
        **_config_json(winner.config),
        "median_us": winner.median_us,
        "tflops": winner.tflops,
        "vs_default": winner.vs_default,
        "vs_vendor": winner.vs_vendor,
        "ties": winner.ties,
    }


def _config_json(config: Config) -> dict[str, Any]:
    return {"kernel": config.kernel, "config": dict(config)}
