"""`benchmarks/checks/kills.py`, a few kills of it: nothing acknowledged is gone, stored twice or measured again."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.long
def test_kills_of_anything_cost_nothing_that_was_acknowledged(server, request, tmp_path):
    script = request.config.rootpath / "benchmarks" / "checks" / "kills.py"
    command = [sys.executable, str(script), "--kills", "3", "--problems", "4", "--out", str(tmp_path / "kills.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "kills.json").read_text())["summary"]
    assert sum(found["kills"].values()) == 3
    assert found["trials"] >= found["acknowledged"] > 0
    for cost in ("acknowledged_and_gone", "stored_twice", "measured_again", "without_winner", "spools_left"):
        assert found[cost] == 0
