"""benchmarks/rivals.py: how many times the race's GPU seconds a rival takes to the race's regret."""

import pytest

pytest.importorskip("triton")
rivals = pytest.importorskip("rivals")


def row(strategy, seconds, regret, *, trials=64, problems="design"):
    return {
        "strategy": strategy,
        "trials_allowed": trials,
        "problems": problems,
        "seconds": seconds,
        "geomean_regret": regret,
    }


RACE = [row("race", 2.0, 0.002, trials=None), row("race", 1.0, 0.01, trials=16)]


def test_a_rival_that_comes_level_is_told_with_what_it_spent_before():
    tpe = [row("tpe", 4.0, 0.02), row("tpe", 9.0, 0.001), row("tpe, thorough", 7.0, 0.002), row("tpe", 8.0, 0.003)]
    (found,) = (each for each in rivals.behind([*RACE, *tpe]) if each["rival"] == "tpe")
    assert (found["behind_at"], found["regret_there"], found["level_at"]) == (2.0, 0.02, 3.5)


def test_a_rival_that_never_comes_level_has_no_price():
    rows = [*RACE, row("random", 6.0, 0.02), row("random, thorough", 20.0, 0.003)]
    (found,) = (each for each in rivals.behind(rows) if each["rival"] == "random")
    assert (found["behind_at"], found["regret_there"], found["level_at"]) == (10.0, 0.003, None)


def test_parts_of_the_problems_are_held_against_the_race_on_the_same_part():
    held = [row("race", 1.0, 0.001, trials=None, problems="held out"), row("tpe", 5.0, 0.0, problems="held out")]
    found = {(each["rival"], each["problems"]): each["level_at"] for each in rivals.behind([*RACE, *held])}
    assert found == {
        ("random", "design"): None,
        ("tpe", "design"): None,
        ("random", "held out"): None,
        ("tpe", "held out"): 5.0,
    }
