"""What judges results sees every matrix of a batch, in chunks of any size."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tuner.sweep import verify


@dataclasses.dataclass(frozen=True)
class Batch:
    output: torch.Tensor
    buffer: torch.Tensor
    nbytes: int = 0


@pytest.fixture
def batch() -> Batch:
    buffer = torch.empty(10 + 5 * 3 * 4 + 10)
    return Batch(buffer[10:-10].view(5, 3, 4), buffer)


@pytest.mark.parametrize("chunk", [1, 12, 30, 1000])
@pytest.mark.parametrize("index", [(0, 0, 0), (2, 1, 3), (4, 2, 3)])
def test_one_wrong_element_of_a_batch_is_found(batch, chunk, index, monkeypatch):
    monkeypatch.setattr(verify, "_CHUNK", chunk)
    reference = torch.randn(5, 3, 4, dtype=torch.float64)
    verify.poison(batch)
    batch.output.copy_(reference)
    assert verify.check(batch, reference, 8, 1e-6).failure is None
    batch.output[index] += 1
    assert verify.check(batch, reference, 8, 1e-6).failure is not None
    batch.output[index] = float("nan")
    assert "unwritten" in verify.check(batch, reference, 8, 1e-6).failure


@pytest.mark.parametrize("where", [9, 70])
def test_a_byte_beside_a_batch_is_found(batch, where):
    verify.poison(batch)
    batch.output.zero_()
    batch.buffer[where] = 0
    assert verify.check(batch, torch.zeros(5, 3, 4, dtype=torch.float64), 8, 1.0).stray
