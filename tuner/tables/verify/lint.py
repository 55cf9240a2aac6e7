"""What is wrong with the rows of one table, without a GPU: the installed kernels' own rules say what a device can run.

A check is a function from a `Subject` to findings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from tuner.hardware import device as devices
from tuner.hardware.arch import ARCHES
from tuner.hardware.device import INTERPRETER, MODELS, Device
from tuner.kernel import registry
from tuner.kernel.space import SearchSpace
from tuner.lookup import match_rules
from tuner.lookup.advice import command
from tuner.lookup.row import BAD_VALUE, Row
from tuner.lookup.table import Table
from tuner.problem import Problem
from tuner.problem.family import ESTIMATED, MEASURED, Family, Range
from tuner.problem.text import family_name
from tuner.progress import with_estimate
from tuner.store.records import PROTOCOL
from tuner.tables.verify.finding import Finding, Level

TIE = 0.005
"""Two configs within this share are as fast as each other: `tuner.sweep.finals.TIE`."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A table under inspection.

    Attributes:
        place: the file, database or package that it came from.
        table: its rows. For a database, these are all current winners of one op and device, in every environment.
        ships: whether others get this. A database may hold rows of an older kernel: the next `tuner run` supersedes
            them, and `tuner export` leaves them out.
    """

    place: str
    table: Table
    ships: bool = True

    def finding(
        self, level: Level, check: str, found: str, expected: str, *, row: Row | None = None, advice: str = ""
    ) -> Finding:
        """A finding about one row, or about the table as a whole."""
        problem = None if row is None else row.problem
        words = "" if problem is None else str(problem)
        return Finding(level, check, self.place, self.table.device.slug, words, found, expected, advice, problem)


Check = Callable[[Subject], Iterator[Finding]]


def check(subject: Subject) -> list[Finding]:
    """All that is wrong with a table, by the checks in `CHECKS`. Nothing is raised for a bad row."""
    return [finding for each in CHECKS for finding in each(subject)]


def _empty(subject: Subject) -> Iterator[Finding]:
    if not subject.table.rows:
        yield subject.finding(
            Level.WARNING, "empty", "no row that can be read", "one at least", advice="export it again"
        )


def _date(subject: Subject) -> Iterator[Finding]:
    date = subject.table.date
    if not subject.ships:
        return
    try:
        datetime.fromisoformat(date.replace("Z", "+00:00"))
    except ValueError:
        yield subject.finding(Level.WARNING, "date", f"date {date!r}", "UTC as ISO 8601", advice="export it again")


def _device(subject: Subject) -> Iterator[Finding]:
    device = subject.table.device
    if device.is_interpreter or device.slug == INTERPRETER.slug:
        found = "measured under Triton's interpreter: never offered to a GPU"
        yield subject.finding(Level.NOTE, "device", found, "a GPU")
        return
    slug = devices.slug_of(device.name, device.arch, device.sm_count)
    if slug != device.slug:
        found = f"slug {device.slug} of {device.name!r}, {device.arch} with {device.sm_count} multiprocessors"
        yield subject.finding(
            Level.ERROR, "device", found, f"slug {slug}, which a lookup asks for", advice="export it again"
        )
    limit = ARCHES[device.arch].shared_bytes if device.arch in ARCHES else device.shared_bytes
    if device.shared_bytes != limit:
        found = f"{device.shared_bytes} B of shared memory a block: rows are checked against that"
        yield subject.finding(Level.WARNING, "device", found, f"{limit} B on {device.arch}", advice="export it again")
    known = sorted(model.slug for model in MODELS)
    if device.slug not in known:
        found = f"{device.slug} is unknown here: rows are checked against the limits that the table gives"
        yield subject.finding(Level.NOTE, "device", found, f"any; known are {', '.join(known)}")


def _environments(subject: Subject) -> Iterator[Finding]:
    counts = Counter((row.made.environment, row.made.protocol) for row in subject.table.rows)
    if len(counts) > 1:
        each = ", ".join(
            f"{count} under Triton {environment.triton}, torch {environment.torch}, {environment.backend}, driver "
            f"{environment.driver}, Python {environment.python}, protocol {protocol}"
            for (environment, protocol), count in counts.most_common()
        )
        found = f"rows of {len(counts)} environments: {each}"
        yield subject.finding(Level.NOTE, "environments", found, "one, so that figures compare")


def _configs(subject: Subject) -> Iterator[Finding]:
    """Rows that a lookup refuses, and rows that it uses though no search would have tried them."""
    table = subject.table
    known = registry.specs()
    if table.rows and table.op not in {op for op, _ in known}:
        ops = ", ".join(sorted({op for op, _ in known})) or "none"
        rows = "1 row" if len(table.rows) == 1 else f"{len(table.rows)} rows"
        if registry.is_of_library(table.op):
            found = f"op {table.op!r}, {rows} of an adopted library's kernel: its configs are not checked"
            yield subject.finding(Level.NOTE, "op", found, "an op of an installed kernel")
            return
        found = f"op {table.op!r}, {rows}: no installed kernel serves it"
        advice = "install the package that has its kernels, or name one: --kernel MODULE:NAME"
        yield subject.finding(Level.ERROR, "op", found, f"one of {ops}", advice=advice)
        return
    laddered = {family.problem for family in table.families}
    for row in with_estimate(table.rows, f"rows of {table.file_name}"):
        reason = match_rules.refusal(row, row.problem, table.device)
        if reason is not None:
            yield _refused(subject, row, reason)
        elif row.problem.group() not in laddered:  # a ladder tries configs of other Ms, the default ones among them
            yield from _untried(subject, row)


def _refused(subject: Subject, row: Row, reason: str) -> Finding:
    op, name = row.problem.op, row.config.kernel
    spec = registry.specs().get((op, name))
    again = command(row.problem)
    if spec is None:
        names = ", ".join(sorted(kernel for known, kernel in registry.specs() if known == op))
        advice = f"install the package that has it; if triton-tuner no longer does, tune again: {again}"
        found = f"kernel {name!r}, a lookup passes over it"
        return subject.finding(Level.ERROR, "kernel", found, f"one of {names}", row=row, advice=advice)
    if spec.version != row.kernel_version:
        level = Level.ERROR if subject.ships else Level.WARNING
        found = f"stale: version {row.kernel_version} of {name}, a lookup refuses it"
        advice = "upgrade triton-tuner" if row.kernel_version > spec.version else again
        return subject.finding(
            level, "stale", found, f"version {spec.version}, which is installed", row=row, advice=advice
        )
    kernels = registry.of(op).values() if row.problem.source else ()
    here = sorted({registry.ask(each, "source_hash")[:8] for each in kernels})
    if row.problem.source and row.problem.source[:8] not in here:
        found = f"source {row.problem.source[:8]} of {name}, a lookup passes over it"
        advice = f"install the package that has it; if {name} was edited, tune again: {again}"
        return subject.finding(Level.NOTE, "source", found, f"one of {', '.join(here)}", row=row, advice=advice)
    found = f"{row.config.label}: {reason}"
    expected = f"what runs on {subject.table.device.name}"
    measured = row.made.environment.triton
    if measured and match_rules.grade(row) != "exact":
        expected += f" under Triton {devices.triton_version()}; measured under {measured}"
    return subject.finding(Level.ERROR, "invalid", found, expected, row=row, advice=again)


def _untried(subject: Subject, row: Row) -> Iterator[Finding]:
    try:
        reason = _outside(row, subject.table.device)
    except BAD_VALUE as e:
        reason = f"its space cannot be made: {type(e).__name__}: {e}"
    if reason is not None:
        found = f"{row.config.label}: {reason}"
        expected = f"a config of {row.config.kernel}'s search space"
        yield subject.finding(Level.WARNING, "untried", found, expected, row=row, advice=command(row.problem))


def _outside(row: Row, device: Device) -> str | None:
    """Why a search would not try a row's config; None where it would, or where the config is the default one."""
    config, problem = row.config, row.problem
    spec = registry.find(problem.op, config.kernel, problem.source)
    space: SearchSpace = registry.ask(spec, "space", problem, device)
    if (reason := space.rejection(config)) is None:
        if (same := space.canonicalize(config)) != config:
            reason = f"the same program as {same.label}"
        elif not space.tries(config):
            off = [name for name, values in space.axes.items() if name in config and config[name] not in values]
            reason = f"{', '.join(f'{name} {config[name]}' for name in off) or 'it'} is not in the search space"
    return None if reason is None or config == registry.ask(spec, "default_config", problem, device) else reason


def _evidence(subject: Subject) -> Iterator[Finding]:
    for row in subject.table.rows:
        again = command(row.problem)
        for found, expected in _gaps(row):
            yield subject.finding(Level.WARNING, "evidence", found, expected, row=row, advice=again)
        if row.vs_vendor is None:
            found = "no time of torch's library"
            yield subject.finding(Level.NOTE, "evidence", found, "vs_vendor, where torch has this op", row=row)


def _gaps(row: Row) -> Iterator[tuple[str, str]]:
    if row.vs_default is None:
        yield "no time of the default config", "vs_default"
    if row.ties < 1:
        yield f"{row.ties} ties", "1 or more, the winner among them"
    environment = row.made.environment
    versions = {"Triton": environment.triton, "torch": environment.torch, "triton-tuner": row.made.tool_version}
    for name, version in versions.items():
        if not str(version).strip():
            yield f"no version of {name}", "every version that it was measured under"
    if not 1 <= row.made.protocol <= PROTOCOL:
        yield f"protocol {row.made.protocol}", f"at most {PROTOCOL}, which this triton-tuner knows"


def _losing(subject: Subject) -> Iterator[Finding]:
    for row in subject.table.rows:
        if row.vs_default is not None and row.vs_default < 1 / (1 + TIE):
            found = f"{row.config.label} is {row.vs_default:.3f}x as fast as the default config"
            advice = command(row.problem)
            yield subject.finding(Level.WARNING, "losing", found, "1 at least, but for a tie", row=row, advice=advice)
        if row.vs_vendor is not None and row.vs_vendor < 1:
            found = f"{row.vs_vendor:.3f}x as fast as torch's library"
            yield subject.finding(Level.NOTE, "losing", found, "at least 1, if tuning can reach it", row=row)


def _ranges(subject: Subject) -> Iterator[Finding]:
    """Ranges of M that a lookup serves by another range's config, or that nobody measured."""
    rows: dict[Problem, list[Row]] = {}
    for row in subject.table.rows:
        rows.setdefault(row.problem, []).append(row)
    for family in subject.table.families:
        for held in family.ranges:
            finding = _range(subject, family, held, rows.get(family.at(held.row_m), ()))
            if finding is not None:
                yield finding
        if estimated := [held for held in family.ranges if held.evidence == ESTIMATED]:
            count = f"{len(estimated)} of {len(family.ranges)} ranges"
            span = f"M {estimated[0].first_m}-{estimated[-1].last_m} of {family_name(family.problem, family.batches)}"
            found = f"{span}: {count} by the cost model: nobody measured that their configs lose little in all of them"
            yield subject.finding(Level.NOTE, "range", found, MEASURED, advice=_tune(family))


def _range(subject: Subject, family: Family, held: Range, rows: Sequence[Row]) -> Finding | None:
    name, device = f"M {held.first_m}-{held.last_m}", subject.table.device
    if not rows:
        found = f"{name} of {family_name(family.problem, family.batches)}: there is no row of M {held.row_m}"
        return subject.finding(Level.ERROR, "range", found, "a row of each range", advice=_tune(family))
    for row in rows:
        if match_rules.refusal(row, row.problem, device) is not None:
            continue  # which `_configs` says
        for end in family.corners(held.first_m, held.last_m):
            if (reason := match_rules.refusal(row, end, device)) is not None:
                found = f"{name}: {row.config.label}: {reason}"
                expected = f"what runs for {end} too" if family.batches else f"what runs for M {end.m} too"
                return subject.finding(Level.ERROR, "range", found, expected, row=row, advice=_tune(family))
    return None


def _tune(family: Family) -> str:
    return command(family.at(family.last_m), (family.first_m, (family.batches or (None,))[0]))


CHECKS: tuple[Check, ...] = (_empty, _date, _device, _environments, _configs, _evidence, _losing, _ranges)
"""The checks in their order; none needs a GPU."""
