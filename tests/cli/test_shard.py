"""`tuner run --shard`: parts that are tuned apart and merged are what one run gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tuner.cli import main
from tuner.store.store import Store

pytest.importorskip("triton")

NS = range(1, 8)
SUITE = "op,m,n,k,dtype,layout\n" + "".join(f"softmax,4,{64 * n},1,float16,nn\n" for n in NS)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Tune the suite with every config of its small spaces, under the interpreter; gives the report and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    Path("suite.csv").write_text(SUITE)

    def run(*options: str) -> tuple[list[dict[str, Any]], str]:
        words = ["run", "--suite", "suite.csv", "--device", "interpreter", "--strategy", "exhaustive", "--json"]
        with pytest.raises(SystemExit) as ended:
            main([*words, *options])
        out, err = capsys.readouterr()
        assert ended.value.code == 0, err
        return json.loads(out)["problems"], err

    return run


def trials(path) -> list[tuple[str, str]]:
    with Store.open(str(path), read_only=True) as store:
        return sorted((str(row.problem), str(row.config)) for row in store.trials())


@pytest.mark.long
def test_eight_shards_merged_have_the_trials_of_one_run_each_once(run, capsys):
    parts, empty = [], 0
    for number in range(1, 9):
        problems, err = run("--shard", f"{number}/8", "--db", f"{number}.db")
        parts += problems
        empty += err.count(f"shard {number}/8 has no part of 7 problems\n")
    assert (len(parts), empty) == (len(NS), 1)
    assert all(problem["winner"] for problem in parts)
    with pytest.raises(SystemExit) as ended:
        main(["merge", "all.db", *(f"{number}.db" for number in range(1, 9))])
    assert ended.value.code == 0, capsys.readouterr()
    capsys.readouterr()
    run("--db", "whole.db")
    assert trials("all.db") == trials("whole.db")
    with Store.open("all.db", read_only=True) as store:
        assert len(store.winners()) == len(NS)


@pytest.mark.parametrize("text", ["0/4", "5/4", "a/b", ""])
def test_what_is_no_shard_is_one_line_and_exit_2(text, capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        main(["run", "--shape", "16x16x16", "--shard", text, "--db", str(tmp_path / "no.db")])
    out, err = capsys.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (2, "", 1), err
    assert f"{text!r} is no shard: expected I/N with I from 1 to N, for instance --shard 3/8" in err
    assert not (tmp_path / "no.db").exists()


def test_a_shard_without_a_part_says_that_and_of_no_problem_that_it_lacks_a_winner(run, monkeypatch, capsys):
    monkeypatch.setenv("TUNER_DB", "empty.db")
    with pytest.raises(SystemExit) as ended:
        main(["run", "--suite", "demo", "--device", "interpreter", "--shard", "9/10"])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (0, "")
    assert "shard 9/10 has no part of 4 problems\n" in err
    assert "winner" not in err
