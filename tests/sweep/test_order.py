"""In which order several GPUs begin problems."""

from __future__ import annotations

import pytest

from tuner.problem import Problem
from tuner.sweep import run
from tuner.sweep.plan import Plan

COMMON = [Problem(16 * m, 64, 64, dtype="bfloat16") for m in range(1, 4)]
PAIR = [Problem(16, 64, 64), Problem(32, 64, 64)]
ALONE = Problem(16, 64, 64, dtype="float32")


def test_kinds_of_few_problems_come_first_and_each_kind_keeps_its_order():
    mixed = [COMMON[0], PAIR[0], COMMON[1], ALONE, COMMON[2], PAIR[1]]
    assert run.rarest_first(mixed) == [ALONE, *PAIR, *COMMON]


@pytest.mark.parametrize(
    ("gpus", "plan", "rarest"),
    [([None], Plan(), False), ([None] * 2, Plan(), True), ([None] * 2, Plan(time_budget_s=900), False)],
)
def test_one_gpu_and_a_time_budget_keep_the_given_order(faulty, tmp_path, gpus, plan, rarest):
    from tuner.store.store import Store
    from tuner.sweep.observer import Observer

    problems = [faulty(configs=1), faulty(configs=2)]
    problems.append(Problem(16, 16, 16, dtype="float32", layout="nt", op="faulty", extras={"configs": 1}))
    begun = []

    class Told(Observer):
        def started(self, device, environment, listed):
            begun.extend(listed)

    with Store.open(str(tmp_path / "tuner.db")) as store:
        run.sweep(store, problems, gpus, plan, observer=Told())
    assert begun == ([problems[2], *problems[:2]] if rarest else problems)
