"""Ranges of batches: how they are written, which rows serve them, and what happens to those that cannot be."""

from __future__ import annotations

import dataclasses
import json
import random
import shlex
from pathlib import Path

import pytest

import tuner
from tuner.errors import ProblemError, SuiteError
from tuner.hardware.device import KNOWN, Environment
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.lookup import advice, database, families, match_rules, table
from tuner.lookup.lookup import resolver
from tuner.lookup.row import Provenance, Row
from tuner.problem import Problem, batches, generic_key, suite, text
from tuner.problem.family import Family, Ladder, Range
from tuner.tables.diff import compare

pytest.importorskip("triton")
H200 = KNOWN["sm_90"]
MADE = Provenance(Environment("3.7.1", "2.13.0", "cuda 13.0", "", "3.11"), 1, "0.1.0")
TILE = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 1}
CONFIG = Config("bmm_pointer", **TILE, launch_pdl=False, num_stages=2, num_warps=4)
HEADER = "op,m,n,k,dtype,layout,batch\n"
GRID = {(1, 1): (16, 64), (2, 3): (64,), (4, 8): (8, 32, 64)}
"""The last Ms of the ranges of some batches."""

pytestmark = pytest.mark.usefixtures("no_tables")


def bmm(m: int, batch: int) -> Problem:
    return Problem(m, 512, 128, dtype="bf16", layout="nt", op="bmm", extras={"batch": batch})


def family(served: tuple[int, int], *lasts: int, batch: int | None = None) -> Family:
    spans = zip([1, *(last + 1 for last in lasts)], lasts, strict=False)
    ranges = tuple(Range(first, last, last, "measured") for first, last in spans)
    return Family(bmm(1, batch or served[1]), ranges, None, served)


def table_of(*tuned: Family) -> table.Table:
    rows = {each.at(held.row_m): None for each in tuned for held in each.ranges}
    made = tuple(Row(problem, CONFIG, 1, MADE, 10.0, 1.1, 1.0, 1) for problem in rows)
    return table.Table("bmm", H200, "2026-01-31T12:00:00Z", made, tuned)


@pytest.fixture
def grid(tmp_path) -> Path:
    path = table_of(*(family(*each) for each in ((served, *lasts) for served, lasts in GRID.items()))).write(tmp_path)
    tuner.use(path)
    return path


def row_of(m: int, batch: int) -> Problem | None:
    row = resolver().decide(bmm(m, batch), H200).row
    return row and row.problem


@pytest.fixture
def read(tmp_path):
    def read(rows: str) -> list[Problem | Ladder]:
        path = tmp_path / "suite.csv"
        path.write_text(HEADER + rows)
        return suite.load_with_ladders(path)

    return read


def test_a_range_of_batches_in_a_suite_is_a_ladder_at_each_of_its_rungs(read):
    ladders = read("bmm,1-512,512,128,bf16,nt,1-13")
    served = sorted(ladder.batches for ladder in ladders)
    assert served == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (7, 8), (9, 12), (13, 13)]
    assert {ladder.last_m for ladder in ladders} == {512}
    assert str(ladders[-1]) == "bmm 1-512x512x128 bfloat16 nt batch=9-12"
    in_full, learning = (next(one for one in ladders if one.taught is taught) for taught in (False, True))
    assert len(learning.rungs) < len(in_full.rungs)


def test_a_list_of_batches_is_as_many_problems_and_one_m_of_a_range_is_a_ladder_of_one_rung(read):
    assert read('bmm,"4,8",512,128,bf16,nt,"1,8"') == [bmm(m, batch) for batch in (1, 8) for m in (4, 8)]
    ladders = read("bmm,64,512,128,bf16,nt,3-4")
    assert [(ladder.first_m, ladder.rungs, ladder.batches) for ladder in ladders] == [
        (64, (bmm(64, 3),), (3, 3)),
        (64, (bmm(64, 4),), (4, 4)),
    ]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("bmm,1-64,512,128,bf16,nt,8-1", "line 2: batch 8-1 is a range that ends before it begins: write 1-8"),
        ("bmm,1-64,512,128,bf16,nt,0-8", "line 2: batch must be from 1 to"),
        ("bmm,1-64,512,128,bf16,nt,1-", "line 2: batch must be an integer, a range such as 1-512"),
        ("matmul,1-64,512,128,bf16,nt,1-8", "line 2: batch is for other ops than matmul"),
    ],
)
def test_batches_that_cannot_be_are_one_line(read, row, said):
    with pytest.raises(SuiteError, match=said) as raised:
        read(row)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("problem", "served", "said"),
    [
        (bmm(1, 8), (9, 8), "9-8 are no range"),
        (bmm(1, 8), (1, 9), "1-9 are served from below, by batch 8"),
        (bmm(1, 8), (0, 8), "batch must be from 1"),
        (Problem(1, 64, 64), (1, 8), "matmul has no batch"),
    ],
)
def test_a_family_of_batches_that_cannot_be_is_refused(problem, served, said):
    with pytest.raises(ProblemError, match=said):
        Family(problem, (Range(1, 8, 8, "measured"),), None, served)


def test_every_batch_and_m_of_the_ranges_is_served_by_the_row_above_and_no_other(grid):
    for batch in range(1, 11):
        held = next(((served, lasts) for served, lasts in GRID.items() if served[0] <= batch <= served[1]), None)
        for m in (1, 8, 9, 16, 17, 33, 64, 65):
            above = [last for last in held[1] if last >= m] if held else []
            assert row_of(m, batch) == (bmm(above[0], held[0][1]) if above else None)


def test_a_new_batch_of_a_known_range_decides_nothing_anew(grid, monkeypatch):
    assert tuner.lookup(bmm(40, 5), H200).rule == "family"
    monkeypatch.setattr(match_rules, "decide", None)
    assert {tuner.lookup(bmm(m, batch), H200).rule for m in range(33, 64) for batch in (4, 6, 7)} == {"family"}


def test_what_one_batch_gets_by_the_formula_is_no_answer_for_another(grid):
    formulas = {tuner.lookup(bmm(65, batch), H200).config for batch in (4, 4096)}
    assert {resolver().decide(bmm(65, batch), H200).match.config for batch in (4, 4096)} == formulas
    assert len(formulas) == 2


def test_a_batch_outside_is_one_warning_whose_command_tunes_a_range_that_holds_it(grid, caplog):
    for batch in range(9, 30):
        tuner.lookup(bmm(20, batch), H200)
    (record,) = caplog.records
    typed = shlex.split(record.getMessage().partition("to tune it: ")[2])
    assert typed[:5] == ["tuner", "run", "--kernel", "bmm", "--problem"]
    ladders = text.read_all("bmm", generic_key.cells(typed[5]))
    assert sorted(ladder.batches for ladder in ladders) == [(9, 9), (10, 12), (13, 16)]
    assert all(ladder.first_m == 1 and ladder.last_m == 512 for ladder in ladders)


def test_an_m_outside_of_known_batches_suggests_the_ms_that_are_missing(grid):
    typed = advice.command(bmm(100, 8), resolver().decide(bmm(100, 8), H200).untuned)
    (ladder, *_) = text.read_all("bmm", generic_key.cells(shlex.split(typed)[-1]))
    assert (ladder.first_m, ladder.last_m) == (65, 512)


def test_a_table_of_batches_is_read_back_as_it_was_written(grid):
    read = table.load(grid)
    assert (read.faults, {each.batches for each in read.families}) == ((), set(GRID))
    assert read.dumps() == grid.read_text()


def test_a_table_of_one_batch_is_written_as_before(tmp_path):
    written = table_of(dataclasses.replace(family((8, 8), 64), batches=None)).write(tmp_path).read_text()
    assert '"batches"' not in written


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"batches": [3, 2]}, "the batches 3-2 are no range"),
        ({"batches": [2, 5]}, "are served from below, by batch 3"),
        ({"batches": [1, 3]}, "the ranges 1-64 and 1-64 of one family overlap at batch 1"),
        ({"batches": ["2", 3]}, "batch must be an integer, got '2'"),
        ({"batches": [2]}, "batches must be two integers, got [2]"),
        ({"batches": 2}, "batches must be two integers, got 2"),
        ({"batches": None}, "batches must be two integers, got None"),
        ({"ranges": [[1, 8, 8, "measured"], [10, 64, 64, "measured"]]}, "1-8 and 10-64 leave a gap"),
        ({"ranges": [[1, 8, 8, "measured"], [8, 64, 64, "measured"]]}, "1-8 and 8-64 overlap"),
    ],
)
def test_a_family_edited_by_hand_is_one_fault_and_the_others_serve(grid, change, said, caplog):
    document = json.loads(grid.read_text())
    (edited,) = [each for each in document["families"] if each["extras"]["batch"] == 3]
    edited |= change
    grid.write_text(json.dumps(document))
    faults = [str(fault) for fault in table.load(grid).faults]
    assert [said in fault for fault in faults] == [False, True], faults
    tuner.use(None)
    tuner.use(grid)
    assert (row_of(20, 3), row_of(20, 5)) == (None, bmm(32, 8))
    (warned,) = caplog.records
    assert said in warned.getMessage()
    assert "\n" not in warned.getMessage()


def test_however_families_overlap_each_m_of_each_batch_of_any_is_served_once():
    chance = random.Random(5)
    for _ in range(100):
        layers = []
        for _ in range(chance.randint(1, 4)):
            last = chance.randint(1, 12)
            layers.append(family((chance.randint(1, last), last), *sorted(chance.sample(range(1, 20), 2))))
        tuned = families.ByKey(layers)[batches.split(bmm(1, 1))[0]]
        cut = table_of(*families.disjoint(layers))
        assert table.loads(cut.dumps(), "cut").faults == ()
        for m, batch in ((m, batch) for m in range(1, 21) for batch in range(1, 14)):
            holds = [each for each in layers if each.batches[0] <= batch <= each.batches[1] and m <= each.last_m]
            found = tuned.at(batch)
            place = None if found is None else found.place(m)
            assert (place is not None) == bool(holds)
            if place is not None:
                assert found.ranges[place].first_m <= m <= found.ranges[place].last_m
                assert families.batches_of(found.family(place)) in {each.batches for each in layers}


def test_other_batches_are_a_difference(grid):
    before = table.load(grid)
    changed = [
        dataclasses.replace(each, batches=(5, 8)) if each.batches == (4, 8) else each for each in before.families
    ]
    (difference,) = compare([before], [dataclasses.replace(before, families=tuple(changed))])
    assert [(each.family, len(each.before), len(each.after)) for each in difference.moved] == [
        ("bmm Mx512x128 bfloat16 nt batch=4-8", 3, 0),
        ("bmm Mx512x128 bfloat16 nt batch=5-8", 0, 3),
    ]


def test_databases_of_both_schemas_give_their_families():
    fixtures = Path(__file__).parents[1] / "store" / "fixtures"
    found = {name: database.read_winners(fixtures / f"{name}.db", H200.slug) for name in ("0003", "0004")}
    served = {name: sorted((str(each), each.batches) for each in read.families) for name, read in found.items()}
    decode = ("matmul 9-16x4096x4096 bfloat16 nt", None)
    assert served == {"0003": [decode], "0004": [("bmm 1-8x512x128 bfloat16 nt batch=5-8", (5, 8)), decode]}
    assert [read.faults for read in found.values()] == [(), ()]


def test_every_batch_of_a_range_launches_the_binary_that_ships_with_its_row():
    for spec in registry.of("bmm").values():
        for m in (1, 40, 64):
            tuned = bmm(m, 8)
            if spec.supports(tuned, H200) is None:
                config = spec.default_config(tuned, H200)
                assert {spec.compile_class(bmm(m, batch), config) for batch in (1, 2, 7, 8)} == {
                    spec.compile_class(tuned, config)
                }


def test_families_of_a_key_are_arranged_when_they_are_asked_for(monkeypatch, make_family):
    made, own = [], families.TunedBatches
    monkeypatch.setattr(families, "TunedBatches", lambda each: made.append(each) or own(each))
    problems = [Problem(64, n, 256) for n in (512, 1024)]
    tuned = families.ByKey([make_family(64, problem=each) for each in problems])
    keys = [batches.split(each)[0] for each in problems]
    assert (list(tuned), len(tuned), keys[1] in tuned, tuned.get("none"), made) == (keys, 2, True, None, [])
    assert tuned[keys[1]] is tuned[keys[1]]
    assert [each.problem.n for (each,) in made] == [1024]
