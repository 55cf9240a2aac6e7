"""`tuner diff`: tables against tables, databases against either."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import tuner
from tuner.hardware.device import KNOWN, Environment
from tuner.kernel.config import Config
from tuner.lookup.row import Row
from tuner.moe.layer import Layer
from tuner.problem.family import Check

H200, B200 = KNOWN["sm_90"], KNOWN["sm_100"]


@pytest.fixture
def write(tmp_path, make_table):
    def write(name: str, *rows: Row, **parts: object) -> Path:
        (tmp_path / name).mkdir(exist_ok=True)
        return make_table(*rows, **parts).write(tmp_path / name)

    return write


def elsewhere(row: Row, **parts: object) -> Row:
    environment = Environment("3.8.0", "2.14.0", "cuda 13.1", "590.1", "3.12.1")
    return dataclasses.replace(row, made=dataclasses.replace(row.made, environment=environment), **parts)


def test_equal_tables_exit_0(run, write, make_row):
    a, b = write("a", make_row(16), make_row(64)), write("b", make_row(64), make_row(16))
    code, out, err = run("diff", a, b)
    assert (code, out, err) == (0, f"matmul on {H200.slug}: equal\n", "")
    code, out, _ = run("diff", a, b, "--json")
    assert (code, json.loads(out)["equal"]) == (0, True)


def test_a_folder_of_compiled_kernels_alone_is_no_edition(run, write, make_row, tmp_path):
    """Two such folders were equal, whatever they held."""
    table = write("a", make_row(16))
    (tmp_path / "b" / "fla.kernels").mkdir(parents=True)
    for pair in ((tmp_path / "b", tmp_path / "b"), (table, tmp_path / "b")):
        code, out, err = run("diff", *pair)
        assert (code, out) == (2, "")
        assert err.startswith(f"tuner: {tmp_path / 'b'} holds compiled kernels alone: expected tables, named <op>--")


def test_a_database_is_compared_as_it_would_ship(run, write, make_row, make_database, tmp_path):
    third = dataclasses.replace(make_row(16), median_us=100 / 3, vs_default=1 / 3)
    database = make_database(tmp_path / "tuner.db", make_row(16, version=1, k=512), third, make_row(64))
    (tmp_path / "out").mkdir()
    assert run("export", tmp_path / "out", "--db", database)[0] == 0
    assert run("diff", database, tmp_path / "out")[0] == 0
    assert run("diff", next((tmp_path / "out").iterdir()), database)[0] == 0


def test_experts_which_no_export_ships_are_no_difference(run, write, make_row, make_database, tmp_path):
    experts = dataclasses.replace(make_row(16), problem=Layer(8, 256, 128, 2, "bf16").problem("vllm", 16, "both"))
    database = make_database(tmp_path / "tuner.db", make_row(16), experts)
    code, out, err = run("diff", write("a", make_row(16)), database)
    assert (code, out, err) == (0, f"matmul on {H200.slug}: equal\n", "")


@pytest.mark.parametrize("name", ["triton-tuner", "tuner.tables.shipped"])
def test_the_tables_of_an_installed_package_are_known_by_its_name(run, write, make_row, name):
    shipped = Path(tuner.__file__).parent / "tables" / "shipped"
    code, out, err = run("diff", name, shipped)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"{path.stem.replace('--', ' on ')}: equal" for path in sorted(shipped.glob("*--*.json"))
    ]
    code, out, _ = run("diff", write("a", make_row(16)), name)
    assert (code, " 1 only in A; " in out) == (1, True)


def test_every_kind_of_difference_is_listed_and_exits_1(run, write, make_row):
    changed = dataclasses.replace(make_row(32, block=64), median_us=10.0)
    again = dataclasses.replace(make_row(48), median_us=12.0)
    a = write("a", make_row(16), make_row(32), make_row(48), make_row(80), make_row(96))
    b = write("b", changed, again, elsewhere(make_row(80)), make_row(96), make_row(112))
    code, out, err = run("diff", a, b)
    assert (code, err) == (1, "")
    head, columns, *lines = out.splitlines()
    assert head.startswith(f"matmul on {H200.slug}: 1 only in A; 1 only in B; 3 changed, 1 of them in config; ")
    assert "B's configs are 1.250x as fast" in head
    assert columns.split() == ["problem", "differs", "A", "B", "worth"]
    found = {line.split()[1]: line.rstrip() for line in lines}
    assert set(found) == {"16x512x256", "32x512x256", "48x512x256", "80x512x256", "112x512x256"}
    assert "only in A" in found["16x512x256"]
    assert "only in B" in found["112x512x256"]
    assert "config, figures" in found["32x512x256"]
    assert found["32x512x256"].endswith("1.250x")
    assert "figures" in found["48x512x256"]
    assert found["48x512x256"].endswith("1.042x")
    assert "environment" in found["80x512x256"]
    assert "Triton 3.7.1" in found["80x512x256"]
    assert "Triton 3.8.0" in found["80x512x256"]
    assert found["80x512x256"].endswith("not comparable; vs default 1.250x -> 1.250x; vs vendor 0.950x -> 0.950x")


def test_times_of_two_environments_or_protocols_are_never_compared(run, write, make_row):
    moved = elsewhere(make_row(16, block=64), median_us=1.0, vs_default=None, vs_vendor=1.5)
    protocol = dataclasses.replace(make_row(32, block=64), made=dataclasses.replace(make_row().made, protocol=2))
    a, b = write("a", make_row(16), make_row(32)), write("b", moved, protocol)
    code, out, _ = run("diff", a, b, "--json")
    (table,) = json.loads(out)["tables"]
    assert code == 1
    assert [change["ratio"] for change in table["changed"]] == [None, None]
    assert table["gain"] is None
    assert "vs default 1.250x -> ?; vs vendor 0.950x -> 1.500x" in run("diff", a, b)[1]


def test_another_version_of_triton_tuner_does_not_keep_times_from_being_compared(run, write, make_row):
    newer = dataclasses.replace(make_row(16), made=dataclasses.replace(make_row().made, tool_version="9.9"))
    _, out, _ = run("diff", write("a", make_row(16)), write("b", newer), "--json")
    (change,) = json.loads(out)["tables"][0]["changed"]
    assert (change["differs"], change["ratio"]) == (["environment"], 1.0)


def test_a_kernels_version_is_named_and_that_of_another_kernel_is_not(run, write, make_row):
    other = Config("other", BLOCK_SIZE_M=32)
    a = write("a", make_row(16), make_row(32))
    b = write("b", make_row(16, version=2), make_row(32, config=other, version=7))
    _, out, _ = run("diff", a, b, "--json")
    changes = json.loads(out)["tables"][0]["changed"]
    assert [change["differs"] for change in changes] == [["kernel version"], ["config"]]
    assert math.isclose(changes[1]["ratio"], 1.0)


def test_a_device_that_only_one_has_is_all_new(run, write, make_row):
    write("a", make_row(16))
    write("b", make_row(16))
    b = write("b", make_row(16), make_row(32), device=B200)
    code, out, _ = run("diff", b.parent.parent / "a", b.parent, "--json")
    tables = {table["device"]: table for table in json.loads(out)["tables"]}
    assert code == 1
    assert tables[H200.slug]["equal"]
    assert tables[B200.slug]["digests"]["a"] is None
    assert [row["problem"]["m"] for row in tables[B200.slug]["only_in_b"]] == [16, 32]


def test_a_table_that_was_edited_says_so(run, write, make_row):
    a = write("a", make_row(16))
    edited = Path(str(a).replace("/a/", "/b/"))
    edited.parent.mkdir()
    edited.write_text(a.read_text().replace('"median_us": 12.5', '"median_us": 1.5'))
    code, _, err = run("diff", a, edited)
    assert code == 1
    assert "it was edited after" in err


@pytest.mark.parametrize("content", [None, "not a table", "folder"])
def test_what_cannot_be_read_exits_2_and_is_no_difference(run, write, make_row, tmp_path, content):
    path = tmp_path / "x.json"
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_text(content)
    for arguments in ((write("a", make_row(16)), path), (path, write("a", make_row(16)))):
        code, out, err = run("diff", *arguments)
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert "x.json" in err


def test_borders_that_moved_are_listed(run, write, make_row, make_family):
    rows = [make_row(m) for m in (16, 32, 64, 128)]
    a = write("a", *rows, families=(make_family(16, 64, 128),))
    b = write("b", *rows, families=(make_family(32, 64, 128),))
    code, out, _ = run("diff", a, b)
    assert code == 1
    head, _, line = out.splitlines()
    assert "1 family with other ranges or checks" in head
    assert line.split() == ["matmul", "Mx512x256", "float16", "nn", "ranges", "1-16,", "17-64", "1-32,", "33-64"]
    (found,) = json.loads(run("diff", a, b, "--json")[1])["tables"]
    assert found["moved"] == [
        {
            "family": "matmul Mx512x256 float16 nn",
            "a": [[1, 16, 16, "measured"], [17, 64, 64, "measured"]],
            "b": [[1, 32, 32, "measured"], [33, 64, 64, "measured"]],
            "checks": None,
        }
    ]
    assert run("diff", a, write("c", *rows))[1].splitlines()[-1].split()[-3:] == ["1-16,", "17-64,", "65-128"]


def test_what_a_family_lost_when_it_was_checked_is_a_difference_of_its_own(run, write, make_row, make_family):
    row, checks = make_row(64), [None, Check(3, 1.0021, 1.0449), Check(3, 1.00209, 1.0449)]
    a, b, c = (
        write(name, row, families=(make_family(64, check=check),)) for name, check in zip("abc", checks, strict=True)
    )
    code, out, _ = run("diff", a, b)
    head, _, line = out.splitlines()
    assert (code, "1 family with other ranges or checks" in head) == (1, True)
    assert line.split()[4:] == ["check", "none", "0.2%,", "at", "most", "4.5%"]
    (found,) = json.loads(run("diff", a, b, "--json")[1])["tables"]
    (moved,) = found["moved"]
    assert (moved["a"], moved["b"], moved["checks"]) == ([], [], [[None], [[3, 1.0021, 1.0449]]])
    assert run("diff", b, c)[1].splitlines()[0].endswith("equal"), "a table holds four digits"


def test_each_file_of_a_folder_that_was_edited_is_named_once(run, write, make_row):
    paths = [write("a", make_row(16), device=device) for device in (B200, H200)]
    for path in paths:
        path.write_text(path.read_text().replace('"ties": 2', '"ties": 3'))
    folder = paths[0].parent
    said = "its digest is not that of its rows: it was edited after `tuner export` wrote it"
    _, _, err = run("diff", folder, folder)
    assert err.splitlines() == 2 * [f"{path}: {said}" for path in sorted(paths)]


def test_two_tables_of_one_op_and_device_are_one_line_that_says_how_to_unite_them(run, write, make_row, tmp_path):
    one, other = write("a", make_row(16)), write("b", make_row(64))
    copy = one.with_name(f"matmul--of-monday--{H200.slug}.json")
    copy.write_text(other.read_text())
    for places in ((one.parent, other), (other, one.parent)):
        code, out, err = run("diff", *places)
        assert (code, out) == (2, "")
        assert err == (
            f"tuner: {one.parent} has two tables of matmul on {H200.slug}, {one.name} and {copy.name}: expected one: "
            f"delete the other, or unite them: tuner import {one.parent} --out DIR\n"
        )
    assert run("import", one.parent, "--out", tmp_path / "united")[0] == 0
    assert "1 only in B; 0 changed" in run("diff", one, tmp_path / "united")[1]


def test_a_command_without_db_does_not_advise_it_of_another_programs_database(write, make_row, tmp_path):
    table, foreign = write("a", make_row(16)), tmp_path / "foreign.db"
    with closing(sqlite3.connect(foreign)) as connection, connection:
        connection.execute("CREATE TABLE x (a)")
    commands = [(2, ["diff", table, foreign]), (1, ["verify", foreign])]
    if importlib.util.find_spec("triton"):
        commands.append((1, ["warm", foreign]))
    for code, command in commands:
        typed = [sys.executable, "-m", "tuner", *map(str, command)]
        done = subprocess.run(typed, check=False, capture_output=True, text=True, timeout=120)
        said = done.stdout + done.stderr
        assert (done.returncode, "it has the tables x): name another" in said) == (code, True), said
        assert "--db" not in said
