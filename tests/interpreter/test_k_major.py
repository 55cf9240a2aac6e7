"""k_major's copies run along K and hold what was there, wherever it lay; what runs along K already is used in place."""

from __future__ import annotations

import pytest
import torch

from tuner import Problem
from tuner.kernels.base.operands import Operands
from tuner.kernels.gemm.k_major import copy as copying
from tuner.kernels.gemm.k_major.problem import computed
from tuner.launch.launch import run

DTYPES = [torch.int8, torch.float8_e4m3fn, torch.float32]


def placed(rows: int, columns: int, stride: int, before: int, dtype: torch.dtype) -> torch.Tensor:
    """Random bits, so many elements into their memory."""
    room = torch.randint(-128, 128, ((before + rows * stride) * dtype.itemsize,), dtype=torch.int8)
    return room.view(dtype).as_strided((rows, columns), (stride, 1), before)


def bits(matrix: torch.Tensor) -> torch.Tensor:
    return torch.empty(matrix.shape, dtype=matrix.dtype).copy_(matrix).view(torch.int8)


def operands_of(a: torch.Tensor, b: torch.Tensor, *, aligned: bool | None = None) -> Operands:
    names = {torch.int8: "int8", torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2", torch.float32: "fp32"}
    precision = {"precision": "tf32"} if a.dtype == torch.float32 else {}
    layout = ("n" if a.stride(1) == 1 else "t") + ("t" if b.stride(0) == 1 else "n")
    shape = (a.shape[0], b.shape[1], a.shape[1])
    problem = Problem(*shape, dtype=names[a.dtype], layout=layout, aligned=aligned, **precision)
    return Operands(a, b, a, None, problem, a)


def copied(a: torch.Tensor, b: torch.Tensor, inner: str = "warp_specialized") -> Operands:
    found, launches = copying.along_k(operands_of(a, b), inner)
    run(launches)
    assert torch.equal(bits(found.a), bits(a))
    assert torch.equal(bits(found.b.t()), bits(b.t()))
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("before", "beyond"), [(0, 0), (16, 16), (1, 3)], ids=["whole", "wider rows", "unaligned"])
def test_operands_across_k_are_copied_bit_for_bit_in_one_launch(dtype, before, beyond):
    k, m, n = 160, 208, 144
    a, b = placed(k, m, m + beyond, before, dtype).t(), placed(k, n, n + beyond, before, dtype)
    found = copied(a, b)
    larger_stays = dtype == torch.float32 and not before % 4
    assert (found.a is a) == larger_stays
    for matrix in (found.b.t(),) if larger_stays else (found.a, found.b.t()):
        assert matrix.stride(1) == 1
        assert matrix.stride(0) * dtype.itemsize % 128 == 0
    assert found.problem.layout == ("tt" if larger_stays else "nt")


def test_of_two_operands_of_32_bits_across_k_the_smaller_one_is_copied_or_the_one_that_is_not_aligned():
    wide, tall = placed(160, 208, 208, 0, torch.float32), placed(160, 144, 144, 0, torch.float32)
    assert copied(tall.t(), wide).problem.layout == "nn"
    assert copied(wide.t(), tall).problem.layout == "tt"
    assert copied(wide.t(), tall, "split_k").problem.layout == "nt"


def test_what_an_unaligned_problems_configs_were_made_for_is_copied_where_an_operand_is_aligned_after_all():
    """A problem says of neither operand which one is unaligned, or whether the output alone is."""
    weight, along = placed(512, 320, 320, 0, torch.float32), placed(256, 512, 512, 0, torch.float32)
    away = placed(256, 512, 512, 1, torch.float32)
    for a, b in ((along, weight), (away, weight), (away, placed(512, 320, 321, 1, torch.float32))):
        operands = operands_of(a, b, aligned=False)
        assert computed("warp_specialized", operands.problem).layout == "nt"
        found, launches = copying.along_k(operands, "warp_specialized")
        run(launches)
        assert found.problem.layout == "nt"
        assert found.b is not b
        assert (found.a is a) == (a is along)
        assert torch.equal(bits(found.b.t()), bits(b.t()))
    # An unaligned operand that the problem does not know of is copied besides.
    found = copied(away, weight)
    assert found.a is not away
    assert found.b is weight


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 65, 7), (131, 1, 3), (129, 67, 1), (5, 130, 193)], ids=str)
def test_odd_sizes(dtype, shape):
    m, n, k = shape
    copied(placed(k, m, m, 0, dtype).t(), placed(k, n, n, 0, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_runs_along_k_stays_where_it_is_unless_tma_cannot_read_it(dtype):
    along, across = placed(96, 160, 160, 0, dtype), placed(160, 80, 80, 0, dtype)
    weight, unaligned = along.t(), placed(96, 160, 161, 1, dtype)
    found = copied(unaligned, across)
    assert found.a is not unaligned
    # Registers feed one operand of 32 bits that does not run along K.
    assert (found.b is across) == (dtype == torch.float32)
    if dtype != torch.float32:
        assert copied(along, across).a is along
        assert copied(across.t(), weight).b is weight
    for operands in (operands_of(along, weight), *([operands_of(along, across)] if dtype == torch.float32 else ())):
        assert copying.along_k(operands, "warp_specialized") == (operands, ())


def test_one_column_of_b_is_copied_because_it_also_counts_as_a_row():
    found = copied(placed(96, 160, 160, 0, torch.int8), placed(160, 1, 1, 0, torch.int8))
    assert found.b.stride() == (1, 256)


def test_operands_of_any_strides_and_of_two_dtypes():
    room = torch.randint(-128, 128, (96, 300), dtype=torch.int8)
    copied(room[:, ::2].view(torch.float8_e5m2), room[:, 1::2].t().view(torch.float8_e4m3fn))
