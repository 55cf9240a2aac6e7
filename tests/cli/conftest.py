"""The command line within this process."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest

from tuner import cli


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Let SIGINT interrupt, here and in child processes: a pytest in the background is started with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Run a command; returns exit code, stdout, stderr."""
    monkeypatch.setattr("logging.basicConfig", lambda **_: None)

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exited:
            cli.main([str(argument) for argument in arguments])
        return exited.value.code, *capsys.readouterr()

    return run
