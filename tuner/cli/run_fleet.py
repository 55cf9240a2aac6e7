"""`tuner run --ray`: the same run on every machine of a Ray cluster, with one table of the nodes on stderr."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click
import rich.progress

from tuner.cli import run_output
from tuner.cli.output import print_json, quantity
from tuner.cli.run_options import RunOptions
from tuner.fleet.cluster import Cluster, head_of
from tuner.fleet.drive import Driver
from tuner.fleet.ledger import Ledger
from tuner.fleet.messages import Delivery, Item
from tuner.fleet.node import kernels_of
from tuner.hardware.device import Device
from tuner.kernel import registry
from tuner.store.store import Store
from tuner.sweep.plan import Plan
from tuner.sweep.report import Report


def tune(
    problems: Callable[[Device], Iterable[Item]],
    ops: Sequence[str],
    plan: Plan,
    options: RunOptions,
    stop: threading.Event,
) -> list[Report]:
    """Tune problems on a cluster, print what came of it, and return a report for each device and environment.

    Args:
        problems: what is to be tuned on a device.
        ops: of all of them.
        plan: what to do for each.
        options: with `--ray`.
        stop: once set, every node finishes the trials under way.

    Raises:
        UsageError: an address that is none.
        SweepError: the cluster cannot be used.
        StoreError: the database cannot be written.
    """
    assert options.ray is not None
    begun = time.monotonic()
    kernels, references, interpreted = kernels_of(ops), registry.references(), options.is_interpreted
    connected = Cluster(head_of(options.ray), interpreted=interpreted, references=references)
    with connected as cluster, Store.open(options.db) as store, store.sole_writer():  # no database without a cluster
        ledger = Ledger(store, problems, kernels, argv=sys.argv, mixed=options.mixed, counted=plan.counted(store))
        with Nodes() as nodes:
            driver = Driver(cluster, ledger, plan, nodes, stop)
            driver.work((ops, references), interpreted=interpreted)
        seconds = time.monotonic() - begun
        reports = ledger.reports(interrupted=stop.is_set(), seconds=seconds, deserted=driver.deserted)
    if plan.fresh:
        first = next((member.run.name for member in ledger.members.values()), None)
        for report in reports:
            report.fresh_since = plan.fresh_since or first
    _print(ledger, reports, as_json=options.as_json)
    return reports


class Nodes(run_output.Live):
    """A table of the nodes on a terminal, and a line for each problem; a context manager."""

    def __init__(self) -> None:
        super().__init__()
        self._rows: dict[str, rich.progress.TaskID] = {}

    def joined(self, ledger: Ledger, node: str) -> None:
        """Add a row."""
        place = ledger.members[node].place
        device, environment = place.report.device, place.report.environment
        left = quantity(len(place.queue), "problem")
        host = ledger.members[node].host
        self._say(f"{host}: {device.name} ({device.slug}), Triton {environment.triton}, {left} to tune")
        self._rows[node] = self._bar.add_task(host, total=None, told="")

    def delivered(self, ledger: Ledger, node: str, delivery: Delivery) -> None:
        """Say what ended."""
        member = ledger.members[node]
        for report in delivery.problems:
            self._say(f"{member.host}: {run_output.problem_line(report)}")
        for family in delivery.families:
            self._say(f"{member.host}: {run_output.family_line(family)}")
        told = f"{quantity(member.trials, 'trial')}, {quantity(len(member.place.queue), 'problem')} left for all"
        self._bar.update(self._rows[node], completed=member.problems, told=told)

    def left(self, ledger: Ledger, node: str) -> None:
        """Let the row stand, with why it goes on no more."""
        self._bar.update(self._rows[node], told=ledger.members[node].ended or "done")


def _print(ledger: Ledger, reports: Sequence[Report], *, as_json: bool) -> None:
    if as_json:
        print_json(document(ledger, reports))
        return
    for report in reports:
        if len(reports) > 1:
            click.echo(f"{report.device.slug}, Triton {report.environment.triton}:")
        run_output.closing_table(report)


def document(ledger: Ledger, reports: Sequence[Report]) -> dict[str, Any]:
    """The nodes, and one report of `tuner run --json` for each device and environment."""
    nodes = [
        {
            "host": member.host,
            "device": member.place.report.device.slug,
            "run": member.run.uuid,
            "problems": member.problems,
            "trials": member.trials,
            "lost": member.ended or None,
        }
        for member in ledger.members.values()
    ]
    return {"nodes": nodes, "reports": [run_output.report_json(report) for report in reports]}
