"""`tuner exec`: a program that never imports tuner has its libraries' kernels served, and notices nothing else."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from tuner.adopt.kernel import kernel_of
from tuner.hardware.device import INTERPRETER, Environment
from tuner.kernel.config import Config
from tuner.lookup.table import Provenance, Row, Table
from tuner.problem import Problem

LIBRARY = """
import triton
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=1) for block in (64, 128, 256)]

@triton.autotune(CONFIGS, key=["N"])
@triton.jit
def double(x, y, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < N) * 2, mask=at < N)
"""
PROGRAM = """
import json, os, subprocess, sys
if len(sys.argv) > 1 and sys.argv[1] == "parent":
    sys.exit(subprocess.run([sys.executable, __file__]).returncode)
import torch, library
def bench(call, quantiles):
    call()
    return [1.0] * 3
library.double._do_bench = bench
x, y = torch.ones(100), torch.zeros(100)
library.double[lambda meta: (2,)](x, y, 100)
assert y.eq(2).all()
print(json.dumps([library.double.best_config.kwargs["BLOCK"], "tuner" in sys.modules]))
"""


@pytest.fixture
def execute(tmp_path, monkeypatch):
    """Runs the program by a command line in a folder that has the library, and a table for it."""
    (tmp_path / "tables").mkdir()
    (tmp_path / "library.py").write_text(LIBRARY)
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "library", raising=False)
    import library

    source = kernel_of(library.double).source_hash[:16]
    del sys.modules["library"]
    problem = Problem.keyed("library-double", {"N": 100, "kernel.source": source}, dtype="float32")
    config = Config("library-double", BLOCK=256, num_stages=3, num_warps=1)
    made = Provenance(Environment("3.7.1", "2.13.0", "interpreter", "none", "3.11.7"), 1, "0.1.0")
    row = Row(problem, config, 1, made, 10.0, 1.5, None, 1)
    Table(problem.op, INTERPRETER, "2026-01-31T12:00:00Z", (row,)).write(tmp_path / "tables")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TUNER_")}
    kept |= {"TUNER_TABLES": str(tmp_path / "tables"), "TUNER_DB": str(tmp_path / "tuner.db"), "TRITON_INTERPRET": "1"}

    def execute(*command, **environment):
        return subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=kept | environment,
        )

    return execute


def exec_(*command, options=("--adopt", "library")):
    return ["-m", "tuner", "exec", *options, "--", sys.executable, *command]


@pytest.mark.long
def test_a_program_and_its_children_are_served_without_importing_tuner(execute):
    assert json.loads(execute("program.py").stdout) == [64, False]
    for command in (["program.py"], ["program.py", "parent"]):
        done = execute(*exec_(*command))
        assert (done.returncode, json.loads(done.stdout), done.stderr) == (0, [256, True], "")


def test_a_summary_tells_what_keys_got(execute, tmp_path):
    summary = ("--adopt", "library", "--summary")
    done = execute(*exec_("program.py", options=summary))
    assert (done.returncode, json.loads(done.stdout)[0]) == (0, 256)
    assert done.stderr == "tuner: library: 1 key: 1 tuned\n"
    (tmp_path / "program.py").write_text(
        PROGRAM.replace("(x, y, 100)", "(x, y, 99)").replace("y.eq(2)", "y[:99].eq(2)")
    )
    done = execute(*exec_("program.py", options=(*summary, "--on-miss", "first")))
    assert done.stderr == "tuner: library: 1 key: 0 tuned; 1 not tuned, with the first config\n"
    done = execute(*exec_("program.py", options=summary))
    assert done.stderr.endswith("tuner: library: 1 key: 0 tuned; 1 left to Triton, of library-double\n")
    done = execute(*exec_("-c", "import triton, os; os.close(2)", options=summary))
    assert (done.returncode, done.stderr) == (0, "")


CHANGED = """
import library
library.double.configs = library.double.configs[:2]
library.double.cache.clear()
library.double[lambda meta: (2,)](x, y, 100)
print(json.dumps(library.double.best_config.kwargs["BLOCK"]))
"""


@pytest.mark.parametrize(
    ("on_miss", "served", "said"),
    [
        ("nearest", 64, "2 keys: 1 tuned; 1 not tuned, with the nearest config"),
        ("autotune", 64, "2 keys: 1 tuned; 1 left to Triton, of library-double"),
    ],
)
def test_a_winner_that_a_library_lists_no_more_is_told_and_not_counted_as_tuned(
    execute, tmp_path, on_miss, served, said
):
    (tmp_path / "program.py").write_text(PROGRAM + CHANGED)
    done = execute(*exec_("program.py", options=("--adopt", "library", "--summary", "--on-miss", on_miss)))
    assert [json.loads(line) for line in done.stdout.splitlines()] == [[256, True], served]
    told, summary = done.stderr.splitlines()
    assert "library-double has a tuned config that does not serve: library-double(BLOCK=256, " in told
    assert told.endswith("configs: it is none of the configs that the decorator lists")
    assert summary == f"tuner: library: {said}"


def test_the_variable_alone_serves_a_program_that_imports_tuner_before_or_after_triton(execute):
    for first in ("import tuner", "import triton, tuner"):
        run = f"{first}; import runpy, sys; sys.argv[1:] = []; runpy.run_path('program.py', run_name='__main__')"
        assert json.loads(execute("-c", run, TUNER_ADOPT="library").stdout)[0] == 256


@pytest.mark.parametrize(
    ("libraries", "said"),
    [
        pytest.param(["--adopt", "torch"], "", marks=pytest.mark.long),
        ([], "tuner: nothing is served, since no library is named: --adopt fla, for instance"),
    ],
)
def test_what_cannot_be_adopted_is_one_line_and_the_program_runs(execute, libraries, said):
    done = execute(*exec_("program.py", options=libraries))
    assert (done.returncode, json.loads(done.stdout)[0]) == (0, 64)
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == bool(said)


def test_a_library_that_is_not_there_is_told_whatever_the_program_is(execute, tmp_path):
    def told(library, *command):
        done = execute("-m", "tuner", "exec", "--adopt", library, "--", *command)
        return done.returncode, done.stdout, done.stderr.splitlines()

    said = "tuner: no library 'librari' is found here, and without it nothing of it is served: --adopt library, perhaps"
    assert told("librari", "echo", "ran") == (0, "ran\n", [said])
    assert told("xyzzy.ops", "true")[2][0].endswith("name it as it is imported, such as --adopt fla")
    (tmp_path / "beside").mkdir()
    (tmp_path / "library.py").rename(tmp_path / "beside" / "theirs.py")
    (tmp_path / "beside" / "train.sh").write_text("echo ran")
    assert told("theirs", "sh", "beside/train.sh") == (0, "ran\n", [])
    assert told("__main__", "sh", "-c", "echo ran" + " " * 5000) == (0, "ran\n", [])
    assert len(told("xyzzy", "sh", "-c", "echo ran" + " " * 5000)[2]) == 1
    code, _, said = told("librari", sys.executable, "-c", "import triton")
    assert (code, len(said)) == (0, 2)
    assert "librari is not adopted: there is no library 'librari' to adopt" in said[1]
    code, out, said = told("not a name", "echo", "ran")
    assert (code, out) == (2, "")
    assert said == ["tuner: --adopt 'not a name' is no name of a package: expected it as it is imported, such as fla"]


def test_a_word_that_on_miss_does_not_know_is_one_line_and_the_program_runs(execute):
    done = execute(*exec_("program.py"), TUNER_ON_MISS="often")
    assert (done.returncode, json.loads(done.stdout)[0]) == (0, 64)
    assert "no kernel is adopted: $TUNER_ON_MISS is 'often': expected autotune, nearest, first" in done.stderr


def test_a_broken_table_is_one_line_and_the_program_runs(execute, tmp_path):
    (table,) = (tmp_path / "tables").iterdir()
    table.write_text(table.read_text()[:100])
    done = execute(*exec_("program.py"))
    assert (done.returncode, json.loads(done.stdout)[0]) == (0, 64)
    assert done.stderr.count(table.name) == 1
    assert "Traceback" not in done.stderr


def test_a_python_without_tuner_says_so_in_one_line_and_runs(execute, tmp_path):
    shutil.copy(tmp_path / "library.py", tmp_path / "triton.py")  # any module of that name will do
    (tmp_path / "triton.py").write_text("")
    done = execute(*exec_("-S", "-c", "import sitecustomize, triton; print('ran')"), PYTHONPATH="")
    assert done.stdout == "ran\n"
    assert done.stderr.splitlines() == [
        "tuner: no kernel is adopted: ModuleNotFoundError: No module named 'tuner': install triton-tuner where it runs"
    ]


def test_exit_codes_are_the_programs_own(execute):
    assert execute(*exec_("-c", "raise SystemExit(7)")).returncode == 7
    done = execute("-m", "tuner", "exec", "--", "no-such-program")
    assert done.returncode == 127
    assert "cannot run no-such-program: there is no such command" in done.stderr
    done = execute("-m", "tuner", "exec", "--", "")
    assert done.returncode == 127
    assert done.stderr.endswith("tuner: cannot run '': there is no such command: type it as without tuner, after --\n")


COUNTING = """
import signal, sys, time
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
print("ready", flush=True)
end = time.monotonic() + 60
while not heard and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(1)  # a second signal would have come
sys.exit(len(heard))
"""


def test_a_signal_to_the_whole_group_reaches_the_program_once():
    """As `timeout` and process supervisors send it."""
    command = [sys.executable, "-m", "tuner", "exec", "--adopt", "click", "--", sys.executable, "-c", COUNTING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as started:
        assert started.stdout.readline() == b"ready\n"
        os.killpg(started.pid, signal.SIGTERM)
        assert started.wait(timeout=60) == 1


def test_the_program_ignores_the_signals_that_it_would_ignore_alone(execute):
    ignored = ["grep", "SigIgn", "/proc/self/status"]
    alone = subprocess.run(ignored, capture_output=True, text=True, check=True).stdout
    assert execute("-m", "tuner", "exec", "--adopt", "click", "--", *ignored).stdout == alone


def test_a_file_that_is_no_program_is_told(execute, tmp_path):
    (tmp_path / "data").write_text("words")
    (tmp_path / "script").write_text("#!/no/such/shell\n")
    for name in ("data", "script"):
        (tmp_path / name).chmod(0o755)
        done = execute("-m", "tuner", "exec", "--adopt", "click", "--", f"./{name}")
        assert (done.returncode, done.stdout) == (126, "")
        assert f"cannot run ./{name}: it is no program" in done.stderr


@pytest.mark.parametrize("command", ["exec", "capture"])
def test_a_program_is_found_as_a_shell_finds_it(command, tmp_path):
    (tmp_path / "not-executable").write_text("words")
    (tmp_path / "lacks-a-shell").write_text("#!/no/such/shell\n")
    (tmp_path / "lacks-a-shell").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    out = ["--out", str(tmp_path / "recorded")] if command == "capture" else []
    for name, code in (("not-executable", 127), ("lacks-a-shell", 126)):
        typed = [sys.executable, "-m", "tuner", command, *out, "--", name]
        done = subprocess.run(typed, capture_output=True, text=True, env=environment, check=False, timeout=60)
        assert (done.returncode, f"cannot run {name}: " in done.stderr) == (code, True)


def test_no_signal_is_lost_as_the_program_takes_over():
    """One that Python's handler had noted, but not handled, would be."""
    prepared = """
import os, signal
from tuner.cli import program
signal.signal(signal.SIGTERM, lambda *_: None)
os.execvpe = lambda *_: print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
program.become(("true",), {})
"""
    done = subprocess.run([sys.executable, "-c", prepared], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "True\n"


def test_an_empty_name_is_wrong_usage(run):
    for named in ("", " ", "fla,"):
        code, out, err = run("exec", "--adopt", named, "--", "true")
        assert (code, out) == (2, "")
        assert err.startswith("tuner: --adopt names no package")
