"""Problems are listed in one order, whatever their keys hold."""

from __future__ import annotations

import itertools

from tuner.problem import Problem
from tuner.problem.text import problem_order


def test_problems_are_sorted_by_size_and_those_whose_extras_do_not_compare_are_sorted_too():
    ordered = [
        Problem(16, 16, 16, op="bmm", extras={"batch": 2}),
        Problem.keyed("layer_norm", {"N": "8"}),
        Problem.keyed("layer_norm", {"N": 8}),
        Problem(8, 1024, 16),
        Problem(16, 16, 16),
        Problem(16, 16, 16, dtype="e4m3", scaling="row"),
        Problem(128, 16, 16),
    ]
    for shuffled in itertools.permutations(ordered[:4]):
        assert sorted([*shuffled, *reversed(ordered[4:])], key=problem_order) == sorted(ordered, key=problem_order)
    sizes = [problem.m for problem in sorted(ordered, key=problem_order) if problem.op == "matmul"]
    assert sizes == [8, 16, 16, 128]
