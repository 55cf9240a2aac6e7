from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import tuner
from tuner.errors import TableError
from tuner.hardware.device import KNOWN, Environment
from tuner.kernel.config import Config
from tuner.lookup import large_table, loaded_table, table, table_digest
from tuner.lookup.row import Provenance
from tuner.problem import Problem
from tuner.problem.family import Check

H200 = KNOWN["sm_90"]
NEWER = Provenance(Environment("3.8.0", "2.14.0", "cuda 13.1", "590.1", "3.12.1"), 1, "0.2.0")


def edited(text: str, **changes) -> str:
    return json.dumps(json.loads(text) | changes)


def with_row(text: str, number: int = 0, **changes) -> str:
    document = json.loads(text)
    document["rows"][number] |= changes
    return json.dumps(document)


def test_a_written_table_reads_back_as_it_was(tmp_path, make_row, make_table):
    rows = (
        make_row(64, extras={"window": 3, "causal": True}),
        make_row(128, made=NEWER, dtype="e4m3", layout="nt", epilogue="bias+gelu", aligned=False),
    )
    written = make_table(*rows)
    path = written.write(tmp_path)
    assert path.name == "matmul--nvidia-h200-sm90-132.json"
    found = table.load(path)
    assert (found.op, found.device, found.date, found.faults) == ("matmul", written.device, written.date, ())
    assert set(found.rows) == set(rows)
    assert found.digest == written.digest
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]  # no temporary file is left


def test_a_ratio_that_four_digits_behind_the_point_do_not_show_is_read_back(make_row, make_table):
    """The interpreter takes minutes for what takes torch a millisecond."""
    text = make_table(dataclasses.replace(make_row(64), vs_default=0.33333, vs_vendor=2.5449e-6)).dumps()
    found = table.loads(text, "table")
    assert [(row.vs_default, row.vs_vendor) for row in found.rows] == [(0.3333, 2.5e-6)]
    assert (found.faults, found.dumps()) == ((), text)


def test_the_order_of_rows_and_the_date_change_neither_rows_nor_digest(make_row, make_table):
    rows = [make_row(m, made=made) for m, made in ((256, NEWER), (16, NEWER), (64, make_row().made))]
    one, other = make_table(*rows), dataclasses.replace(make_table(*reversed(rows)), date="2027-01-01T00:00:00Z")
    assert one.digest == other.digest
    assert one.dumps().replace(one.date, "") == other.dumps().replace(other.date, "")


def test_the_digest_changes_with_a_config(make_row, make_table):
    assert make_table(make_row(block=32)).digest != make_table(make_row(block=64)).digest


def test_each_row_is_one_line_and_neighbours_in_m_are_next_to_each_other(make_row, make_table):
    rows = [make_row(m, dtype=dtype) for m in (512, 16, 64) for dtype in ("fp16", "bf16")]
    lines = [line for line in make_table(*rows).dumps().splitlines() if line.startswith('    {"m"')]
    read = [json.loads(line.rstrip(",")) for line in lines]
    assert [(row["a_dtype"], row["m"]) for row in read] == [
        (dtype, m) for dtype in ("bfloat16", "float16") for m in (16, 64, 512)
    ]


def test_one_table_holds_one_version_of_a_kernel(make_row, make_table):
    with pytest.raises(TableError, match="toy in versions 1 and 2"):
        make_table(make_row(16), make_row(64, version=2)).dumps()


BAD_ROWS = {
    "a size that is no number": {"m": "many"},
    "a size of zero": {"n": 0},
    "a size that is a fraction": {"k": 16.5},
    "an unknown dtype": {"a_dtype": "float12"},
    "a dtype that is no word": {"a_dtype": 5},
    "an unknown layout": {"layout": ["nn"]},
    "alignment that is a word": {"aligned": "false"},
    "an unknown epilogue": {"epilogue": "dance"},
    "an unknown part of the problem": {"sparsity": "2:4"},
    "extras that are a list": {"extras": [1]},
    "a kernel without a version": {"kernel": "other"},
    "a kernel that is a list": {"kernel": []},
    "a config that is a word": {"config": "fast"},
    "a config with a fraction": {"config": {"BLOCK_SIZE_M": 1.5}},
    "a time that is not a number": {"median_us": float("nan")},
    "a time below zero": {"median_us": -1},
    "a time that nobody measured": {"median_us": 5e-324},
    "a ratio that is a word": {"vs_default": "twice"},
    "an environment beyond the list": {"environment": 7},
    "ties that are a word": {"ties": "two"},
}


@pytest.mark.parametrize("change", BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_a_bad_row_is_left_out_and_the_others_stay(change, make_row, make_table):
    text = make_table(make_row(16), make_row(64), make_row(128)).dumps()
    found = table.loads(with_row(text, 1, **change), "bad.json")
    assert [row.problem.m for row in found.rows] == [16, 128]
    assert [fault for fault in found.faults if "row 2 left out" in str(fault)]


@pytest.mark.parametrize("name", ["m", "a_dtype", "aligned", "precision", "config", "median_us", "kernel"])
def test_a_row_without_a_part_is_left_out_and_no_default_fills_in(name, make_row, make_table):
    document = json.loads(make_table(make_row(16), make_row(64)).dumps())
    del document["rows"][0][name]
    found = table.loads(json.dumps(document), "bad.json")
    assert [row.problem.m for row in found.rows] == [64]
    assert any(name in str(fault) for fault in found.faults)


@pytest.mark.parametrize("row", [None, 3, "row", [], ["m", 16]])
def test_a_row_that_is_no_object_is_left_out(row, make_row, make_table):
    document = json.loads(make_table(make_row(16)).dumps())
    document["rows"].append(row)
    found = table.loads(json.dumps(document), "bad.json")
    assert len(found.rows) == 1
    assert "row 2 left out" in str(found.faults[-1])


def test_a_problem_that_is_there_twice_counts_once(make_row, make_table):
    document = json.loads(make_table(make_row(16)).dumps())
    document["rows"] *= 2
    found = table.loads(json.dumps(document), "twice.json")
    assert len(found.rows) == 1
    assert "is there already" in str(found.faults[-1])


def test_a_table_edited_by_hand_is_used_and_says_so(make_row, make_table):
    found = table.loads(with_row(make_table(make_row(16)).dumps(), ties=1), "edited.json")
    assert len(found.rows) == 1
    assert "edited" in str(found.faults[0])


def test_families_are_written_one_a_line_and_read_back(make_row, make_table, make_family):
    check = Check(20, 1.0041, 1.03)
    found = (make_family(16, 64, check=check), make_family(512, first=100))
    written = make_table(*(make_row(m) for m in (16, 64, 512)), families=found)
    text = written.dumps()
    assert table.loads(text, "t.json") == written
    (line,) = (line for line in text.splitlines() if '"played"' in line)
    assert line.endswith(
        '"ranges": [[1, 16, 16, "measured"], [17, 64, 64, "measured"]], '
        '"check": {"played": 20, "geomean": 1.0041, "worst": 1.03}},'
    )
    assert '"m"' not in line
    assert dataclasses.replace(written, families=found[::-1]).dumps() == text


def first_version(text: str, style: dict[str, object] | None) -> str:
    """A table as the first version of the format has it, rewritten by another program where a style is given."""
    document = json.loads(text) | {"version": 1}
    for name in ("families", "date", "digest"):
        del document[name]
    signed = table_digest.signed_text(table_digest.unsigned_text(document), "2026-01-31T12:00:00Z")
    return signed if style is None else json.dumps(json.loads(signed), **style)


@pytest.mark.parametrize("style", [None, {"indent": 1}, {"sort_keys": True}])
def test_a_table_of_the_first_version_is_read(style, tmp_path, make_row, make_table):
    written = make_table(make_row(16), make_row(64, epilogue="bias"))
    path = tmp_path / written.file_name
    path.write_text(first_version(written.dumps(), style))
    found = table.load(path)
    assert found.faults == loaded_table.load(path).faults == ()
    assert set(found.rows) == set(written.rows)
    assert found.dumps() == written.dumps()
    path.write_text(path.read_text().replace('"ties": 2', '"ties": 3'))
    assert "edited" in str(table.load(path).faults[0])


def test_a_table_with_figures_that_nothing_reads_today_is_whole():
    path = Path(__file__).with_name("table_of_version_1.json")
    assert '"regret": {' in path.read_text()
    assert (table.load(path).faults, len(table.load(path).rows)) == ((), 2)
    assert large_table.decode(path.read_bytes()) is not None


BAD_FAMILIES = {
    "ranges that overlap": ({"ranges": [[1, 16, 9, "measured"], [16, 64, 64, "measured"]]}, "1-16 and 16-64 overlap"),
    "ranges that leave a gap": ({"ranges": [[1, 16, 16, "measured"], [32, 64, 64, "measured"]]}, "leave a gap"),
    "a range that is reversed": ({"ranges": [[16, 1, 1, "measured"]]}, "16-1 is empty"),
    "ranges in another order": ({"ranges": [[17, 64, 64, "measured"], [1, 16, 16, "measured"]]}, "overlap"),
    "a range of three parts": ({"ranges": [[1, 16, "measured"]]}, "not enough values"),
    "an M beyond 2^31": ({"ranges": [[1, 2**31, 2**31, "measured"]]}, "M must be from 1 to"),
    "an M of zero": ({"ranges": [[0, 64, 64, "measured"]]}, "M must be from 1 to"),
    "an M that is a fraction": ({"ranges": [[1, 16.0, 16.0, "measured"]]}, "M must be an integer, got 16.0"),
    "no range": ({"ranges": []}, "at least one range"),
    "ranges that are a word": ({"ranges": "1-64"}, ""),
    "another evidence": ({"ranges": [[1, 64, 64, "hoped"]]}, "unknown evidence 'hoped'"),
    "a part that problems lack": ({"sparsity": "2:4"}, "not a problem"),
    "a check of words": ({"check": {"played": "many", "geomean": 1, "worst": 1}}, "played must be"),
    "a check of less than nothing": ({"check": {"played": 3, "geomean": -1, "worst": 1}}, "geomean must be"),
    "a problem that cannot be": ({"layout": "xy"}, "unknown layout"),
}


@pytest.mark.parametrize(("change", "said"), BAD_FAMILIES.values(), ids=BAD_FAMILIES.keys())
def test_a_family_that_cannot_be_is_left_out_with_one_line_and_rows_and_other_families_stay(
    change, said, tmp_path, toy, no_tables, make_row, make_table, make_family, caplog
):
    other = make_family(64, problem=Problem(1, 1024, 256))
    rows = [make_row(16), make_row(64), make_row(64, n=1024)]
    document = json.loads(make_table(*rows, families=(make_family(16, 64), other)).dumps())
    (bad,) = (entry for entry in document["families"] if entry["n"] == 512)
    bad.update(change)
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(document))
    found = table.load(path)
    assert (len(found.rows), found.families) == (3, (other,))
    (fault,) = (fault for fault in found.faults if fault.check == "range")
    assert said in str(fault)
    assert "\n" not in str(fault)
    tuner.use(path)
    asked = {(16, 512): "exact", (15, 512): "default", (63, 1024): "family"}
    assert {shape: tuner.lookup(Problem(*shape, 256), H200).rule for shape in asked} == asked
    assert len([each for each in caplog.records if each.name == "tuner.lookup.sources"]) == 1


def test_two_families_that_share_an_m_are_one_and_a_line(make_row, make_table, make_family):
    rows = [make_row(m) for m in (16, 64, 512)]
    text = make_table(*rows, families=(make_family(16, 64), make_family(512, first=64))).dumps()
    found = table.loads(text, "t.json")
    assert found.families == (make_family(16, 64),)
    assert "the ranges 64-512 and 1-64 of one family overlap" in str(found.faults[-1])


def test_families_that_are_no_list_are_one_clear_error(make_row, make_table):
    for families in (5, None):
        with pytest.raises(TableError, match="not a table"):
            table.loads(edited(make_table(make_row()).dumps(), families=families), "broken.json")


def test_a_newer_format_is_refused(make_row, make_table):
    with pytest.raises(TableError, match=r"table format 3 is newer than this triton-tuner reads \(2\): upgrade"):
        table.loads(edited(make_table(make_row()).dumps(), version=3), "new.json")


BROKEN = {
    "not JSON": "{",
    "a list": "[]",
    "another kind of JSON": '{"format": "other"}',
    "an endless list": "[" * 100_000,
    "no device": '{"format": "triton-tuner table", "version": 1}',
    "a version that is a word": '{"format": "triton-tuner table", "version": "1"}',
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_a_file_that_is_no_table_is_one_clear_error(text):
    with pytest.raises(TableError, match=r"broken\.json: .*"):
        table.loads(text, "broken.json")


@pytest.mark.parametrize("changes", [{"device": 5}, {"rows": 5}, {"environments": 5}, {"kernels": "toy"}])
def test_a_header_that_cannot_be_read_is_one_clear_error(changes, make_row, make_table):
    with pytest.raises(TableError, match="not a table"):
        table.loads(edited(make_table(make_row()).dumps(), **changes), "broken.json")


def test_binary_and_missing_files_are_clear_errors(tmp_path):
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty.json").touch()
    for name, words in (
        ("binary.json", r"not text \(invalid start byte\): name another, or export it again"),
        ("empty.json", "it is empty: name another, or export it again"),
        ("missing.json", "cannot read the table"),
        ("", "cannot read the table"),
    ):
        with pytest.raises(TableError, match=words):
            table.load(tmp_path / name)


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path, make_row, make_table):
    with pytest.raises(TableError, match="cannot write"):
        make_table(make_row()).write(tmp_path / "missing")


def test_a_row_keeps_its_config_exactly(make_row, make_table):
    config = Config("toy", BLOCK_SIZE_M=64, num_warps=8, kind="fast", flatten=True)
    (row,) = table.loads(make_table(make_row(config=config)).dumps(), "t.json").rows
    assert row.config == config
    assert row.config["flatten"] is True


def test_an_environment_that_cannot_be_read_costs_only_the_rows_that_name_it(make_row, make_table, tmp_path):
    other = dataclasses.replace(make_row().made, tool_version="0.2.0")
    document = json.loads(make_table(make_row(64), make_row(128, made=other)).dumps())
    del document["environments"][1]["triton"]
    path = tmp_path / "matmul--nvidia-h200-sm90-132.json"
    path.write_text(json.dumps(document))
    found = table.load(path)
    assert [row.problem.m for row in found.rows] == [64]
    assert any(
        "row 2 left out: its environment, 1 of the file's, cannot be read: 'triton' is missing" in str(fault)
        for fault in found.faults
    )
