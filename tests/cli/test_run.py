"""`tuner run` as a user meets it: real processes, Triton's interpreter, real signals."""

import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from tuner import progress
from tuner.cli.run import run
from tuner.cli.run_output import Progress, problem_line
from tuner.hardware.device import INTERPRETER, KNOWN, Environment
from tuner.kernel.config import Config
from tuner.lookup import lookup as lookups
from tuner.lookup import misses
from tuner.lookup.misses import Miss, Record
from tuner.problem import Problem
from tuner.problem.suite import load_with_ladders
from tuner.store.records import Winner
from tuner.sweep.plan import Plan
from tuner.sweep.report import ProblemReport
from tuner.sweep.run import forecast
from tuner.sweep.strategies import STRATEGIES

pytest.importorskip("triton")

H200 = KNOWN["sm_90"]
TUNER = [sys.executable, "-m", "tuner"]
CLI_DOC = Path(__file__).parents[2] / "docs" / "cli.md"
SMALL = "m,n,k,dtype,layout\n16,16,16,float16,nn\n16,16,32,float32,nt\n"


@pytest.fixture
def tuner(compiling, tmp_path):
    """Runs the command line in a process that has imported torch, its database in `tmp_path`."""

    def run(*arguments):
        environment = {**os.environ, "TUNER_DB": str(tmp_path / "tuner.db"), "TRITON_INTERPRET": "0"}
        return compiling.tuner(*arguments, env=environment, cwd=tmp_path)

    return run


@pytest.mark.long
def test_without_a_gpu_a_suite_is_tuned_on_the_interpreter_and_the_next_runs_know_its_winners(tuner, tmp_path):
    (tmp_path / "small.csv").write_text(SMALL)
    first = tuner("run", "--suite", "small.csv", "--json")
    assert first.returncode == 0, first.stderr
    assert first.stderr.count("no GPU found: running on Triton's interpreter") == 1
    document = json.loads(first.stdout)
    assert document["device"] == "interpreter"
    # Which kernel the interpreter takes least time for is chance.
    assert all(problem["winner"]["kernel"] for problem in document["problems"])
    measured = sum(problem["measured"] for problem in document["problems"])
    assert measured > 2

    second = json.loads(tuner("run", "--suite", "small.csv", "--json").stdout)
    assert [problem["measured"] for problem in second["problems"]] == [0, 0]
    assert [problem["reason"] for problem in second["problems"]] == ["already tuned"] * 2
    assert [p["winner"] for p in second["problems"]] == [p["winner"] for p in document["problems"]]

    shown = tuner("run", "--suite", "small.csv")
    assert "already tuned" in shown.stderr
    for word in ("problem", "winner", "TFLOPS", "vs default", "vs vendor", "ties", "16x16x32"):
        assert word in shown.stdout

    late = tuner("run", "--suite", "small.csv", "--shape", "16x16x48", "--time-budget", "0.1s")
    assert (
        "the time budget is spent: 1 problem without a winner, 2 problems with an earlier winner not begun; "
        in late.stderr
    )
    assert "no problem was begun" in late.stderr

    fresh = tuner("run", "--suite", "small.csv", "--fresh", "--time-budget", "0.1s")
    assert fresh.returncode == 1
    assert "the time budget is spent: 2 problems without a new winner; nothing was measured" in fresh.stderr
    unknown = tuner("run", "--suite", "small.csv", "--fresh-since", "zz")
    assert unknown.returncode == 1
    assert unknown.stderr.splitlines()[-1] == "tuner: there is no run 'zz': `tuner show runs` lists all"
    for words, said in (
        (("--fresh-since", "zz", "--db", "none.db"), "there is no run 'zz': none.db is not there yet"),
        (("--fresh-since", "zz", "--db", "none.db", "--dry-run"), "there is no run 'zz': none.db is not there yet"),
        (("--fresh-since", ""), "--fresh-since is empty: expected a name"),
    ):
        slip = tuner("run", "--suite", "small.csv", *words)
        assert (slip.returncode, said in slip.stderr, (tmp_path / "none.db").exists()) == (2, True, False), slip.stderr

    with closing(sqlite3.connect(tmp_path / "tuner.db")) as database:
        devices = database.execute(
            "select distinct slug from trial join run using (run_id) join device using (device_id)"
        )
        assert devices.fetchall() == [("interpreter",)]


def test_a_time_budget_shorter_than_the_start_is_told_and_measures_nothing(tuner, tmp_path):
    (tmp_path / "small.csv").write_text(SMALL)
    done = tuner("run", "--suite", "small.csv", "--time-budget", "0.1s")
    assert done.returncode == 1
    assert "the time budget is spent: 2 problems without a winner; nothing was measured" in done.stderr
    assert "by --time-budget" in done.stderr
    with closing(sqlite3.connect(tmp_path / "tuner.db")) as database:
        assert database.execute("select count(*) from trial").fetchone() == (0,)


def test_a_problems_line_says_what_was_considered_measured_and_compiled_and_why_it_stopped():
    problem, config = Problem(64, 64, 64), Config("pointer", BLOCK_SIZE_M=16)
    environment = Environment("3.7.1", "2.13.0", "cuda 13.0", "", "3.11")
    winner = Winner(H200, environment, problem, config, 1, 1, "0.1.0", "2026-01-31T12:00:00Z", 5.0, 6.0, 5.5, 1)
    ended = ProblemReport(
        problem, winner, "", considered=99, measured=40, resumed=2, binaries=38, stopped="16 trials", seconds=1.25
    )
    line = problem_line(ended)
    assert line.startswith(f"{problem}: {config.label}, 5.00 us, 1.20x default, 1.10x vendor (")
    assert line.endswith("(40 of 99 configs in 1.2 s, 2 known, 38 binaries; 16 trials)")


def test_every_strategy_of_the_sweep_can_be_typed_and_no_other():
    (option,) = [option for option in run.params if option.name == "strategy"]
    assert set(option.type.choices) == set(STRATEGIES)
    assert r"`--strategy " + r"\|".join(option.type.choices) + "`" in CLI_DOC.read_text()


def test_a_dry_run_says_what_would_be_tried_and_what_would_take_hours_and_leaves_nothing(tuner, tmp_path):
    shapes = ("--shape", "64x64x64", "--shape", "4096x4096x4096")
    done = tuner("run", *shapes, "--device", "interpreter", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    for found in json.loads(done.stdout):
        assert found["to_try"] == found["considered"] > 1
        assert found["known"] == 0
    assert "too large for the interpreter to end soon: 1 of 2 problems, matmul 4096x4096x4096" in done.stderr
    assert "; expect about 18 h on a core of its own;" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_of_a_problem_that_no_kernel_serves_says_why_and_exits_with_1(tuner):
    problem = ("--kernel", "rms_norm", "--problem", "M=4,N=200000,dtype=bf16,eps=1e-6")
    done = tuner("run", *problem, "--device", "interpreter", "--dry-run")
    assert done.returncode == 1
    assert "N is 200000: a program's registers hold 32768" in done.stdout


def test_what_was_missed_on_this_device_is_tuned_the_most_called_first(tuner, tmp_path):
    calls = {
        Problem(32, 32, 16, dtype="float32", layout="nt"): 3,
        Problem(16, 16, 16, op="bmm", extras={"batch": 2}): 7,
        Problem(4, 64, 1, dtype="float32", op="softmax"): 5,
    }
    here = {Miss(problem, "interpreter", "default", "3.7.1", "0.1.0"): count for problem, count in calls.items()}
    last = Problem(32, 16, 32, dtype="float32")
    here[Miss(last, "interpreter", "default", "3.7.1", "0.1.0", first_m=25)] = 1
    here[Miss(Problem(8, 8, 8), "interpreter", misses.NO_BINARY, "3.7.1", "0.1.0")] = 2  # is tuned, and lacks a binary
    elsewhere = {Miss(Problem(64, 64, 64), H200.slug, "default", "3.7.1", "0.1.0"): 99}
    misses.add(tmp_path / "misses.json", Record(here | elsewhere))
    record = (tmp_path / "misses.json").read_text()
    done = tuner("run", "--from-misses", "misses.json", "--shape", "48x48x48", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    assert [(found["problem"]["op"], found["problem"]["m"]) for found in json.loads(done.stdout)] == [
        ("bmm", 16),
        ("softmax", 4),
        ("matmul", 32),
        ("matmul", 25),  # the rungs of a range
        ("matmul", 32),
        ("matmul", 48),
    ]
    assert f"missed on interpreter: 4 problems, 16 calls; others missed on {H200.slug}\n" in done.stderr
    assert "tuned, but without a shipped binary: 1 problem, 2 calls; to ship them: tuner export DIR" in done.stderr
    assert (tmp_path / "misses.json").read_text() == record


def test_a_search_that_takes_the_interpreter_long_is_told_after_its_first_trial(capsys):
    def job(seconds, measured=1, device=INTERPRETER):
        stopwatch = SimpleNamespace(phases_s={"search": seconds})
        problem, outcomes = Problem(64, 64, 64), [None] * measured
        return SimpleNamespace(
            problem=problem,
            stopwatch=stopwatch,
            outcomes=outcomes,
            measured=measured,
            most=41,
            best_us=None,
            device=device,
        )

    for one in (job(10.0), job(0.1), job(10.0, measured=2), job(10.0, device=H200)):
        observer = Progress()
        observer.problem_started(one, None)
        observer.trial_ended(one, Config("pointer"), None)
    told = "up to 40 trials to go, about 7 min, then the final measurements"
    assert capsys.readouterr().err == f"{Problem(64, 64, 64)}: {told}\n"


def test_a_forecast_of_many_problems_says_how_long_it_takes(tmp_path, monkeypatch, caplog):
    shapes = [Problem(16, 16, 16 * k) for k in (1, 2, 3)]
    assert list(progress.with_estimate(shapes, "problems")) == shapes
    assert not caplog.records
    monkeypatch.setattr(progress, "SAMPLE_S", 0.0)
    monkeypatch.setattr(progress, "LONG_S", 0.0)
    forecast(str(tmp_path / "none.db"), shapes, None, Plan())
    assert [record.getMessage().rpartition(" take about ")[0] for record in caplog.records] == ["3 problems"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "no problem given: name some with --suite demo"),
        (["--shape", "64x64"], 2, "not a shape: '64x64': expected MxNxK"),
        (["--shape", "0x64x64"], 2, "M must be from 1 to 2147483647, got 0"),
        (["--shape", "64x-1x64"], 2, "N must be from 1 to 2147483647, got -1"),
        (["--shape", "64x64x9999999999"], 2, "K must be from 1 to 2147483647, got 9999999999"),
        (["--shape", "64x64x64", "--dtype", "float7"], 2, "unknown dtype 'float7'"),
        (["--shape", "64x64x64", "--layout", "xx"], 2, "unknown layout 'xx': expected one of nn, nt, tn, tt"),
        (["--suite", "demo", "--dtype", "bf16"], 2, "--dtype is for problems by --shape: a suite says its own"),
        (["--suite", "demo", "--scaling", "row"], 2, "--scaling is for problems by --shape"),
        (["--suite", "demo", "--precision", "tf32"], 2, "--precision is for problems by --shape"),
        (["--shape", "64x64x64", "--precision", "tf32"], 2, "precision 'tf32' is for float32 operands, these are"),
        (["--shape", "64x64x64", "--device", "tpu"], 2, "unknown device 'tpu'"),
        (
            ["--shape", "64x64x64", "--device", "cuda:7"],
            1,
            "no GPU cuda:7: this machine has none: type --device interpreter",
        ),
        (["--shape", "64x64x64", "--time-budget", "soon"], 2, "'soon' is no time span"),
        (["--shape", "64x64x64", "--time-budget", "0s"], 2, "'0s' is no time span: expected for instance 60s"),
        (["--shape", "64x64x64", "--trials", "0"], 2, "0 is not in the range x>=1"),
        (["--suite", "nowhere.csv"], 1, "nowhere.csv"),
        (["--from-misses", "nowhere.json"], 1, "cannot read the record of misses nowhere.json: No such file"),
        (["--suite", "no_such_suite"], 2, "unknown suite 'no_such_suite': known are"),
        (["--suite", "broken.csv"], 1, "broken.csv line 3: M must be from 1 to 2147483647, got 0"),
        (["--shape", "64x64x64", "--db", "text.db", "--device", "interpreter"], 1, "text.db"),
    ],
)
def test_bad_input_is_one_clear_line(run, tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TUNER_DB", "tuner.db")
    (tmp_path / "broken.csv").write_text("m,n,k,dtype,layout\n16,16,16,float16,nn\n0,16,16,float16,nn\n")
    (tmp_path / "text.db").write_text("this is no database\n" * 100)
    ended, _, error = run("run", *arguments)
    assert ended == code, error
    assert message in error
    assert "Traceback" not in error
    assert not (tmp_path / "tuner.db").exists()
    assert (tmp_path / "text.db").read_text().startswith("this is no database")


@pytest.mark.long
def test_a_full_disk_is_one_clear_line_and_costs_no_trial_that_was_kept(tuner, small_disk):
    database = small_disk / "tuner.db"
    command = ("run", "--shape", "16x16x16", "--trials", "4", "--device", "interpreter", "--db", str(database))
    assert tuner("db", "upgrade", "--db", str(database)).returncode == 0
    filler = small_disk / "other"
    room = shutil.disk_usage(small_disk).free
    filler.write_bytes(b"x" * (room - 8192))
    full = tuner(*command)
    assert full.returncode == 1
    assert "nothing of this was written" in full.stderr  # "the disk is full", or "could not be written"
    assert "Traceback" not in full.stderr
    filler.unlink()
    # The slower the machine, the more commits, and each adds to the log.
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    again = tuner(*command)
    assert again.returncode == 0, again.stderr
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]


def start(tmp_path, *arguments):
    environment = {**os.environ, "TUNER_DB": str(tmp_path / "tuner.db"), "TRITON_INTERPRET": "0"}
    return subprocess.Popen(
        [*TUNER, "run", "--device", "interpreter", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def trials(path):
    """(problem, config) of every committed trial; none before the schema is there."""
    if not path.exists():
        return []
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        try:
            return database.execute("select problem_id, config_id from trial").fetchall()
        except sqlite3.OperationalError:
            return []


def wait_for_trials(path, count, process):
    deadline = time.monotonic() + 60
    while len(trials(path)) < count:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("words", "instead"),
    [((), ""), (("--fresh",), "with --fresh-since [0-9a-f]{8} in place of --fresh ")],
    ids=["", "fresh"],
)
def test_ctrl_c_finishes_the_trial_says_what_there_is_and_how_to_go_on_and_exits_130(tmp_path, words, instead):
    process = start(tmp_path, "--shape", "128x128x128", *words)
    wait_for_trials(tmp_path / "tuner.db", 1, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole group
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "finishing the trials under way" in errors
    assert re.search(f"the same command {instead}goes on from here", errors)
    assert "; best of " in errors
    assert "Traceback" not in errors
    with closing(sqlite3.connect(tmp_path / "tuner.db")) as database:
        assert database.execute("select status from run").fetchall() == [("INTERRUPTED",)]
        assert database.execute("select distinct state from trial").fetchall() == [("COMPLETE",)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_sweep_begins_is_one_line_and_130(tmp_path, number):
    (tmp_path / "slow.py").write_text(f"import time\nopen({str(tmp_path / 'begun')!r}, 'w').close()\ntime.sleep(60)\n")
    process = start(tmp_path, "--kernel", f"{tmp_path / 'slow.py'}:k", "--problem", "N=16")
    while not (tmp_path / "begun").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "interrupted\n")


@pytest.mark.parametrize("seconds", [*(pytest.param(each, marks=pytest.mark.long) for each in (0.5, 1.5)), 1.0, 2.5])
def test_ctrl_c_while_it_starts_is_an_interrupt_too(tmp_path, seconds):
    process = start(tmp_path, "--shape", "64x64x64")
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT), errors  # the latter: Python itself was not up yet
    if process.returncode == 130:
        assert "Traceback" not in errors


def children(pid):
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def alive(pid):
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


KILLS = ("while it starts", "among trials", "among trials", "among trials")


@pytest.mark.long
def test_kills_at_random_moments_lose_nothing_and_measure_nothing_twice(tmp_path):
    shapes = ["--shape", "64x64x48", "--shape", "16x16x16", "--trials", "40"]
    moments = random.Random(7)
    database = tmp_path / "tuner.db"
    known = Counter()
    for kill in 2 * KILLS:
        process = start(tmp_path, *shapes)
        if kill == "among trials":
            wait_for_trials(database, known.total() + 1, process)
        time.sleep(moments.uniform(0.0, 0.3 if kill == "among trials" else 3.0))
        offspring = children(process.pid)
        process.kill()
        process.communicate()
        deadline = time.monotonic() + 10
        while any(alive(pid) for pid in offspring):
            assert time.monotonic() < deadline, "a child outlived its parent"
            time.sleep(0.02)
        found = Counter(trials(database))
        assert known <= found, "a committed trial was lost"
        known = found
    process = start(tmp_path, *shapes, "--json")
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    problems = json.loads(output)["problems"]
    assert all(problem["winner"] for problem in problems)
    found = Counter(trials(database))
    assert set(found.values()) == {1}, "a config was measured twice"
    assert len(found) == len(known) + sum(problem["measured"] for problem in problems)
    # A race that goes on takes up what it knows as far as that is promising.
    assert 0 < sum(problem["resumed"] for problem in problems) <= len(known)
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
        assert connection.execute("pragma foreign_key_check").fetchall() == []


WAITING = """
import os, time
from pathlib import Path
import torch, triton, triton.language as tl, tuner

def wait_at(phase):
    if os.environ.get("WAIT_AT") == phase:
        Path(phase).touch()
        time.sleep(600)

references = 0
wait_at("import in the worker" if os.environ.get("TRITON_INTERPRET") == "1" else "import")

@tuner.tuned([triton.Config({"BLOCK": block}) for block in (16, 32)], ["N"])
@triton.jit
def double(x, y, N, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < N) * 2, mask=at < N)

@double.make_inputs
def inputs(problem):
    x = torch.randn(problem["N"])
    return tuner.Arguments((1,), (x, torch.empty_like(x), problem["N"]), outputs=["y"])

@double.reference
def expected(args):
    global references
    references += 1
    wait_at("reference" if references == 1 else "finals")
    return args["x"].double() * 2
"""


@pytest.mark.long
@pytest.mark.parametrize("phase", ["import", "import in the worker", "reference", "finals"])
def test_an_interrupt_ends_every_phase_with_130_no_worker_stays_and_the_next_run_goes_on(tmp_path, monkeypatch, phase):
    (tmp_path / "waiting.py").write_text(WAITING)
    monkeypatch.chdir(tmp_path)
    run = ("--kernel", "waiting:double", "--problem", "N=16")
    monkeypatch.setenv("WAIT_AT", phase)
    process = start(tmp_path, *run)
    deadline = time.monotonic() + 60
    while not Path(phase).exists():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    offspring = children(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    if phase in ("reference", "finals"):  # the first is patient with what is under way
        assert "again to stop at once" in next(line for line in process.stderr if "finishing" in line)
        os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in errors) == (130, False), errors
    deadline = time.monotonic() + 10  # a killed child is gone once init has reaped it
    while any(alive(pid) for pid in offspring):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    known = len(trials(tmp_path / "tuner.db"))
    assert known == (2 if phase == "finals" else 0)
    monkeypatch.delenv("WAIT_AT")
    process = start(tmp_path, *run, "--json")
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    (ended,) = json.loads(output)["problems"]
    assert (ended["resumed"], ended["measured"], ended["winner"] is None) == (known, 2 - known, False)


@pytest.mark.long
def test_a_range_of_ms_is_tuned_as_a_ladder_and_a_second_run_measures_nothing(tuner):
    range_of_ms = ("--shape", "1-4x16x16", "--device", "interpreter", "--trials", "2")
    done = tuner("run", *range_of_ms)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("matmul 1-4x16x16 float16 nn: ")]
    assert re.search(r"\d ranges?", line)
    assert {"matmul 1x16x16", "matmul 2x16x16", "matmul 4x16x16"} <= {
        " ".join(line.split()[:2]) for line in done.stdout.splitlines()
    }
    again = tuner("run", *range_of_ms, "--json")
    document = json.loads(again.stdout)
    assert (again.returncode, sum(problem["measured"] for problem in document["problems"])) == (0, 0)
    assert document["families"] == []


@pytest.mark.parametrize(
    ("shape", "said"), [("4-1x16x16", "write 1-4"), ("1-4x16", "not a shape"), ("0-4x16x16", "M must be from 1")]
)
def test_a_range_that_is_none_is_one_line(tuner, shape, said):
    done = tuner("run", "--shape", shape, "--device", "interpreter")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert said in done.stderr


@pytest.mark.long
def test_a_range_of_batches_is_tuned_shown_looked_up_shipped_merged_and_tuned_again_for_nothing(tuner):
    typed = ("--kernel", "bmm", "--problem", "M=2,N=16,K=16,dtype=fp16,batch=5-8")
    first = tuner("run", *typed, "--device", "interpreter", "--trials", "2", "--json")
    families = json.loads(first.stdout)["families"]
    assert sorted(family["batches"] for family in families) == [[5, 5], [6, 6], [7, 8]]
    again = tuner("run", *typed, "--device", "interpreter", "--trials", "2", "--json")
    document = json.loads(again.stdout)
    assert (sum(problem["measured"] for problem in document["problems"]), document["families"]) == (0, [])
    assert "2-2, batch 7-8" in tuner("show", "winners").stdout
    for batch, code, said in ((7, 0, "M 2-2, batch 7-8, measured"), (8, 0, "exact"), (9, 1, "batch=9-16")):
        problem = f"M=2,N=16,K=16,dtype=fp16,batch={batch}"
        found = tuner("lookup", "--kernel", "bmm", "--problem", problem, "--device", "interpreter", "--explain")
        assert (found.returncode, said in found.stdout) == (code, True), found.stdout
    assert tuner("export", "tables", "--device", "interpreter").returncode == 0
    assert tuner("verify", "tables").returncode == 0
    assert tuner("merge", "other.db", "tuner.db").returncode == 0
    same = tuner("diff", "tables", "other.db")
    assert (same.returncode, "bmm on interpreter: equal" in same.stdout) == (0, True), same.stdout


@pytest.mark.long
def test_rows_of_groups_scales_and_epilogues_are_tuned_over_a_range(tuner, tmp_path):
    # Ms are left for three checks even where the interpreter's noise has the most of them played.
    lines = ("grouped_mm,17-64,32,16,bf16,nt,3,,", ",17-64,32,16,e4m3,nt,,row,bias+silu")
    suite = tmp_path / "ops.csv"
    suite.write_text("op,m,n,k,dtype,layout,groups,scaling,epilogue\n" + "\n".join(lines) + "\n")
    done = tuner("run", "--suite", str(suite), "--device", "interpreter", "--trials", "2", "--json")
    report = json.loads(done.stdout)
    found = {family["problem"]["op"]: family["check"]["played"] for family in report["families"]}
    assert (done.returncode, found) == (0, {"grouped_mm": 3, "matmul": 3}), done.stderr
    tuned = {(each["problem"]["op"], each["problem"]["m"]) for each in report["problems"]}
    lookups.use(tmp_path / "tuner.db")
    for ladder in load_with_ladders(suite):
        rules = {m: lookups.lookup(ladder.at(m), INTERPRETER).rule for m in range(17, 65)}
        op = ladder.rungs[0].op
        assert rules == {m: "exact" if (op, m) in tuned else "family" for m in rules}
        assert "family" in rules.values()
    lookups.use(None)
