"""Missed problems are counted and kept: by threads, forks and ranks, exactly, and never where nobody asked."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

import tuner
from tuner.cli import main
from tuner.errors import TableError
from tuner.hardware.device import KNOWN
from tuner.lookup import lookup as lookups
from tuner.lookup import miss_counts, misses
from tuner.lookup.misses import Miss, Record
from tuner.problem import Problem
from tuner.problem.family import Ladder

H200 = KNOWN["sm_90"]
PROBLEM = Problem(64, 512, 256)
BATCHED = Problem(64, 64, 64, dtype="bf16", op="bmm", extras={"batch": 8})


@pytest.fixture
def record(tmp_path, toy, no_tables, monkeypatch):
    """A file that misses are recorded in; what another test left is not counted."""
    monkeypatch.setattr(miss_counts, "_recorder", None)
    monkeypatch.setattr(miss_counts, "_looked", False)
    monkeypatch.delenv("TUNER_MISSES", raising=False)
    yield tmp_path / "misses.json"
    monkeypatch.setattr(miss_counts, "_recorder", None)


def miss(problem: Problem = PROBLEM, *, device: str = H200.slug, triton: str = "3.7.1") -> Miss:
    return Miss(problem, device, "default", triton, "0.1.0")


def counted(path: Path) -> dict[Problem, int]:
    found = misses.load(path).problems(H200.slug).items()
    return {each.rungs[-1] if isinstance(each, Ladder) else each: calls for each, calls in found}


def test_calls_of_a_missed_problem_are_counted_and_those_of_a_tuned_one_are_not(
    record, tmp_path, make_row, make_table, make_family
):
    tuner.use(make_table(make_row(64), make_row(128), families=(make_family(128),)).write(tmp_path))
    tuner.record_misses(record)
    for m, calls in ((64, 5), (100, 4), (1000, 3), (4000, 2)):
        for _ in range(calls):
            match = tuner.lookup(PROBLEM.with_shape(m, 512, 256), H200)
        assert match.rule == {64: "exact", 100: "family"}.get(m, "default")
    tuner.flush_misses()
    assert list(counted(record).items()) == [
        (PROBLEM.with_shape(1024, 512, 256), 3),
        (PROBLEM.with_shape(4096, 512, 256), 2),
    ]
    (row, _) = json.loads(record.read_text())["misses"]
    assert {name: row[name] for name in ("calls", "device", "rule", "triton", "tool_version")} == {
        "calls": 3,
        "device": H200.slug,
        "rule": "default",
        "triton": "3.7.1",
        "tool_version": tuner.__version__,
    }


def test_hits_take_the_path_they_take_without_recording(record, tmp_path, make_row, make_table):
    tuner.use(make_table(make_row(64)).write(tmp_path))
    tuner.record_misses(record)
    match = tuner.lookup(PROBLEM, H200)
    assert lookups.resolver().answers.by_slug == {H200.slug: {PROBLEM: match}}
    assert lookups.resolver().answers.missed == {}
    assert lookups.counter(PROBLEM, H200) is None


def test_nothing_is_counted_or_written_unless_somebody_asks(record, tmp_path):
    assert tuner.lookup(PROBLEM, H200) is tuner.lookup(PROBLEM, H200)
    tuner.flush_misses()
    assert lookups.resolver().answers.missed == {}
    assert list(tmp_path.iterdir()) == []


def test_what_was_called_before_is_counted_from_the_start_of_recording_on(record):
    tuner.lookup(PROBLEM, H200)
    tuner.record_misses(record)
    tuner.lookup(PROBLEM, H200)
    tuner.record_misses(None)
    tuner.lookup(PROBLEM, H200)
    tuner.flush_misses()
    assert counted(record) == {PROBLEM: 1}


def test_each_call_is_written_once_however_often_it_is_flushed(record):
    tuner.record_misses(record)
    for _ in range(3):
        tuner.lookup(PROBLEM, H200)
        tuner.flush_misses()
        tuner.flush_misses()
    assert counted(record) == {PROBLEM: 3}


def test_a_record_stays_where_it_was_named_though_the_process_goes_elsewhere(record, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tuner.record_misses("misses.json")
    tuner.lookup(PROBLEM, H200)
    monkeypatch.chdir("/")
    tuner.flush_misses()
    assert counted(record) == {PROBLEM: 1}


def test_other_sources_do_not_lose_counts(record):
    tuner.record_misses(record)
    tuner.lookup(PROBLEM, H200)
    tuner.use(None)
    tuner.lookup(PROBLEM, H200)
    tuner.flush_misses()
    assert counted(record) == {PROBLEM: 2}


def test_threads_lose_no_call_while_another_flushes(record):
    tuner.record_misses(record)
    threads, calls = 6, 3000

    def work() -> None:
        for _ in range(calls):
            tuner.lookup(PROBLEM, H200)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        tuner.flush_misses()
    tuner.flush_misses()
    assert counted(record) == {PROBLEM: threads * calls}


def test_a_forked_child_counts_its_own_calls_alone_and_writes_them_at_its_end(record):
    tuner.record_misses(record)
    tuner.lookup(PROBLEM, H200)
    child = multiprocessing.get_context("fork").Process(target=tuner.lookup, args=(PROBLEM, H200))
    child.start()
    child.join(30)
    assert (child.exitcode, counted(record)) == (0, {PROBLEM: 1})
    tuner.flush_misses()
    assert counted(record) == {PROBLEM: 2}


RANK = """
import sys
from tuner.kernel import registry
sys.path.insert(0, sys.argv[1])
import conftest
registry.serving = lambda problem, device, **_: [conftest.toy_spec()]
import tuner
print("up", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[2])):
    tuner.lookup(tuner.Problem(64, 512, 256), conftest.H200)
"""


def test_ranks_that_end_at_once_add_up_in_the_file_of_the_environment(record, tmp_path):
    environment = os.environ | {"TUNER_MISSES": str(record), "TUNER_DB": str(tmp_path / "absent.db")}
    tests = Path(__file__).parents[1]
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", RANK, str(tests), str(calls)],
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for calls in (1, 20, 300)
        ]
        for rank in ranks:
            assert rank.stdout.readline() == "up\n"
        for rank in ranks:
            rank.communicate("go\n", timeout=60)
    assert [rank.returncode for rank in ranks] == [0, 0, 0]
    assert counted(record) == {PROBLEM: 321}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["misses.json", "misses.json.lock"]


def test_what_cannot_be_written_at_the_end_is_told_once(record, tmp_path):
    # multiprocessing's finalizers and atexit both flush.
    script = f"import multiprocessing.util\n{RANK}\nopen({str(record)!r}, 'w').write('notes')"
    done = subprocess.run(
        [sys.executable, "-c", script, str(Path(__file__).parents[1]), "1"],
        env=os.environ | {"TUNER_MISSES": str(record), "TUNER_DB": str(tmp_path / "absent.db")},
        input="go\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr.count("misses of this process are lost") == 1


def test_a_record_is_the_same_bytes_in_whatever_order_it_was_added(tmp_path):
    parts = [
        Record({miss(): 2, miss(BATCHED): 5}),
        Record({miss(triton="3.6.0"): 1}, left_out=3),
        Record({miss(device="nvidia-a100-sm80-108"): 5, miss(): 4}),
    ]
    for name, order in (("one", parts), ("other", parts[::-1])):
        for part in order:
            misses.add(tmp_path / name, part)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    record = misses.load(tmp_path / "one")
    assert record.left_out == 3
    assert list(record.problems(H200.slug).items()) == [(PROBLEM, 7), (BATCHED, 5)]


def test_a_record_that_is_reached_by_a_link_is_added_to_where_it_lies_under_one_lock(record, tmp_path):
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "latest.json"
    link.symlink_to(record)
    for path in (link, record, link):
        misses.add(path, Record({miss(): 1}))
    assert link.is_symlink()
    assert misses.load(record).calls == {miss(): 3}
    assert sorted(tmp_path.rglob("*")) == sorted([link.parent, link, record, record.with_name("misses.json.lock")])


def test_calls_of_a_range_count_together_and_become_a_ladder_and_those_of_a_key_stay_exact(record, install, toy):
    install(toy, dataclasses.replace(toy, op="mine"))
    keyed = Problem.keyed("mine", {"N": 3})
    tuner.record_misses(record)
    for m in (200, 199, 200, 224, 3):
        tuner.lookup(PROBLEM.with_shape(m, 512, 256), H200)
    tuner.lookup(keyed, H200)
    tuner.flush_misses()
    (often, calls), *rest = misses.load(record).problems(H200.slug).items()
    assert (str(often), calls) == ("matmul 193-224x512x256 float16 nn", 4)
    assert {str(each) for each, _ in rest} == {"matmul 2-16x512x256 float16 nn", "mine N=3 float16"}
    assert (often.first_m, often.last_m, {problem.family for problem in often.rungs}) == (193, 224, {PROBLEM.family})


def test_a_record_that_knows_no_ranges_is_read_as_before(record):
    record.write_text(Record({miss(): 2}).dumps())
    assert "first_m" not in record.read_text()
    assert misses.load(record).problems(H200.slug) == {PROBLEM: 2}


def test_what_is_kept_is_bounded_and_the_rest_is_counted_together(record, monkeypatch):
    monkeypatch.setattr(misses, "MOST", 3)
    tuner.record_misses(record)
    for calls in range(1, 6):
        for _ in range(calls):
            tuner.lookup(PROBLEM.with_shape(64, 512, calls), H200)
    tuner.flush_misses()
    assert [problem.k for problem in counted(record)] == [3, 2, 1]
    assert misses.load(record).left_out == 4 + 5
    misses.add(record, Record({miss(): 10}))
    assert [problem.k for problem in counted(record)] == [256, 3, 2]
    assert misses.load(record).left_out == 4 + 5 + 1


WHOLE = Record({miss(): 2}).dumps()
DAMAGED = {
    "cut short": (WHOLE[:-30], "not JSON"),
    "no JSON": ("calls: 3\n", "not JSON"),
    "not text": ("\udcff", "not JSON"),
    "another file": ('{"rows": []}', 'expected "format": "triton-tuner misses", "version": 1'),
    "a list": ("[]", 'expected "format"'),
    "a newer version": (WHOLE.replace('"version": 1', '"version": 2'), 'expected "format"'),
    "no rows": (WHOLE.replace('"misses"', '"hits"'), "a damaged record of misses (KeyError"),
    "calls that are no number": (WHOLE.replace('"calls": 2', '"calls": "2"'), "calls must be an integer, got '2'"),
    "a device that is no word": (WHOLE.replace(f'"{H200.slug}"', "[]"), "device must be a string, got []"),
    "a problem that cannot be": (WHOLE.replace('"m": 64', '"m": 0'), "M must be from 1"),
    "a range that ends before it begins": (WHOLE.replace('"problem"', '"first_m": 64, "problem"'), "below the problem"),
    "a range that begins with a word": (WHOLE.replace('"problem"', '"first_m": "a", "problem"'), "an integer"),
    "a problem without K": (WHOLE.replace('"k": 256, ', ""), "not a problem"),
}


@pytest.mark.parametrize(("text", "message"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_record_is_one_clear_line_and_stays_as_it_is(text, message, record, capsys):
    record.write_bytes(text.encode(errors="surrogateescape"))
    before = record.read_bytes()
    for use in (misses.load, tuner.record_misses, lambda path: misses.add(path, Record({miss(): 1}))):
        with pytest.raises(TableError) as raised:
            use(record)
        assert message in str(raised.value)
        assert "\n" not in str(raised.value)
        advice = ": name another file" if use is misses.load else ": move it away, and a new one is begun"
        assert str(raised.value).endswith(advice)
    with pytest.raises(SystemExit) as ended:
        main(["run", "--from-misses", str(record), "--device", "interpreter"])
    assert ended.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tuner: {record}: ")
    assert line.endswith(": name another file")
    assert record.read_bytes() == before


def test_a_place_that_cannot_be_a_record_is_told_at_the_start(record, tmp_path):
    for where, message in ((tmp_path, "is a folder: expected a file"), (tmp_path / "a" / "b", "there is no folder")):
        with pytest.raises(TableError, match=message):
            tuner.record_misses(where)
    with pytest.raises(TableError, match="cannot read the record of misses"):
        misses.load(record)


@pytest.mark.parametrize("where", ["a folder", "a removed folder"])
def test_an_environment_that_names_no_record_is_one_warning(record, tmp_path, monkeypatch, caplog, where):
    monkeypatch.setenv("TUNER_MISSES", str(tmp_path) if where == "a folder" else "misses.json")
    (tmp_path / "removed").mkdir()
    monkeypatch.chdir(tmp_path / "removed")
    (tmp_path / "removed").rmdir()
    for m in (1, 2, 3):
        tuner.lookup(PROBLEM.with_shape(m, 512, 256), H200)
    warned = [each.getMessage() for each in caplog.records if "TUNER_MISSES" in each.getMessage()]
    assert len(warned) == 1
    assert "misses are not recorded" in warned[0]


def test_calls_that_could_not_be_written_are_written_the_next_time(record):
    tuner.record_misses(record)
    tuner.lookup(PROBLEM, H200)
    record.write_text("somebody's notes")
    for _ in range(2):
        with pytest.raises(TableError):
            tuner.flush_misses()
    record.unlink()
    tuner.flush_misses()
    assert counted(record) == {PROBLEM: 1}


def test_a_flush_waits_for_another_process_no_longer_than_it_says(record, monkeypatch):
    import fcntl

    monkeypatch.setattr(misses, "LOCK_SECONDS", 0.05)
    with record.with_name("misses.json.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TableError, match=r"another process holds .*misses\.json\.lock"):
            misses.add(record, Record({miss(): 1}))
    assert not record.exists()
