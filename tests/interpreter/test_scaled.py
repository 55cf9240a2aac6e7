"""matmul with scales, of int8, and with fast accumulation, against float64 by the rule of docs/numerics.md."""

from __future__ import annotations

import math

import pytest
import torch

from tuner import Problem
from tuner.errors import InputError
from tuner.hardware.device import INTERPRETER
from tuner.kernels import matmul
from tuner.kernels.base.numerics import tolerance
from tuner.kernels.gemm.block_scaled.spec import SPEC as BLOCK_SCALED
from tuner.kernels.ops import dispatch
from tuner.problem.dtype import name_of
from tuner.sweep import verify

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def drawn(*shape: int, dtype: torch.dtype = E4M3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    if dtype == torch.int8:
        return torch.randint(-128, 128, shape, dtype=dtype, generator=generator)
    return torch.randn(shape, generator=generator).to(dtype)


def scales(*shape: int, unit: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (0.5 + 0.5 * torch.rand(shape, generator=generator)) * unit


def assert_right(out: torch.Tensor, exact: torch.Tensor, k: int, dtype: torch.dtype, scaling: str) -> None:
    problem = Problem(*exact.shape, k, dtype=name_of(dtype), out_dtype=name_of(out.dtype), scaling=scaling)
    assert verify.error(out.reshape(exact.shape), exact, k) <= tolerance(problem)


def spread(blocks: torch.Tensor, rows: int, like: torch.Tensor) -> torch.Tensor:
    """The scale of each element, looked up one by one."""
    rows_of, columns_of = torch.arange(like.shape[0]) // rows, torch.arange(like.shape[1]) // 128
    return blocks.double()[rows_of][:, columns_of]


@pytest.mark.parametrize("dtype", [E4M3, E5M2, torch.int8], ids=name_of)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
def test_one_scale_an_operand(dtype, shape):
    a, b = drawn(17, 80, dtype=dtype), drawn(33, 80, dtype=dtype).t()
    unit = 1 / 74 if dtype == torch.int8 else 1.0
    scale_a, scale_b = scales(*shape, unit=unit), scales(1, unit=unit)
    out = matmul(a, b, scale_a=scale_a, scale_b=scale_b)
    assert out.dtype == torch.bfloat16
    assert_right(out, (a.double() @ b.double()) * scale_a.double().view(()) * scale_b.double(), 80, dtype, "scalar")


@pytest.mark.parametrize("dtype", [E4M3, torch.int8], ids=name_of)
@pytest.mark.parametrize("m", [1, 3, 33, 70])
def test_a_scale_for_each_row_of_a_and_column_of_b(dtype, m):
    a, b, bias = drawn(m, 160, dtype=dtype), drawn(48, 160, dtype=dtype).t(), scales(48)
    unit = 1 / 74 if dtype == torch.int8 else 1.0
    scale_a, scale_b = scales(m, 1, unit=unit), scales(1, 48, unit=unit)
    exact = (a.double() @ b.double()) * scale_a.double() * scale_b.double() + bias.double()
    for out_dtype in (torch.bfloat16, torch.float16, torch.float32):
        out = matmul(a, b, bias=bias, activation="relu", scale_a=scale_a, scale_b=scale_b, out_dtype=out_dtype)
        assert out.dtype == out_dtype
        assert_right(out, exact.relu(), 160, dtype, "row")


@pytest.mark.parametrize("shape", [(2, 5, 1), (2, 5), (10, 1), (10,)], ids=str)
def test_scales_of_rows_may_have_the_leading_dimensions_or_not(shape):
    a, b, scale_b = drawn(2, 5, 64), drawn(64, 32), scales(32)
    scale_a = scales(10).view(shape)
    out = matmul(a, b, scale_a=scale_a, scale_b=scale_b)
    assert out.shape == (2, 5, 32)
    exact = (a.double().view(10, 64) @ b.double()) * scale_a.double().view(10, 1) * scale_b.double()
    assert_right(out, exact, 64, E4M3, "row")


@pytest.mark.parametrize("shape", [(1, 128, 128), (5, 200, 300), (33, 1000, 129), (130, 64, 512), (7, 130, 1)], ids=str)
def test_scales_of_blocks(shape):
    m, n, k = shape
    a, weight, bias = drawn(m, k), drawn(n, k), scales(n)
    scale_a, weight_scales = scales(m, math.ceil(k / 128)), scales(math.ceil(n / 128), math.ceil(k / 128))
    dense_a, dense_b = a.double() * spread(scale_a, 1, a), (weight.double() * spread(weight_scales, 128, weight)).t()
    exact = dense_a @ dense_b + bias.double()
    for stored in (scale_a, scale_a.t().contiguous().t()):
        out = matmul(a, weight.t(), bias=bias, scale_a=stored, scale_b=weight_scales.t(), out_dtype="fp32")
        assert_right(out, exact, k, E4M3, "block")


def test_scales_of_blocks_with_leading_dimensions():
    a, b, scale_a, scale_b = drawn(3, 4, 256), drawn(64, 256).t(), scales(3, 4, 2), scales(1, 2).t()
    flat = matmul(a.view(12, 256), b, scale_a=scale_a.view(12, 2), scale_b=scale_b)
    assert matmul(a, b, scale_a=scale_a, scale_b=scale_b).view(12, 64).equal(flat)


@pytest.mark.parametrize("epilogue", ["none", "bias+silu"])
def test_block_scaled_is_right_loaded_either_way_exchanged_or_not_split_or_not(epilogue):
    problem = Problem(33, 208, 704, dtype="e4m3", layout="nt", scaling="block", epilogue=epilogue, out_dtype="fp32")
    configs = BLOCK_SCALED.space(problem, INTERPRETER).configs()
    assert {(c["LOADS"], c["SWAP_AB"], c["SPLIT_K"]) for c in configs} == {
        (loads, swap, split) for loads in ("pointer", "tma") for swap in (False, True) for split in (1, 2)
    }
    for config in configs:
        inputs = BLOCK_SCALED.make_inputs(problem, "cpu", 0)
        verify.poison(inputs)
        BLOCK_SCALED.launch(inputs, config)
        found = verify.check(inputs, BLOCK_SCALED.reference(inputs), problem.k, BLOCK_SCALED.tolerance(problem))
        assert found.failure is None, str(config)


@pytest.mark.parametrize("shape", [(1, 33, 17), (3, 64, 300), (33, 70, 1000), (65, 48, 4096)], ids=str)
def test_int8_sums_are_exact(shape):
    m, n, k = shape
    a, b = drawn(m, k, dtype=torch.int8), drawn(n, k, dtype=torch.int8).t()
    out = matmul(a, b)
    assert out.dtype == torch.int32
    assert out.equal((a.long() @ b.long()).int())


def test_the_largest_int8_sums_are_exact():
    lowest = torch.full((16, 4096), -128, dtype=torch.int8)
    assert (matmul(lowest, lowest.t()) == 4096 * 128 * 128).all()


def test_int8_without_products_is_zero():
    empty = torch.empty(3, 0, dtype=torch.int8)
    assert matmul(empty, empty.t()).equal(torch.zeros(3, 3, dtype=torch.int32))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Problem]:
    """The problems that matmul looks up."""
    problems: list[Problem] = []

    def look_up(problem, device, lookup=dispatch.lookup):
        problems.append(problem)
        return lookup(problem, device)

    monkeypatch.setattr(dispatch, "lookup", look_up)
    return problems


def test_scaling_and_fast_accumulation_are_part_of_the_problem_where_they_change_the_program(asked):
    a, b, one = drawn(16, 64), drawn(64, 16), torch.ones(1)
    matmul(a, b)
    matmul(a, b, fast_accum=True)
    matmul(a, b, fast_accum=False)
    matmul(a, b, fast_accum=False, out_dtype="fp32")
    matmul(a, b, scale_a=one, scale_b=one)
    matmul(a, b, scale_a=torch.ones(16), scale_b=torch.ones(16))
    extras = [{}, {}, {"fast_accum": False}, {}, {"scaling": "scalar"}, {"scaling": "row"}]
    assert [dict(problem.extras) for problem in asked] == extras


def ok(*shape: int, dtype: torch.dtype = E4M3) -> torch.Tensor:
    return torch.ones(shape).to(dtype)


def i8(*shape: int) -> torch.Tensor:
    return ok(*shape, dtype=torch.int8)


ONE = torch.ones(1)
WRONG = {
    "scale_a is given without scale_b: expected both": lambda: matmul(ok(4, 4), ok(4, 4), scale_a=ONE),
    "scale_b is given without scale_a: expected both": lambda: matmul(ok(4, 4), ok(4, 4), scale_b=ONE),
    "a is float16: expected fp8 or int8 operands": lambda: matmul(
        ok(4, 4).half(), ok(4, 4).half(), scale_a=ONE, scale_b=ONE
    ),
    "scale_a is float16: expected float32; use scale_a.float()": lambda: matmul(
        ok(4, 4), ok(4, 4), scale_a=ONE.half(), scale_b=ONE
    ),
    "scale_b is on meta and a on cpu: use scale_b.to(a.device)": lambda: matmul(
        ok(4, 4), ok(4, 4), scale_a=ONE, scale_b=ONE.to("meta")
    ),
    "scale_a is of type float: expected a torch.Tensor": lambda: matmul(ok(4, 4), ok(4, 4), scale_a=1.0, scale_b=ONE),
    "scale_a has shape [3] and scale_b [4]: expected one element each, [4, 1] and [1, 4], or [4, 1] and [1, 1]": (
        lambda: matmul(ok(4, 4), ok(4, 4), scale_a=torch.ones(3), scale_b=torch.ones(4))
    ),
    "scale.expand(rows, 1).contiguous()": lambda: matmul(ok(4, 4), ok(4, 4), scale_a=ONE, scale_b=torch.ones(4)),
    "scale_b is not contiguous: expected stride 1; use scale_b.contiguous()": lambda: matmul(
        ok(4, 4), ok(4, 4), scale_a=torch.ones(4), scale_b=torch.ones(8)[::2]
    ),
    "block scales are for fp8, a is int8": lambda: matmul(
        i8(4, 256), i8(256, 4), scale_a=torch.ones(4, 2), scale_b=torch.ones(2, 1)
    ),
    "fast_accum is 1: expected True, False or None": lambda: matmul(ok(4, 4), ok(4, 4), fast_accum=1),
    "fast_accum is for fp8 operands, a is float16": lambda: matmul(ok(4, 4).half(), ok(4, 4).half(), fast_accum=True),
    "fast_accum cannot be with block scales": lambda: matmul(
        ok(4, 256), ok(256, 4), scale_a=torch.ones(4, 2), scale_b=torch.ones(2, 1), fast_accum=True
    ),
    "out_dtype is bfloat16: expected int32; leave out_dtype= away": lambda: matmul(
        i8(4, 4), i8(4, 4), out_dtype="bf16"
    ),
    "out_dtype is int32: expected one of float32, float16, bfloat16": lambda: matmul(
        i8(4, 4), i8(4, 4), scale_a=ONE, scale_b=ONE, out_dtype="int32"
    ),
    "out_dtype is int32: expected one of float32, float16, bfloat16, float8_e4m3fn, float8_e5m2": lambda: matmul(
        ok(4, 4), ok(4, 4), out_dtype="int32"
    ),
    "bias is given and the result is int32: leave it out, or use matmul with scales": lambda: matmul(
        i8(4, 4), i8(4, 4), bias=torch.ones(4)
    ),
    "activation is given and the result is int32": lambda: matmul(i8(4, 4), i8(4, 4), activation="relu"),
    "a is int8 and b float8_e4m3fn: expected one dtype": lambda: matmul(i8(4, 4), ok(4, 4)),
    "requires a gradient": lambda: matmul(ok(4, 4), ok(4, 4), scale_a=ONE.clone().requires_grad_(), scale_b=ONE),
}


@pytest.mark.parametrize("message", list(WRONG))
def test_what_does_not_fit_is_one_clear_error(message):
    with pytest.raises(InputError) as raised:
        WRONG[message]()
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_output_that_is_a_scale_is_refused():
    scale = torch.ones(4, 1)
    with pytest.raises(InputError, match="out shares memory with an operand"):
        matmul(ok(4, 8), ok(8, 1), scale_a=scale, scale_b=ONE.view(1, 1), out=scale, out_dtype="fp32")
