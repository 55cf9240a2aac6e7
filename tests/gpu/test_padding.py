"""Copies into padded rows hold what was there, wherever rows begin, beside one another in one launch."""

from __future__ import annotations

import pytest
import torch

from tuner import Problem
from tuner.kernels import padding
from tuner.kernels.launching import run
from tuner.kernels.operands import Operands

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: torch.cuda.is_available() is False"),
]


def placed(rows: int, columns: int, stride: int, before: int, dtype: torch.dtype) -> torch.Tensor:
    """Random bits, so many elements into their memory."""
    room = torch.randint(-128, 128, ((before + rows * stride) * dtype.itemsize,), dtype=torch.int8, device="cuda")
    return room.view(dtype).as_strided((rows, columns), (stride, 1), before)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32], ids=str)
@pytest.mark.parametrize("before", [0, 1, 5])
@pytest.mark.parametrize("overlapped", [False, True])
def test_rows_that_begin_anywhere_are_copied_bit_for_bit(dtype, before, overlapped):
    first, second = placed(1023, 4093, 4093, before, dtype), placed(517, 4093, 4099, before, dtype).t()
    operands = Operands(first, second, first, None, Problem(64, 64, 64), first)
    copies, launches = padding.pad(operands, "ab", overlapped=overlapped)
    run(launches)
    torch.cuda.synchronize()
    assert len(launches) == 1
    assert torch.equal(copies.a, first)
    assert torch.equal(copies.b, second)
