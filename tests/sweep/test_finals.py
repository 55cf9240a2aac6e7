import math
import random

from tuner.sweep import finals

ROUNDS, MAX_ROUNDS = 30, 150


def play(contestants, fire, **options):
    return finals.play(contestants, fire, rounds=ROUNDS, max_rounds=MAX_ROUNDS, **options)


def steady(levels, noise=0.002, drift=0.0, seed=0):
    """A `fire` whose contestants take `levels` microseconds, with noise, and drift shared by a round's contestants."""
    source = random.Random(seed)
    rounds = 0

    def fire(names):
        nonlocal rounds
        rounds += 1
        common = math.exp(drift * rounds)
        return [levels[name] * common * math.exp(source.gauss(0, noise)) for name in names]

    return fire


def test_paired_rounds_see_through_a_drift_that_all_contestants_share():
    levels = {"a": 100.0, "b": 101.0, "c": 130.0}
    times = play(list(levels), steady(levels, drift=0.02), seed=1)
    table = finals.compare_to_fastest(times)
    assert abs(table["b"].ratio - 1.01) < 0.002
    assert abs(table["c"].ratio - 1.30) < 0.003
    assert table["b"].low < table["b"].ratio < table["b"].high
    assert finals.ties(table) == ["a"]


def test_contestants_within_half_a_percent_are_ties():
    levels = {"a": 100.0, "b": 100.2, "c": 101.5}
    table = finals.compare_to_fastest(play(list(levels), steady(levels), seed=2))
    assert sorted(finals.ties(table)) == ["a", "b"]


def test_contestants_on_the_edge_of_a_tie_play_on_without_the_clear_losers():
    clear = play(["a", "b"], steady({"a": 100.0, "b": 110.0}), seed=3)
    edge = play(["a", "b", "c"], steady({"a": 100.0, "b": 100.5, "c": 120.0}, noise=0.01), seed=3)
    assert len(clear["a"]) == ROUNDS
    assert ROUNDS < len(edge["a"]) == len(edge["b"]) <= MAX_ROUNDS
    assert len(edge["c"]) == ROUNDS
    table = finals.compare_to_fastest(edge)
    assert abs(table["c"].ratio - 1.2) < 0.01


def test_more_rounds_tell_two_percent_apart_where_replays_spread_by_three():
    levels = {"a": 100.0, "b": 102.0, "c": 101.0}
    chosen = [
        finals.ties(finals.compare_to_fastest(play(list(levels), steady(levels, noise=0.03, seed=seed), seed=seed)))
        for seed in range(20)
    ]
    assert sum("b" in tied for tied in chosen) <= 1


def test_a_throttled_round_is_repeated_and_not_counted():
    played = []
    flags = iter([True, True, *[False] * 100])

    def fire(names):
        played.append(tuple(names))
        return [1000.0 if len(played) <= 2 else 100.0 for _ in names]

    times = play(["a", "b"], fire, seed=4, throttled=lambda: next(flags))
    assert len(played) == ROUNDS + 2
    assert set(times["a"]) == {100.0}


def test_a_card_that_is_always_throttled_still_gives_paired_rounds():
    times = play(["a"], steady({"a": 5.0}), seed=5, throttled=lambda: True)
    assert len(times["a"]) == ROUNDS


def test_the_order_of_contestants_differs_between_rounds():
    orders = []

    def fire(names):
        orders.append(tuple(names))
        return [1.0] * len(names)

    play(["a", "b", "c"], fire, seed=6)
    assert len(set(orders)) > 3


def test_one_that_is_there_to_be_compared_with_decides_nothing():
    levels = {"a": 100.0, "b": 100.5, "vendor": 80.0}
    times = play(list(levels), steady(levels, noise=0.01), seed=3, beside=("vendor",))
    assert len(times["a"]) == len(times["b"]) > ROUNDS
    assert len(times["vendor"]) == ROUNDS
    assert abs(finals.ratio(times["vendor"], times["a"]) - 0.8) < 0.01


def test_the_fastest_is_one_that_played_to_the_end():
    table = finals.compare_to_fastest({"left": [10.0, 10.0], "stayed": [9.9, 9.9, 12.0, 12.0]})
    assert (table["stayed"].ratio, table["left"].ratio > 1) == (1.0, True)
