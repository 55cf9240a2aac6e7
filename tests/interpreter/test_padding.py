"""What is copied into padded rows is what was there, wherever rows begin, and no byte around the matrix is touched."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from triton.runtime.interpreter import InterpreterBuilder

from tuner import Problem
from tuner.kernels.base.operands import Operands
from tuner.kernels.gemm.padded import copy as padding
from tuner.launch.launch import run

ALIGNED = torch.zeros(64, 128, dtype=torch.int8)
BYTES = {torch.int8: 1, torch.float16: 2, torch.float32: 4}


@pytest.fixture
def touched(monkeypatch):
    """Addresses of every byte that is loaded, and stored."""
    seen = {"load": [np.empty(0, np.uint64)], "store": [np.empty(0, np.uint64)]}

    def watch(name, size_of):
        method = getattr(InterpreterBuilder, f"create_masked_{name}")

        def recording(self, pointers, *arguments):
            mask = size_of(pointers, *arguments)
            first = pointers.data[mask].astype(np.uint64).ravel()
            size = pointers.get_element_ty().primitive_bitwidth // 8
            seen[name].append((first[:, None] + np.arange(size, dtype=np.uint64)).ravel())
            return method(self, pointers, *arguments)

        monkeypatch.setattr(InterpreterBuilder, f"create_masked_{name}", recording)

    watch("load", lambda _, mask, *__: mask.data)
    watch("store", lambda _, __, mask, *___: mask.data)
    return lambda name: np.unique(np.concatenate(seen[name]))


def placed(dtype: torch.dtype, shape, strides, before: int) -> torch.Tensor:
    """A matrix of random bits, so many elements behind an address that is a multiple of 16 bytes."""
    reach = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    room = torch.randint(-128, 128, ((before + reach + 64) * dtype.itemsize + 16,), dtype=torch.int8)
    start = -room.data_ptr() % 16
    room = room[start : start + (before + reach) * dtype.itemsize]
    return room.view(dtype).as_strided(shape, strides, before)


def copied(*matrices: torch.Tensor) -> list[torch.Tensor]:
    """The matrices in padded rows; all that lies in the scratch is set beforehand."""
    a, b = matrices if len(matrices) == 2 else (matrices[0], ALIGNED)
    operands = Operands(a, b, ALIGNED, None, Problem(64, 64, 64), ALIGNED)
    aligned, launches = padding.pad(operands, "ab")
    run(launches)
    return [aligned.a, aligned.b]


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two matrices have the same bits."""
    word = {1: torch.int8, 2: torch.int16, 4: torch.int32}[one.dtype.itemsize]
    return torch.equal(one.contiguous().view(word), other.contiguous().view(word))


def extent(matrix: torch.Tensor) -> tuple[int, int]:
    """Address of a matrix's first byte, and of the first behind it."""
    reach = 1 + sum((size - 1) * stride for size, stride in zip(matrix.shape, matrix.stride(), strict=True))
    return matrix.data_ptr(), matrix.data_ptr() + reach * matrix.element_size()


@pytest.mark.parametrize("dtype", list(BYTES), ids=str)
@pytest.mark.parametrize("before", [0, 1, 3, 4, 7, 9])
def test_rows_that_begin_anywhere_are_copied_from_their_own_bytes_alone(dtype, before, touched):
    columns = 1024 // dtype.itemsize + 13
    matrix = placed(dtype, (19, columns), (columns, 1), before)
    begin, end = extent(matrix)
    (found, _) = copied(matrix)
    assert same(found, matrix)
    loads, stores = touched("load"), touched("store")
    assert (loads[0], loads[-1], len(loads)) == (begin, end - 1, end - begin)
    assert stores[0] >= found.data_ptr()
    assert stores[-1] < found.data_ptr() + found.stride(0) * matrix.shape[0] * dtype.itemsize
    assert found.stride(0) * dtype.itemsize % 128 == 0


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((1, 37), (37, 1)),
        ((3, 1), (1, 1)),
        ((2, 3), (3, 1)),
        ((9, 515), (700, 1)),
        ((5, 64), (1, 1)),
        ((4, 67), (0, 1)),
    ],
    ids=["one row", "one column", "a few bytes", "rows apart", "rows that overlap", "one row again and again"],
)
def test_small_strided_and_overlapping_rows_stay_inside(shape, strides, touched):
    matrix = placed(torch.float16, shape, strides, 3)
    begin, end = extent(matrix)
    assert same(copied(matrix)[0], matrix)
    loads = touched("load")
    assert not len(loads) or begin <= loads[0] <= loads[-1] < end


def test_columns_that_begin_anywhere_are_copied_as_rows_of_the_transpose():
    matrix = placed(torch.float16, (131, 18), (1, 133), 5)
    (found, _) = copied(matrix)
    assert same(found, matrix)
    assert found.stride(0) == 1


def test_two_operands_of_which_one_has_words_and_one_has_no_contiguous_dimension():
    first, second = placed(torch.float16, (17, 531), (531, 1), 1), placed(torch.float16, (11, 19), (64, 3), 0)
    found = copied(first, second)
    assert same(found[0], first)
    assert same(found[1], second)


def test_rows_of_whole_16_bytes_are_not_shifted(touched):
    matrix = placed(torch.float16, (9, 520), (520, 1), 0)
    (found, _) = copied(matrix)
    assert same(found, matrix)
    assert touched("load")[0] == matrix.data_ptr()
