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
