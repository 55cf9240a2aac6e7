"""`tuner report` as a file: what it says, what it refuses, and that its rows alone decide its bytes."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.kernel.config import Config
from tuner.problem.family import Check, Family, Range
from tuner.store import schema
from tuner.store.merge import merge
from tuner.store.records import KernelVersion, Outcome, State, Trial, Verdict
from tuner.store.store import Store
from tuner.tables.diff import load

pytest.importorskip("vl_convert", reason="vl-convert is not installed (pip install 'triton-tuner[report]')")


@pytest.fixture
def write(run, tmp_path):
    """Write a report and return what its page is given."""

    def write(database: Path, *options: object, said: str = "") -> dict:
        out = tmp_path / "report.html"
        code, stdout, stderr = run("report", "--db", database, "--out", out, *options)
        assert (code, stdout, stderr) == (0, "", f"{said}wrote {out}\n")
        return document(out)

    return write


def document(page: Path) -> dict:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    return json.loads(text)


def test_the_same_rows_give_the_same_bytes_also_in_a_merged_database(run, database, make_database, tmp_path):
    before = make_database(tmp_path / "before.db", slower=0.9)
    merge(str(tmp_path / "merged.db"), [str(before), str(database)])
    merge(str(tmp_path / "again.db"), [str(tmp_path / "merged.db")])
    for name in ("merged", "again"):
        assert run("report", "--db", tmp_path / f"{name}.db", "--out", tmp_path / f"{name}.html")[0] == 0
    assert (tmp_path / "merged.html").read_bytes() == (tmp_path / "again.html").read_bytes()


def test_the_document_holds_searches_families_and_failures_of_every_trial(write, database):
    shown = write(database)
    (place,) = shown["places"]
    assert (place["trials"], place["problems"], place["failed"]) == (25, 6, 7)
    alone = [search for search in shown["searches"] if shown["problems"][search["problem"]]["k"] == 1024]
    assert [(search["raced"], search["trials"], search["exhaustive_us"]) for search in alone] == [(4, 7, 9.25)]
    # The second of the race's four failed, the fourth was no better than the third.
    assert [(number, us) for number, us, _ in alone[0]["best"]] == [(1, 34.0), (3, 16.0)]
    (family,) = shown["families"]
    assert [(row["first"], row["last"], row["evidence"]) for row in family["ranges"]] == [
        (1, 16, "measured"),
        (17, 256, "estimated"),
    ]
    assert [rung["m"] for rung in family["rungs"]] == [1, 16, 64, 256]
    counted = {(row["kernel"], row["state"]): row["count"] for row in shown["failures"]}
    assert counted["tma", "COMPILE_ERROR"] == 5
    assert counted["tma", "TIMEOUT"] == 2
    assert shown["shown"] is None


def test_a_family_has_the_ranges_of_all_its_ladders_as_lookups_serve_them(write, make_database, tmp_path):
    path = make_database(tmp_path / "tuner.db")
    with Store.open(path) as store:
        (older,) = store.families()
        problem, config = older.family.at(1024), Config("tma", BLOCK_SIZE_M=128, num_warps=4)
        kernel, outcome = KernelVersion("matmul", "tma", 1, "a0"), Outcome(State.COMPLETE, "", 50.0, 50.0, 50.0)
        run = store.begin_run(older.device, older.environment, argv=["tuner", "run"], host="here")
        store.record(run, [Trial(problem, config, kernel, outcome)])
        store.decide(run, problem, kernel, Verdict(config, 50.0, 60.0, 70.0, (config,)))
        later = (Range(9, 16, 16, "measured"), Range(17, 64, 64, "measured")), (Range(512, 1024, 1024, "measured"),)
        for ranges, check in zip(later, (None, Check(30, 1.01, 1.02)), strict=True):
            store.record_family(run, Family(older.family.problem, ranges, check))
    (family,) = write(path)["families"]
    shown = [(row["first"], row["last"], row["evidence"]) for row in family["ranges"]]
    assert shown == [
        *((1, 8, "measured"), (9, 16, "measured"), (17, 64, "measured")),
        *((65, 256, "estimated"), (512, 1024, "measured")),
    ]
    (exported,) = (table for table in load(str(path), pytest.fail) if table.op == "matmul")
    assert shown == [(each.first_m, each.last_m, each.evidence) for part in exported.families for each in part.ranges]
    assert family["check"] == {"played": 40, "geomean": 1.0085, "worst": 1.031}


def test_a_suite_and_a_device_choose_what_is_shown(write, database, make_database, tmp_path):
    (tmp_path / "mine.csv").write_text("m,n,k,dtype,layout\n16-64,6144,4096,bf16,nt\n")
    shown = write(database, "--suite", tmp_path / "mine.csv")
    assert [problem["m"] for problem in shown["problems"]] == [16, 64]

    both = make_database(tmp_path / "both.db", device=replace_slug("nvidia-h200-sm90-132"))
    make_database(both, device=replace_slug("nvidia-h100-sm90-114"))
    assert [place["slug"] for place in write(both)["places"]] == ["nvidia-h100-sm90-114", "nvidia-h200-sm90-132"]
    assert [place["slug"] for place in write(both, "--device", "nvidia-h100-sm90-114")["places"]] == [
        "nvidia-h100-sm90-114"
    ]


def replace_slug(slug: str):
    from tuner.hardware.device import KNOWN

    return replace(KNOWN["sm_90"], slug=slug)


def test_times_are_compared_only_where_versions_and_protocol_agree(
    write, run, database, make_database, tmp_path, install
):
    from tuner.hardware.device import Environment

    before = make_database(tmp_path / "before.db", slower=0.5)
    compared = write(database, "--against", before)["against"]
    assert len(compared["changes"]) == 5
    assert {change["ratio"] for change in compared["changes"]} == {0.5}
    assert (compared["name"], compared["same"], compared["other_versions"]) == ("before.db", 0, 0)

    older = make_database(tmp_path / "older.db", slower=0.5, environment=Environment("3.6.0", "2.11.0", "", "", ""))
    why = "what both hold was measured under other versions or another protocol"
    said = f"nothing can be compared with {older}: {why}\n"
    compared = write(database, "--against", older, said=said)["against"]
    assert (compared["changes"], compared["other_versions"], compared["nothing"]) == ([], 5, why)

    install()  # no kernel: winners of any version are exported
    assert run("export", tmp_path / "tables", "--db", database)[0] == 0
    compared = write(database, "--against", tmp_path / "tables")["against"]
    assert (compared["changes"], compared["same"], compared["nothing"]) == ([], 5, "")
    said = f"nothing can be compared with triton-tuner: {why}\n"
    assert write(database, "--against", "triton-tuner", said=said)["against"]["name"] == "triton-tuner"


def test_why_nothing_can_be_compared_is_said_where_devices_or_problems_differ(
    write, database, make_database, make_row, make_table, tmp_path
):
    other = make_database(tmp_path / "other.db", device=replace_slug("nvidia-h100-sm90-114"))
    why = "it holds winners of nvidia-h100-sm90-114, this report those of nvidia-h200-sm90-132"
    shown = write(database, "--against", other, said=f"nothing can be compared with {other}: {why}\n")
    assert shown["against"]["nothing"] == why
    table = make_table(make_row(7)).write(tmp_path)
    why = "no problem has a winner in both"
    shown = write(database, "--against", table, said=f"nothing can be compared with {table}: {why}\n")
    assert shown["against"]["nothing"] == why


@pytest.mark.long
def test_beyond_twenty_thousand_trials_a_sample_is_shown_with_all_that_won(write, make_database, tmp_path):
    database = make_database(tmp_path / "large.db")
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("PRAGMA foreign_keys = ON")
        problems = [key for (key,) in connection.execute("SELECT problem_id FROM problem ORDER BY 1")]
        (kernel,) = connection.execute("SELECT kernel_id FROM kernel WHERE name = 'pointer'").fetchone()
        for number in range(5000):
            parameters = json.dumps({"BLOCK_SIZE_M": number})
            row = (kernel, parameters, f"made {number}")
            key = connection.execute("INSERT INTO config (kernel_id, parameters, hash) VALUES (?, ?, ?)", row).lastrowid
            connection.executemany(
                "INSERT INTO trial (run_id, problem_id, config_id, state, median_us, samples, message, measured_at)"
                " VALUES (2, ?, ?, 'COMPLETE', 99, 1, '', '2026-01-31T12:00:00Z')",
                [(problem, key) for problem in problems[:5]],
            )
    shown = write(database)
    assert shown["shown"] == [20_000, 25_025, 20_000]
    assert len(shown["trials"]["us"]) == 20_000
    for winner in shown["winners"]:
        kept = {
            config
            for problem, config in zip(shown["trials"]["problem"], shown["trials"]["config"], strict=True)
            if problem == winner["problem"]
        }
        assert {winner["config"], *winner["tied"]} <= kept
        assert len(kept) > 3000
    assert shown["places"][0]["trials"] == 25_025


def test_a_run_that_is_damaged_costs_its_trials_and_not_the_report(run, make_database, tmp_path):
    database = make_database(tmp_path / "damaged.db")
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE run SET argv = 'no list' WHERE run_id = 1")
    out = tmp_path / "report.html"
    assert run("report", "--db", database, "--out", out)[0] == 0
    assert document(out)["places"][0]["trials"] == 22
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE run SET argv = 'no list'")
    code, _, error = run("report", "--db", database, "--out", tmp_path / "none.html")
    assert code == 1
    assert "holds no trial that can be read" in error.splitlines()[-1]
    assert not (tmp_path / "none.html").exists()


def empty(path: Path) -> None:
    path.touch()


def of_no_trials(path: Path) -> None:
    schema.upgrade(str(path))


def of_another_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE photos (name TEXT)")


def a_text(path: Path) -> None:
    path.write_text("not a database, but long enough to be taken for one\n" * 40)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (None, "nowhere"),
        (empty, "is empty: `tuner run --db"),
        (of_no_trials, "holds no trial: `tuner run --db"),
        (of_another_program, "db.db"),
        (a_text, "not a SQLite database: name another with --db or $TUNER_DB"),
    ],
)
def test_what_is_no_database_with_trials_is_one_line_and_no_file(run, tmp_path, make, message):
    database = tmp_path / ("nowhere.db" if make is None else "db.db")
    if make is not None:
        make(database)
    before = database.read_bytes() if make else None
    code, out, error = run("report", "--db", database, "--out", tmp_path / "r.html")
    assert (code, out, error.count("\n")) == (1, "", 1)
    assert message in error
    assert not (tmp_path / "r.html").exists()
    assert (database.read_bytes() if database.exists() else None) == before


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--against", "link.db"], 2, "--against link.db is the database of the report itself: name another"),
        (["--against", "nowhere.db"], 1, "nowhere.db is not there: expected a table, a folder of tables, a package"),
        (["--against", "no_winners.db"], 1, "no_winners.db holds no winner to compare with"),
        (["--out", "no/folder/r.html"], 1, "there is no folder no/folder: make it"),
        (["--out", "folder"], 1, "folder is a folder: name a file in it, folder/report.html for instance"),
        (["--out", "tuner.db"], 2, "--out tuner.db is what the report reads: name another file"),
        (["--out", "old.db"], 2, "--out old.db is there and is no HTML: name another file, report.html for instance"),
        (["--out", "link.html"], 2, "suite.csv, which is no HTML: name another file, report.html for instance"),
        (["--against", "old.db", "--out", "old.db"], 2, "--out old.db is what the report reads"),
        (["--out", ""], 2, "it is empty: expected a name"),
        (["--device", "h100"], 2, "no device 'h100' in tuner.db: known are nvidia-h200-sm90-132"),
        (
            ["--suite", "demo"],
            2,
            "tuner.db holds no trial of the suite demo: `tuner show problems` lists what it holds",
        ),
        (["--suite", "dmeo"], 2, "unknown suite 'dmeo'"),
    ],
)
def test_bad_input_is_one_line_and_leaves_every_file(
    run, database, make_database, tmp_path, monkeypatch, options, code, message
):
    monkeypatch.chdir(tmp_path)
    Path("tuner.db").write_bytes(database.read_bytes())
    Path("link.db").symlink_to("tuner.db")
    make_database(Path("old.db"))
    Path("suite.csv").write_text("m,n,k\n16,16,16\n")
    Path("link.html").symlink_to("suite.csv")
    with Store.open("no_winners.db"):
        pass
    Path("folder").mkdir()
    Path("r.html").write_text("an earlier report")
    before = {path: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    given = ["--out", "r.html", *options] if "--out" not in options else options
    ended, out, error = run("report", "--db", "tuner.db", *given)
    assert (ended, out) == (code, ""), error
    assert message in error.splitlines()[-1]
    assert "Traceback" not in error
    assert {path: path.read_bytes() for path in Path().iterdir() if path.is_file()} == before


def test_without_vl_convert_one_line_says_what_to_install(run, database, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "vl_convert", None)
    code, _, error = run("report", "--db", database, "--out", tmp_path / "r.html")
    assert code == 1
    assert "pip install 'triton-tuner[report]'" in error
    assert error.count("\n") == 1


def test_every_chart_draws_without_a_browser_too():
    from tuner.report.charts import charts
    from tuner.report.vega import png

    for chart in charts(["pointer"]).values():
        named = set(re.findall(r'"data": \{"name": "(\w+)"\}', json.dumps(chart)))
        sized = {} if "facet" in chart else {"width": 400}
        assert png({**chart, **sized, "datasets": {name: [] for name in named}}).startswith(b"\x89PNG")
