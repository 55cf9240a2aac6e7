"""The tolerance lets every right result pass, and none that is subtly wrong (docs/numerics.md)."""

from __future__ import annotations

import pytest
import torch

from tuner import Problem
from tuner.kernels.base.activations import saturated
from tuner.kernels.base.numerics import max_imprecise, tolerance
from tuner.sweep import verify

OUTPUTS = ["float32", "float16", "bfloat16"]


def operands(m: int, n: int, k: int, dtype: torch.dtype = torch.float16) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(k)
    return torch.randn(m, k, generator=generator).to(dtype), torch.randn(k, n, generator=generator).to(dtype)


def error(result: torch.Tensor, reference: torch.Tensor, k: int) -> float:
    return verify.error(result, reference, k)


@pytest.mark.parametrize("out", [*OUTPUTS, "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("k", [1, 3, 64, 1000, 16384])
def test_rounding_the_right_result_passes(out, k):
    a, b = operands(256, 256, k)
    reference = saturated(a.double() @ b.double(), out)
    result = saturated(a.float() @ b.float(), out).to(getattr(torch, out))
    assert error(result, reference, k) <= tolerance(Problem(256, 256, k, out_dtype=out))


@pytest.mark.parametrize("k", [64, 4096])
def test_tf32_operands_pass_and_bf16_operands_do_not(k):
    a, b = operands(256, 256, k, torch.float32)
    reference = a.double() @ b.double()
    limit = tolerance(Problem(256, 256, k, dtype="fp32", precision="tf32"))
    # tf32 as the hardware reads it: the lower 13 bits of the fraction cut.
    cut_a, cut_b = ((t.view(torch.int32) & ~0x1FFF).view(torch.float32) for t in (a, b))
    cut = cut_a.double() @ cut_b.double()
    assert error(cut, reference, k) <= limit
    assert error(cut, reference, k) > tolerance(Problem(256, 256, k, dtype="fp32", precision="ieee"))
    coarse = ((t.view(torch.int32) & ~0xFFFF).view(torch.float32).double() for t in (a, b))
    assert error(next(coarse) @ next(coarse), reference, k) > limit / 4


def test_hoppers_fp8_accumulators_pass_at_any_k():
    # 3.3e-3 of the result's spread at K = 14336 was measured, growing with K.
    for k in (512, 4096, 14336, 65536):
        assert 3.3e-3 * (k / 14336) ** 0.5 < tolerance(Problem(64, 64, k, dtype="e4m3", out_dtype="fp32"))


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_what_tensor_cores_cut_off_float32_sums_passes_at_any_k(dtype):
    # Of the result's spread, measured on an H200 without splits, growing with K.
    for k, measured in ((4096, 2.8e-5), (16384, 1.08e-4), (32768, 2.07e-4), (65536, 4.13e-4), (262144, 1.72e-3)):
        assert 2 * measured < tolerance(Problem(1024, 1024, k, dtype=dtype, out_dtype="fp32"))


@pytest.mark.parametrize("k", [4096, 65536])
@pytest.mark.parametrize("out", OUTPUTS)
def test_one_product_left_out_is_rejected(out, k):
    a, b = operands(256, 256, k)
    wrong = (a[:, :-1].double() @ b[:-1].double()).to(getattr(torch, out))
    assert error(wrong, a.double() @ b.double(), k) > tolerance(Problem(256, 256, k, out_dtype=out))


# An 8-bit float is coarser than one tile of very many: docs/numerics.md says so.
TILES_SEEN = [
    *[(out, k) for out in OUTPUTS for k in (128, 4096, 16384)],
    ("float8_e4m3fn", 128),
    ("float8_e4m3fn", 4096),
]


@pytest.mark.parametrize(("out", "k"), TILES_SEEN)
def test_a_tile_of_k_left_out_is_rejected(out, k):
    a, b = operands(256, 256, k)
    wrong = saturated(a[:, :-64].double() @ b[:-64].double(), out).to(getattr(torch, out))
    reference = saturated(a.double() @ b.double(), out)
    assert error(wrong, reference, k) > tolerance(Problem(256, 256, k, out_dtype=out))


@pytest.mark.parametrize("out", OUTPUTS)
def test_one_wrong_element_is_rejected(out):
    a, b = operands(256, 256, 4096)
    reference = a.double() @ b.double()
    result = reference.to(getattr(torch, out))
    result[17, 31], result[17, 32] = result[17, 32].item(), result[17, 31].item()
    assert error(result, reference, 4096) > tolerance(Problem(256, 256, 4096, out_dtype=out))


def test_a_missing_mask_at_the_end_of_k_is_rejected():
    a, b = operands(64, 64, 4096 + 7)
    reference = a[:, :4096].double() @ b[:4096].double()
    assert error((a.double() @ b.double()).bfloat16(), reference, 4096) > tolerance(Problem(64, 64, 4096, dtype="bf16"))


def test_accumulating_in_fp16_is_rejected():
    a, b = operands(64, 64, 4096)
    total = torch.zeros(64, 64, dtype=torch.float16)
    for start in range(0, 4096, 16):  # a matrix instruction sums 16 products exactly, then rounds
        total = (total.float() + a[:, start : start + 16].float() @ b[start : start + 16].float()).half()
    assert error(total, a.double() @ b.double(), 4096) > tolerance(Problem(64, 64, 4096))


def test_nan_is_never_within_tolerance():
    reference = torch.zeros(4, 4, dtype=torch.float64)
    assert error(torch.full((4, 4), torch.nan), reference, 4) == float("inf")


def test_fp8_sums_leave_the_tensor_cores_where_the_output_could_show_what_they_lose():
    assert max_imprecise(Problem(64, 64, 512, dtype="e4m3"), 256) is None
    assert max_imprecise(Problem(64, 64, 512, dtype="e4m3", out_dtype="fp32"), 256) == 128
    assert max_imprecise(Problem(64, 64, 512, dtype="e4m3", out_dtype="fp16"), 64) == 64
    assert max_imprecise(Problem(64, 64, 512, dtype="fp16", out_dtype="fp32"), 64) is None
