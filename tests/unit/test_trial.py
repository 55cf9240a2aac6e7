"""Models are tried in the thread that calls `accelerate`; torch's numbers of threads stay what they were."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch")

from tuner.models.trial import one_thread  # noqa: E402

PROGRAM = """
import os, time, torch
from tuner.models.trial import one_thread

def attend(x):
    return torch.softmax(x @ x.mT, -1) @ x

def threads():
    return len(os.listdir("/proc/self/task"))

x = torch.zeros(1, 32, 2, 128)
before = threads()
with one_thread(), torch.no_grad():
    attend(x)
until = time.monotonic() + 10
while threads() > before and time.monotonic() < until:
    time.sleep(0.01)  # a thread that was joined is gone a moment later
tried = threads()
with torch.no_grad():
    attend(x)
print(before, tried, threads())
"""


@pytest.fixture
def three_threads():
    """What threads that start take, and this one has."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def in_a_new_thread(function, *given):
    found = []
    thread = threading.Thread(target=lambda: found.append(function(*given)))
    thread.start()
    thread.join()
    return found[0]


def test_a_trial_wakes_no_other_core():
    environment = os.environ | {"OMP_NUM_THREADS": "4"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    before, tried, after = map(int, done.stdout.split())
    assert before == tried < after


@pytest.mark.usefixtures("three_threads")
def test_threads_that_start_meanwhile_or_later_and_this_one_have_what_they_had():
    found = []

    def fail() -> None:
        with one_thread():
            found.extend([torch.get_num_threads(), in_a_new_thread(torch.get_num_threads)])
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert found == [1, 3]
    assert torch.get_num_threads() == 3
    assert in_a_new_thread(torch.get_num_threads) == 3


@pytest.mark.usefixtures("three_threads")
def test_a_threads_own_number_is_not_made_everybodys():
    def tried() -> tuple[int, int]:
        torch.set_num_threads(2)
        torch.get_num_threads()  # a thread takes everybody's when it first asks
        main_sets_again.set()
        is_set.wait(30)
        with one_thread():
            during = torch.get_num_threads()
        return during, torch.get_num_threads()

    main_sets_again, is_set, found = threading.Event(), threading.Event(), []
    thread = threading.Thread(target=lambda: found.append(tried()))
    thread.start()
    main_sets_again.wait(30)
    torch.set_num_threads(3)
    is_set.set()
    thread.join()
    assert found == [(1, 2)]
    assert in_a_new_thread(torch.get_num_threads) == 3


@pytest.mark.usefixtures("three_threads")
def test_trials_of_two_threads_that_overlap_leave_what_was_there():
    entered, may_end = [threading.Event() for _ in range(2)], threading.Event()

    def tried(number: int) -> None:
        with one_thread():
            entered[number].set()
            may_end.wait(30)

    threads = [threading.Thread(target=tried, args=(number,)) for number in range(2)]
    for thread, event in zip(threads, entered, strict=True):
        thread.start()
        assert event.wait(30)
    may_end.set()
    for thread in threads:
        thread.join()
    assert in_a_new_thread(torch.get_num_threads) == 3
