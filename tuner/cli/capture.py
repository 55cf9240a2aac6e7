"""`tuner capture`: runs a program and records its matrix products."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from tuner.cli import options
from tuner.cli.output import quantity
from tuner.errors import SuiteError, TableError
from tuner.files import make_folder
from tuner.models import captured, startup

_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_TO_THE_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""What a terminal sends to the program as well: it decides, and this command only waits."""


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--out", metavar="DIR", required=True, type=options.Place(path_type=Path), help="Record into DIR.")
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def capture(out: Path, command: tuple[str, ...]) -> int:
    """Run COMMAND and record the matrix products that it calls; measure nothing.

    Writes DIR/suite.csv, which `tuner run --captured DIR` tunes. COMMAND's output, results and exit code stay as they
    are; all Python processes that it starts are recorded.
    """
    folder = out.absolute()
    if shutil.which(command[0]) is None and not Path(command[0]).exists():
        return _cannot_run(command, "there is no such command", 127)
    try:
        code = _run(command, _environment(folder))
    except OSError as e:
        return _cannot_run(command, f"it is no program ({e.strerror})", 126)
    try:
        found = captured.write_suite(folder)
        calls = sum(ms.total() for ms in found.calls.values())
        typed = shlex.join(["tuner", "run", "--captured", str(out)])
        said = f"{quantity(len(found.calls), 'family')}, {quantity(calls, 'call')}; to tune them: {typed}"
        click.echo(f"{out / captured.SUITE}: {said}" if calls else f"{out}: no matrix product was recorded", err=True)
    except SuiteError as e:
        click.echo(f"tuner: {e}", err=True)
    if code < 0:  # a signal ended it, and ends this process as well
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _cannot_run(command: tuple[str, ...], reason: str, code: int) -> int:
    click.echo(f"tuner: cannot run {command[0]}: {reason}: type it as without tuner capture, after --", err=True)
    return code


def _environment(folder: Path) -> Mapping[str, str]:
    """The environment that makes Pythons record into a folder; as it is where the folder cannot be written.

    Raises:
        TableError: something else than a folder is there.
    """
    try:
        make_folder(folder)
    except TableError as e:
        if any(each.exists() and not each.is_dir() for each in (folder, *folder.parents)):
            raise
        click.echo(f"tuner: nothing is recorded: {e}", err=True)
        return os.environ
    path = [str(Path(startup.__file__).parent), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"TUNER_CAPTURE": str(folder), "PYTHONPATH": os.pathsep.join(filter(None, path))}


def _run(command: tuple[str, ...], environment: Mapping[str, str]) -> int:
    """Run a command and return its exit code, negative where a signal ended it."""
    with _passing_signals() as running:
        running.append(subprocess.Popen(command, env=environment))
        return running[0].wait()


@contextlib.contextmanager
def _passing_signals() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Yield a list of processes, which get what this process is sent."""
    running: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _frame: object) -> None:
        for process in running:
            process.send_signal(number)

    handlers = dict.fromkeys(_FORWARDED, forward) | dict.fromkeys(_TO_THE_TERMINAL, lambda *_: None)
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield running
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
