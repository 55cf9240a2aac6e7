"""The frame around every command: exit codes, one-line errors, help."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

import click
import pytest

import tuner
from tuner import cli
from tuner.errors import ProblemError, StoreError, UsageError


def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tuner", *arguments], capture_output=True, text=True, timeout=60, check=False, **options
    )


@pytest.fixture
def failing(monkeypatch, capsys):
    """Run a command that raises; returns its exit code and what it wrote to stderr."""

    def failing(error: BaseException | Callable[[], BaseException], *before: str) -> tuple[int, str]:
        @click.command()
        def fail() -> None:
            raise error() if callable(error) else error

        monkeypatch.setitem(cli.COMMANDS, "fail", "Fails.")
        monkeypatch.setitem(sys.modules, "tuner.cli.fail", types.SimpleNamespace(fail=fail))
        with pytest.raises(SystemExit) as exited:
            cli.main([*before, "fail"])
        return exited.value.code, capsys.readouterr().err

    return failing


def test_a_failure_is_one_line_and_exit_code_1(failing):
    assert failing(StoreError("x.db: damaged: restore a backup")) == (1, "tuner: x.db: damaged: restore a backup\n")


@pytest.mark.parametrize("text", ["two\nlines", "\nthree\r\n  lines\u2028\n here\n"])
@pytest.mark.parametrize("kind", [StoreError, ProblemError, click.UsageError])
def test_an_error_is_one_line_whatever_its_message_cites(failing, kind, text):
    said = failing(kind(text))[1]
    assert said.startswith(f"tuner: {' '.join(text.split())}")
    assert said.count("\n") == len(said.splitlines()) == 1


@pytest.mark.parametrize("group", ["show", "db"])
def test_the_help_of_a_group_has_a_whole_sentence_for_each_command(group):
    lines = run(group, "--help").stdout.partition("Commands:")[2].strip().splitlines()
    assert lines
    assert [line for line in lines if not line.endswith(".") or line.endswith("...")] == []


def test_arguments_of_several_lines_are_one_line_of_an_error():
    for arguments in (
        ["--bad\noption"],
        ["show", "winners\nlosers"],
        ["lookup", "64\n32"],
        ["run", "--suite", "a\n.csv"],
    ):
        assert run(*arguments).stderr.count("\n") == 1


NOISY = """
import atexit, os, subprocess
import torch, triton, tuner
import triton.language as tl

print("printed")
os.write(1, b"written")
subprocess.run(["echo", "echoed"])
atexit.register(print, "at the end")


@tuner.tuned([triton.Config({"BLOCK": 16})], ["N"])
@triton.jit
def kernel(x_ptr, N, BLOCK: tl.constexpr):
    tl.store(x_ptr, N)


@kernel.make_inputs
def inputs(problem):
    print("made")
    return tuner.Arguments((1,), (torch.zeros(1, dtype=torch.int32), problem["N"]), outputs=["x_ptr"])
"""


def test_stdout_is_one_json_document_though_a_module_prints(tmp_path):
    pytest.importorskip("triton", reason="a kernel's module imports Triton")
    (tmp_path / "noisy.py").write_text(NOISY)
    own = {"TRITON_INTERPRET": "1", "TUNER_DB": str(tmp_path / "absent.db")}
    done = run(
        "lookup", "--kernel", "noisy.py:kernel", "--problem", "N=16", "--json", cwd=tmp_path, env=os.environ | own
    )
    assert json.loads(done.stdout)["rule"] == "default"
    assert all(word in done.stderr for word in ("printed", "written", "echoed", "made", "at the end"))


def test_wrong_usage_is_one_line_and_exit_code_2(failing):
    assert failing(UsageError("unknown suite 'x'")) == (2, "tuner: unknown suite 'x'\n")


def test_an_interrupt_exits_130(failing):
    code, said = failing(KeyboardInterrupt())
    assert code == 130
    assert said.strip() == "interrupted"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_the_command_line_is_imported_exits_130(tmp_path, number):
    pressed = f"import os, time\nos.kill(os.getpid(), {int(number)})\ntime.sleep(9)\n"
    (tmp_path / "click.py").write_text(pressed)
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    done = run("--version", env=os.environ | {"PYTHONPATH": path})
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_torch_is_imported_exits_130_where_its_code_would_abort(tmp_path, number):
    pressed = f"    os.kill(os.getpid(), {int(number)})\n    time.sleep(9)"
    (tmp_path / "torch.py").write_text(f"import os, time\ntry:\n{pressed}\nexcept BaseException:\n    os.abort()\n")
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    done = run("lookup", "--kernel", "json:dumps", "--problem", "M=1", env=os.environ | {"PYTHONPATH": path})
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


ENDING = """
import atexit, os, sys, threading, time

def press():
    os.kill(os.getpid(), {number})
    time.sleep({wait})

def press_then():
    while threading.main_thread().is_alive():
        time.sleep(0.01)
    while True:  # one that comes just before Python waits for this thread is heard with the next one
        press()

{when}
sys.argv = ["tuner", "--version"]
from tuner.__main__ import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("when", "wait", "code"),
    [("atexit.register(press)", 0.1, 0), ("threading.Thread(target=press_then).start()", 5, 130)],
)
def test_an_interrupt_while_python_ends_is_no_traceback(number, when, wait, code):
    program = ENDING.format(number=int(number), when=when, wait=wait)
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.startswith("tuner, version ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_an_import_turns_into_another_error_exits_130(failing, number):
    def unheard() -> ImportError:
        with contextlib.suppress(KeyboardInterrupt):  # as C code does that imports numpy for torch
            signal.raise_signal(number)
        return ImportError("cannot load module more than once per process")

    before = signal.getsignal(number)
    code, said = failing(unheard)
    assert (code, said.strip()) == (130, "interrupted")
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_within_a_callback_that_drops_it_exits_130(failing, number):
    class Interrupted:
        def __del__(self) -> None:  # as in the callbacks of weak references that every import leaves
            signal.raise_signal(number)

    def late() -> StoreError:
        Interrupted()
        time.sleep(5)
        return StoreError("the interrupt was dropped")

    before = sys.unraisablehook
    code, said = failing(late)
    assert (code, said.strip()) == (130, "interrupted")
    assert sys.unraisablehook is before


def test_debug_shows_the_traceback(failing):
    code, said = failing(StoreError("damaged"), "--debug")
    assert code == 1
    assert "Traceback (most recent call last)" in said
    assert said.endswith("StoreError: damaged\n")
    assert failing(UsageError("no such shape"), "--debug")[0] == 2


def test_what_a_command_returns_to_click_is_the_exit_code(monkeypatch):
    @click.command()
    @click.pass_context
    def some(ctx: click.Context) -> None:
        ctx.exit(1)

    monkeypatch.setitem(cli.COMMANDS, "some", "Exits 1.")
    monkeypatch.setitem(sys.modules, "tuner.cli.some", types.SimpleNamespace(some=some))
    with pytest.raises(SystemExit) as exited:
        cli.main(["some"])
    assert exited.value.code == 1


def test_an_option_with_too_few_values_names_the_command_whose_help_says_more():
    found = run("inspect", "pointer", "--problem", "M=64,N=64,K=64", "--diff", "num_warps=4")
    expected = "tuner: Option '--diff' requires 2 arguments: `tuner inspect --help` says what can be typed\n"
    assert (found.returncode, found.stderr) == (2, expected)


@pytest.mark.parametrize("arguments", [("frobnicate",), ("--frobnicate",), ("doctor", "--frobnicate")])
def test_an_unknown_command_or_option_exits_2_without_a_traceback(arguments):
    found = run(*arguments)
    assert found.returncode == 2
    assert found.stderr.startswith("tuner: No such ")
    assert found.stderr.endswith("--help` says what can be typed\n")
    assert found.stderr.count("\n") == 1


def test_the_version_is_the_packages():
    assert run("--version").stdout == f"tuner, version {tuner.__version__}\n"


def test_help_lists_every_command_and_loads_none():
    script = "import sys; from tuner.cli import cli; cli.main(['--help'], standalone_mode=False)"
    script += "; print(sorted(sys.modules))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    for name, line in cli.COMMANDS.items():
        assert f"{name} " in found.stdout
        assert line.split(" ")[0] in found.stdout
    for module in ("torch", "triton", "sqlalchemy", "alembic"):
        assert f"'{module}'" not in found.stdout


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_a_commands_help_begins_with_its_line_in_the_list_of_commands(command, capsys):
    with pytest.raises(SystemExit) as exited:
        cli.main([command, "--help"])
    assert exited.value.code == 0
    usage, first, *_ = capsys.readouterr().out.split("\n\n")
    assert usage.startswith(f"Usage: tuner {command}")
    assert first.strip() == cli.COMMANDS[command]


def test_a_reader_that_leaves_early_gets_no_traceback_and_no_code_of_a_failed_check():
    read, write = os.pipe()
    os.close(read)
    try:
        found = subprocess.run(
            [sys.executable, "-m", "tuner", "run", "--help"],
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(write)
    assert (found.returncode, found.stderr) == (141, "")


def test_a_closed_stdout_is_no_error():
    for arguments in ("--version", "doctor --help"):
        command = f"exec {sys.executable} -m tuner {arguments} >&-"
        found = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        assert (found.returncode, found.stderr) == (0, "")


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full on this system")
def test_a_full_disk_behind_stdout_is_one_line():
    with FULL.open("w") as full:
        command = [sys.executable, "-m", "tuner", "--version"]
        found = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (found.returncode, found.stderr) == (
        1,
        "tuner: cannot write what is printed: No space left on device: send it elsewhere\n",
    )


def test_commands_start_under_a_click_whose_types_are_no_generics():
    """As those of click 8.1 to 8.3, which pyproject.toml admits."""
    for path in Path(cli.__file__).parent.glob("*.py"):
        assert "click.ParamType[" not in path.read_text(), path.name
