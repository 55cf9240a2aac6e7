"""`tuner verify --regret`: measures what lookups and the default formula lose on problems that are held out."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from tuner.cli import options, output
from tuner.errors import UsageError
from tuner.problem import suite as suites

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.bench.held_out import Case, CaseResult, Regret
    from tuner.bench.paired import PairedRunner

_COLUMNS = ("rule", "held out", "regret", "worst", "formula's", "formula's worst")


def measure(place: str, suite: str | None, sample: int, device: str, *, as_json: bool) -> bool:
    """Hold out problems, measure the configs that lookups return for them, and print each rule's figures.

    Returns:
        Whether every problem could be measured.

    Raises:
        UsageError: there is nothing to hold out.
        TableError: the place cannot be read.
    """
    from tuner.bench import held_out
    from tuner.bench.paired import PairedRunner
    from tuner.lookup import sources

    source = sources.named(place)
    listed = None if suite is None else suites.load(suite)
    with PairedRunner(options.gpus_of(device)[0]) as bench:
        model = bench.device
        cases = held_out.cases(source, model, listed, sample)
        if listed is not None and len(cases) < len(listed):
            click.echo(
                f"not tuned in {place}, left out: {len(listed) - len(cases)} of {len(listed)} problems", err=True
            )
        if not cases:
            raise UsageError(f"{place} has no tuned problem to hold out for {model.slug}: tune some, `tuner run`")
        played = _play(cases, bench)
    figures = held_out.summary(played)
    if as_json:
        output.print_json(_document(place, bench, figures, played))
    else:
        _print(figures)
    return all(one.answer is not None and not one.failure for one in played)


def _play(cases: Sequence[Case], bench: PairedRunner) -> list[CaseResult]:
    from tuner.bench import held_out

    played: list[CaseResult] = []
    for one in held_out.play(cases, bench):
        played.append(one)
        shown = f"{one.answer:.3f}, formula {one.formula:.3f}" if one.answer and one.formula else one.failure
        line = f"[{len(played)}/{len(cases)}] {one.case.problem}: {one.case.rule} {shown}, {one.case.answer.label}"
        click.echo(line, err=True)
    return played


def _print(figures: dict[str, Regret]) -> None:
    rows = [
        (
            rule,
            str(figure.count),
            *(_percent(ratio) for ratio in (figure.geomean, figure.worst)),
            *(_percent(ratio) for ratio in (figure.formula_geomean, figure.formula_worst)),
        )
        for rule, figure in sorted(figures.items(), key=lambda item: (item[0] == "all", item[0]))
    ]
    output.print_table(_COLUMNS, rows, empty="nothing could be measured")


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):.1f}%"


def _document(
    place: str, bench: PairedRunner, figures: dict[str, Regret], played: Sequence[CaseResult]
) -> dict[str, Any]:
    import tuner
    from tuner.store.records import PROTOCOL, now

    return {
        "tuner": tuner.__version__,
        "date": now(),
        "argv": sys.argv,
        "protocol": PROTOCOL,
        "place": place,
        "device": bench.device,
        "environment": bench.environment,
        "rules": figures,
        "problems": [_row(one) for one in played],
    }


def _row(one: CaseResult) -> dict[str, Any]:
    return {
        "problem": one.case.problem,
        "rule": one.case.rule,
        **{name: str(getattr(one.case, name)) for name in ("answer", "formula", "winner")},
        "answer_regret": one.answer,
        "formula_regret": one.formula,
        "fastest_us": one.fastest_us,
        "failure": one.failure,
    }
