"""Streams that cannot be written, and code of kernels that ends the process: real shells, real processes."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from tuner.cli import kernel_options, streams

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")

OTHER_REDIRECTIONS = [">&- 2>&-", "<&- >&-", "<&- >&- 2>&-", "| head -0", "2>&1 | head -0"]
RUN = "run --shape 16x16x16 --trials 1 --device interpreter"
FULL = "tuner: cannot write what is printed: No space left on device: send it elsewhere\n"
KERNEL = """
import os, sys, torch, triton, triton.language as tl, tuner

def prune(configs, args, **_):
    {pruning}
    return configs

configs = [triton.Config({{"BLOCK": block}}) for block in (16, 32)]

@tuner.tuned(configs, ["N"], prune_configs_by={{"early_config_prune": prune}})
@triton.jit
def double(x, y, N, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < N) * 2, mask=at < N)

@double.make_inputs
def inputs(problem):
    {making}
    x = torch.randn(problem["N"])
    return tuner.Arguments((1,), (x, torch.empty_like(x), problem["N"]), outputs=["y"])

@double.reference
def expected(args):
    return args["x"].double() * 2
"""


def long(value):
    return pytest.param(value, marks=pytest.mark.long)


@pytest.fixture
def shell(tmp_path):
    """Runs a command with its redirections in a shell; what it prints elsewhere is captured."""

    def run(arguments, redirections="", **own):
        command = f"set -o pipefail; {sys.executable} -m tuner {arguments} {redirections}"
        environment = {**os.environ, "TUNER_DB": str(tmp_path / "tuner.db"), **own}
        return subprocess.run(
            ["bash", "-c", command],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
            timeout=200,
            check=False,
        )

    return run


@pytest.fixture
def tuner(compiling, tmp_path):
    """Runs a command whose streams are as they should be, in a process that has imported torch."""

    def run(arguments):
        environment = {**os.environ, "TUNER_DB": str(tmp_path / "tuner.db")}
        return compiling.tuner(*arguments.split(), env=environment, cwd=tmp_path)

    return run


@pytest.mark.parametrize("redirections", ["2>/dev/full", *map(long, OTHER_REDIRECTIONS)])
def test_a_sweep_whose_progress_cannot_be_written_ends_as_if_it_could(shell, tmp_path, redirections):
    done = shell(RUN, redirections)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    with closing(sqlite3.connect(tmp_path / "tuner.db")) as database:
        assert database.execute("select status, count(winner_id) from run join winner using (run_id)").fetchall() == [
            ("DONE", 1)
        ]


@pytest.mark.long
def test_a_product_that_cannot_be_written_is_one_line_and_one_that_nobody_reads_is_none(shell):
    assert shell(RUN, ">/dev/full 2>/dev/full").returncode == 1
    assert shell("show winners --json", "2>&1 >/dev/null", PYTHONWARNINGS="error").stdout == ""
    for arguments in ("show winners", "show winners --json"):
        full, unread = shell(arguments, ">/dev/full"), shell(arguments, "| head -0")
        assert (full.returncode, full.stderr) == (1, FULL)
        assert unread.stderr == ""


@pytest.mark.parametrize("code", ["sys.exit(0)", *map(long, ["raise KeyboardInterrupt", "os._exit(0)"])])
@pytest.mark.parametrize("command", ["run --problem N=16 --device interpreter", "verify tuner.db"])
def test_a_kernels_module_that_ends_the_process_is_one_line_and_exit_code_1(tuner, tmp_path, command, code):
    (tmp_path / "ends.py").write_text(f"import os, sys\n{code}\n")
    done = tuner(f"{command} --kernel ends:k")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("tuner: ends cannot be imported: ")
    assert "Traceback" not in done.stderr


def test_a_module_whose_import_hangs_is_told_and_given_up(run, tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_options, "NOTICE_S", 0.2)
    monkeypatch.setattr(kernel_options, "LIMIT_S", 0.4)
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(600)\n")
    code, _, told = run("run", "--kernel", f"{tmp_path / 'hangs.py'}:k", "--problem", "N=16")
    waited, given_up = told.splitlines()
    assert code == 1
    assert waited.endswith("hangs.py:k is still being imported; it is given up after 0.4 s")
    assert "hangs.py:k did not end within 0.4 s" in given_up
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_module_may_fork_children_that_end_as_multiprocessings_do(tuner, tmp_path):
    forks = "if (pid := os.fork()) == 0: os._exit(3)\nassert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3\n"
    (tmp_path / "forks.py").write_text(f"import os\n{forks}")
    assert "forks has no 'k'" in tuner("run --problem N=16 --kernel forks:k --device interpreter").stderr


@pytest.mark.parametrize("dry", [long(""), "--dry-run"])
def test_code_of_a_kernel_that_ends_the_process_costs_its_problem_and_is_told(tuner, tmp_path, dry):
    (tmp_path / "prunes.py").write_text(KERNEL.format(pruning="args['N'] == 8 or sys.exit(0)", making="pass"))
    done = tuner(f"run --kernel prunes:double --device interpreter --problem N=16 --problem N=8 {dry}")
    told = done.stdout if dry else done.stderr
    assert "the code of its kernel called sys.exit(0)" in told
    assert "double N=8 float32" in told
    assert done.returncode == 1


def test_make_inputs_that_ends_the_process_is_one_line(tuner, tmp_path):
    (tmp_path / "makes.py").write_text(KERNEL.format(pruning="pass", making="sys.exit(0)"))
    done = tuner("run --kernel makes:double --device interpreter --problem N=16")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "the code of a kernel called sys.exit(0)" in done.stderr


def test_what_a_signals_handler_says_while_a_write_is_under_way_goes_past_its_buffer(monkeypatch):
    """Python refuses such a write with a RuntimeError, in a window too short to be hit at will."""
    reader, writer = os.pipe()
    with os.fdopen(reader) as said, os.fdopen(writer, "w") as stream:

        def write(_text):
            raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stderr>'>")

        busy = SimpleNamespace(write=write, flush=stream.flush, fileno=stream.fileno)
        monkeypatch.setattr(sys, "stderr", busy)
        with streams.guarded():
            sys.stderr.write("finishing the trials under way\n")
        stream.close()
        assert said.read() == "finishing the trials under way\n"
