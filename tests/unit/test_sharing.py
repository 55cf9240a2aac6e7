"""What shares memory is told from what only lies side by side in it."""

from __future__ import annotations

import itertools

import pytest
import torch

from tuner.kernels.base.sharing import first_shared, share_memory


def slices(wide: torch.Tensor) -> list[torch.Tensor]:
    """Every slice of a matrix, without steps."""
    rows, columns = (itertools.combinations(range(size + 1), 2) for size in wide.shape)
    return [wide[first:last, left:right] for (first, last), (left, right) in itertools.product(rows, columns)]


def addresses(matrix: torch.Tensor) -> set[int]:
    offsets = itertools.product(*map(range, matrix.shape))
    return {matrix.data_ptr() + sum(i * s for i, s in zip(at, matrix.stride(), strict=True)) for at in offsets}


@pytest.mark.parametrize("transposed", [False, True])
def test_slices_of_one_matrix_are_told_exactly(transposed):
    found = [matrix.t() if transposed else matrix for matrix in slices(torch.zeros(3, 4, dtype=torch.int8))]
    for one, other in itertools.product(found, found):
        assert share_memory(one, other) == bool(addresses(one) & addresses(other)), (one.shape, other.shape)


def test_expanded_and_stepped_views_are_told_exactly_beside_memory_without_gaps():
    memory = torch.zeros(40, dtype=torch.int8)
    views = [
        memory.as_strided((rows, 3), (pitch, step), at)
        for rows, pitch, step, at in itertools.product((1, 2, 3), (0, 5, 9), (0, 1, 2), (0, 7, 15))
    ]
    ranges = [memory[first:last] for first, last in itertools.combinations(range(0, 41, 2), 2)]
    for view, dense in itertools.product(views, ranges):
        shares = bool(addresses(view) & addresses(dense))
        assert share_memory(view, dense) == share_memory(dense, view) == shares, (view.stride(), dense.shape)


def test_columns_of_batches_are_told_as_those_of_one_matrix():
    memory = torch.zeros(2, 10, 30)
    assert share_memory(memory[:, :, 10:], memory[:, :, :20])
    assert not share_memory(memory[:, :, 20:], memory[:, :, :20])


def test_rows_that_wrap_into_the_next_are_seen():
    memory = torch.zeros(64, dtype=torch.int8)
    one, other = memory.as_strided((4, 3), (8, 1)), memory.as_strided((2, 4), (8, 1), 6)
    assert share_memory(one, other)
    assert share_memory(other, one)
    assert not share_memory(one, memory.as_strided((2, 4), (8, 1), 4))


def test_of_other_views_only_those_that_begin_together_or_have_no_gaps_share_memory():
    memory = torch.zeros(64, dtype=torch.int8)
    assert not share_memory(memory[::2], memory[1::2])
    assert share_memory(memory[::2], memory[::3])
    assert share_memory(memory[:33], memory[32:])
    assert not share_memory(memory[:32], memory[32:])
    assert not share_memory(memory[:0], memory)
    assert not share_memory(memory, torch.zeros(64, dtype=torch.int8))


def test_of_many_tensors_two_that_share_memory_are_named():
    wide = torch.zeros(8, 64)
    columns = list(wide.split(16, dim=1))
    assert first_shared(columns) is None
    assert first_shared([*columns, torch.zeros(0), torch.zeros(0)]) is None
    assert first_shared([*columns, wide[7:, 40:48]]) == (2, 4)
    assert first_shared([columns[3], *columns]) == (0, 4)
