"""Shards: each problem is in one of them, whatever the order of the rows."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tuner.errors import UsageError
from tuner.problem import Problem
from tuner.problem.family import Ladder, grid, ladders
from tuner.problem.shard import Shard, _seconds
from tuner.problem.suite import load_with_ladders


def problems(count: int) -> list[Problem]:
    return [Problem(16 * m, 4096, 4096) for m in range(1, count + 1)]


def parts(listed, count: int):
    return [Shard(number, count).of(listed) for number in range(1, count + 1)]


@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("suite", ["demo", "decode", "llm", "benchmarks/suites/public.csv"])
def test_each_row_is_in_one_part_and_the_order_of_rows_does_not_matter(suite, count, request):
    name = str(request.config.rootpath / suite) if suite.endswith(".csv") else suite
    listed = list(dict.fromkeys(load_with_ladders(name)))
    made = parts(listed, count)
    assert Counter(each for part in made for each in part) == Counter(listed)
    mixed = listed * 2
    random.Random(0).shuffle(mixed)
    assert [set(part) for part in parts(mixed, count)] == [set(part) for part in made]


def test_parts_cost_about_the_same_and_keep_the_order():
    listed = [*problems(30), Problem(32768, 32768, 32768)]
    made = parts(listed, 4)
    costs = [_seconds(part) for part in made]
    assert max(costs) - min(costs) <= max(_seconds([each]) for each in listed)
    assert len(made[0]) < 8, "the part with the long problem has fewer"
    assert all(part == sorted(part, key=listed.index) for part in made)


def test_ladders_of_a_family_stay_together_with_the_problems_that_they_tune():
    def make(m: int) -> Problem:
        return Problem(m, 4096, 4096)

    together = [*ladders(range(1, 513), make), *ladders(range(1, 2049), make), make(64)]
    batched = grid(
        range(1, 65), range(1, 17), lambda m, batch: Problem(m, 64, 64, op="bmm", extras={"batch": batch or 1})
    )
    assert sum(isinstance(each, Ladder) for each in batched) > 1
    made = parts([*together, *batched, *problems(20)], 8)
    for group in (together, batched):
        assert sum(bool(set(group) & set(part)) for part in made) == 1


def test_more_parts_than_problems_leave_some_empty():
    assert sorted(map(len, parts(problems(2), 5))) == [0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    "text", ["0/4", "5/4", "a/b", "", "1", "1/0", "-1/4", "1/4/2", "1.5/4", "\u0661/\u0664", "1/" + "9" * 5000]
)
def test_what_is_no_shard_is_refused(text):
    with pytest.raises(UsageError, match=r"is no shard: expected I/N with I from 1 to N, for instance --shard 3/8"):
        Shard.parse(text)
