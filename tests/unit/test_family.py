"""Ladders: which Ms are tuned for a range, and how ranges are written."""

from __future__ import annotations

import pytest

from tuner.errors import ProblemError
from tuner.problem import Problem
from tuner.problem import family as families


def test_rungs_are_powers_of_two_their_halves_and_both_ends():
    assert families.rungs(1, 100) == [1, 2, 4, 8, 16, 17, 32, 33, 64, 65, 100]
    assert families.rungs(7, 7) == [7]
    assert families.rungs(150, 200) == [150, 192, 200]


def test_a_range_of_too_many_rungs_is_one_line():
    with pytest.raises(ProblemError, match="a ladder of 83 Ms to tune, more than 64: write a smaller range"):
        families.ladders(range(1, 2**31), lambda m: Problem(m, 64, 64))


@pytest.mark.parametrize(
    ("text", "read"), [("64", [64]), ("1,8, 64", [1, 8, 64]), ("1-512", range(1, 513)), (" 5 - 5 ", range(5, 6))]
)
def test_sizes_are_one_several_or_a_range(text, read):
    assert families.sizes(text) == read


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("512-1", "write 1-512"),
        ("0-4", "M must be from 1 to"),
        ("1-2147483648", "M must be from 1 to"),
        ("1-", "a range such as 1-512"),
        ("", "a range such as 1-512"),
        ("a", "a range such as 1-512"),
        (",".join(map(str, range(1, 66))), "lists 65 sizes, more than 64"),
    ],
)
def test_what_is_no_size_is_one_line(text, said):
    with pytest.raises(ProblemError, match=said) as raised:
        families.sizes(text)
    assert "\n" not in str(raised.value)


def test_a_range_is_one_ladder_where_alignment_does_not_hang_on_m():
    (ladder,) = families.ladders(range(1, 513), lambda m: Problem(m, 4096, 4096, dtype="bf16", layout="nt"))
    assert [problem.m for problem in ladder.rungs] == families.rungs(1, 512)
    assert (ladder.first_m, ladder.last_m, str(ladder)) == (1, 512, "matmul 1-512x4096x4096 bfloat16 nt")


def test_aligned_and_unaligned_ms_are_ladders_of_their_own():
    found = families.ladders(range(1, 65), lambda m: Problem(m, 4096, 4096, dtype="bf16", layout="tn"))
    by_alignment = {ladder.rungs[0].aligned: [problem.m for problem in ladder.rungs] for ladder in found}
    assert by_alignment[True] == [8, 16, 32, 64]
    assert by_alignment[False] == [1, 2, 3, 4, 7, 15, 17, 31, 33, 63]
    assert all(ladder.first_m == 1 for ladder in found)


@pytest.mark.parametrize("text", ["{}x64x64", "1-{}x64x64", "64x64x{}"])
def test_more_digits_than_python_reads_are_one_short_line(text):
    with pytest.raises(ProblemError) as raised:
        families.parse_shape(text.format("9" * 5000), Problem)
    assert len(str(raised.value)) < 200


def test_a_list_of_sizes_with_too_many_digits_is_one_short_line():
    for text in ("9" * 5000, f"1-{'9' * 5000}"):
        with pytest.raises(ProblemError, match="M must be") as raised:
            families.sizes(text)
        assert len(str(raised.value)) < 200
