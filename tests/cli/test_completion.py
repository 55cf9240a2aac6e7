"""Shell completion, asked for as bash does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def complete(*words: str) -> list[str]:
    """What bash would offer for the last word."""
    environment = os.environ | {
        "_TUNER_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("tuner", *words)),
        "COMP_CWORD": str(len(words)),
    }
    script = "from tuner.cli import main; main([])"
    found = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert found.stderr == ""
    return [line.partition(",")[2] for line in found.stdout.splitlines()]


def test_bash_gets_its_script():
    environment = os.environ | {"_TUNER_COMPLETE": "bash_source"}
    found = subprocess.run(
        [sys.executable, "-c", "from tuner.cli import main; main([])"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "complete -o nosort -F _tuner_completion tuner" in found.stdout


def test_commands_are_completed_without_loading_them():
    assert complete("do") == ["doctor"]
    script = "import sys; from tuner.cli import cli, click; cli.shell_complete(click.Context(cli), '')"
    script += "; print('sqlalchemy' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout == "False\n"


@pytest.mark.parametrize(
    ("words", "option"), [(("doctor", "--"), "--json"), (("run", "--"), "--suite"), (("--",), "--debug")]
)
def test_options_are_completed(words, option):
    assert option in complete(*words)
