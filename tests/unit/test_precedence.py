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


@pytest.mark.parametrize(
    ("shape", "options", "kernel"),
    [
        # 0.55 and 0.57 of the time of `simt` (benchmarks/results/even-splits-first-h200.json, even-splits-h200.json).
        ((16, 21, 11926), {}, "split_k"),
        ((22, 12, 8175), {}, "split_k"),
        # There `simt` takes 0.57 and 0.42 of its time, and is estimated to take as long and 0.90 of it.
        ((73, 23, 34445), {}, "simt"),
        ((13, 336, 8256), {}, "simt"),
        ((32, 64, 6816), {}, "split_k"),
        ((33, 64, 6816), {}, "simt"),  # more than 2,048 sums
        ((22, 12, 8175), {"invariant": True}, "simt"),
    ],
    ids=str,
)
def test_tiny_outputs_of_float32_are_summed_by_split_k_where_it_is_estimated_faster(shape, options, kernel):
    problem = Problem(*shape, dtype="fp32", layout="nt", **options)
    assert registry.default_config(problem, H200).kernel == kernel
    assert registry.default_config(problem, KNOWN["sm_80"]).kernel == "simt"  # nobody timed others


@pytest.mark.parametrize("layout", ["nt", "nn", "tn"])
@pytest.mark.parametrize("m", [72, 4096])
@pytest.mark.parametrize("k", [8, 16, 24])
def test_pointer_takes_all_of_a_short_k_in_one_step_of_four_warps(m, k, layout):
    config = registry.default_config(Problem(m, 4096, k, dtype="bf16", layout=layout), H200)
    assert (config.kernel, config["num_stages"]) == ("pointer", 1)
    assert config["BLOCK_SIZE_K"] >= k
    assert config["num_warps"] <= 4
    assert config.integer("BLOCK_SIZE_M") * config.integer("BLOCK_SIZE_N") <= 128 * 128


@pytest.mark.parametrize(
    ("problem", "sums", "warps"),
    [
        (Problem(1078, 6118, 17, dtype="bf16", layout="nt"), 64 * 128, 4),
        (Problem(8192, 1024, 13, dtype="bf16", layout="nt"), 128 * 128, 4),
        (Problem(16000, 2000, 31, dtype="fp32", layout="nt", precision="tf32"), 128 * 256, 8),
    ],
    ids=str,
)
def test_a_step_of_many_loads_of_single_elements_has_a_smaller_tile(problem, sums, warps):
    config = registry.default_config(problem, H200)
    assert config.kernel == "pointer"
    assert config.integer("BLOCK_SIZE_M") * config.integer("BLOCK_SIZE_N") <= sums
    assert config.integer("num_warps") <= warps


@pytest.mark.parametrize(
    ("shape", "layout", "kernel"),
    [
        ((25400, 16, 1216), "nt", "tma"),  # more tiles of 128x128 than multiprocessors, a sixth of each has columns
        ((2048, 16, 4096), "nt", "split_k"),
        ((408, 32, 2840), "nt", "any_height_split"),  # odd rows, too
        ((18072, 8, 136), "nn", "pointer"),
        ((4096, 128, 512), "nn", "warp_specialized"),  # no narrow output
    ],
)
def test_narrow_outputs_are_computed_by_kernels_with_narrow_tiles(shape, layout, kernel):
    config = registry.default_config(Problem(*shape, dtype="bf16", layout=layout), H200)
    assert config.kernel == kernel
    assert shape[1] > 64 or config.integer("BLOCK_SIZE_N") <= 64


@pytest.mark.parametrize(
    ("problem", "kernel"),
    [
        (Problem(121, 102, 7196, dtype="bf16", layout="nt"), "swap_ab"),
        (Problem(869, 2, 4448, dtype="bf16", layout="tn"), "split_k"),
        (Problem(186, 1, 2405, dtype="bf16", layout="nt"), "split_k"),  # A alone is unaligned, but all there is
        (Problem(8192, 1024, 479, dtype="fp32", layout="nt", precision="tf32"), "padded"),
        (Problem(2027, 507, 10, dtype="bf16", layout="nt"), "pointer"),
        (Problem(1742, 12, 311, dtype="bf16", layout="nt"), "pointer"),  # too short for a sum to be split
        (Problem(300, 302, 3618, dtype="fp32", layout="nt"), "simt"),  # without tensor cores
        (Problem(300, 300, 301, dtype="fp32", layout="nt", precision="tf32x3"), "pointer"),  # nobody compared these
        (Problem(600, 600, 601, dtype="fp32", layout="nt", precision="tf32x3"), "padded"),
        (Problem(323, 1, 12, dtype="fp32", layout="nt", precision="tf32x3"), "pointer"),
        (Problem(16, 50, 16381, dtype="bf16", layout="nt"), "split_k"),  # `swap_ab` has tiles of 64 columns
        (Problem(27280, 48, 4048, dtype="fp16", layout="tt", invariant=True), "pointer"),
    ],
    ids=str,
)
def test_of_unaligned_and_invariant_operands_the_least_estimate_decides(problem, kernel):
    assert registry.default_config(problem, H200).kernel == kernel


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "gfx942"])
@pytest.mark.parametrize("shape", [(72, 4096, 8), (4096, 4096, 16), (30000, 24, 512), (8, 4096, 16), (30000, 8, 40)])
def test_no_kernel_that_serves_a_short_k_or_a_narrow_output_has_nothing_to_try(shape, arch):
    for operands in ({"dtype": "bf16"}, {"dtype": "fp32", "precision": "tf32"}):
        problem = Problem(*shape, layout="nt", **operands)
        sizes = {
            spec.name: len(spec.space(problem, KNOWN[arch]).configs())
            for spec in registry.serving(problem, KNOWN[arch])
        }
        assert all(sizes.values()), f"{problem}: {sizes}"


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
