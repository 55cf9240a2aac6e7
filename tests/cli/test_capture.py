"""`tuner capture`: it records what a program multiplies, and the program does not notice."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tuner import startup
from tuner.cli import program
from tuner.errors import SuiteError, TableError
from tuner.models import captured
from tuner.models.products import Product, describe
from tuner.models.recorder import MAX_FAMILIES, MAX_MS, Journal
from tuner.problem import Problem
from tuner.problem.family import Ladder

PRODUCT = Product("matmul", "cpu", 64, 32, *["bfloat16"] * 3, "nt", True, "none", "default", "none", 0)


@pytest.fixture
def capture(tmp_path):
    """Run a program under `tuner capture` into DIR; returns what subprocess.run returns."""

    def capture(program, *arguments, under=(), python=(sys.executable,), **environment):
        path = tmp_path / "program.py"
        path.write_text(program)
        command = [*python, str(path), *map(str, arguments)]
        prefix = [sys.executable, "-m", "tuner", "capture", "--out", str(tmp_path / "calls"), "--"]
        return subprocess.run(
            [*under, *prefix, *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env=os.environ | environment,
            cwd=tmp_path,
        )

    return capture


def test_a_library_that_is_not_there_is_told_before_the_program_runs(tmp_path):
    command = [sys.executable, "-m", "tuner", "capture", "--adopt", "nolib", "--out", str(tmp_path / "calls")]
    done = subprocess.run([*command, "--", "true"], capture_output=True, text=True, check=False, cwd=tmp_path)
    told, found = done.stderr.splitlines()
    assert told.startswith("tuner: no library 'nolib' is found here, and without it nothing of it is recorded: ")
    assert found.endswith("no autotuned kernel of nolib was recorded")
    assert done.returncode == 0


def rows(folder):
    text = (folder / captured.SUITE).read_text()
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def cells(folder, *names):
    return {tuple(row.get(name, "") for name in names) for row in rows(folder)}


CALLS = """
import threading, torch
import torch.nn.functional as F
def bf16(*shape):
    return torch.randn(*shape, dtype=torch.bfloat16)
linear = torch.nn.Linear(64, 32, dtype=torch.bfloat16)
linear(bf16(2, 3, 64))
linear(bf16(5, 64)).sum().backward()
F.linear(bf16(7, 64), bf16(48, 64))
torch.matmul(bf16(2, 8, 64), bf16(64, 80))
torch.mm(bf16(9, 64), bf16(64, 96), out=torch.empty(9, 96, dtype=torch.bfloat16))
torch.bmm(bf16(3, 4, 64), bf16(3, 64, 16))
torch.addmm(bf16(112), bf16(10, 64), bf16(64, 112))
torch._grouped_mm(bf16(8, 64), bf16(2, 64, 128), offs=torch.tensor([4, 8], dtype=torch.int32))
one = torch.ones(())
torch._scaled_mm(bf16(16, 64).to(torch.float8_e4m3fn), bf16(144, 64).to(torch.float8_e4m3fn).t(), one, one,
                 out_dtype=torch.bfloat16)
thread = threading.Thread(target=lambda: torch.mm(bf16(11, 64), bf16(64, 160)))
thread.start()
thread.join()
torch.compile(lambda x: linear(x).relu())(bf16(13, 64))
"""


@pytest.mark.long
def test_products_are_recorded_however_they_are_called(capture, tmp_path):
    done = capture(CALLS)
    assert done.returncode == 0, done.stderr
    found = cells(tmp_path / "calls", "op", "m", "n", "k", "layout", "epilogue", "scaling", "dtype")
    assert found >= {
        ("", "5,6,13", "32", "64", "nt", "bias", "", "bfloat16"),
        ("", "7", "48", "64", "nt", "", "", "bfloat16"),
        ("", "16", "80", "64", "nn", "", "", "bfloat16"),
        ("", "9", "96", "64", "nn", "", "", "bfloat16"),
        ("bmm", "4", "16", "64", "nn", "", "", "bfloat16"),
        ("", "10", "112", "64", "nn", "bias", "", "bfloat16"),
        ("grouped_mm", "8", "128", "64", "nn", "", "", "bfloat16"),
        ("", "16", "144", "64", "nt", "", "scalar", "float8_e4m3fn"),
        ("", "11", "160", "64", "nn", "", "", "bfloat16"),
    }
    assert ("", "32", "64", "5", "nn", "", "", "bfloat16") in found, "the backward pass"
    # What torch's own kernels call in turn is not the program's.
    assert not [each for each in found if each[:2] == ("", "4")]
    assert "tuner run --captured" in done.stderr


PROCESSES = """
import multiprocessing, os, subprocess, sys, torch
def work(n):
    for _ in range(3):
        torch.mm(torch.ones(4, 16), torch.ones(16, n))
if __name__ == "__main__":
    work(16)
    for number, method in enumerate(("fork", "spawn"), start=2):
        process = multiprocessing.get_context(method).Process(target=work, args=(16 * number,))
        process.start()
        process.join()
    if not os.fork():
        work(64)
        os._exit(0)
    os.wait()
    subprocess.run([sys.executable, "-c", "import torch; torch.mm(torch.ones(4, 16), torch.ones(16, 80))"], check=True)
"""


@pytest.mark.long
def test_forked_and_spawned_processes_record_into_one_folder_each_call_once(capture, tmp_path):
    done = capture(PROCESSES)
    assert done.returncode == 0, done.stderr
    counts = {int(row["n"]): int(row["count"]) for row in rows(tmp_path / "calls")}
    assert sorted(counts) == [16, 32, 48, 64, 80]
    assert (counts[16], counts[48], counts[80]) == (3, 3, 1)
    assert counts[64] == 2, "os._exit ends without a word: the last power of two is known"


NOTICES = """
import importlib.util, os, sys, threading
assert importlib.util.find_spec("torch").name == "torch"
import torch
a = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), requires_grad=True)
out = torch.empty(3, 5)
with torch.no_grad():
    assert torch.mm(a, torch.ones(4, 5), out=out) is out
(a @ torch.ones(4, 5)).sum().backward()
try:
    torch.mm(a, a)
except RuntimeError as e:
    print(type(e).__name__, e)
print(torch.mm(a, torch.ones(4, 5)).tolist(), a.grad.tolist(), type(torch.__spec__.loader).__name__)
print(sorted(p for p in sys.path if p), [type(each).__name__ for each in sys.meta_path], threading.active_count())
print(sorted(name for name in sys.modules if name.split(".")[0] in ("tuner", "recorder", "products")))
print(sys.modules["sitecustomize"].__file__, os.environ.get("THEIRS"))
print(sorted(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else "")
sys.stderr.write("said\\n")
sys.exit(7)
"""


def test_a_program_sees_and_says_what_it_does_without(capture, tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import os; os.environ['THEIRS'] = 'ran'")
    done = capture(NOTICES, PYTHONPATH=str(theirs))
    assert done.returncode == 7
    environment = os.environ | {"PYTHONPATH": str(theirs)}
    command = [sys.executable, str(tmp_path / "program.py")]
    alone = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env=environment, cwd=tmp_path
    )
    assert alone.returncode == 7, alone.stderr
    assert done.stdout == alone.stdout
    assert "ran" in alone.stdout
    said, summary = done.stderr.splitlines()
    assert said == "said"
    assert summary.startswith(str(tmp_path / "calls" / "suite.csv"))


def test_a_program_that_a_signal_ends_ends_the_command_so_too(capture):
    assert capture("import os, signal; os.kill(os.getpid(), signal.SIGKILL)").returncode == -signal.SIGKILL
    assert capture("import os, signal; os.kill(os.getpid(), signal.SIGTERM)").returncode == -signal.SIGTERM


COUNTS = """
import signal, time
received = []
signal.signal(signal.SIGINT, lambda *_: received.append(1))
print("on", flush=True)
end = time.monotonic() + 20
while not received and time.monotonic() < end:
    time.sleep(0.05)
time.sleep(0.5)
print("received", len(received), flush=True)
"""
UNDER_A_TERMINAL = [sys.executable, "-c", "import pty, sys; pty.spawn(sys.argv[1:])"]


@pytest.mark.parametrize("by_terminal", [False, True])
def test_an_interrupt_reaches_the_program_once_whoever_sends_it(by_terminal):
    command = [sys.executable, "-m", "tuner", "exec", "--adopt", "torch", "--", sys.executable, "-c", COUNTS]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*UNDER_A_TERMINAL * by_terminal, *command], start_new_session=True, **pipes) as process:
        assert process.stdout.readline().strip() == "on"
        if by_terminal:
            process.stdin.write("\x03")  # what a terminal makes a signal of, to all that run there
            process.stdin.flush()
        else:
            process.send_signal(signal.SIGINT)
        assert "received 1" in process.stdout.read()
    assert process.returncode == 0


KILLED = """
import sys, torch
for m in range(1, 21):
    for _ in range(5):
        torch.mm(torch.ones(m, 32, dtype=torch.bfloat16), torch.ones(64, 32, dtype=torch.bfloat16).t())
print("multiplied", flush=True)
sys.stdin.read()
"""


def test_what_was_recorded_by_a_killed_capture_of_a_killed_program_is_tuned(run, start, tmp_path):
    program, folder = tmp_path / "program.py", tmp_path / "calls"
    program.write_text(KILLED)
    process = start("-m", "tuner", "capture", "--out", folder, "--", sys.executable, program)
    assert process.stdout.readline() == "multiplied\n"
    process.kill()
    process.wait()
    assert not (folder / captured.SUITE).exists()
    before = contents(tmp_path)
    code, _, err = run("run", "--captured", folder, "--device", "interpreter", "--dry-run", "--db", tmp_path / "t.db")
    assert code == 0, err
    assert contents(tmp_path) == before, "a dry run writes nothing"
    (ladder,) = captured.problems(folder)
    assert isinstance(ladder, Ladder)
    assert str(ladder) == "matmul 1-20x64x32 bfloat16 nt"
    assert [row["count"] for row in rows(folder)] == [str(4 * 20)]


READ_AS_NOBODY = """
import os, sys
from pathlib import Path
from tuner.models import captured
if os.geteuid() == 0:
    os.setuid(65534)
print(*captured.problems(Path(sys.argv[1])))
"""


def test_a_folder_that_cannot_be_written_is_read(tmp_path):
    folder = tmp_path / "calls"
    folder.mkdir()
    Journal(str(folder), Product._fields).note(PRODUCT._replace(device="cuda"), 4)
    folder.chmod(0o555)
    for place in folder.parents:
        if place.stat().st_mode & 0o055 != 0o055:
            place.chmod(place.stat().st_mode | 0o055)  # pytest's folders are their owner's alone
    done = subprocess.run(
        [sys.executable, "-c", READ_AS_NOBODY, str(folder)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "matmul 4x64x32 bfloat16 nt\n"
    assert not (folder / captured.SUITE).exists()


def test_sigterm_goes_to_the_program(start, tmp_path):
    # A single wait could begin between a signal and its handler, and would never end.
    program = """if True:
        import signal, sys, time
        signal.signal(15, lambda *_: sys.exit(9))
        print("up", flush=True)
        while True:
            time.sleep(0.05)
    """
    process = start("-m", "tuner", "capture", "--out", tmp_path / "calls", "--", sys.executable, "-c", program)
    assert process.stdout.readline() == "up\n"
    process.terminate()
    assert process.wait(timeout=60) == 9


FULL = """
import sys, torch
print(torch.mm(torch.ones(2, 2), torch.ones(2, 2)).tolist())
torch.mm(torch.ones(3, 2), torch.ones(2, 2))
sys.exit(3)
"""


def test_a_full_disk_is_one_line_and_the_program_goes_on(capture):
    done = capture(FULL, under=["bash", "-c", 'ulimit -f 0; exec "$@"', "-"], PYTHONDONTWRITEBYTECODE="1")
    assert (done.returncode, done.stdout) == (3, "[[2.0, 2.0], [2.0, 2.0]]\n")
    (line,) = [line for line in done.stderr.splitlines() if "nothing more is recorded" in line]
    assert "cannot write into" in line


def test_a_folder_that_goes_away_is_one_line_and_the_program_goes_on(capture, tmp_path):
    gone = f"import shutil; shutil.rmtree({str(tmp_path / 'calls')!r})\n"
    done = capture(gone + FULL)
    assert (done.returncode, done.stdout) == (3, "[[2.0, 2.0], [2.0, 2.0]]\n")
    assert done.stderr.count("nothing more is recorded") == 1
    assert "Traceback" not in done.stderr


def test_a_torch_that_cannot_be_recorded_is_one_line_and_the_program_goes_on(capture, tmp_path):
    fake = tmp_path / "fake" / "torch"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text("from types import SimpleNamespace as N\nlibrary = N()")
    done = capture("import torch, sys; print(torch.library); sys.exit(4)", PYTHONPATH=str(fake.parent))
    assert (done.returncode, done.stdout) == (4, "namespace()\n")
    assert "this torch cannot be recorded (AttributeError" in done.stderr


def test_a_command_or_a_folder_that_cannot_be_is_one_line(run, tmp_path):
    code, said, err = run("capture", "--out", tmp_path / "calls", "--", "no-such-command")
    assert (code, said, err.count("\n")) == (127, "", 1)
    assert "cannot run no-such-command: there is no such command" in err
    assert not (tmp_path / "calls").exists()
    (tmp_path / "text").write_text("")
    code, said, err = run("capture", "--out", tmp_path / "calls", "--", tmp_path / "text")
    assert (code, err.count("\n")) == (126, 1)
    (tmp_path / "text").chmod(0o755)
    (tmp_path / "text").write_text("\0")
    code, said, err = run("capture", "--out", tmp_path / "calls", "--", tmp_path / "text")
    assert (code, err.count("\n")) == (126, 1)
    assert "it is no program (Exec format error)" in err
    for out in (tmp_path / "text", tmp_path / "text" / "below"):
        code, said, err = run("capture", "--out", out, "--", sys.executable, "-c", "print('ran')")
        assert (code, said, err.count("\n")) == (1, "", 1)
        assert "is not a folder: name a folder to write into" in err
    assert run("capture", "--out", tmp_path / "calls")[0] == 2
    for library in ("", "my lib", "fla,", "fla/"):
        code, said, err = run("capture", "--out", tmp_path / "calls", "--adopt", library, "--", sys.executable, "-V")
        assert (code, said) == (2, "")
        assert "is no name of a package: expected one as it is imported, such as fla" in err
    _, _, err = run("capture", "--out", tmp_path / "calls", "--adopt", "one,other", "--", sys.executable, "-V")
    assert "no autotuned kernel of one and other was recorded" in err


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
def test_a_folder_that_may_not_be_written_is_one_line_and_the_program_runs(tmp_path):
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    as_nobody = ["setpriv", "--reuid=65534", "--clear-groups"]
    if subprocess.run([*as_nobody, sys.executable, "-c", ""], capture_output=True, check=False, timeout=60).returncode:
        pytest.skip("needs a Python that other users may run")
    command = [sys.executable, "-m", "tuner", "capture", "--out", str(tmp_path / "calls"), "--", "sh", "-c", "exit 5"]
    done = subprocess.run([*as_nobody, *command], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 5, done.stderr
    assert done.stderr.startswith("tuner: nothing is recorded: cannot make the folder")
    assert done.stderr.count("\n") == 1


def test_a_folder_that_cannot_be_made_is_one_line_and_the_program_runs(run, tmp_path, monkeypatch):
    def refuse(folder):
        raise TableError(f"cannot make the folder {folder}: Permission denied: name another")

    monkeypatch.setattr("tuner.cli.capture.make_folder", refuse)
    code, _, err = run("capture", "--out", tmp_path / "calls", "--", "sh", "-c", "exit 5")
    said = f"cannot make the folder {tmp_path / 'calls'}: Permission denied: name another"
    assert (code, err) == (5, f"tuner: nothing is recorded: {said}\n")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "nothing was captured in"),
        ({"1.calls": '{"format": "other"}\n'}, "no journal of tuner capture"),
        ({"1.calls": "\x00\n"}, "no journal of tuner capture"),
        ({"1.calls": "HEAD[0,1,1]\n"}, "or a damaged one (KeyError"),
        ({"1.calls": 'HEAD["left out",null]\n'}, "or a damaged one (TypeError"),
        (
            {"1.calls": f"HEAD[0,1,1,{json.dumps(PRODUCT._replace(a_dtype=None))}]\n"},
            "(TypeError: no product: [",
        ),
        *(
            (
                {"1.calls": f"HEAD[0,1,1,{json.dumps(PRODUCT)}]\n{line}\n"},
                f"1.calls: no journal of tuner capture, or {said}",
            )
            for line, said in (
                ("[0,Infinity,1]", "a damaged one (TypeError: no call: [0, inf, 1]"),
                ("[0,-5,1]", "a damaged one (TypeError: no call: [0, -5, 1]"),
                ('["left out",1e999]', "a damaged one (OverflowError"),
                ("[" * 100_000, "a damaged one (ValueError: it is nested too deeply)"),
            )
        ),
        ({"1.calls": "HEAD"}, "no matrix product was captured in"),
        ({"1.calls": ""}, "no matrix product was captured in"),
        ({"suite.csv": "m,n\n"}, "missing k, dtype, layout"),
    ],
)
def test_a_folder_without_calls_is_one_line(files, words, run, tmp_path):
    head = json.dumps({"format": "triton-tuner calls", "version": 1, "fields": Product._fields}) + "\n"
    for name, text in files.items():
        (tmp_path / name).write_text(text.replace("HEAD", head))
    code, said, err = run("run", "--captured", tmp_path, "--device", "interpreter", "--dry-run")
    assert (code, said, err.count("\n")) == (1, "", 1)
    assert words in err


def test_a_journal_that_is_a_link_to_nothing_is_one_line(tmp_path):
    (tmp_path / "1.calls").symlink_to("gone")
    with pytest.raises(SuiteError, match=r"cannot read the journal .*1\.calls: No such file"):
        captured.write_suite(tmp_path)


def test_a_line_that_was_cut_short_is_no_call(tmp_path):
    Journal(str(tmp_path), Product._fields).note(PRODUCT, 4)
    (path,) = tmp_path.iterdir()
    with path.open("a") as file:
        file.write("[0,8,")
    assert captured.load(tmp_path).calls == {PRODUCT: {4: 1}}


def test_what_ran_on_the_cpu_is_left_out_where_a_gpu_was_used(tmp_path):
    journal = Journal(str(tmp_path), Product._fields)
    on_gpu = PRODUCT._replace(device="cuda", n=128)
    journal.note(PRODUCT, 4)
    assert list(captured.load(tmp_path).calls) == [PRODUCT]
    journal.note(on_gpu, 4)
    assert list(captured.load(tmp_path).calls) == [on_gpu]


def test_a_journal_is_bounded_and_says_what_it_left_out(tmp_path):
    journal = Journal(str(tmp_path), Product._fields)
    for m in range(1, 3000):
        journal.note(PRODUCT, m)
    for k in range(1, 2 * MAX_FAMILIES):
        journal.note(PRODUCT._replace(k=k, aligned=False), 1)
    journal.finish()
    found = captured.load(tmp_path)
    assert len(found.calls) == MAX_FAMILIES
    assert found.left_out == MAX_FAMILIES
    assert len(found.calls[PRODUCT]) <= MAX_MS + 31
    assert found.calls[PRODUCT].total() == 2999
    assert (min(found.calls[PRODUCT]), max(found.calls[PRODUCT])) == (1, 4096)


def test_what_is_recorded_while_the_suite_is_written_is_in_the_next_one(tmp_path, monkeypatch):
    journal, load = Journal(str(tmp_path), Product._fields), captured.load
    journal.note(PRODUCT, 4)
    (path,) = tmp_path.iterdir()
    os.utime(path, ns=(0, 0))

    def load_and_record(folder):
        found = load(folder)
        journal.note(PRODUCT._replace(n=128), 4)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(captured, "load", load_and_record)
        captured.write_suite(tmp_path)
    assert sorted(each.n for each in captured.problems(tmp_path)) == [64, 128]


def test_a_suite_that_somebody_edited_stays(tmp_path):
    Journal(str(tmp_path), Product._fields).note(PRODUCT, 4)
    captured.write_suite(tmp_path)
    text = (tmp_path / captured.SUITE).read_text().replace("4,64,32", "8,64,32")
    (tmp_path / captured.SUITE).write_text(text)
    captured.write_suite(tmp_path)  # as another capture does that records nothing
    assert captured.problems(tmp_path) == [Problem(8, 64, 32, dtype="bfloat16", layout="nt")]


def test_a_suite_that_somebody_edited_stays_when_more_is_recorded_and_a_line_says_how_to_have_it_anew(
    run, tmp_path, caplog
):
    folder, path = tmp_path / "my calls", tmp_path / "my calls" / captured.SUITE
    folder.mkdir()
    journal = Journal(str(folder), Product._fields)
    journal.note(PRODUCT, 4)
    captured.write_suite(folder)
    written = path.read_text()
    edited = written.replace("4,64,32", "8,64,32")
    assert edited != written
    path.write_text(edited)
    os.utime(path, ns=(0, 0))  # as an edit lies that is older than what was recorded since
    journal.note(PRODUCT._replace(n=128), 4)
    captured.write_suite(folder)
    assert [each.shape for each in captured.problems(folder)] == [(8, 64, 32)]
    dry = ["run", "--captured", folder, "--device", "interpreter", "--dry-run", "--db", tmp_path / "t.db"]
    caplog.clear()
    code, out, err = run(*dry)
    assert (code, "8x64x32" in out, "128" in out) == (0, True, False), err
    assert path.read_text() == edited
    (line,) = caplog.messages
    assert line.startswith(f"{path} was edited, so it stays without what was recorded since: ")
    subprocess.run(line.rpartition(": ")[2], shell=True, check=True)
    assert sorted(each.n for each in captured.problems(folder)) == [64, 128]
    assert (folder / "edited.csv").read_text() == edited
    path.write_text(edited)
    os.utime(path, ns=(0, 0))
    caplog.clear()
    code, out, err = run("capture", "--out", folder, "--", sys.executable, "-c", "pass")
    assert (code, err) == (0, f"{folder}: 2 families, 2 calls\n")  # the suite has one, and `tuner run` would tune that
    (line,) = caplog.messages
    assert line.endswith("edited1.csv'")


def test_a_suite_that_nobody_edited_has_what_is_recorded_since(tmp_path):
    journal = Journal(str(tmp_path), Product._fields)
    journal.note(PRODUCT, 4)
    captured.write_suite(tmp_path)
    os.utime(tmp_path / captured.SUITE, ns=(0, 0))
    journal.note(PRODUCT._replace(n=128), 4)
    before = contents(tmp_path)
    assert sorted(each.n for each in captured.problems(tmp_path, write=False)) == [64, 128]
    assert contents(tmp_path) == before
    assert sorted(each.n for each in captured.problems(tmp_path)) == [64, 128]
    assert (tmp_path / captured.SUITE).read_bytes() != before[tmp_path / captured.SUITE]


def views(rows, columns):
    """Matrices of all the ways in which one may lie in memory."""
    whole = torch.empty(rows, columns, dtype=torch.bfloat16)
    yield whole
    yield torch.empty(columns, rows, dtype=torch.bfloat16).t()
    yield torch.empty(rows, columns + 8, dtype=torch.bfloat16)[:, :columns]
    yield torch.empty(rows, columns + 1, dtype=torch.bfloat16)[:, :columns]
    yield torch.empty(rows * columns + 8, dtype=torch.bfloat16)[1 : rows * columns + 1].view(rows, columns)
    yield torch.empty(rows, 2 * columns, dtype=torch.bfloat16)[:, ::2]
    yield torch.empty(columns, dtype=torch.bfloat16).expand(rows, columns)


@pytest.mark.parametrize("shape", [(16, 24, 32), (1, 24, 32), (16, 1, 32), (16, 24, 1), (7, 9, 11)])
def test_a_recorded_product_is_the_problem_of_the_ops(shape):
    pytest.importorskip("triton", reason="Triton is not installed")
    from tuner.kernels.ops import bmm, grouped_mm, matmul
    from tuner.models.lines import problem

    m, n, k = shape
    kind = matmul._ProductOptions(False, "none", "default", "none", None)
    out = torch.empty(m, n, dtype=torch.bfloat16)
    for a in views(m, k):
        for b in views(k, n):
            product, found = describe("mm", (a, b), {}, out)
            # A weight in padded rows is a problem of its own, which torch's products are not told from others.
            expected = {**matmul._problem(a, b, out, kind).fields(), "extras": {}}
            assert problem(product, found) == Problem.from_fields(expected)
            batches = [each.expand(3, *each.shape).contiguous() for each in (a, b, out)]
            product, found = describe("bmm", batches[:2], {}, batches[2])
            assert problem(product, found) == bmm._problem(*batches, "none", "default")
            product, found = describe("_grouped_mm", (a, batches[1], None), {}, out)
            assert problem(product, found) == grouped_mm._problem(a, batches[1], out, "none", "default")


@pytest.mark.parametrize(
    ("added", "scaled", "epilogue"),
    [
        (torch.ones(24), {}, "bias"),
        (torch.ones(24).expand(16, 24), {}, "bias"),
        (torch.ones(24), {"beta": 2}, "none"),
        (torch.ones(24), {"alpha": 0.5}, "none"),
        (torch.ones(16, 24), {}, "none"),
        (torch.ones(16, 1), {}, "none"),
        (torch.ones(1), {}, "none"),
    ],
)
def test_what_is_added_is_a_bias_where_it_is_one_row_and_nothing_is_scaled(added, scaled, epilogue):
    a, b = torch.ones(16, 32), torch.ones(32, 24)
    product, _ = describe("addmm", (added, a, b), scaled, torch.addmm(added, a, b))
    assert product.epilogue == epilogue
    product, _ = describe("_addmm_activation", (added, a, b), {"use_gelu": True, **scaled}, torch.ones(16, 24))
    assert product.epilogue == ("bias+gelu" if epilogue == "bias" else "gelu")


@pytest.mark.parametrize(
    ("a_scales", "b_scales", "scaling"),
    [((), (), "scalar"), ((16, 1), (1, 384), "row"), ((16, 2), (2, 3), "block"), ((2, 3), (1,), None)],
)
def test_scales_are_told_by_their_sizes(a_scales, b_scales, scaling):
    a, b = torch.empty(16, 256, dtype=torch.float8_e4m3fn), torch.empty(384, 256, dtype=torch.float8_e4m3fn).t()
    scales, out = (torch.ones(a_scales), torch.ones(b_scales)), torch.empty(16, 384, dtype=torch.bfloat16)
    found = describe("_scaled_mm", (a, b, *scales), {}, out)
    assert (found and found[0].scaling) == scaling
    v2 = (a, b, [scales[0]], [0], [0], [scales[1]], [0], [0], None)
    assert describe("_scaled_mm_v2", v2, {}, out) == found


def test_the_startup_folder_holds_what_python_runs():
    assert (Path(startup.__file__).parent / "sitecustomize.py").exists()


def test_a_signal_that_comes_before_the_program_reaches_it():
    def environment():
        os.kill(os.getpid(), signal.SIGTERM)
        return os.environ

    assert program.run(("sleep", "20"), environment) == -signal.SIGTERM


def test_a_file_that_is_on_no_path_is_no_command(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").write_text("")
    for name, code, said in (
        ("notes", 127, "there is no such command"),
        ("./notes", 126, "it is no program (Permission denied)"),
        ("", 127, "there is no such command"),
    ):
        ended, _, err = run("capture", "--out", "calls", "--", name)
        assert (ended, said in err) == (code, True)


def test_an_option_of_the_program_is_none_of_tuners(run, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = run("capture", "--out", tmp_path / "file" / "calls", "--", "true", "--debug")
    assert (code, len(err.splitlines())) == (1, 1)
