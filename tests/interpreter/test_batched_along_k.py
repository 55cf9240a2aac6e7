"""The copy that bmm_warp_specialized makes of an operand in TF32 runs along K and holds what was there."""

from __future__ import annotations

import pytest
import torch

from tuner import Problem
from tuner.kernels.base.operands import Operands
from tuner.kernels.batched.along_k import along_k
from tuner.launch.launch import run


def operands_of(a: torch.Tensor, b: torch.Tensor, layout: str = "tn", dtype: str = "fp32") -> Operands:
    batch, m, k = a.shape
    precision = {"precision": "tf32"} if dtype == "fp32" else {}
    problem = Problem(m, b.shape[2], k, dtype=dtype, layout=layout, op="bmm", extras={"batch": batch}, **precision)
    out = torch.empty(batch, m, b.shape[2])
    return Operands(a, b, out, None, problem, out)


@pytest.mark.parametrize(("m", "n"), [(72, 136), (136, 72), (64, 64)], ids=["A", "B", "of equals B"])
@pytest.mark.parametrize("k", [1, 63, 200])
def test_the_smaller_operand_is_copied_in_one_launch_and_the_other_stays(m, n, k):
    a, b = torch.randn(3, k, m).mT, torch.randn(3, k, n)
    operands = operands_of(a, b)
    found, launches = along_k(operands)
    assert len(launches) == 1
    run(launches)
    assert torch.equal(found.a, a)
    assert torch.equal(found.b, b)
    copy, kept = (found.a, found.b) if m < n else (found.b.mT, found.a)
    assert kept is (b if m < n else a)
    assert copy.stride(2) == 1
    assert copy.stride(1) % 32 == 0
    assert copy.stride(1) >= k
    assert found.problem.layout == ("nn" if m < n else "tt")


@pytest.mark.parametrize("between_rows", [True, False], ids=["between each other's rows", "apart"])
def test_matrices_lie_anywhere_and_one_that_all_share_is_copied_once(between_rows):
    room = torch.randn(100, 5, 104) if between_rows else torch.randn(5, 100, 104).transpose(0, 1)
    a, shared = room[:, :, 16:80].permute(1, 2, 0), torch.randn(1, 100, 128).expand(5, 100, 128)
    found, launches = along_k(operands_of(a, shared))
    run(launches)
    assert torch.equal(found.a, a)
    assert found.b is shared
    found, launches = along_k(operands_of(shared.mT, room[:, :, 16:80].transpose(0, 1)))
    run(launches)
    assert torch.equal(found.b, room[:, :, 16:80].transpose(0, 1))
    narrow = torch.randn(1, 100, 64).expand(5, 100, 64)
    found, launches = along_k(operands_of(shared.mT, narrow))
    run(launches)
    assert torch.equal(found.b, narrow)
    assert found.b.stride(0) == 0
    assert launches[0].arguments[1].shape[0] == 1


@pytest.mark.parametrize(("layout", "dtype"), [("nn", "fp32"), ("tt", "fp32"), ("nt", "fp32"), ("tn", "bf16")])
def test_other_operands_are_used_where_they_lie(layout, dtype):
    kind = torch.float32 if dtype == "fp32" else torch.bfloat16
    a = torch.zeros(2, 96, 64, dtype=kind).mT if layout[0] == "t" else torch.zeros(2, 64, 96, dtype=kind)
    b = torch.zeros(2, 128, 96, dtype=kind).mT if layout[1] == "t" else torch.zeros(2, 96, 128, dtype=kind)
    operands = operands_of(a, b, layout, dtype)
    assert along_k(operands) == (operands, ())
