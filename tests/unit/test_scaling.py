"""Scales as part of a problem: what can be, what is drawn for tuning, what right means, who serves it."""

from __future__ import annotations

import itertools

import pytest
import torch

from tuner import Problem
from tuner.errors import ProblemError
from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.kernels.base.numerics import max_imprecise, reference, tolerance
from tuner.kernels.base.operands import make_operands
from tuner.lookup.advice import command
from tuner.problem import generic_key, suite
from tuner.problem import text as problem_text
from tuner.sweep import verify


def fp8(m: int = 64, n: int = 64, k: int = 512, **parts: object) -> Problem:
    return Problem(m, n, k, **{"dtype": "e4m3", "layout": "nt", **parts})


def test_no_scaling_by_any_name_is_one_problem():
    assert fp8() == fp8(scaling="none") == fp8(extras={"scaling": "none"})
    assert fp8().scaling == "none"


@pytest.mark.parametrize("scaling", ["scalar", "row", "block"])
def test_scaling_survives_being_written_and_read(scaling):
    problem = fp8(scaling=scaling, epilogue="bias")
    assert problem.scaling == scaling
    assert Problem.from_fields(problem.fields()) == problem
    assert problem.with_shape(1, 2, 3).scaling == scaling
    assert problem.exchanged().exchanged() == problem
    assert problem.unscaled() == fp8(epilogue="bias")
    assert f"scaling={scaling}" in str(problem)


def test_fast_accumulation_is_kept_where_it_is_not_the_outputs_default():
    assert fp8(fast_accum=True) == fp8()
    assert fp8(fast_accum=False) != fp8()
    assert fp8(fast_accum=False, out_dtype="fp32") == fp8(out_dtype="fp32")
    assert fp8().fast_accum
    assert not fp8(out_dtype="fp16").fast_accum
    assert max_imprecise(fp8(fast_accum=False), 64) == 64
    assert max_imprecise(fp8(fast_accum=True, out_dtype="fp32"), 64) is None


def test_int8_gives_int32_and_scaled_bfloat16():
    assert Problem(4, 4, 4, dtype="i8").out_dtype == "int32"
    assert Problem(4, 4, 4, dtype="int8", scaling="row").out_dtype == "bfloat16"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"scaling": "column"}, "unknown scaling 'column': expected one of none, scalar, row, block"),
        ({"scaling": "row", "dtype": "fp16"}, "scaling 'row' is for fp8 and int8 operands, these are float16"),
        ({"scaling": "block", "dtype": "i8"}, "scaling 'block' is for fp8 operands, these are int8: use scaling 'row'"),
        ({"fast_accum": True, "dtype": "i8"}, "fast_accum is for fp8 operands, these are int8"),
        ({"fast_accum": True, "scaling": "block"}, "fast_accum cannot be with scaling 'block'"),
    ],
)
def test_scaling_that_cannot_be_is_an_error(parts, message):
    with pytest.raises(ProblemError, match=message):
        fp8(**parts)


SERVED = [
    (fp8(scaling="row"), "sm_90", None),
    (Problem(64, 64, 512, dtype="i8", layout="nt"), "sm_80", None),
    (Problem(64, 64, 512, dtype="i8", scaling="scalar", out_dtype="fp32"), "gfx942", None),
    (Problem(64, 64, 512, dtype="i8", out_dtype="bf16"), "sm_90", "no bfloat16 output of int8: it writes int32"),
    (Problem(64, 64, 512, dtype="i8", scaling="row", out_dtype="e4m3"), "sm_90", "no float8_e4m3fn output of scaled"),
    (Problem(64, 64, 512, dtype="i8", epilogue="bias"), "sm_90", "no bias of int8 without scales"),
    (Problem(64, 64, 512, dtype="fp16", out_dtype="int32"), "sm_90", "no int32 output of float16"),
    (fp8(scaling="block"), "sm_90", "no scaling 'block'"),
]


@pytest.mark.parametrize(("problem", "arch", "reason"), SERVED, ids=str)
def test_the_pointer_kernel_says_what_it_cannot_do(problem, arch, reason):
    said = registry.find("matmul", "pointer").supports(problem, KNOWN[arch])
    assert said is None if reason is None else reason in said


@pytest.mark.parametrize("m", [1, 64, 4096])
def test_scales_of_blocks_are_served_by_the_kernels_that_add_up_steps_alone(m):
    problem = fp8(m, 4096, 4096, scaling="block")
    served = {"block_scaled", "block_scaled_warp_specialized", "warp_specialized"}
    served |= {"any_height_split"} if m <= 64 else set()  # whose tiles all run at once
    assert {spec.name for spec in registry.serving(problem, KNOWN["sm_90"])} == served
    assert [spec.name for spec in registry.serving(problem, KNOWN["sm_100"])] == ["block_scaled"]
    assert registry.find("matmul", "block_scaled").supports(problem.unscaled(), KNOWN["sm_90"]) is not None
    assert registry.find("matmul", "block_scaled").supports(problem, KNOWN["sm_80"]) is not None


@pytest.mark.parametrize("arch", ["sm_89", "sm_90", "sm_100", "gfx950"])
@pytest.mark.parametrize("shape", [(1, 7168, 2048), (64, 2112, 7168), (4096, 4096, 4096), (129, 1000, 1001)], ids=str)
def test_the_default_of_block_scaled_is_a_config_of_its_space(arch, shape):
    spec = registry.find("matmul", "block_scaled")
    problem = fp8(*shape, scaling="block")
    space = spec.space(problem, KNOWN[arch])
    assert space.rejection(spec.default_config(problem, KNOWN[arch])) is None
    assert (any(config["LOADS"] == "tma" for config in space.configs())) == (
        arch in ("sm_90", "sm_100") and problem.aligned
    )


def test_the_reference_scales_each_block_by_its_own_scale():
    inputs = make_operands(fp8(3, 130, 200, scaling="block"), "cpu", 0)
    assert inputs.scale_a.shape == (3, 2)
    assert inputs.scale_b.shape == (2, 2)
    expected = torch.zeros(3, 130, dtype=torch.float64)
    for i, j, k in itertools.product(range(3), range(130), range(200)):
        scale = float(inputs.scale_a[i, k // 128]) * float(inputs.scale_b[k // 128, j // 128])
        expected[i, j] += scale * float(inputs.a[i, k]) * float(inputs.b[k, j])
    torch.testing.assert_close(reference(inputs), expected)


@pytest.mark.parametrize("scaling", ["scalar", "row", "block"])
def test_scales_are_drawn_so_that_results_are_no_larger_than_without(scaling):
    inputs = make_operands(fp8(scaling=scaling), "cpu", 0)
    for scale in (inputs.scale_a, inputs.scale_b):
        assert scale.dtype == torch.float32
        assert 0.5 <= float(scale.min()) <= float(scale.max()) <= 1.0


def test_int8_operands_hold_every_value_and_scaled_ones_have_the_spread_of_normal_ones():
    inputs = make_operands(Problem(256, 256, 1024, dtype="i8", scaling="row"), "cpu", 0)
    assert len(inputs.a.unique()) == 256
    assert 0.5 <= float((inputs.a.float() * inputs.scale_a[:, None]).std()) <= 1.0


@pytest.mark.parametrize(
    "problem", [fp8(scaling="row"), fp8(scaling="block"), Problem(64, 64, 512, dtype="i8")], ids=str
)
def test_a_wrong_scale_or_sum_is_rejected(problem):
    inputs = make_operands(problem, "cpu", 0)
    right = reference(inputs)
    wrong = right.clone()
    wrong[5] = wrong[5] * 1.25 if problem.scaling != "none" else wrong[5] + 1
    assert verify.error(right, right, problem.k) <= tolerance(problem) < verify.error(wrong, right, problem.k)


def test_an_exact_sum_has_no_tolerance():
    assert tolerance(Problem(64, 64, 512, dtype="i8")) == 0


def test_a_suite_has_columns_of_both(tmp_path):
    file = tmp_path / "ours.csv"
    file.write_text("m,n,k,dtype,layout,scaling,fast_accum\n64,64,512,e4m3,nt,row,\n64,64,512,e4m3,nt,,false\n")
    assert suite.load(str(file)) == [fp8(scaling="row"), fp8(fast_accum=False)]


@pytest.mark.parametrize(
    "problem",
    [fp8(scaling="row"), fp8(fast_accum=False, epilogue="bias"), fp8(scaling="block", out_dtype="fp32")],
    ids=str,
)
def test_the_command_that_tunes_a_missed_problem_names_its_scaling(problem):
    typed = command(problem)
    if "--problem" in typed:
        assert problem_text.read("matmul", generic_key.cells(typed.rpartition(" ")[2])) == problem
    else:
        assert typed.endswith("--scaling row")
