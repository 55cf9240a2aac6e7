"""A layer is tuned by real worker processes on the interpreter, killed and gone on with, like every other kernel."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "tuning.py"


def start(*arguments: object) -> subprocess.Popen[str]:
    env = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, PROGRAM, *map(str, arguments)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def tuned(*arguments: object) -> dict:
    child = start(*arguments)
    out, err = child.communicate(timeout=240)
    assert child.returncode == 0, err[-3000:]
    return json.loads(out)


@pytest.mark.long
@pytest.mark.parametrize("package", ["vllm", "sglang"])
def test_a_killed_tuning_goes_on_and_ends_with_what_belongs_in_a_file(package, tmp_path):
    child = start(package, tmp_path / "tuner.db")
    for line in child.stderr:
        if line.startswith("trial"):
            break
    child.send_signal(signal.SIGKILL)
    child.communicate()
    found = tuned(package, tmp_path / "tuner.db")
    gemms = ["both"] if package == "vllm" else ["down", "gate_up"]
    assert list(found["rows"]) == ["1", "8"]
    for row in found["rows"].values():
        assert len(row) == len(gemms)
        assert len({json.loads(config)["BLOCK_SIZE_M"] for config in row}) == 1
    assert all(found["default_us"]) or package == "sglang"  # a pinned problem's default may be its only config
    assert found["routing"] == ["zipf"]
    assert found["shipped"] == sorted(f"{m} {gemm} COMPLETE" for m in (1, 8) for gemm in gemms)
    assert found["played"] == 2 * len(gemms)
    assert tuned(package, tmp_path / "tuner.db")["measured"] == 0


@pytest.mark.long
def test_workers_play_recorded_routing(tmp_path):
    recording = tmp_path / "ids.with.dots: and more.json"
    recording.write_text(json.dumps([[0, 1], [1, 3], [0, 2]]))
    found = tuned("vllm", tmp_path / "tuner.db", recording)
    assert list(found["rows"]) == ["1", "8"]
    assert found["routing"][0].startswith("recorded-")
