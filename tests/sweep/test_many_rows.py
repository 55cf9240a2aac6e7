"""Which Ms of many rows a ladder's winners serve, by a cost model that is wrong in known ways."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from tuner.hardware.device import KNOWN, Environment
from tuner.kernel.config import Config
from tuner.problem import Problem, family
from tuner.problem.family import Ladder
from tuner.store.records import Winner
from tuner.sweep.ladder_points import Points
from tuner.sweep.many_rows import MANY_ROWS, CorrectedModel, spans
from tuner.sweep.neighbours import FARTHEST

HEIGHTS = [Config("any_height", BLOCK_SIZE_M=rows, BLOCK_SIZE_N=128, num_warps=8) for rows in range(64, 257, 8)]
LAST = 4096


def problem(m: int) -> Problem:
    return Problem(m, 6144, 4096, dtype="bf16", layout="nt")


def modelled_us(config: Config, problem: Problem) -> float:
    """Waves of tiles on 132 multiprocessors; a tile has a price beside that of its rows."""
    rows = config["BLOCK_SIZE_M"]
    tiles = math.ceil(problem.m / rows) * math.ceil(problem.n / 128)
    return math.ceil(tiles / 132) * (3.0 + rows / 16)


def taken_us(config: Config, problem: Problem) -> float:
    """What it really takes: up to a tenth more or less than the model says, for each config as much for all Ms."""
    return modelled_us(config, problem) * (1 + random.Random(str(config)).uniform(-0.1, 0.1))


def points_of(
    ms: list[int],
    configs: list[Config] = HEIGHTS,
    estimate: Callable | None = modelled_us,
    taken: Callable = taken_us,
) -> Points:
    """Points at some Ms, at which all configs were measured."""
    points = Points(Ladder(ms[0], tuple(map(problem, ms))), estimate)
    for m in ms:
        times = {config: taken(config, problem(m)) for config in configs}
        best = min(times, key=times.__getitem__)
        figures = (times[best], None, None, 1, (best,))
        environment = Environment("3.7.1", "2.13.0", "cuda 13.0", "", "3.11")
        row = (KNOWN["sm_90"], environment, problem(m), best, 1, 1, "0.1.0", "2026-01-31T12:00:00Z")
        points.add(m, Winner(*row, *figures), times)
    return points


RUNGS = [257, *range(320, 1025, 64), *range(1152, LAST + 1, 256), LAST]


def loss(points: Points, ranges: list[family.Range]) -> float:
    """The time of what serves random Ms over the fastest's, as a geometric mean."""
    chance, logs = random.Random(1), []
    for _ in range(300):
        m = round((MANY_ROWS + 1) * (LAST / (MANY_ROWS + 1)) ** chance.random())
        row_m = next(each.row_m for each in ranges if each.first_m <= m <= each.last_m)
        us = taken_us(points.winners[row_m].config, problem(m))
        logs.append(math.log(us / min(taken_us(config, problem(m)) for config in HEIGHTS)))
    return math.exp(sum(logs) / len(logs))


def test_any_winner_serves_many_rows_and_less_is_lost_than_by_those_beside_an_m():
    points = points_of(RUNGS)
    ranges = points.ranges()
    assert [each.first_m for each in ranges] == [RUNGS[0], *(each.last_m + 1 for each in ranges[:-1])]
    assert ranges[-1].last_m == LAST
    assert any(not each.first_m <= each.row_m <= each.last_m for each in ranges)
    assert loss(points, points.beside()) > 1.03
    assert loss(points, ranges) < 1.01


def test_up_to_256_rows_the_points_beside_an_m_serve_it():
    points = points_of([1, 16, 32, 64, 96, 128, 192, 256, *RUNGS])
    few = [each for each in points.ranges() if each.last_m <= MANY_ROWS]
    beside = [each for each in points.beside() if each.last_m <= MANY_ROWS]
    assert few[: len(beside)] == beside
    assert points_of([1, 16, 64, 256]).ranges() == points_of([1, 16, 64, 256]).beside()


def test_where_the_points_above_lose_little_they_serve_whatever_the_model_says():
    few, many = HEIGHTS[0], HEIGHTS[-1]

    def smooth_us(config: Config, at: Problem) -> float:
        return at.m if config == few else 700 + at.m / 3

    points = points_of(RUNGS, [few, many], lambda config, at: 1.0 + (config == few) * at.m, smooth_us)
    assert {winner.config for winner in points.winners.values()} == {few, many}
    assert points.ranges() == points.beside()


@pytest.mark.parametrize("estimate", [lambda _config, _problem: None, lambda _config, _problem: math.inf])
def test_without_a_model_of_all_the_points_beside_an_m_serve_it(estimate):
    points = points_of(RUNGS, estimate=estimate)
    assert points.ranges() == points.beside()


@pytest.mark.parametrize("seed", range(40))
def test_a_config_serves_no_m_beside_one_at_which_it_failed(seed):
    points = points_of(RUNGS)
    chance = random.Random(seed)
    each = chance.choice(points.ranges())
    config, m = points.winners[each.row_m].config, chance.randint(each.first_m, each.last_m)
    points.add_failures(m, frozenset([config]))
    low, high = max(at for at in RUNGS if at <= m), min(at for at in RUNGS if at >= m)
    won = {at for at, winner in points.winners.items() if winner.config == config}
    for one in points.ranges():
        if points.winners[one.row_m].config == config:
            assert not one.first_m <= m <= one.last_m or m in won
            assert not (low < one.first_m and one.last_m < high)


def test_what_was_measured_corrects_the_model_and_far_from_it_a_config_does_not_serve():
    (config, other), ladder = HEIGHTS[:2], Ladder(257, tuple(map(problem, (257, 8192))))
    measured = {config: {m: 1.2 * modelled_us(config, problem(m)) for m in (512, 1024)}, other: {}}
    model = CorrectedModel(ladder, modelled_us, measured)
    assert (model.knows(config), model.knows(other)) == (True, False)
    assert math.exp(model.log_us(config, 1500)) == pytest.approx(1.2 * modelled_us(config, problem(1500)))
    assert model.log_us(config, 1024 * FARTHEST) < math.inf
    assert model.log_us(config, 1024 * FARTHEST + 1) == math.inf


def test_more_rows_take_no_less_than_fewer_that_were_measured():
    config, ladder = HEIGHTS[0], Ladder(257, tuple(map(problem, (257, 4096))))
    model = CorrectedModel(ladder, lambda _config, at: at.m / 10, {config: {512: 60.0, 1024: 70.0}})
    found = [math.exp(model.log_us(config, m)) for m in (300, 512, 520, 800, 1000, 1024, 1100)]
    assert found == sorted(found)
    assert found[1] == found[2] == pytest.approx(60.0)  # by the model it would be 47.9 us
    assert found[-3] == found[-2] == pytest.approx(70.0)  # and 92.2


def test_spans_cover_a_range_with_few_configs_and_only_where_each_can_run():
    one, other, tall = HEIGHTS[:3]

    def log_us(config: Config, m: int) -> float:
        if config == tall:
            return -1.0 if m >= 700 else math.inf
        return 0.0 if (config == one) == (m <= 400) else 0.0001  # too little for a span of its own

    def anywhere(_config: Config, _first: int, _last: int) -> bool:
        return True

    found = spans([one, other, tall], log_us, anywhere, 257, 1000)
    assert [each.config for each in found] in ([one, tall], [other, tall])
    assert (found[0].first_m, found[-1].last_m) == (257, 1000)
    assert 700 <= found[1].first_m == found[0].last_m + 1 <= 720
    assert spans([tall], log_us, anywhere, 257, 1000) is None
    assert spans([one], log_us, anywhere, 300, 300) == [(300, 300, one)]
    found = spans([one, other], log_us, lambda config, first, last: config != one or not first <= 333 <= last, 257, 400)
    assert {each.config for each in found if each.first_m <= 333 <= each.last_m} == {other}
