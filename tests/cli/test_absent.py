"""What a command names and is not there is one line, with the exit code that docs/cli.md says."""

from __future__ import annotations

import shlex

import pytest

from tuner.store.store import Store

pytest.importorskip("triton", reason="Triton is not installed: no kernel answers")

UNUSABLE, USAGE = 1, 2
COMMANDS = {
    "run --suite gone.csv --device interpreter --dry-run": UNUSABLE,
    "run --suite gone --device interpreter --dry-run": USAGE,
    "run --kernel matmul --suite gone.csv --device interpreter --dry-run": UNUSABLE,
    "run --kernel gone.py:kernel --problem N=1 --device interpreter --dry-run": UNUSABLE,
    "run --from-misses gone --device interpreter --dry-run": UNUSABLE,
    "run --captured gone --device interpreter --dry-run": UNUSABLE,
    "bench --suite gone.csv --device interpreter": UNUSABLE,
    "moe --experts 8 --hidden 64 --intermediate 64 --topk 2 --routing gone --for vllm --out out": USAGE,
    "moe --model gone.json --for vllm --out out": UNUSABLE,
    "model gone.json --out out.csv": UNUSABLE,
    "show winners --db gone.db": UNUSABLE,
    "show trials --db gone.db": UNUSABLE,
    "show runs --db gone.db": UNUSABLE,
    "show devices --db gone.db": UNUSABLE,
    "show problems --db gone.db": UNUSABLE,
    "lookup 64x512x256 --device sm_90 --db gone.db": UNUSABLE,
    "lookup --kernel gone.py:kernel --problem N=1 --device sm_90": UNUSABLE,
    "inspect gone.py:kernel --problem N=1": UNUSABLE,
    "export out --db gone.db": UNUSABLE,
    "export out --format sqlite --db gone.db": UNUSABLE,
    "export out --with-kernels --captured gone --db good.db": UNUSABLE,
    "export out --with-kernels --kernel gone.py:kernel --db good.db": UNUSABLE,
    "warm gone --device sm_90": UNUSABLE,
    "warm gone.db --device sm_90": UNUSABLE,
    "import gone --out out": UNUSABLE,
    "import tables --suite gone.csv --out out": UNUSABLE,
    "diff gone good.db": USAGE,
    "diff good.db gone.db": USAGE,
    "retime gone --device interpreter": UNUSABLE,
    "retime gone.db --device interpreter": UNUSABLE,
    "verify gone": USAGE,
    "verify gone.json": USAGE,
    "verify good.db gone.db": USAGE,
    "verify gone.db --regret --device interpreter": USAGE,
    "verify gone --invariance --device interpreter": USAGE,
    "verify good.db --kernel gone.py:kernel": UNUSABLE,
    "verify good.db --regret --suite gone.csv --device interpreter": UNUSABLE,
    "merge out.db gone.db": UNUSABLE,
    "db current --db gone.db": UNUSABLE,
    "db check --db gone.db": UNUSABLE,
    "db backup --db gone.db": UNUSABLE,
}


def test_a_place_that_is_not_there_is_one_line_of_every_command(
    tmp_path, monkeypatch, make_database, make_row, toy, no_tables, run
):
    monkeypatch.chdir(tmp_path)
    make_database(tmp_path / "good.db", make_row(64, 512, 256))
    assert run("export", "tables", "--db", "good.db")[0] == 0
    before = sorted(tmp_path.iterdir())
    for command, expected in COMMANDS.items():
        code, out, error = run(*command.split())
        assert (code, out) == (expected, ""), (command, out, error)
        (line,) = error.splitlines()
        assert line.startswith("tuner: "), command
        assert "gone" in line, (command, line)
        assert ": expected " in line or ": name " in line or "known are" in line or "`tuner run`" in line, line
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("command", "code", "noun"),
    [
        ("show winners", 0, "winner"),
        ("show trials", 0, "trial"),
        ("show runs", 0, "run"),
        ("show winners --device nvidia-h100", 2, "device"),
        ("export out", 1, "winner"),
        ("export out --format sqlite", 1, "winner"),
        ("report --out report.html", 1, "trial"),
    ],
)
def test_a_database_without_rows_is_told_alike_by_every_command_with_what_fills_it(
    command, code, noun, tmp_path, monkeypatch, run
):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my tuner.db"
    Store.open(path).close()
    typed = shlex.join(["tuner", "run", "--db", str(path)])
    said = f"{path} holds no {noun}: `{typed}` fills it\n"
    assert run(*command.split(), "--db", path) == (code, "", f"tuner: {said}" if code else said)
