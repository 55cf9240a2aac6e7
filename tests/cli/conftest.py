"""SIGINT as a terminal sends it, and commands: run here, or stopped midway."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from tuner.cli import main


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Let SIGINT interrupt, here and in child processes: a pytest in the background is started with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def tuner(capsys) -> Callable[..., tuple[int, str, str]]:
    """Run a command here, whose log is on stderr as a user has it: (exit code, stdout, stderr)."""

    def tuner(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        return ended.value.code, *capsys.readouterr()

    return tuner


@pytest.fixture
def stopped_after_one() -> Callable[..., tuple[str, str]]:
    """Signal a command once it has told its first of two problems; return what it wrote to stdout and to stderr."""

    def run(command: Sequence[object], number: signal.Signals, **environment: str) -> tuple[str, str]:
        process = subprocess.Popen(
            [*map(str, command)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        seen = ""
        while "[1/2]" not in seen:
            line = process.stderr.readline()
            assert line, seen
            seen += line
        time.sleep(0.5)
        os.killpg(process.pid, number)  # as a terminal or a batch system does: the whole group
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 130, errors
        return output, errors

    return run
