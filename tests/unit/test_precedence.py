"""Whose formula answers first where nobody tuned: one table for `matmul`, which docs/kernels.md shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tuner
from tuner.hardware.device import INTERPRETER, KNOWN
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.kernels.space import precedence
from tuner.kernels.space.precedence import LAST, Line, always
from tuner.problem import Problem

pytest.importorskip("triton", reason="Triton is not installed: no kernel is registered")
H200 = KNOWN["sm_90"]
DOCS = Path(__file__).parents[2] / "docs" / "kernels.md"


def test_the_table_names_every_kernel_and_no_other():
    from tuner.kernels.gemm.precedence import TABLE

    assert {line.kernel for line in TABLE} == registry.of("matmul").keys()
    assert list(TABLE) == sorted(TABLE, key=lambda line: -line.precedence)


def test_the_docs_show_the_table():
    from tuner.kernels.gemm.precedence import TABLE

    rows = re.findall(r"(?m)^\| (\d) \| (`\w+`(?:, `\w+`)*) \|", DOCS.read_text())
    shown = {(int(rank), name.strip("`")) for rank, names in rows for name in names.split(", ")}
    assert shown == {(line.precedence, line.kernel) for line in TABLE} - {(0, "tma")}  # on the interpreter alone


def test_the_first_line_that_applies_counts_and_a_kernel_without_lines_has_0():
    table = (Line(2, "one", lambda problem, _device: problem.m == 1), Line(1, "one", always), Line(3, "two", always))
    few, many = Problem(1, 64, 64), Problem(64, 64, 64)
    assert [precedence.of(table, "one", problem, H200) for problem in (few, many)] == [2, 1]
    assert precedence.of(table[:1], "one", many, H200) == LAST
    assert precedence.of(table, "three", many, H200) == 0


@pytest.mark.parametrize(("op", "first"), [("matmul", "pointer"), ("bmm", "bmm_pointer")])
def test_kernels_that_load_through_pointers_come_first_on_the_interpreter(op, first):
    extras = {"batch": 2} if op == "bmm" else {}
    problem = Problem(64, 64, 64, dtype="fp16", op=op, extras=extras)
    assert registry.serving(problem, INTERPRETER)[0].name in (first, "block_scaled")


@pytest.mark.usefixtures("no_tables")
@pytest.mark.parametrize("m", [1023])
def test_a_row_whose_inner_kernel_is_gone_is_passed_over(make_row, make_table, tmp_path, m):
    tile = {"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_N_REST": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 8}
    config = Config("padded", **tile, INNER="composite_n", PAD="ab", num_stages=3, num_warps=8, launch_pdl=True)
    version = registry.find("matmul", "padded").version
    row = make_row(1023, 2047, 4093, config=config, version=version, dtype="bf16", layout="nt")
    tuner.use(make_table(row).write(tmp_path))
    problem = row.problem.with_shape(m, 2047, 4093)
    assert tuner.lookup(problem, H200).rule == "default"
    assert "refused by rule" in tuner.explain(problem, H200)
