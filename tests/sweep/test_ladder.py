"""Ladders without a device: what is tuned, in which order, and which ranges follow from it."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable

import pytest

from tuner.hardware.device import KNOWN, Environment
from tuner.kernel.config import Config
from tuner.problem import Problem, family
from tuner.problem.batches import batch_of
from tuner.problem.batches import rungs as batched_rungs
from tuner.problem.family import Family, Range
from tuner.store.records import DecidedFamily, Winner
from tuner.sweep import ladder as ladder_module
from tuner.sweep import run
from tuner.sweep.agenda import Agenda
from tuner.sweep.ladder import CHECKS, FAILED, MAX_PROBES, MAX_REPAIR_ROUNDS, PROBE, Result, TuningStep
from tuner.sweep.ladder_points import MAX_LOSS, Points

H200 = KNOWN["sm_90"]
ENVIRONMENT = Environment("3.7.1", "2.13.0", "cuda 13.0", "", "3.11")
CONFIGS = [
    Config("pointer", BLOCK_SIZE_M=rows, BLOCK_SIZE_N=columns, num_warps=4)
    for rows in (16, 32, 64, 128)
    for columns in (64, 128)
]


def problem(m: int) -> Problem:
    return Problem(m, 6144, 4096, dtype="bf16", layout="nt")


def time_us(config: Config, problem: Problem) -> float:
    """Waves of tiles on 132 multiprocessors, the memory's time at least, and slow rows beyond the end of one tile."""
    rows, columns = config["BLOCK_SIZE_M"], config["BLOCK_SIZE_N"]
    tiles = math.ceil(problem.m / rows) * math.ceil(problem.n / columns)
    beyond = max(0, rows - problem.m) / rows if rows > 16 else 0.0
    return max(12.0, math.ceil(tiles / 132) * (1.0 + rows * columns / 2000)) * (1 + beyond)


def winner(problem: Problem, config: Config, tied: tuple[Config, ...] = ()) -> Winner:
    figures = (time_us(config, problem), None, None, 1, (config, *tied))
    return Winner(H200, ENVIRONMENT, problem, config, 1, 1, "0.1.0", "2026-01-31T12:00:00Z", *figures)


def recorded(found: Family, decided_at: str = "2026-01-31T12:00:00Z") -> DecidedFamily:
    return DecidedFamily(H200, ENVIRONMENT, found, decided_at)


def climb(agenda: Agenda, tuned: dict[Problem, Winner]) -> list[Family]:
    """Tune everything as if on a device; returns the families, and adds to `tuned`."""
    found: list[Family] = []
    while agenda:
        step = agenda.take()
        best = min(time_us(config, step.problem) for config in CONFIGS)
        tied = [config for config in CONFIGS if time_us(config, step.problem) <= 1.005 * best]
        ratios = {config: time_us(config, step.problem) / best for config in (*tied, *step.configs)}
        tuned[step.problem] = winner(step.problem, tied[0], tuple(tied[1:]))
        measured = {config: time_us(config, step.problem) for config in CONFIGS[::2]}
        found += agenda.ended(step.problem, Result(tuned[step.problem], ratios, measured), tuned.values())
    return found


@pytest.mark.parametrize("last", [1, 3, 16, 17, 31, 33, 100, 256, 1000])
def test_every_m_of_the_range_is_served_at_little_loss(last):
    (ladder,) = family.ladders(range(1, last + 1), problem)
    tuned: dict[Problem, Winner] = {}
    (found,) = climb(Agenda([], [ladder], time_us), tuned)
    assert (found.first_m, found.last_m) == (1, last)
    lost = []
    for m in range(1, last + 1):
        serving = next(each for each in found.ranges if m <= each.last_m)
        config = tuned[problem(serving.row_m)].config
        lost.append(time_us(config, problem(m)) / min(time_us(one, problem(m)) for one in CONFIGS))
    assert max(lost) < 1.3
    assert math.exp(sum(map(math.log, lost)) / len(lost)) < 1.02
    assert all(problem(each.row_m) in tuned for each in found.ranges)


def test_anchors_come_first_then_rungs_then_probes_then_checks():
    (ladder,) = family.ladders(range(1, 1001), problem)
    agenda, order = Agenda([problem(7)], [ladder], time_us), []
    tuned: dict[Problem, Winner] = {}
    while agenda:
        step = agenda.take()
        order.append(step)
        tuned[step.problem] = winner(step.problem, min(CONFIGS, key=lambda config: time_us(config, step.problem)))
        agenda.ended(step.problem, Result(tuned[step.problem]), tuned.values())
    ms = [step.problem.m for step in order]
    rungs = family.rungs(1, 1000)
    assert ms[: 1 + 4] == [7, 1, 16, 256, 1000]
    assert sorted(ms[1 : 1 + len(rungs)]) == rungs
    probes = [step for step in order if step.strategy is PROBE]
    assert 0 < len(probes) <= MAX_PROBES
    assert all(step.configs for step in probes)
    assert [step.warm_started for step in order] == [False] * 5 + [True] * (len(order) - 5)
    checks = [step for step in order if step.in_finals]
    assert order[-CHECKS:] == checks
    assert len(set(ms)) == len(ms)


def test_a_second_run_checks_nothing_again_and_records_nothing_again():
    (ladder,) = family.ladders(range(1, 65), problem)
    tuned: dict[Problem, Winner] = {}
    first = climb(Agenda([], [ladder], time_us), tuned)
    before = set(tuned)
    again = Agenda([], [ladder], time_us)
    again.know(map(recorded, first))
    assert climb(again, tuned) == []
    assert set(tuned) == before


@pytest.mark.parametrize("last", [4, 17, 64, 256])
def test_a_second_run_does_nothing_however_noisy_the_times_were(last):
    """Ms that were checked or played between rungs need not serve a range, and the ranges differ without them."""

    def run(agenda: Agenda) -> list[Family]:
        found: list[Family] = []
        while agenda:
            step = agenda.take()
            if step.problem in tuned:
                result = Result(tuned[step.problem], {}, times[step.problem])
            else:
                played = times[step.problem] = {
                    one: 10 * draw.uniform(1, 1.5) for one in (*CONFIGS[::3], *step.configs)
                }
                best = min(played, key=lambda config: played[config])
                tied = [one for one in played if one != best and played[one] <= 1.01 * played[best]]
                won = dataclasses.replace(winner(step.problem, best, tuple(tied)), median_us=played[best])
                tuned[step.problem] = won
                result = Result(won, {one: us / played[best] for one, us in played.items()}, played)
            found += agenda.ended(step.problem, result, tuned.values())
        return found

    for seed in range(20):
        draw, tuned, times = random.Random(seed), dict[Problem, Winner](), dict[Problem, dict[Config, float]]()
        (ladder,) = family.ladders(range(1, last + 1), problem)
        first = run(Agenda([], [ladder], time_us))
        before = set(tuned)
        again = Agenda([], [ladder], time_us)
        again.know(map(recorded, first))
        assert (run(again), set(tuned)) == ([], before)


def test_a_family_older_than_a_winner_of_its_rungs_is_decided_anew():
    (ladder,) = family.ladders(range(1, 65), problem)
    tuned: dict[Problem, Winner] = {}
    first = climb(Agenda([], [ladder], time_us), tuned)
    again = Agenda([], [ladder], time_us)
    again.know(recorded(each, "2026-01-31T11:59:59Z") for each in first)
    assert [found.last_m for found in climb(again, tuned)] == [64]


def test_a_run_that_was_stopped_goes_on_to_the_same_ranges():
    (ladder,) = family.ladders(range(1, 257), problem)
    whole = climb(Agenda([], [ladder], time_us), {})
    for stop in random.Random(1).sample(range(1, 16), 4):
        agenda, tuned = Agenda([], [ladder], time_us), {}
        for _ in range(stop):
            step = agenda.take()
            tuned[step.problem] = winner(step.problem, min(CONFIGS, key=lambda one, at=step.problem: time_us(one, at)))
            agenda.ended(step.problem, Result(tuned[step.problem]), tuned.values())
        assert [found.ranges for found in climb(Agenda([], [ladder], time_us), {})] == [whole[0].ranges]


def test_a_rung_without_a_winner_falls_to_the_next_above_and_the_last_ones_are_not_served():
    (ladder,) = family.ladders(range(1, 65), problem)
    agenda = Agenda([], [ladder], lambda _config, _problem: None)
    found: list[Family] = []
    while agenda:
        step = agenda.take()
        won = None if step.problem.m in (4, 64) else winner(step.problem, CONFIGS[step.problem.m % len(CONFIGS)])
        found += agenda.ended(step.problem, Result(won), ())
    (only,) = found
    assert (only.first_m, only.last_m) == (1, 33)
    assert 4 not in [each.last_m for each in only.ranges]
    assert only.check is None


def test_a_ladder_that_no_kernel_serves_gives_no_family():
    (ladder,) = family.ladders(range(1, 65), problem)
    agenda = Agenda([], [ladder], time_us)
    while agenda:
        assert agenda.ended(agenda.take().problem, Result(None), ()) == []


def test_what_lies_between_two_points_is_not_served_from_below_on_the_models_word_alone():
    """One row more may need another tile, which a model can miss; for fewer rows no config takes longer."""
    (ladder,) = family.ladders(range(192, 209), problem)
    agenda = Agenda([], [ladder], lambda _config, _problem: 10.0)  # by the model every config does as well anywhere
    found: list[Family] = []
    while agenda:
        m = agenda.take().problem.m
        found += agenda.ended(
            problem(m),
            Result(winner(problem(m), CONFIGS[m % 3])),
            [winner(problem(at), CONFIGS[0]) for at in range(1, 400)],
        )
    (only,) = found
    assert [each.row_m for each in only.ranges if each.first_m > 192] == [208]


def test_where_both_points_configs_lose_at_the_other_the_first_row_of_the_higher_tile_is_played():
    """A tile of 192 rows takes two from 193 on, and one of 256 rows is slow at 192: both were measured."""
    (ladder,) = family.ladders(range(1, 257), problem)
    small, large = CONFIGS[0], CONFIGS[-1]

    def us(config: Config, m: int) -> float:
        if config == small:
            return 75.0 if m <= 192 else 133.0
        return 110.0 if m <= 192 else 95.0

    agenda, order, found = Agenda([], [ladder]), list[int](), list[Family]()
    while agenda:
        m = agenda.take().problem.m
        order.append(m)
        best = min((small, large), key=lambda config, m=m: us(config, m))
        won = dataclasses.replace(winner(problem(m), best), median_us=us(best, m))
        result = Result(won, {small: 1.0, large: 1.0}, {one: us(one, m) for one in (small, large)})
        found += agenda.ended(problem(m), result, [winner(problem(at), small) for at in range(1, 257)])
    assert [m for m in order if 192 < m < 256] == [193]  # it decides alone
    assert {m: next(each for each in found[0].ranges if m <= each.last_m).row_m for m in (192, 193, 200)} == {
        192: 192,
        193: 256,
        200: 256,
    }
    assert all(each.evidence == "measured" for each in found[0].ranges)


def test_the_first_row_of_a_tall_tile_is_probed_up_to_256_rows():
    assert [ladder_module._middle(*pair) for pair in ((64, 128), (192, 256))] == [65, 193]
    assert [ladder_module._middle(*pair) for pair in ((256, 512), (512, 576), (1024, 2048))] == [384, 544, 1536]


@pytest.mark.parametrize("in_order", [True, False])
def test_where_the_order_is_kept_a_ladder_is_finished_before_the_next_one_goes_on(monkeypatch, in_order):
    monkeypatch.setattr(run, "estimates", lambda _device: time_us)
    wide = Problem.from_fields({**problem(1).fields(), "n": 2 * problem(1).n})
    ladders = [*family.ladders(range(1, 65), problem), *family.ladders(range(1, 65), wide.with_m)]
    agenda, order = run._agenda(ladders, H200, in_order=in_order), list[Problem]()
    while agenda:
        order.append(agenda.take().problem)
        won = winner(order[-1], CONFIGS[0])
        agenda.ended(order[-1], Result(won, {}, {CONFIGS[0]: 1.0}), [won])
    changes = sum(one.n != other.n for one, other in itertools.pairwise(order))
    assert (changes == 1) is in_order


def crossing(last: int, us: Callable[[Config, int], float]) -> tuple[Family, list[int], dict[int, float]]:
    """Tune a ladder of two configs without checks; returns the family, the Ms played, and each M's loss."""
    (ladder,) = family.ladders(range(1, last + 1), problem)
    both, everywhere = (CONFIGS[0], CONFIGS[-1]), [winner(problem(m), CONFIGS[0]) for m in range(1, last + 1)]
    agenda, order, found = Agenda([], [ladder]), list[int](), list[Family]()
    while agenda:
        m = agenda.take().problem.m
        order.append(m)
        times = {config: us(config, m) for config in both}
        best = min(both, key=lambda config, times=times: times[config])
        won = dataclasses.replace(winner(problem(m), best), median_us=times[best])
        ratios = {config: time / times[best] for config, time in times.items()}
        found += agenda.ended(problem(m), Result(won, ratios, times), everywhere)
    lost = {}
    for m in range(1, last + 1):
        row_m = next(each for each in found[0].ranges if m <= each.last_m).row_m
        config = min(both, key=lambda config, m=row_m: us(config, m))
        lost[m] = us(config, m) / min(us(one, m) for one in both) - 1
    return found[0], order, lost


@pytest.mark.parametrize("border", range(34, 48))
def test_a_border_within_a_tile_is_found_to_the_row(border):
    """A tile of 64 rows takes longer the fewer rows there are, and another config as long for all of them."""

    def us(config: Config, m: int) -> float:
        if config == CONFIGS[-1]:
            return 10.0 + 0.2 * max(0, 64 - m)
        return 10.0 + 0.2 * (64.5 - border) if m <= 64 else 20.0

    found, order, lost = crossing(256, us)
    assert max(lost.values()) <= MAX_LOSS
    assert {each.evidence for each in found.ranges} == {"measured"}
    assert len([m for m in order if 33 < m < 64]) <= 5
    assert found.ranges == crossing(256, us)[0].ranges


@pytest.mark.parametrize("seed", range(20))
def test_a_border_beyond_a_thousand_rows_is_found_to_a_part_of_m(seed):
    """A border of many rows is known once it lies within a 128th of M."""
    border = random.Random(seed).randint(1026, 4000)
    _, order, lost = crossing(4096, lambda config, m: 10.0 + 5.0 * ((config == CONFIGS[0]) == (m >= border)))
    low, high = max(m for m in order if m < border), min(m for m in order if m >= border)
    assert high - low <= high // 128
    assert len([m for m in lost if lost[m] > MAX_LOSS]) < high - low
    assert len([m for m in order if m not in family.rungs(1, 4096)]) <= 10


def test_a_check_that_loses_much_becomes_a_point_and_others_are_drawn():
    (ladder,) = family.ladders(range(1, 257), problem)
    usual, better = CONFIGS[0], CONFIGS[1]

    def us(config: Config, m: int) -> float:
        return 20.0 if config == usual else 10.0 if 194 <= m <= 254 else 30.0  # between two rungs, and not at them

    def run(agenda: Agenda, tuned: dict[Problem, Winner]) -> tuple[list[Family], list[int]]:
        found, checked = list[Family](), list[int]()
        while agenda:
            step = agenda.take()
            m = step.problem.m
            checked += [m] * step.in_finals
            best = min((usual, better), key=lambda config: us(config, m))
            ratios = {config: us(config, m) / us(best, m) for config in (usual, better)}
            tuned[step.problem] = dataclasses.replace(winner(step.problem, best), median_us=us(best, m))
            measured = {config: us(config, m) for config in (usual, better)}
            found += agenda.ended(step.problem, Result(tuned[step.problem], ratios, measured), tuned.values())
        return found, checked

    tuned: dict[Problem, Winner] = {}
    (found,), checked = run(Agenda([], [ladder]), tuned)
    assert len(checked) > CHECKS
    assert found.check is not None
    assert found.check.played == CHECKS
    assert any(194 <= m <= 254 for m in checked[:CHECKS])
    assert found.check.worst < 1.03
    served = {
        m: tuned[problem(next(each for each in found.ranges if m <= each.last_m).row_m)].config for m in (100, 221)
    }
    assert served == {100: usual, 221: better}
    again = Agenda([], [ladder])
    again.know([recorded(found)])
    assert run(again, tuned) == ([], [])


def test_configs_that_tie_are_one_range():
    (ladder,) = family.ladders(range(1, 5), problem)
    agenda = Agenda([], [ladder], time_us)
    won = {1: (CONFIGS[0], ()), 2: (CONFIGS[1], (CONFIGS[2],)), 4: (CONFIGS[2], ())}
    found: list[Family] = []
    while agenda:
        m = agenda.take().problem.m
        config, tied = won.get(m, (CONFIGS[0], ()))
        found += agenda.ended(problem(m), Result(winner(problem(m), config, tied)), [winner(problem(3), CONFIGS[0])])
    assert found[0].ranges == (Range(1, 1, 1, "measured"), Range(2, 4, 4, "measured"))


@pytest.mark.parametrize("fewest", [37, 161, 300])
def test_a_config_serves_no_m_at_which_it_cannot_run(fewest):
    """A kernel of grouped products begins at 32 rows a group, which with five groups lies between two rungs."""
    big, small = CONFIGS[-1], CONFIGS[0]

    def estimate(config: Config, problem: Problem) -> float:
        return math.inf if config == big and problem.m < fewest else 10.0

    (ladder,) = family.ladders(range(1, 513), problem)
    agenda, found = Agenda([], [ladder], estimate), []
    while agenda:
        at = agenda.take().problem
        won, took_us = (big, 10.0) if at.m >= fewest else (small, 13.0)
        decided = dataclasses.replace(winner(at, won), median_us=took_us)
        found += agenda.ended(at, Result(decided, {won: 1.0}, {small: 13.0, won: took_us}), ())
    (only,) = found
    for each in only.ranges:
        if each.row_m >= fewest:
            assert each.first_m >= fewest


@pytest.mark.parametrize(("first", "last"), [(1, 200), (20, 1024), (257, 1000)])
@pytest.mark.parametrize(("dtype", "unit"), [("bf16", 8), ("float8_e4m3fn", 16)])
def test_an_aligned_family_whose_rows_have_the_length_m_is_one_without_gaps(dtype, unit, first, last):
    """What needs aligned rows cannot run at any other M, which says nothing about the Ms of this family."""

    def stored_along_m(m: int) -> Problem:
        return Problem(m, 6144, 4096, dtype=dtype, layout="tn")

    def estimate(config: Config, problem: Problem) -> float:
        return math.inf if problem.aligned and problem.m % unit else time_us(config, problem)

    aligned, unaligned = sorted(family.ladders(range(first, last + 1), stored_along_m), key=lambda one: -one.unit)
    assert (aligned.unit, unaligned.unit) == (unit, 1)
    tuned: dict[Problem, Winner] = {}
    (found,) = climb(Agenda([], [aligned], estimate), tuned)
    assert (found.first_m, found.last_m) == (first, last // unit * unit)
    assert found.check.played == CHECKS
    assert not any(at.m % unit for at in tuned)


def batched(m: int, batch: int | None) -> Problem:
    return Problem(m, 512, 128, dtype="bf16", layout="nt", op="bmm", extras={"batch": batch})


@pytest.mark.parametrize(("first", "last"), [(1, 1), (1, 7), (5, 20), (1, 64)])
def test_a_range_of_batches_is_families_that_hold_each_batch_once(first, last):
    ladders = family.grid(range(1, 65), range(first, last + 1), batched)
    found = climb(Agenda([], ladders, time_us), {})
    served = sorted(found, key=lambda each: each.batches)
    assert [batch for each in served for batch in range(each.batches[0], each.batches[1] + 1)] == [
        *range(first, last + 1)
    ]
    assert all(batch_of(each.problem) == each.batches[1] for each in served)
    assert {(each.first_m, each.last_m) for each in served} == {(1, 64)}
    assert all(each.check.played == 1 for each in served)


def test_batches_that_learn_come_after_those_they_learn_from():
    agenda = Agenda([], family.grid(range(1, 65), range(1, 65), batched), time_us)
    steps, tuned = [], {}
    while agenda:
        steps.append(step := agenda.take())
        tuned[step.problem] = winner(step.problem, CONFIGS[0])
        agenda.ended(step.problem, Result(tuned[step.problem]), tuned.values())
    in_full = [batch_of(step.problem) for step in steps if not step.warm_started]
    assert steps[: len(in_full)] == [step for step in steps if not step.warm_started]
    assert set(in_full) == {1, 4, 16, 64}
    assert any(batch_of(step.problem) not in dict(batched_rungs(1, 64)).values() for step in steps if step.in_finals)


def test_a_check_of_another_batch_that_loses_makes_its_m_a_point_of_the_ladders_own_batch():
    ladders = family.grid(range(1, 65), range(9, 17), batched)
    tuned: dict[Problem, Winner] = {}
    agenda, found, lost = Agenda([], ladders, time_us), list[Family](), list[Problem]()
    while agenda:
        step = agenda.take()
        best, other = CONFIGS[:2] if batch_of(step.problem) in (9, 12, 16) else CONFIGS[1::-1]
        lost += [step.problem] if step.configs == (other,) and step.in_finals else []
        tuned[step.problem] = winner(step.problem, best)
        result = Result(tuned[step.problem], {best: 1.0, other: 1.5}, {best: 10.0, other: 15.0})
        found += agenda.ended(step.problem, result, tuned.values())
    assert lost
    assert {each.at(serving.row_m) for each in found for serving in each.ranges} <= tuned.keys()
    of = next(each for each in found if each.batches[0] <= batch_of(lost[0]) <= each.batches[1])
    assert of.at(lost[0].m) in tuned


def test_a_second_run_over_batches_records_nothing_again_and_other_batches_are_another_family():
    first, more = (family.grid(range(1, 5), range(1, last + 1), batched) for last in (6, 7))
    tuned: dict[Problem, Winner] = {}
    known = climb(Agenda([], first, time_us), tuned)
    again = Agenda([], more, time_us)
    again.know(map(recorded, known))
    assert [found.batches for found in climb(again, tuned)] == [(7, 7)]


def test_ranges_that_end_with_one_problem_are_one_family_of_a_run():
    (long,), (short,) = (family.ladders(range(first, 65), problem) for first in (1, 20))
    for ladders in ([long, short], [short, long]):
        (found,) = climb(Agenda([], ladders, time_us), {})
        assert (found.first_m, found.last_m) == (1, 64)
    many, few = (family.grid(range(4, 5), range(first, 9), batched) for first in (5, 8))
    for grids in (few + many, many + few):
        assert sorted(found.batches for found in climb(Agenda([], grids, time_us), {})) == [(5, 5), (6, 6), (7, 8)]


BIG, SAFE = CONFIGS[-1], CONFIGS[0]


def climb_with_failures(
    agenda: Agenda, fails: Callable[[Config, int], bool], tuned: dict[Problem, Winner]
) -> tuple[list[Family], list[TuningStep]]:
    """Tune with a faster config and a slower one, each of which fails at some Ms; returns the families and the steps.

    A step of a problem that was tuned before has that winner and no finals.
    """
    found, steps = list[Family](), list[TuningStep]()
    us = {BIG: 20.0, SAFE: 22.0}
    while agenda:
        steps.append(step := agenda.take())
        right = [config for config in us if not fails(config, step.problem.m)]
        won = tuned.get(step.problem)
        ratios = {} if won else {config: us[config] / us[right[0]] for config in right}
        if won is None and right:
            won = dataclasses.replace(winner(step.problem, right[0]), median_us=us[right[0]])
            tuned[step.problem] = won
        failed = frozenset(us.keys() - set(right))
        result = Result(won, ratios, {config: us[config] for config in right}, failed)
        found += agenda.ended(step.problem, result, tuned.values())
    return found, steps


def serving(found: list[Family], tuned: dict[Problem, Winner]) -> dict[int, Config]:
    return {
        m: tuned[problem(each.row_m)].config
        for family in found
        for each in family.ranges
        for m in range(each.first_m, each.last_m + 1)
    }


FAILURES: dict[str, Callable[[Config, int], bool]] = {
    "where a tile is not full": lambda config, m: config == BIG and m % 16 != 0,
    "of odd rows, and of many": lambda config, m: m % 2 != 0 if config == BIG else m > 100,
    "of few rows, and of many": lambda config, m: m < 70 if config == BIG else m > 90,
    "here and there": lambda config, m: random.Random(f"{config}{m}").random() < 0.2,
}


@pytest.mark.parametrize("last", [16, 128, 300])
@pytest.mark.parametrize("fails", FAILURES.values(), ids=FAILURES)
def test_a_config_that_failed_at_an_m_beside_others_does_not_serve_them(fails, last):
    (ladder,) = family.ladders(range(1, last + 1), problem)
    tuned: dict[Problem, Winner] = {}
    found, steps = climb_with_failures(Agenda([], [ladder]), fails, tuned)
    played = [step.problem.m for step in steps]
    served = serving(found, tuned)
    for m, config in served.items():
        beside = max((at for at in played if at <= m), default=m), min(at for at in played if at >= m)
        assert not any(fails(config, at) for at in beside if at in played)
    for m in set(range(1, last + 1)) - set(served):
        below, above = (
            max((at for at in played if at <= m), default=0),
            min((at for at in played if at >= m), default=m),
        )
        assert any(fails(config, at) for config in (BIG, SAFE) for at in (below, above))


@pytest.mark.parametrize("mends", [0, MAX_REPAIR_ROUNDS])
def test_a_served_config_that_fails_its_check_counts_and_loses_the_range(mends, monkeypatch):
    monkeypatch.setattr(ladder_module, "MAX_REPAIR_ROUNDS", mends)
    (ladder,) = family.ladders(range(1, 257), problem)
    tuned: dict[Problem, Winner] = {}

    def fails(config: Config, m: int) -> bool:
        return config == BIG and m not in family.rungs(1, 256)

    found, steps = climb_with_failures(Agenda([], [ladder]), fails, tuned)
    checks = [step for step in steps if step.in_finals]
    assert len(checks) > CHECKS if mends else len(checks) == CHECKS
    served = serving(found, tuned)
    assert not {m for m, config in served.items() if config == BIG} & {step.problem.m for step in checks}
    if not mends:
        assert found[0].check.worst == FAILED


def test_where_both_points_configs_fail_at_the_other_the_range_ends_and_a_second_run_knows():
    """What lies between is served by neither: below one M only one config is right, and above only the other."""
    (ladder,) = family.ladders(range(1, 4097), problem)
    tuned: dict[Problem, Winner] = {}

    def fails(config: Config, m: int) -> bool:
        return (config == SAFE) == (m >= 3000)

    found, _ = climb_with_failures(Agenda([], [ladder]), fails, tuned)
    below, above = found
    assert (below.first_m, above.last_m) == (1, 4096)
    assert below.last_m < 3000 <= above.first_m
    assert above.first_m - below.last_m <= 4096 // 64
    again = Agenda([], [ladder])
    again.know(map(recorded, found))
    before = set(tuned)
    assert climb_with_failures(again, fails, tuned)[0] == []
    assert set(tuned) == before
    half = Agenda([], [ladder])
    half.know([recorded(above)])
    assert [each.ranges for each in climb_with_failures(half, fails, tuned)[0]] == [below.ranges, above.ranges]


def test_an_m_at_which_every_config_fails_ends_a_range_and_is_tried_once():
    (ladder,) = family.ladders(range(1, 65), problem)
    tuned: dict[Problem, Winner] = {}
    found, steps = climb_with_failures(Agenda([], [ladder]), lambda _config, m: m == 48, tuned)
    ms = [step.problem.m for step in steps]
    assert len(ms) == len(set(ms))
    served = serving(found, tuned)
    if 48 in ms:
        assert 48 not in served


def test_a_winner_of_before_that_fails_now_serves_no_range():
    (ladder,) = family.ladders(range(1, 65), problem)
    stale = problem(16)
    tuned = {stale: winner(stale, BIG)}
    found, _ = climb_with_failures(Agenda([], [ladder]), lambda config, m: config == BIG and m <= 16, tuned)
    assert serving(found, tuned)[12] == SAFE


@pytest.mark.parametrize("finishes_first", [True, False])
def test_a_problem_listed_beside_a_ladder_that_comes_to_it_later_is_taken_once(finishes_first):
    (ladder,) = family.ladders(range(1, 1001), problem)

    def ms_taken(listed: list[Problem]) -> list[int]:
        """The Ms in their order; what is listed takes longer than all that the ladder can do without it."""
        agenda, tuned = Agenda(listed, [ladder], time_us, finishes_first=finishes_first), dict[Problem, Winner]()
        taken, slow = list[int](), list[Problem]()
        while agenda or slow:
            if agenda:
                at = agenda.take().problem
                taken.append(at.m)
                if at in listed:
                    slow.append(at)
                    continue
            else:
                at = slow.pop()
            tuned[at] = winner(at, min(CONFIGS, key=lambda config: time_us(config, at)))
            agenda.ended(at, Result(tuned[at]), tuned.values())
        return taken

    later = set(ms_taken([])) - {rung.m for rung in ladder.rungs}
    assert len(later) > CHECKS
    for m in later:
        taken = ms_taken([problem(m)])
        assert len(taken) == len(set(taken))


def test_a_problem_that_a_ladder_awaits_is_not_listed_again():
    (ladder,) = family.ladders(range(1, 5), problem)
    agenda = Agenda([], [ladder], time_us)
    agenda.add(problem(4))
    assert [each.m for each in agenda.problems] == [1, 4]


def test_a_point_that_is_slower_than_one_of_more_rows_is_played_again_with_what_won_there():
    """As 193x5120x25600, which a probe left to a config of 100.7 us, where the one of 208 rows took 87.5 us."""
    late, slow = Config("late"), Config("slow")
    (ladder,) = family.ladders(range(65, 257), problem)
    tuned: dict[Problem, Winner] = {}
    played: list[TuningStep] = []

    def won(step: TuningStep) -> Config:
        return late if step.in_finals or not 160 < step.problem.m <= 200 else slow

    agenda, found = Agenda([], [ladder], lambda *_: 1.0), list[Family]()
    while agenda:
        step = agenda.take()
        played.append(step)
        config = won(step)
        us = {late: 80 + step.problem.m / 100, slow: 95 + step.problem.m / 100}
        figures = (us[config], None, None, 1, (config,))
        tuned[step.problem] = Winner(
            H200, ENVIRONMENT, step.problem, config, 1, 1, "0.1.0", "2026-01-31T12:00:00Z", *figures
        )
        ratios = {one: us[one] / us[config] for one in (config, *step.configs)}
        found += agenda.ended(step.problem, Result(tuned[step.problem], ratios, {config: us[config]}), tuned.values())
    (only,) = found
    assert all(tuned[problem(each.row_m)].config == late for each in only.ranges)
    again = [step.problem.m for step in played if step.in_finals and step.configs == (slow, late)]
    assert again
    assert all(160 < m <= 200 for m in again)
    assert len(set(again)) == len(again)


def test_where_the_fastest_of_more_rows_could_not_be_tried_the_next_one_is():
    points = Points(family.ladders(range(65, 257), problem)[0], lambda *_: 1.0)
    for m, us in ((65, 100.0), (192, 90.0), (256, 80.0)):
        config = Config(f"of{m}")
        won = Winner(H200, ENVIRONMENT, problem(m), config, 1, 1, "0.1.0", "2026-01-31T12:00:00Z", us, None, None, 1)
        points.add(m, won, {config: us})
    assert points.outdone() == {65: Config("of256"), 192: Config("of256")}
    assert points.outdone({(65, Config("of256")), (192, Config("of256"))}) == {65: Config("of192")}
    points.add(65, points.winners[65], {Config("of192"): 99.0})
    points.add(65, points.winners[65], {Config("of256"): 99.0})
    assert points.outdone() == {192: Config("of256")}, "what was tried at a point before it was played again"


def test_a_point_whose_winner_fails_when_it_is_played_again_serves_no_range(monkeypatch):
    (ladder,) = family.ladders(range(65, 257), problem)
    agenda, tuned, found = Agenda([], [ladder], lambda *_: 1.0), dict[Problem, Winner](), list[Family]()
    slow, fast = Config("slow"), Config("fast")
    failed: set[int] = set()
    while agenda:
        step = agenda.take()
        m = step.problem.m
        again = step.in_finals and step.configs == (slow, fast)
        config = slow if 160 < m <= 200 and not step.in_finals else fast
        tuned[step.problem] = Winner(
            *(H200, ENVIRONMENT, step.problem, slow if again else config, 1, 1, "0.1.0", "2026-01-31T12:00:00Z"),
            *(95.0 if config is slow else 80.0, None, None, 1),
        )
        failed |= {m} if again else set()
        result = Result(tuned[step.problem], {}, {config: 1.0}, frozenset({slow}) if again else frozenset())
        found += agenda.ended(step.problem, result, tuned.values())
    assert failed
    assert not failed & {each.row_m for each in found[0].ranges}
