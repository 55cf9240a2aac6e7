"""`tuner verify`: finds faults in tables, or in a database's winners."""

from __future__ import annotations

import itertools
import sys
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tuner.cli import kernel_options, measured, options, output
from tuner.errors import AbsentError, UsageError
from tuner.problem import suite as suites
from tuner.problem.text import family_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tuner.bench.held_out import CaseResult, Regret
    from tuner.sweep.paired import PairedRunner
    from tuner.tables.verify.finding import Finding
    from tuner.tables.verify.inspection import Inspection

_COLUMNS = ("level", "check", "problem", "found", "expected", "what to type")
_NOTES = 10
"""How many notes of a place are listed unless all are asked for."""
_REGRETS = ("rule", "held out", "regret", "worst", "formula's", "formula's worst")


@click.command()
@click.argument("places", metavar="TABLE|DB...", nargs=-1, required=True, type=options.Place())
@kernel_options.kernel_option
@click.option("--strict", is_flag=True, help="Exit 1 for warnings too.")
@click.option("--notes", is_flag=True, help="List every note, not the first ten of a place.")
@click.option("--regret", is_flag=True, help="Measure what a lookup loses on held-out problems.")
@click.option("--invariance", is_flag=True, help="Compare rows of invariant families bit for bit between their Ms.")
@click.option("--suite", metavar="NAME|FILE.csv", help="With --regret: hold out these problems, all together.")
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    metavar="N",
    default=30,
    show_default=True,
    help="With --regret and no suite: how many problems are held out, each alone.",
)
@options.device_option("With --regret or --invariance: where to launch.")
@options.json_option
@click.pass_context
def verify(
    ctx: click.Context,
    /,
    places: tuple[str, ...],
    *,
    kernels: tuple[str, ...],
    strict: bool,
    notes: bool,
    regret: bool,
    invariance: bool,
    suite: str | None,
    sample: int,
    device: str,
    as_json: bool,
) -> None:
    """Say what is wrong with tables, or with a database's winners.

    A place is a table, a folder of tables, an installed package that ships tables, or a database. Needs no GPU.
    Exits 0 when there are only notes and warnings, 1 with an error, 2 when there is no such place.

    With --regret it instead looks up problems without their own rows, and measures how much slower the answers are.
    With --invariance it instead launches invariant families at several Ms, and compares their rows bit for bit.
    """
    for name in kernels:
        kernel_options.find(name)
    if regret and invariance:
        raise UsageError("--regret and --invariance launch different things: type one of them")
    launches = regret or invariance
    if launches and len(places) > 1:
        which = "--regret" if regret else "--invariance"
        raise UsageError(f"{which} takes one table, folder of tables or database at a time")
    if launches and strict:
        raise UsageError("--strict is for warnings, of which --regret and --invariance have none: leave it out")
    if notes and (launches or as_json):
        raise UsageError("--notes is for the listing: --regret and --invariance have no notes, --json has all of them")
    if suite is not None and ctx.get_parameter_source("sample") is ParameterSource.COMMANDLINE:
        raise UsageError(
            "--sample is for --regret without --suite, whose problems are all held out: leave one of them out"
        )
    for name in () if regret else ("suite", "sample", *(() if launches else ("device",))):
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            with_it = "--regret or --invariance" if name == "device" else "--regret"
            raise UsageError(f"--{name} goes with {with_it}: add it, or leave --{name} out")
    try:
        if regret:
            ok = _measure(places[0], suite, sample, device, as_json=as_json)
        elif invariance:
            ok = _compare(places[0], device, as_json=as_json)
        else:
            ok = _inspect(places, strict=strict, notes=notes, as_json=as_json)
    except AbsentError as e:
        raise UsageError(str(e)) from e  # exit code 1 means that something is wrong with what is there
    ctx.exit(0 if ok else 1)


def _inspect(places: Iterable[str], *, strict: bool, notes: bool, as_json: bool) -> bool:
    from tuner.tables.verify.finding import Level
    from tuner.tables.verify.inspection import inspect

    inspections = [inspect(place) for place in places]
    levels = {finding.level for inspection in inspections for finding in inspection.findings}
    ok = not levels & ({Level.ERROR, Level.WARNING} if strict else {Level.ERROR})
    if as_json:
        listed = [{**output.by_name(inspection), "counts": _counts(inspection.findings)} for inspection in inspections]
        output.print_json({"ok": ok, "places": listed})
    else:
        for inspection in inspections:
            _print(inspection, every_note=notes)
    return ok


def _print(inspection: Inspection, *, every_note: bool) -> None:
    from tuner.tables.verify.finding import Level

    size = f"{output.quantity(inspection.tables, 'table')}, {output.quantity(inspection.rows, 'row')}"
    if inspection.kernels:
        size += f", {output.quantity(inspection.kernels, 'folder')} of kernels"
    click.echo(f"{inspection.place}: {size}: {_summary(inspection)}")
    several = len({finding.place for finding in inspection.findings} - {inspection.place}) > 1
    checks = Counter(finding.check for finding in inspection.findings if finding.level is Level.NOTE)
    listed = inspection.findings  # the worst first
    if not every_note:
        shown = {id(finding) for finding in _in_turn(listed)[:_NOTES]}
        listed = tuple(finding for finding in listed if finding.level is not Level.NOTE or id(finding) in shown)
    hidden = len(inspection.findings) - len(listed)
    if listed:
        columns = (*_COLUMNS[:2], "table", *_COLUMNS[2:]) if several else _COLUMNS
        output.print_table(columns, [_cells(finding, several=several) for finding in listed], empty="")
    if hidden:
        counts = ", ".join(f"{check}: {count}" for check, count in checks.most_common())
        shown_of = f"{_NOTES} of {checks.total()} notes, in turn of each check ({counts})"
        click.echo(f"{inspection.place}: {shown_of}: --notes lists all", err=True)


def _in_turn(findings: Iterable[Finding]) -> list[Finding]:
    """The notes, by turns one of each check."""
    from tuner.tables.verify.finding import Level

    checks: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        if finding.level is Level.NOTE:
            checks[finding.check].append(finding)
    return [finding for turn in itertools.zip_longest(*checks.values()) for finding in turn if finding]


def _cells(finding: Finding, *, several: bool) -> tuple[str, ...]:
    name = _printable(finding.place.rpartition("/")[2])
    head = (str(finding.level), finding.check, *((name,) if several else ()))
    return (*head, *map(_printable, (finding.row, finding.found, finding.expected, finding.advice)))


def _printable(text: str) -> str:
    """Escape characters of a damaged table that would control a terminal or cannot be encoded."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _summary(inspection: Inspection) -> str:
    counts = _counts(inspection.findings)
    return ", ".join(output.quantity(number, str(level)) for level, number in counts.items() if number) or "clean"


def _counts(findings: Iterable[Finding]) -> dict[str, int]:
    from tuner.tables.verify.finding import LEVELS

    counts = Counter(finding.level for finding in findings)
    return {str(level): counts[level] for level in LEVELS}


def _measure(place: str, suite: str | None, sample: int, device: str, *, as_json: bool) -> bool:
    """Hold problems out, measure the configs that lookups give for them, and print figures for each rule.

    Returns:
        Whether every problem could be measured.

    Raises:
        UsageError: there is nothing to hold out.
        TableError: the place cannot be read.
    """
    from tuner.bench import held_out
    from tuner.lookup import sources
    from tuner.sweep.paired import PairedRunner

    source = sources.named(place)
    listed = None if suite is None else suites.load(suite)
    with PairedRunner(options.gpu_of(device, "verify")) as bench:
        model = bench.device
        cases = held_out.cases(source, model, listed, sample)
        if listed is not None and len(cases) < len(listed):
            click.echo(
                f"not tuned in {place}, left out: {len(listed) - len(cases)} of {len(listed)} problems", err=True
            )
        if not cases:
            raise UsageError(f"{place} has no tuned problem to hold out for {model.slug}: tune some, `tuner run`")
        played, ended = measured.collect(held_out.play(cases, bench), lambda one, done: _say(one, done, len(cases)))
    figures, unplayed = held_out.summary(played), len(cases) - len(played)
    if as_json:
        output.print_json(_document(place, bench, figures, played) | {"unplayed": unplayed})
    else:
        _print_regret(figures)
        if without := sum(one.answer is None or one.formula is None for one in played):
            click.echo(f"{without} of {len(played)} problems are in no figure: the lines above say why", err=True)
        measured.say_unplayed(unplayed, "problem")
    if ended is not None:
        raise ended
    return all(one.answer is not None and not one.failure for one in played)


def _compare(place: str, device: str, *, as_json: bool) -> bool:
    """Launch the invariant families of a place, print what differed, and return whether nothing did.

    Raises:
        UsageError: there is no such family.
        TableError: the place cannot be read.
    """
    from tuner.bench import invariance
    from tuner.lookup import sources
    from tuner.sweep.paired import PairedRunner

    source = sources.named(place)
    with PairedRunner(options.gpu_of(device, "verify")) as bench:
        families = invariance.families(source, bench.device)
        if not families:
            slug = bench.device.slug
            raise UsageError(f"{place} has no invariant problem for {slug}: tune some, `tuner run --invariant`")
        played, ended = measured.collect(invariance.play(families, bench), lambda *_: None)
    unplayed = len(families) - len(played)
    if as_json:
        rows = [{**output.by_name(one), "configs": {m: str(each) for m, each in one.configs.items()}} for one in played]
        body = {"place": place, "device": bench.device, "environment": bench.environment}
        output.print_json({**body, "families": rows, "unplayed": unplayed})
    else:
        lines = [
            (family_name(one.problem), ",".join(map(str, one.configs)), one.failure or str(sum(one.changed.values())))
            for one in played
        ]
        output.print_table(("family", "M", "rows that differ"), lines, empty="no family was compared")
        measured.say_unplayed(unplayed, "family")
    if ended is not None:
        raise ended
    return all(one.is_right for one in played)


def _say(one: CaseResult, done: int, count: int) -> None:
    regrets = f" {one.answer:.3f}, formula {one.formula:.3f}" if one.answer and one.formula else ""
    failure = f": {one.failure}" if one.failure else ""
    said = f"{one.case.rule}{regrets}, {one.case.answer.label}{failure}"
    click.echo(f"[{done}/{count}] {one.case.problem}: {said}", err=True)


def _print_regret(figures: dict[str, Regret]) -> None:
    rows = [
        (
            rule,
            str(figure.count),
            *(_percent(ratio) for ratio in (figure.geomean, figure.worst)),
            *(_percent(ratio) for ratio in (figure.formula_geomean, figure.formula_worst)),
        )
        for rule, figure in sorted(figures.items(), key=lambda item: (item[0] == "all", item[0]))
    ]
    output.print_table(_REGRETS, rows, empty="nothing could be measured")


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
