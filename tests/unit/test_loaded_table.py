"""Tables as lookups read them: the same rows as a loaded of all, made when they are asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tuner
from tuner.errors import TableError
from tuner.hardware.device import KNOWN
from tuner.lookup import loaded_table, table, table_digest
from tuner.lookup.lookup import resolver
from tuner.lookup.row import Row
from tuner.problem import Problem

H200 = KNOWN["sm_90"]


@pytest.fixture(autouse=True, params=[loaded_table.LARGE, 0], ids=["json", "msgspec"])
def large(monkeypatch, request) -> int:
    """Every file is read both ways."""
    monkeypatch.setattr(loaded_table, "LARGE", request.param)
    return request.param


@pytest.fixture
def made(monkeypatch) -> list[object]:
    """The sizes of M of all rows that were made."""
    seen: list[object] = []
    make = Row.from_fields

    def counting(raw, *rest):
        seen.append(raw["m"])
        return make(raw, *rest)

    monkeypatch.setattr(Row, "from_fields", staticmethod(counting))
    return seen


@pytest.fixture
def signed(tmp_path):
    """A file of a text whose digest is made to fit."""

    def write(text: str) -> Path:
        head, date, rest = text.partition('\n  "date": "2026-01-31T12:00:00Z",')
        _, _, rest = rest.removeprefix("\n").partition("\n")
        path = tmp_path / "signed.json"
        path.write_text(table_digest.signed_text(f"{head}\n{rest}", "2026-02-01T00:00:00Z"))
        assert date
        assert table_digest.is_as_written(path.read_bytes())
        return path

    return write


def test_an_index_holds_what_a_reading_of_all_holds(tmp_path, make_row, make_table):
    odd = [
        {"kernel": 3},
        {"a": 1, "kernel": 3},
        {"a": '}, "kernel": "x', "z": True},
        {"word": "\N{DUCK}\\"},
        {"window": 1.5},
    ]
    rows = [make_row(m, n=n) for m in (1, 16, 17, 4096) for n in (512, 513)]
    rows += [make_row(64, extras=extras, layout="nt", epilogue="bias+gelu") for extras in odd]
    written = make_table(*rows)
    loaded = loaded_table.load(written.write(tmp_path))
    assert (loaded.device, loaded.count, loaded.faults) == (H200, len(rows), ())
    assert isinstance(loaded.rows, loaded_table.Mapping)
    assert not isinstance(loaded.rows, dict), "it was read whole"
    assert {problem: tuple(found) for problem, found in loaded.rows.items()} == {row.problem: (row,) for row in rows}
    assert Problem(64, 1024, 512) not in loaded.rows
    assert Problem(16, 512, 256, op="other") not in loaded.rows


def test_a_lookup_makes_the_rows_it_asks_for_and_no_others(
    tmp_path, toy, no_tables, make_row, make_table, make_family, made
):
    rows = [make_row(m, n=n) for m in (16, 32, 1024) for n in range(512, 640)]
    family = make_family(32, 1024, first=20, problem=Problem(1, 600, 256))
    tuner.use(make_table(*rows, families=(family,)).write(tmp_path))
    assert made == []
    assert tuner.lookup(Problem(32, 600, 256), H200).rule == "exact"
    assert made == [32]
    assert tuner.lookup(Problem(33, 600, 256), H200).rule == "family"
    assert tuner.lookup(Problem(17, 600, 256), H200).rule == "default"
    assert sorted(made) == [32, 1024]


@pytest.mark.parametrize("style", [{"indent": 2}, {"sort_keys": True}, {"separators": (",", ":")}, {"indent": 1}])
def test_a_file_that_another_program_wrote_anew_is_whole(tmp_path, make_row, make_table, style):
    written = make_table(make_row(16, extras={"window": 3, "causal": True}), make_row(64, epilogue="bias"))
    path = written.write(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()), **style))
    assert table.load(path).faults == loaded_table.load(path).faults == ()
    assert loaded_table.load(path).count == 2


def test_a_file_whose_date_alone_was_changed_is_whole(tmp_path, make_row, make_table):
    path = make_table(make_row(16)).write(tmp_path)
    path.write_text(path.read_text().replace("2026-01-31", "2027-01-31"))
    assert loaded_table.load(path).faults == table.load(path).faults == ()
    assert table.load(path).date.startswith("2027")


@pytest.mark.parametrize(
    ("old", "new"), [('"ties": 2', '"ties": 3'), ('"m": 16', '"m": 32'), ("sm_90", "sm_80"), ('"toy": 1', '"toy": 2')]
)
def test_a_file_with_one_letter_changed_is_told(tmp_path, make_row, make_table, old, new):
    path = make_table(make_row(16)).write(tmp_path)
    path.write_text(path.read_text().replace(old, new))
    for faults in (loaded_table.load(path).faults, table.load(path).faults):
        assert list(map(str, faults)) == [
            "its digest is not that of its rows: it was edited after `tuner export` wrote it"
        ]


def test_a_bad_row_under_a_digest_that_fits_costs_itself_and_one_warning(
    signed, toy, no_tables, make_row, make_table, caplog
):
    path = signed(make_table(*(make_row(m) for m in (16, 64, 256))).dumps().replace('"m": 64,', '"m": -64,'))
    assert [fault for fault in table.load(path).faults if str(fault).startswith("row 2 left out: M must be")]
    bad = signed(make_table(make_row(16), make_row(64)).dumps().replace('"BLOCK_SIZE_M": 32', '"BLOCK_SIZE_M": 3.5', 1))
    tuner.use(bad)
    for _ in range(2):
        assert tuner.lookup(Problem(64, 512, 256), H200).rule == "exact"
        assert tuner.lookup(Problem(16, 512, 256), H200).rule == "default"
    messages = [record.getMessage() for record in caplog.records if record.name == "tuner.lookup.sources"]
    assert len(messages) == 1
    assert "signed.json: row 1 left out: toy: BLOCK_SIZE_M must be" in messages[0]
    held = dict(loaded_table.load(bad).rows)
    assert {problem.m: len(rows) for problem, rows in held.items()} == {16: 0, 64: 1}
    assert tuner.digest(H200).startswith("sha256:")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('    {"m": 16,', '    {\n"m": 16,'),
        (', "kernel"', ',"kernel"'),
        ('    {"m": 16', '\t{"m": 16'),
        ('"3.11.7"', '"\N{DUCK}"'),
    ],
    ids=["lines", "spaces", "tabs", "letters"],
)
def test_a_file_that_a_stranger_signed_is_read_whole(signed, make_row, make_table, old, new):
    path = signed(make_table(make_row(16), make_row(64)).dumps().replace(old, new))
    rows = loaded_table.load(path).rows
    assert Problem(16, 512, 256) in rows
    assert Problem(64, 512, 256) in rows


def test_tables_of_several_ops_are_one_shelf(tmp_path, toy, no_tables, make_row, make_table):
    import dataclasses

    make_table(make_row(64)).write(tmp_path)
    other = dataclasses.replace(make_table(make_row(64, op="other"), make_row(128, op="other")), op="other")
    other.write(tmp_path)
    tuner.use(tmp_path)
    (winners, *_) = resolver().explanation(Problem(64, 512, 256), H200)[1]
    assert {problem.op for problem in winners.rows} == {"matmul", "other"}
    assert len(winners.rows) == 3
    assert winners.note == f"3 tuned problems for {H200.slug}"
    assert winners.rows.get(Problem(64, 512, 250)) is None


def test_a_large_file_as_it_was_written_needs_no_plain_json(tmp_path, large, make_row, make_table, monkeypatch):
    path = make_table(make_row(16, extras={"window": 3}), make_row(64)).write(tmp_path)
    plain: list[bytes] = []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda text: plain.append(text) or loads(text))
    loaded = loaded_table.load(path)
    assert bool(plain) == bool(large)
    assert loaded.rows == {row.problem: (row,) for row in table.load(path).rows}


@pytest.mark.parametrize("large", [0], indirect=True)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        *(
            ('"ties": 2', f'"ties": {value}')
            for value in ("NaN", "Infinity", "1e400", "9" * 30, "9" * 5000, "[" * 9999)
        ),
        *(('"layout": "nn"', f'"layout": {value}') for value in ('"\\ud800"', "[1]", "null", '"nt", "layout": "nn"')),
        *(('"extras": {}', f'"extras": {value}') for value in ('{"x": NaN}', '{"x": [1]}', "[]", "3", '{"x": 1e400}')),
        ('"ties": 2', '"ties": 2, "more": 1'),
        (', "ties": 2', ""),
        ('"m": 16, ', ""),
        ('"m": 16,', '"m": 64,'),
        ('"median_us": 12.5', '"median_us": -0.0'),
        ('"version": 2', '"version": 2.0'),
        *(
            ('"families": [\n\n  ]', f'"families": {value}')
            for value in ("null", "3", "[3]", "{}", '[{"ranges": []}]', "[" * 9999)
        ),
        ('"families": [\n\n  ]', '"old": []'),
        ('"op": "matmul"', '"op": "matmul", "note": "kept"'),
    ],
    ids=lambda text: text[:24],
)
def test_whatever_a_stranger_signed_is_read_alike_by_both(signed, make_row, make_table, monkeypatch, caplog, old, new):
    text = make_table(make_row(16), make_row(64)).dumps()
    assert old in text
    path = signed(text.replace(old, new, 1))

    def told() -> list[str]:
        caplog.clear()
        try:
            loaded = loaded_table.load(path)
            said = [
                f"{loaded.count} {[(each, loaded.rows.get(each)) for each in loaded.rows]}",
                *map(str, loaded.faults),
            ]
        except TableError as e:
            said = [str(e)]
        return said + caplog.messages

    here = told()
    monkeypatch.setattr(loaded_table, "LARGE", 10**9)
    assert told() == here
