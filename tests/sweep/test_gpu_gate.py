"""The gate that a GPU's workers pass: several together, or one alone."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tuner.sweep.gpu_gate import GpuGate, OpenGate

HOLD = """
import sys
from pathlib import Path
from tuner.sweep.gpu_gate import GpuGate
with getattr(GpuGate(Path(sys.argv[1]), print), sys.argv[2])():
    print("in", flush=True)
    sys.stdin.read()
"""


class ClosedError(Exception):
    pass


def give_up():
    raise ClosedError


@pytest.fixture
def hold(tmp_path):
    """Starts a process that passes the gate, and stays there until its input ends."""
    started = []

    def begin(how):
        command = [sys.executable, "-c", HOLD, str(tmp_path / "gate"), how]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout.readline() == "in\n"
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def passes(tmp_path, how):
    """Whether somebody else passes within a second."""
    try:
        with getattr(GpuGate(tmp_path / "gate", give_up), how)():
            return True
    except ClosedError:
        return False


@pytest.mark.parametrize(
    ("held", "how", "expected"),
    [("shared", "shared", True), ("shared", "alone", False), ("alone", "shared", False), ("alone", "alone", False)],
)
def test_several_pass_together_and_one_alone(tmp_path, hold, held, how, expected):
    hold(held)
    assert passes(tmp_path, how) is expected


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_a_process_that_died_lets_others_pass_the_gate(tmp_path, hold, end):
    process = hold("alone")
    assert not passes(tmp_path, "alone")
    getattr(process, end)()
    process.wait()
    assert passes(tmp_path, "alone")


def test_who_waits_says_so_every_second_and_passes_when_the_other_leaves(tmp_path, hold):
    process, told = hold("shared"), []

    def waiting():
        told.append(time.monotonic())
        if len(told) == 2:
            process.stdin.close()

    begun = time.monotonic()
    with GpuGate(tmp_path / "gate", waiting).alone():
        assert len(told) == 2
    # Between two calls there may be less than a second, by which the first was late.
    assert [each - begun >= seconds for seconds, each in enumerate(told, start=1)] == [True, True]


def test_what_fails_inside_leaves_the_gate_open(tmp_path):
    gate = GpuGate(tmp_path / "gate", give_up)
    with pytest.raises(ValueError, match="inside"), gate.alone():
        raise ValueError("inside")
    assert passes(tmp_path, "alone")


def test_the_gate_of_a_gpu_that_nobody_shares_never_waits():
    with OpenGate().alone(), OpenGate().shared():
        pass
