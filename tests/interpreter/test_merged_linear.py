"""merged_linear under the interpreter: every config, what its check refuses, and its problems."""

from __future__ import annotations

import pytest
import torch
from checked import check_configs

from tuner import Problem
from tuner.errors import ProblemError
from tuner.hardware.device import INTERPRETER
from tuner.kernel import registry
from tuner.kernels.merged.operands import make_operands, reference, split, vendor
from tuner.problem import generic_key, text
from tuner.sweep import verify

SPEC = registry.find("merged_linear", "merged_gemv")
SHAPES = ((1, "1+1", 1), (1, "100+33+7", 130), (2, "64+32", 64), (2, "40+1+33", 72), (1, "32+32+32", 128))


def problem_of(m: int, parts: str, k: int, **rest) -> Problem:
    n = sum(map(int, parts.split("+")))
    return Problem(m, n, k, **{"layout": "nt", **rest}, op="merged_linear", extras={"parts": parts})


@pytest.mark.parametrize("epilogue", ["none", "bias"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_every_config_is_right_repeats_its_bits_and_writes_nothing_else(dtype, epilogue):
    for shape in SHAPES:
        problem = problem_of(*shape, dtype=dtype, epilogue=epilogue)
        assert SPEC.supports(problem, INTERPRETER) is None
        check_configs(SPEC, problem, SPEC.space(problem, INTERPRETER).configs())


@pytest.mark.parametrize("epilogue", ["none", "bias"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_the_vendors_result_passes_the_check_and_what_is_nearly_right_does_not(dtype, epilogue):
    problem = problem_of(2, "96+32+32", 256, dtype=dtype, epilogue=epilogue)
    operands = make_operands(problem, "cpu", 0)
    right, limit = reference(operands), SPEC.tolerance(problem)
    vendor(operands)

    def error(found: torch.Tensor) -> float:
        return verify.error(found, right, problem.k)

    assert error(operands.out) <= limit
    q, k, v = split(right.view(-1), (2,), (96, 32, 32))
    for wrong in ((q, v, k), (q.flip(0), k, v), (q, k, k)):
        assert error(torch.cat([each.flatten() for each in wrong]).view(2, 160)) > 5 * limit
    for bias in (each for each in operands.biases if each is not None):
        bias.zero_()
        assert error(reference(operands)) > 2.5 * limit


def test_the_products_lie_one_after_another():
    operands = make_operands(problem_of(2, "3+5", 16, dtype="fp32"), "cpu", 0)
    vendor(operands)
    first, second = split(operands.out.view(-1), (2,), (3, 5))
    assert first.is_contiguous()
    assert second.is_contiguous()
    torch.testing.assert_close(first, operands.a @ operands.b.t())
    torch.testing.assert_close(second, operands.a @ operands.second.t())


def test_torch_has_no_tf32x3():
    with pytest.raises(NotImplementedError, match="tf32x3"):
        vendor(make_operands(problem_of(1, "16+16", 16, dtype="fp32", precision="tf32x3"), "cpu", 0))


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (None, "parts is missing: expected the rows of two or three weights, as 4096"),
        ("64+32", "parts is 64+32, which is 96 in all, and N is 64"),
        ("64", "parts is '64': expected"),
        ("16+16+16+16", "parts is '16+16+16+16': expected"),
        ("64+0", "parts is '64+0': expected"),
        (64, "parts is 64: expected"),
    ],
)
def test_parts_are_the_rows_of_two_or_three_weights(parts, said):
    extras = {} if parts is None else {"parts": parts}
    with pytest.raises(ProblemError, match="parts") as found:
        Problem(1, 64, 32, layout="nt", op="merged_linear", extras=extras)
    assert str(found.value).startswith(said)


def test_a_problem_is_read_as_it_is_written():
    problem = problem_of(1, "32+16+16", 32, dtype="bf16", epilogue="bias")
    assert str(problem) == "merged_linear 1x64x32 bfloat16 nt bias parts=32+16+16"
    assert text.read("merged_linear", generic_key.cells(text.write(problem))) == problem
    assert Problem.from_fields(problem.fields()) == problem
    assert problem_of(1, " 32 + 32", 32) == problem_of(1, "32+32", 32)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"m": 3}, "M is 3: it takes 2 rows at most"),
        ({"layout": "nn"}, "no layout nn: expected nt"),
        ({"epilogue": "silu"}, "no epilogue silu: expected none or bias"),
        ({"dtype": "e4m3"}, "no float8_e4m3fn: it takes float32, float16, bfloat16"),
        ({"out_dtype": "fp32"}, "no float16->float32: x, all weights and the output are of one dtype"),
    ],
)
def test_what_the_kernel_does_not_take_is_named(fields, said):
    problem = problem_of(fields.pop("m", 1), "32+32", 32, **fields)
    assert SPEC.supports(problem, INTERPRETER).startswith(said)
