"""Runs a user's program under `tuner capture`, and in place of `tuner exec`, which it does not notice."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn

import click

from tuner import startup
from tuner.cli import streams

_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_OF_TERMINALS = (signal.SIGINT, signal.SIGQUIT)
"""What a terminal sends to the program as well: it decides, and this command only waits. Others send it here alone."""
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def environment(**variables: str) -> dict[str, str]:
    """This process's environment with variables, and with what Pythons read as they start first on their path."""
    path = [str(Path(startup.__file__).parent), os.environ.get("PYTHONPATH", "")]
    return os.environ | variables | {"PYTHONPATH": os.pathsep.join(filter(None, path))}


def become(command: tuple[str, ...], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by a command, which so gets every signal once, whoever sends it.

    Raises:
        click.exceptions.Exit: as `run`.
    """
    _find(command)
    # What is ignored stays so in the program. A signal that Python has noted, but not handled yet, would be lost.
    handled = (number for number in signal.valid_signals() if callable(signal.getsignal(number)))
    for number in (*handled, *_IGNORED_BY_PYTHON):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as e:
        raise _no_program(command, f"it is no program ({e.strerror})", 126) from e


def run(command: tuple[str, ...], environment: Callable[[], Mapping[str, str]]) -> int:
    """Run a command and return its exit code, negative where a signal ended it.

    Args:
        command: the program and its arguments.
        environment: makes its environment, once it is known that there is such a program.

    Raises:
        click.exceptions.Exit: there is no such program, which was said; its code is what a shell would exit with.
    """
    _find(command)
    try:
        with _passing_signals() as pass_to:
            process = subprocess.Popen(command, env=environment())
            pass_to(process)
            return process.wait()
    except OSError as e:
        raise _no_program(command, f"it is no program ({e.strerror})", 126) from e


def ended(code: int) -> int:
    """Return a program's exit code; where a signal ended it, that ends this process as well."""
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _find(command: tuple[str, ...]) -> None:
    if shutil.which(command[0]) is None and not (os.sep in command[0] and Path(command[0]).exists()):
        raise _no_program(command, "there is no such command", 127)


def _no_program(command: tuple[str, ...], reason: str, code: int) -> click.exceptions.Exit:
    click.echo(f"tuner: cannot run {command[0] or repr('')}: {reason}: type it as without tuner, after --", err=True)
    return click.exceptions.Exit(code)


@contextlib.contextmanager
def _passing_signals() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Yield what takes a process, which then gets what this process is sent and was sent before it started."""
    running: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def forward(number: int, _frame: object) -> None:
        if not running:
            early.append(number)
        for process in running:
            process.send_signal(number)

    def pass_to(process: subprocess.Popen[bytes]) -> None:
        running.append(process)
        for number in early:
            process.send_signal(number)

    def forward_once(number: int, frame: object) -> None:
        if not _is_in_foreground():
            forward(number, frame)

    with streams.handling(dict.fromkeys(_FORWARDED, forward) | dict.fromkeys(_OF_TERMINALS, forward_once)):
        yield pass_to


def _is_in_foreground() -> bool:
    """Whether what is typed at a terminal reaches this process, and so the program, too."""
    try:
        with Path(os.ctermid()).open("rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False
