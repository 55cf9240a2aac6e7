"""Operands and outputs whose elements lie more than 2^31 apart are right, and sizes beyond 32 bits are one error."""

from __future__ import annotations

import pytest
import torch

from tuner.errors import InputError
from tuner.kernels import bmm, fused_experts, gated_linear, grouped_mm, matmul, rms_norm, softmax, vector_add

FAR = 5 * 2**29
"""Elements of the storage, of which only the pages that are touched take memory."""
LAYOUTS = {
    "rows": lambda m, n: (FAR // m, 1),
    "columns": lambda m, n: (1, FAR // n),
    "both": lambda m, n: (FAR // m - 3 * n, 3),
}


@pytest.fixture(scope="module")
def storage() -> torch.Tensor:
    return torch.empty(FAR, dtype=torch.float16)


def values(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).half()


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(2, 17), (16, 3), (33, 20)], ids=str)
def test_elements_more_than_31_bits_apart_are_read_and_written(shape, layout, storage):
    m, n = shape
    far = storage.as_strided(shape, LAYOUTS[layout](m, n))
    near, other, left, right = values(m, n), values(n, 5), values(m, 7), values(7, n)
    ends = torch.tensor([m], dtype=torch.int32)

    def given() -> torch.Tensor:
        return far.copy_(near)

    assert_close(matmul(given(), other), near @ other)
    assert_close(matmul(other.t(), given().t()), other.t() @ near.t())
    assert_close(bmm(given()[None], other[None])[0], near @ other)
    assert_close(bmm(given()[:, None], other.expand(m, -1, -1))[:, 0], near @ other)
    assert_close(grouped_mm(given(), other[None], ends), near @ other)
    assert_close(grouped_mm([given()], [other])[0], near @ other)
    assert_close(softmax(given()), near.softmax(1))
    normalized = torch.nn.functional.rms_norm(near, (n,), other[:, 0], 1e-6)
    assert_close(rms_norm(given(), other[:, 0], 1e-6), normalized)
    weight = values(5, n)
    assert_close(gated_linear(given(), weight, weight, activation="relu"), (near @ weight.t()).relu() ** 2)
    gated = (left @ left.t()).relu() ** 2
    if layout == "rows":
        weight = values(3, n)
        assert_close(gated_linear(weight, given(), far, activation="relu"), (weight @ near.t()).relu() ** 2)
        room = storage.as_strided((m, m), LAYOUTS[layout](m, m))
        assert_close(gated_linear(left, left, left, activation="relu", out=room), gated)
    assert_close(vector_add(given()[0], far[0]), near[0] * 2)
    assert_close(vector_add(given()[:, 0], far[:, 0]), near[:, 0] * 2)
    for write, expected in (
        (lambda out: matmul(left, right, out=out), left @ right),
        (lambda out: bmm(left[None], right[None], out=out[None]), left @ right),
        (lambda out: grouped_mm(left, right[None], ends, out=out), left @ right),
        (lambda out: grouped_mm([left], [right], out=[out]), left @ right),
        (lambda out: softmax(near, out=out), near.softmax(1)),
        (lambda out: rms_norm(near, other[:, 0], 1e-6, out=out), normalized),
        (lambda out: vector_add(near[0], near[0], out=out[0]), (near * 2)[:1]),
    ):
        far.fill_(torch.nan)
        write(far)
        assert_close(far[: len(expected)], expected)


def test_a_size_beyond_32_bits_is_one_error_that_says_how_to_split_the_call():
    one, many = torch.ones(1, 1, dtype=torch.float16), 2**31
    ends = torch.tensor([1], dtype=torch.int32)
    row, column = one.expand(1, many), one.expand(many, 1)
    for call, words in (
        (lambda: matmul(column, one), "M is 2147483648: expected at most 2147483647; call it for some of a's rows"),
        (lambda: matmul(column.view(2, -1, 1), one), "leading dimensions count as rows"),
        (lambda: matmul(one, row), "N is 2147483648: expected at most 2147483647; call it for some of b's columns"),
        (lambda: matmul(row, column), "K is 2147483648: expected at most 2147483647; add up the products of parts"),
        (lambda: bmm(row[None], column[None]), "K is 2147483648"),
        (lambda: grouped_mm(row, column[None], ends), "K is 2147483648"),
        (lambda: grouped_mm([one, row], [one, column]), "K is 2147483648"),
        (lambda: fused_experts(row, row.expand(1, 2, many), column[None], ends[:, None] - 1, one), "K is 2147483648"),
        (
            lambda: gated_linear(column, one, one),
            "M is 2147483648: expected at most 2147483647; call it for some",
        ),
        (lambda: gated_linear(one, column, column), "N is 2147483648: expected at most 1073741823; call it for some"),
        (lambda: gated_linear(row, row, row), "K is 2147483648: expected at most 2147483647; use torch's own ops"),
        (lambda: rms_norm(row, row[0], 1e-6), "x has rows of 2147483648 elements: expected at most 2147483647"),
        (lambda: softmax(row), "x has rows of 2147483648 elements: expected at most 2147483647; use torch.softmax"),
    ):
        with pytest.raises(InputError) as raised:
            call()
        assert words in str(raised.value)
        assert "\n" not in str(raised.value)


def test_no_rows_of_a_size_beyond_32_bits_are_no_rows():
    rows = torch.ones(1, 1, dtype=torch.float16).expand(0, 2**31)
    weight = torch.ones(1, dtype=torch.float16).expand(2**31)
    assert softmax(rows).shape == rms_norm(rows, weight, 1e-6).shape == rows.shape
