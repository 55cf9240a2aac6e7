"""A trial of a model's code computes in the thread that calls it, and leaves torch's number of threads as it was."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch")

from tuner.models.trial import run_on_cpu  # noqa: E402

PROGRAM = """
import os, torch
from tuner.models.trial import run_on_cpu

def attend(x):
    return torch.softmax(x @ x.mT, -1) @ x

def threads():
    return len(os.listdir("/proc/self/task"))

x = torch.zeros(1, 32, 2, 128)
before = threads()
run_on_cpu(attend, x)
tried = threads()
with torch.no_grad():
    attend(x)
print(before, tried, threads())
"""


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_a_trial_wakes_no_other_core():
    environment = os.environ | {"OMP_NUM_THREADS": "4"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    before, tried, after = map(int, done.stdout.split())
    assert before == tried < after


@pytest.mark.usefixtures("three_threads")
def test_the_number_of_threads_is_as_it_was_also_where_a_trial_fails():
    def fail() -> None:
        raise RuntimeError(torch.get_num_threads())

    assert run_on_cpu(torch.get_num_threads) == 1
    assert torch.get_num_threads() == 3
    assert run_on_cpu(fail) is None
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_trials_of_two_threads_leave_the_number_as_it_was():
    is_running, may_end = threading.Event(), threading.Event()

    def wait() -> int:
        is_running.set()
        may_end.wait(30)
        return torch.get_num_threads()

    first = threading.Thread(target=run_on_cpu, args=(wait,))
    second = threading.Thread(target=run_on_cpu, args=(torch.get_num_threads,))
    first.start()
    assert is_running.wait(30)
    second.start()
    may_end.set()
    first.join()
    second.join()
    assert torch.get_num_threads() == 3
