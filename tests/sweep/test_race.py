"""The race: what it proposes, what it learns from, when it ends; and how near it comes on recorded landscapes."""

import dataclasses
import math
from collections import Counter
from pathlib import Path

import pytest

from tuner.hardware.device import KNOWN
from tuner.kernel import KernelSpec
from tuner.kernel.config import Config
from tuner.problem import Problem, suite
from tuner.store.records import Outcome, State
from tuner.sweep.race import _KNOWN, _OF_EACH_KERNEL, FULL, PROBED, RACE, RESERVE, Race
from tuner.sweep.search_task import SearchTask, portfolio_of
from tuner.sweep.strategies import EXHAUSTIVE, RANDOM

pytest.importorskip("triton")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
DEVICE = KNOWN["sm_90"]
PROBLEM = Problem(4096, 4096, 4096, dtype="bfloat16", layout="nt")


def kernel(name, estimate_us=None):
    """A KernelSpec with all that a race asks for."""
    return KernelSpec("matmul", name, 1, *[None] * 6, estimate_us=estimate_us)


def field_of(*kernels, **options):
    """A field of kernels with 100 configs each, BLOCK from 1 to 2^9 and num_warps from 1 to 2^9."""
    configs = [
        Config(name, BLOCK=2**block, num_warps=2**warps)
        for name in kernels
        for block in range(10)
        for warps in range(10)
    ]
    specs = {name: kernel(name, options.pop(name, None)) for name in kernels}
    return SearchTask(PROBLEM, DEVICE, specs, configs, configs[0], **options)


def complete(wave, us):
    return {config: Outcome(State.COMPLETE, median_us=us(config)) for config in wave}


def run(race, us):
    """Every wave of a race over a landscape."""
    outcomes, waves = {}, []
    while wave := race.propose(outcomes):
        waves.append(list(wave))
        outcomes |= complete(wave, us)
    return waves, outcomes


def hill(config):
    """Least at BLOCK 64, num_warps 8."""
    block, warps = math.log2(config.integer("BLOCK")), math.log2(config.integer("num_warps"))
    return 10.0 * (1 + abs(block - 6) + abs(warps - 3))


def test_the_default_comes_first_then_what_is_likely_and_two_of_every_kernel_that_is_not_far_behind():
    near, covering = Config("one", BLOCK=8, num_warps=8), Config("two", BLOCK=4, num_warps=1)
    field = field_of(
        "one",
        "two",
        "behind",
        "unknown",
        one=lambda config, *_: hill(config),
        two=lambda config, *_: 1.4 * hill(config),
        behind=lambda config, *_: 1.6 * hill(config),
        nearby=lambda: [near],
        portfolio=[covering],
    )
    race = Race(field)
    wave = list(race.propose({}))
    assert wave[0] == field.default
    assert near in wave
    assert covering in wave
    count = Counter(config.kernel for config in wave)
    assert count["two"] >= 2
    assert count["unknown"] >= 2, "a kernel without an estimate may be the fastest"
    assert count["behind"] == 0
    assert len(wave) == 3 + 3 * _OF_EACH_KERNEL > FULL.first.of(len(field.configs))


def test_a_kernel_far_behind_by_its_estimates_is_tried_where_the_others_are_slower_than_theirs():
    field = field_of("one", "behind", one=lambda config, *_: hill(config), behind=lambda config, *_: 1.6 * hill(config))
    _, outcomes = run(Race(field), lambda config: hill(config) * (3 if config.kernel == "one" else 1))
    assert min(outcomes, key=lambda config: outcomes[config].median_us).kernel == "behind"


def test_without_any_estimate_it_still_climbs_the_hill_by_what_it_measured():
    waves, outcomes = run(Race(field_of("one", trials=60)), hill)
    best = min(outcomes, key=lambda config: outcomes[config].median_us)
    assert hill(best) <= 20.0
    assert hill(min(waves[0], key=hill)) > hill(best)


def test_what_it_learned_wave_by_wave_is_what_it_learns_of_all_waves_at_once():
    task = field_of("wide")
    race, at_once, outcomes = Race(task), Race(task), {}
    for _ in range(5):
        outcomes |= complete(race.propose(outcomes), hill)
    race._learn(dict(reversed(outcomes.items())))
    at_once._learn(outcomes)
    assert len(outcomes) > 20
    assert race._predicted == pytest.approx(at_once._predicted, rel=1e-6)


def test_a_race_never_tries_more_configs_than_trials_allows():
    for trials in (1, 7, 17, 61):
        race = Race(field_of("one", "two", trials=trials))
        waves, outcomes = run(race, lambda config: 1000.0 / (1 + len(config.kernel) + hill(config)))
        assert len(outcomes) <= trials == race.most
        assert sum(map(len, waves)) == len(outcomes)


def test_it_ends_when_trials_bring_nothing_and_says_so():
    race = Race(field_of("one"))
    waves, _ = run(race, lambda _config: 5.0)
    assert race.stopped == f"{FULL.patience.least} trials brought no gain"
    assert [len(wave) for wave in waves] == [
        FULL.first.least,
        *[FULL.wave.least] * (FULL.patience.least // FULL.wave.least),
    ]


def test_a_large_space_is_searched_longer_in_larger_waves():
    configs = [Config("one", BLOCK=block, num_warps=1) for block in range(1, 4001)]
    field = SearchTask(PROBLEM, DEVICE, {"one": kernel("one")}, configs, configs[0])
    waves, _ = run(Race(field), lambda _config: 5.0)
    assert [len(wave) for wave in waves] == [16, 16, 16, 16]


def test_it_ends_with_its_trials_and_says_so():
    race = Race(field_of("one"))
    clock = iter(range(10_000))
    run(race, lambda _config: 1e6 * 0.9 ** next(clock))
    assert race.stopped == f"its {FULL.trials.least} trials are spent"


def test_a_small_space_is_tried_whole():
    field = field_of("one")
    small = SearchTask(PROBLEM, DEVICE, field.specs, field.configs[:5], field.default)
    race = Race(small)
    _, outcomes = run(race, hill)
    assert set(outcomes) == set(small.configs)
    assert race.stopped == "every config was tried"


def test_trials_known_from_earlier_runs_guide_the_first_wave_and_the_fastest_take_part():
    field = field_of("one")
    known = complete(field.configs[:90], hill)
    wave = Race(field).propose(known)
    assert min(known, key=hill) in wave
    assert len([config for config in wave if config in known]) <= _KNOWN + _OF_EACH_KERNEL


@pytest.mark.parametrize("trials", [None, 3])
def test_what_is_suggested_comes_before_trials_known_from_earlier_runs(trials):
    """However many these are: a ladder suggests what a point has not tried and its finals are to have."""
    field = field_of("one", one=lambda config, *_: hill(config), trials=trials)
    known = complete(field.configs[:40], hill)
    suggested = [field.configs[90], field.configs[95]]
    race = Race(dataclasses.replace(field, suggested=suggested), warm_pace=PROBED)
    assert race.propose(known)[:3] == [field.default, *suggested]


def test_failed_configs_teach_nothing_and_do_not_end_it():
    race = Race(field_of("one"))
    wave = race.propose({})
    failed = {config: Outcome(State.COMPILE_ERROR, "no") for config in wave}
    again = race.propose(failed)
    assert again
    assert not set(again) & set(wave)


def test_what_it_has_in_reserve_was_not_proposed_and_is_what_comes_next():
    race = Race(field_of("one", one=lambda config, *_: hill(config)))
    wave = race.propose({})
    reserve = race.reserve()
    assert len(reserve) == RESERVE
    assert not set(reserve) & set(wave)
    assert set(race.propose(complete(wave, hill))) <= set(reserve)


def test_random_draws_the_same_configs_for_the_same_seed():
    def drawn(seed, trials=10):
        return list(RANDOM.start(field_of("one", trials=trials, seed=seed)).propose({}))

    assert drawn(1) == drawn(1) != drawn(2)
    assert len(set(drawn(1, trials=200))) == 100


def test_the_portfolio_holds_configs_of_installed_kernels_that_a_search_would_try():
    from tuner.kernel import registry

    spaces = {}
    for config in portfolio_of("sm_90"):
        spec = registry.find("matmul", config.kernel)
        spaces.setdefault(config.kernel, spec.space(PROBLEM, DEVICE))
        assert not spaces[config.kernel].odd_parameters(config), config
    assert spaces
    assert portfolio_of("gfx942") == ()


def test_on_recorded_landscapes_it_comes_near_the_best_for_a_fraction_of_the_trials(monkeypatch):
    """As benchmarks/claims/search_replay.py plays them, on three problems that were not held out."""
    for folder in (BENCHMARKS / "claims", BENCHMARKS):
        monkeypatch.syspath_prepend(folder)
    from recorded import landscapes
    from replay import Course, play

    held = set(suite.load(str(BENCHMARKS / "suites" / "held-out.csv")))
    design = [land for land in landscapes() if land.problem not in held]
    shapes = ("64x4096x14336 bfloat16 nt", "1024x1024x1024 float16 nn", "4096x4096x4096 int8 nt")
    chosen = [land for land in design if land.label.removeprefix("matmul ") in shapes]
    assert len(chosen) == len(shapes)
    for land in chosen:
        course = Course(land, [other for other in design if other is not land])
        race, exhaustive = play(course, RACE), play(course, EXHAUSTIVE)
        assert race["ratio"] < 1.03, land.label
        assert race["trials"] <= FULL.trials.of(len(land.us))
        assert race["seconds"] < 0.15 * exhaustive["seconds"]
