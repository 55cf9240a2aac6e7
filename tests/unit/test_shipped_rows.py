"""What `benchmarks/fit/shipped.py` leaves out of the tables in the wheel."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.lookup import table

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def shipped(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS / "claims"))
    spec = importlib.util.spec_from_file_location("shipped_script", BENCHMARKS / "fit" / "shipped.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_rows_that_no_range_of_their_family_names_are_left_out_and_rows_without_a_family_stay(
    shipped, make_row, make_table, make_family, tmp_path
):
    served, checked, alone = make_row(64, 512, 256), make_row(48, 512, 256), make_row(48, 1024, 256)
    family = make_family(64, first=33, problem=served.problem)
    replace(make_table(served, checked, alone), families=(family,)).write(tmp_path)
    shipped.leave_out_what_serves_nothing(tmp_path)
    (path,) = tmp_path.glob("*.json")
    kept = table.load(path)
    assert {row.problem for row in kept.rows} == {served.problem, alone.problem}
    assert kept.families == (family,)


def test_rows_are_left_out_where_the_next_one_takes_hardly_longer_for_more_rows(
    shipped, make_row, make_table, make_family, tmp_path
):
    us = {64: 9.99, 80: 10.0, 96: 11.0, 112: 11.1, 128: 11.2, 144: 11.4, 160: 11.3}
    rows = [replace(make_row(m, 512, 256), median_us=each) for m, each in us.items()]
    family = make_family(*us, problem=rows[0].problem)
    replace(make_table(*rows), families=(family,)).write(tmp_path)
    (path,) = tmp_path.glob("*.json")
    shipped.leave_out_rows_that_gain_little(path, 0.02)
    kept = table.load(path)
    # 64 stays for its few rows, 80 since 96 takes a tenth longer, and 96 since 160, which is left, takes 2.7% longer.
    assert [row.problem.m for row in kept.rows] == [64, 80, 96, 160]
    (left,) = kept.families
    served = [(each.first_m, each.last_m, each.row_m) for each in left.ranges]
    assert served == [(1, 64, 64), (65, 80, 80), (81, 96, 96), (97, 160, 160)]
