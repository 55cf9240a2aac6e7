"""k_major's copies run along K and hold what was there, wherever it lay; what runs along K already is used in place."""

from __future__ import annotations

import pytest
import torch

from tuner import Problem
from tuner.kernels.base.operands import Operands
from tuner.kernels.gemm.k_major import copy as copying
from tuner.launch.launch import run

DTYPES = [torch.int8, torch.float8_e4m3fn, torch.float32]
PROBLEM = Problem(64, 64, 64, dtype="fp32", layout="tn", precision="tf32")


def placed(rows: int, columns: int, stride: int, before: int, dtype: torch.dtype) -> torch.Tensor:
    """Random bits, so many elements into their memory."""
    room = torch.randint(-128, 128, ((before + rows * stride) * dtype.itemsize,), dtype=torch.int8)
    return room.view(dtype).as_strided((rows, columns), (stride, 1), before)


def bits(matrix: torch.Tensor) -> torch.Tensor:
    return torch.empty(matrix.shape, dtype=matrix.dtype).copy_(matrix).view(torch.int8)


def copied(a: torch.Tensor, b: torch.Tensor) -> Operands:
    found, launches = copying.along_k(Operands(a, b, a, None, PROBLEM, a))
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
    for matrix in (found.a, found.b.t()):
        assert matrix.stride(1) == 1
        assert matrix.stride(0) * dtype.itemsize % 128 == 0
    assert found.problem.layout == "nt"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 65, 7), (131, 1, 3), (129, 67, 1), (5, 130, 193)], ids=str)
def test_odd_sizes(dtype, shape):
    m, n, k = shape
    copied(placed(k, m, m, 0, dtype).t(), placed(k, n, n, 0, dtype))


def test_what_runs_along_k_stays_where_it_is_unless_tma_cannot_read_it():
    along, across = placed(96, 160, 160, 0, torch.float32), placed(160, 80, 80, 0, torch.float32)
    assert copied(along, across).a is along
    weight = along.t()
    assert copied(across.t(), weight).b is weight
    unaligned = placed(96, 160, 161, 1, torch.float32)
    assert copied(unaligned, across).a is not unaligned
    operands = Operands(along, weight, along, None, PROBLEM, along)
    assert copying.along_k(operands) == (operands, ())


def test_one_column_of_b_is_copied_because_it_also_counts_as_a_row():
    found = copied(placed(96, 160, 160, 0, torch.float32), placed(160, 1, 1, 0, torch.float32))
    assert found.b.stride() == (1, 160)


def test_operands_of_any_strides_and_of_two_dtypes():
    room = torch.randint(-128, 128, (96, 300), dtype=torch.int8)
    copied(room[:, ::2].view(torch.float8_e5m2), room[:, 1::2].t().view(torch.float8_e4m3fn))
