"""One measurer a GPU: real processes that lock a card which only its UUID tells of, for no GPU is needed for it."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import stat
import threading
import uuid
from contextlib import closing, suppress
from types import SimpleNamespace

import pytest

from tuner.bench.contest import Contest
from tuner.sweep import gpu_lock, paired
from tuner.sweep.paired import PairedRunner
from tuner.sweep.sweep_processes import SweepProcesses
from tuner.sweep.worker import Worker

HOLD = """
import os, sys
from tuner.sweep import gpu_lock
if sys.argv[1] != "0":
    os.setgroups([])
    os.setuid(int(sys.argv[1]))
os.umask(0o077)
with gpu_lock.hold(sys.argv[2:]):
    print("held", flush=True)
    sys.stdin.read()
"""
RUN = """
import dataclasses, sys
from tuner.cli import main
from tuner.sweep.child import Child
hello = Child.hello
if __name__ == "__main__":  # the worker imports this file too
    Child.hello = lambda *args: dataclasses.replace(hello(*args), gpu_uuid=sys.argv[1])
    main(["run", "--device", "interpreter", *sys.argv[2:]])
"""


@pytest.fixture
def card():
    """The UUID of a card that no other test measures on; files of that name are removed."""
    name = f"GPU-test-{uuid.uuid4()}"
    yield name
    for path in gpu_lock.FOLDER.glob(f"*{name}*"):
        path.unlink()


def lock_file(card):
    return gpu_lock.FOLDER / f"triton-tuner-gpu-{card}.lock"


def is_busy(card):
    try:
        gpu_lock.hold([card], wait=False).close()
    except gpu_lock.GpuBusyError:
        return True
    return False


@pytest.mark.long
def test_a_second_run_on_a_card_waits_says_for_whom_and_goes_on_when_that_one_is_killed(start, card, tmp_path):
    (tmp_path / "run.py").write_text(RUN)

    def run(database, shape):
        return start(tmp_path / "run.py", card, "--shape", shape, "--trials", "1", "--db", tmp_path / database)

    first = run("first.db", "512x512x512")
    while not (lock_file(card).exists() and is_busy(card)):
        assert first.poll() is None, first.communicate()
    second = run("second.db", "16x16x16")
    told = second.stderr.readline()
    while "measured on" not in told:  # the interpreter is announced before
        assert told, second.communicate()
        told = second.stderr.readline()
    assert f"{card} is measured on by process {first.pid}: waiting until that ends" in told
    with closing(sqlite3.connect(tmp_path / "second.db")) as database:
        assert database.execute("SELECT count(*) FROM run").fetchone() == (0,)
    assert first.poll() is None
    first.kill()
    _, err = second.communicate(timeout=120)
    assert second.returncode == 0, err
    assert "measured on" not in err, "it is told once"
    assert not is_busy(card)
    with closing(sqlite3.connect(tmp_path / "second.db")) as database:
        assert database.execute("SELECT DISTINCT gpu_uuid FROM trial").fetchall() == [(card,)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize(("owner", "other"), [(0, 65534), (65534, 0), (65534, 65533)])
def test_a_lock_holds_between_users_whatever_their_umask(start, card, owner, other):
    made = start("-c", HOLD, owner, card)
    assert made.stdout.readline() == "held\n"
    made.kill()
    made.wait()
    assert stat.S_IMODE(lock_file(card).stat().st_mode) == 0o666
    holder = start("-c", HOLD, other, card)
    assert holder.stdout.readline() == "held\n"
    assert is_busy(card)
    waiting = start("-c", HOLD, owner, card)
    assert f"measured on by process {holder.pid}" in waiting.stderr.readline()
    holder.kill()
    assert waiting.stdout.readline() == "held\n"


def test_of_several_cards_all_processes_lock_the_same_one_first(start, card):
    first, second = f"{card}-1", f"{card}-2"
    with gpu_lock.hold([second]):
        waiting = start("-c", HOLD, 0, second, first)
        assert f"{second} is measured on" in waiting.stderr.readline()
        assert is_busy(first), "it would wait for the other with nothing in hand, and another the other way round"
    assert waiting.stdout.readline() == "held\n"


def test_a_wait_ends_when_the_run_is_to_stop(card):
    stop = threading.Event()
    stop.set()
    with gpu_lock.hold([card]), pytest.raises(KeyboardInterrupt):
        gpu_lock.hold([card], stop=stop)


def test_a_full_disk_costs_no_lock(card, small_disk, monkeypatch, caplog):
    monkeypatch.setattr(gpu_lock, "FOLDER", small_disk)
    with (small_disk / "fill").open("wb", buffering=0) as fill, suppress(OSError):
        while fill.write(b"0" * 512):
            pass
    with gpu_lock.hold([card]):
        assert is_busy(card)
    assert not is_busy(card)
    assert caplog.text == ""


@pytest.mark.parametrize("trap", ["symlink_to", "hardlink_to", "fifo"])
def test_what_somebody_lays_in_place_of_the_file_is_neither_followed_nor_a_reason_to_fail(card, tmp_path, caplog, trap):
    victim = gpu_lock.FOLDER / f"victim-{card}"  # on the same file system, as a hard link must be
    victim.write_text("kept")
    if trap == "fifo":
        os.mkfifo(lock_file(card))
    else:
        getattr(lock_file(card), trap)(victim)
    with gpu_lock.hold([card]):
        assert f"{card} is not locked, so others may measure on it too" in caplog.text
    assert victim.read_text() == "kept"


def test_what_a_crew_waits_for_its_card_is_not_counted_and_the_card_is_its_own_until_it_ends(
    card, on_a_card, monkeypatch
):
    on_a_card(card)
    held = gpu_lock.hold([card])
    with SweepProcesses([None]) as processes:
        processes.wait_until_ready()
        begun = processes.begun
        assert is_busy(card)
        monkeypatch.setattr(gpu_lock, "time", SimpleNamespace(sleep=lambda _: held.close()))
        processes.hold_gpus()
        assert processes.begun > begun
        assert is_busy(card)
    assert not is_busy(card)


@pytest.mark.long
def test_a_dry_run_and_the_interpreter_need_no_lock(card, on_a_card):
    with SweepProcesses([None]) as processes:
        processes.wait_until_ready()
        processes.hold_gpus()
    on_a_card(card)
    with gpu_lock.hold([card]), SweepProcesses([None], compilers=False) as processes:
        processes.wait_until_ready()


@pytest.mark.parametrize("make", [lambda: Contest(None, []), lambda: PairedRunner(0)], ids=["bench", "regret"])
@pytest.mark.long
def test_what_else_measures_holds_its_card_too_and_a_wait_that_is_interrupted_leaves_no_child(
    card, on_a_card, monkeypatch, make
):
    on_a_card(card)
    monkeypatch.setattr(paired, "Worker", lambda _gpu: Worker(None))
    with make():
        assert is_busy(card)
    assert not is_busy(card)

    def interrupt(_seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu_lock, "time", SimpleNamespace(sleep=interrupt))
    with gpu_lock.hold([card]), pytest.raises(KeyboardInterrupt):
        make()
    assert multiprocessing.active_children() == []
