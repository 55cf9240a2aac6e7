"""What is no regular file, or holds what nobody meant, is one line at once, whichever command or setting names it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import tuner
from tuner.cli import main
from tuner.errors import TunerError
from tuner.lookup.misses import Miss, Record
from tuner.tables.importing.candidates import Candidate, dumps

pytest.importorskip("triton", reason="Triton is not installed: no kernel answers")

COMMANDS = (
    "run --suite {bad} --device interpreter --dry-run",
    "run --kernel matmul --suite {bad} --device interpreter --dry-run",
    "run --suite {suite} --device interpreter --dry-run",
    "run --from-misses {bad} --device interpreter --dry-run",
    "run --shape 16x16x16 --device interpreter --dry-run --db {bad}",
    "run --kernel {bad}.py:kernel --device interpreter --dry-run --problem N=1",
    "bench --suite {bad} --device interpreter",
    "show winners --db {bad}",
    "export {out} --db {bad}",
    "export {out} --format sqlite --db {bad}",
    "import {bad} --out {out}",
    "import {vllm} --out {out}",
    "diff {bad} {good}",
    "verify {bad}",
    "merge {out}.db {bad}",
    "merge {bad} {good}",
    "db check --db {bad}",
    "db upgrade --db {bad}",
    "lookup 64x512x256 --device sm_90 --db {bad}",
)
EXPECTED = re.compile("symbolic links|is not there")
VLLM = "N=1536,K=7168,device_name=X,dtype=fp8_w8a8,block_shape=[128,128].json"


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.fixture
def at_once() -> Iterator[None]:
    """A command that waits for a file is interrupted, which is no answer."""

    def ring(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, ring)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def places(tmp_path, make_database, make_row) -> dict[str, Path]:
    suite = tmp_path / "sizes.csv"
    suite.write_text("m,n,k,dtype,layout\n16,16,16,float16,nn\n")
    good = make_database(tmp_path / "good.db", make_row(64, 512, 256))
    return {"bad": tmp_path / "bad", "good": good, "out": tmp_path / "out", "suite": suite, "vllm": tmp_path / VLLM}


@pytest.mark.parametrize("make", [fifo, device, loop])
def test_what_is_no_regular_file_is_one_line_of_every_command(make, places, toy, no_tables, at_once, capsys):
    bad = places["bad"]
    for path in (bad, bad.with_name("bad.py"), places["suite"].with_suffix(".candidates.json"), places["vllm"]):
        make(path)
    for command in COMMANDS:
        signal.alarm(30)
        with pytest.raises(SystemExit) as ended:
            main(command.format(**places).split())
        signal.alarm(0)
        error = capsys.readouterr().err
        if make is loop and "--dry-run" in command and ("{suite}" in command or "--db" in command):
            continue  # what may be missing is not there
        assert ended.value.code in (1, 2), (command, error)
        (line,) = [line for line in error.splitlines() if line.startswith("tuner: ")]
        assert "is no regular file" in line or (make is loop and EXPECTED.search(line)), (command, line)
        assert bad.is_symlink() or bad.is_fifo(), command


@pytest.mark.parametrize("make", [fifo, device, loop])
@pytest.mark.parametrize("variable", ["TUNER_TABLES", "TUNER_DB", "TUNER_MISSES"])
def test_what_is_no_regular_file_is_one_warning_of_a_lookup(
    variable, make, tmp_path, monkeypatch, toy, no_tables, at_once, caplog
):
    from tuner.lookup import miss_counts

    make(tmp_path / "bad")
    monkeypatch.setattr(miss_counts, "_looked", False)
    monkeypatch.setattr(miss_counts, "_recorder", None)
    monkeypatch.setenv(variable, str(tmp_path / "bad"))
    signal.alarm(30)
    tuner.lookup(tuner.Problem(64, 512, 256), tuner.device.KNOWN["sm_90"])
    (line,) = [line for line in caplog.messages if "bad" in line]
    assert "is no regular file" in line or (make is loop and "symbolic links" in line)


@pytest.mark.parametrize("make", [fifo, device, loop])
@pytest.mark.parametrize("take", [tuner.use, tuner.record_misses])
def test_what_is_no_regular_file_cannot_be_named(take, make, tmp_path, no_tables, at_once):
    make(tmp_path / "bad")
    signal.alarm(30)
    with pytest.raises(TunerError, match=r"is no regular file|symbolic links"):
        take(tmp_path / "bad")


@pytest.mark.parametrize("depth", [960, 100_000])
@pytest.mark.parametrize("inside", [False, True], ids=["the whole file", "a value in it"])
def test_deeply_nested_json_is_one_line_of_every_command(
    depth, inside, places, toy, make_row, make_table, make_database, no_tables, capsys, caplog
):
    nested, bad, row = "[" * depth + "]" * depth, places["bad"], make_row(64, 512, 256)
    table = make_table(row).write(bad.parent).read_text()
    record = Record({Miss(row.problem, "interpreter", "default", "3.7.1", "0.1.0"): 1}).dumps()
    candidate = Candidate(row.problem, row.config, "X", "")
    contents = {
        "diff {bad} {good}": table.replace('"extras": {}', f'"extras": {nested}'),
        "verify {bad}": table.replace("12.5", nested),
        "lookup 64x512x256 --device sm_90 --db {bad}": table.replace('"num_warps": 4', f'"num_warps": {nested}'),
        "run --from-misses {bad} --device interpreter --dry-run": record.replace('"extras": {}', f'"extras": {nested}'),
        "run --suite {suite} --device interpreter --dry-run": dumps([candidate]).replace("4", nested, 1),
        "import {vllm} --out {out}": f'{{"16": {nested}}}',
    }
    for command, content in contents.items():
        assert content.count(nested) == 1, command
        for path in (bad, places["suite"].with_suffix(".candidates.json"), places["vllm"]):
            path.write_text(content if inside else nested)
        with pytest.raises(SystemExit) as ended:
            main(command.format(**places).split())
        assert ended.value.code in (0, 1, 2), command
        assert max(map(len, [*capsys.readouterr().err.splitlines(), *caplog.messages]), default=0) < 1000, command


@pytest.mark.parametrize("depth", [960, 100_000])
@pytest.mark.parametrize("column", ["problem.extras", "config.parameters"])
def test_deeply_nested_json_in_a_database_is_one_line_of_every_command(column, depth, places, toy, no_tables, capsys):
    table, name = column.split(".")
    with closing(sqlite3.connect(places["good"])) as connection, connection:
        connection.execute(f"UPDATE {table} SET {name} = ?", ("[" * depth + "]" * depth,))
    for command in COMMANDS:
        if "--db {bad}" in command and "--dry-run" not in command:
            with pytest.raises(SystemExit) as ended:
                main(command.replace("bad", "good").format(**places).split())
            assert ended.value.code in (0, 1, 2), command
            assert max(map(len, capsys.readouterr().err.splitlines()), default=0) < 1000, command


@pytest.mark.parametrize("depth", [960, 100_000])
def test_a_deeply_nested_config_is_one_line(depth, toy, capsys):
    with pytest.raises(SystemExit) as ended:
        main(
            ["inspect", "toy", "--problem", "M=64,N=512,K=256", "--config", '{"a": ' + "[" * depth + "]" * depth + "}"]
        )
    assert ended.value.code == 2
    assert max(map(len, capsys.readouterr().err.splitlines())) < 1000


@pytest.mark.parametrize(
    "command",
    [
        "merge '' {good}",
        "merge {out}.db ''",
        "export '' --db {good}",
        "import {suite} --out ''",
        "import '' --out {out}",
        "db backup '' --db {good}",
        "diff '' {good}",
        "diff {good} ''",
        "verify ''",
        "inspect toy --problem M=16,N=16,K=16 --out ''",
        "bench --shape 16x16x16 --device interpreter --out ''",
        "run --from-misses '' --device interpreter --dry-run",
        "model '' --out {out}",
        "moe --model '' --for vllm --out {out}",
        "moe --routing '' --for vllm --out {out}",
    ],
)
def test_an_empty_name_is_neither_the_current_folder_nor_the_users_database(
    command, places, toy, tmp_path, monkeypatch, capsys
):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("TUNER_DB", str(tmp_path / "mine.db"))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command.format(**places)))
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert "is empty: expected a name" in line
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("command", "written"),
    [
        ("capture --out=~/calls -- true", "calls"),
        ("export --db {good} '~/tables'", "tables"),
        ("merge '~/both.db' {good}", "both.db"),
        ("run --dry-run --device interpreter --suite=~/read.csv", "read.csv"),
    ],
)
def test_a_leading_tilde_is_the_home_folder_which_shells_leave_in_an_option(
    command, written, places, toy, tmp_path, monkeypatch, capsys
):
    here, home = tmp_path / "here", tmp_path / "home"
    here.mkdir()
    home.mkdir()
    (home / "read.csv").write_text("m,n,k,dtype,layout\n16,16,16,fp16,nn\n")
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(home))
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command.format(**places)))
    assert ended.value.code == 0, capsys.readouterr().err
    assert (home / written).exists()
    assert list(here.iterdir()) == []


TYPE_ALL = """
import json, shlex, sys
from tuner.cli import main
for line in json.loads(sys.argv[1]):
    try:
        main([word.format(sys.argv[2]) for word in shlex.split(line)])
    except SystemExit as e:
        print(f"-> {e.code} {line}", file=sys.stderr)
"""


@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
@pytest.mark.long
def test_paths_that_cannot_be_encoded_are_read_written_and_printed(locale, tmp_path, make_database, make_row):
    folder = tmp_path / os.fsdecode(b"d\xff\xc3\xbc")
    folder.mkdir()
    make_database(tmp_path / "good.db", make_row(64, 512, 256)).rename(folder / "good.db")
    (folder / "sizes.csv").write_text("m,n,k,dtype,layout,group\n16,16,16,float16,nn,\N{DUCK}\n", encoding="utf-8")
    commands = [
        "run --suite {}/sizes.csv --device interpreter --dry-run --db {}/good.db",
        "show winners --db {}/good.db",
        "export {}/out --db {}/good.db",
        "export {}/out --db {}/good.db --json",
        "export {}/sqlite --db {}/good.db --format sqlite",
        "diff {}/out {}/sqlite/winners.db",
        "lookup 64x512x256 --device sm_90 --db {}/out",
        "lookup 64x512x256 --device sm_90 --db {}/good.db --json",
        "merge {}/other.db {}/good.db",
        "db backup {}/copy.db --db {}/good.db",
        "db check --db {}/copy.db",
        "show winners --db {}/absent.db",
    ]
    own = {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "TUNER_DB": str(folder / "absent.db")}
    program = [sys.executable, "-W", "ignore", "-c", TYPE_ALL, json.dumps(commands), str(folder)]
    done = subprocess.run(program, capture_output=True, check=False, env=os.environ | own, timeout=120)
    assert b"Traceback" not in done.stderr, done.stderr.decode(errors="replace")
    ended = re.findall(r"^-> (\d) (.*)$", done.stderr.decode(errors="replace"), re.MULTILINE)
    assert [command for _, command in ended] == commands
    assert [command for code, command in ended if code == "2" or (code == "1" and "lookup" not in command)] == [
        commands[-1]
    ]


@pytest.mark.parametrize("home", [None, "/dev/null"])
def test_without_a_home_that_can_be_written_lookups_answer_and_commands_say_what_to_type(home, tmp_path):
    commands = ["lookup 64x512x256 --device sm_90", "show winners", "run --shape 16x16x16 --device interpreter"]
    kept = {name: value for name, value in os.environ.items() if name not in ("HOME", "TUNER_DB", "XDG_DATA_HOME")}
    own = {"TUNER_TABLES": "~/tables:~nobody-of-this-name/tables"} | ({} if home is None else {"HOME": home})
    if not home:
        own["XDG_DATA_HOME"] = str(tmp_path)  # without $HOME, the user's home is the one of /etc/passwd
        commands.pop()
    program = [sys.executable, "-W", "ignore", "-c", TYPE_ALL, json.dumps(commands), ""]
    done = subprocess.run(program, capture_output=True, text=True, check=False, env=kept | own, timeout=120)
    assert "Traceback" not in done.stderr
    assert "rule default" in done.stdout
    assert re.findall(r"^-> (\d)", done.stderr, re.MULTILINE) == ["1"] * len(commands)
    assert len(re.findall(r"^tuner: .*--db or \$TUNER_DB", done.stderr, re.MULTILINE)) == len(commands) - 1
