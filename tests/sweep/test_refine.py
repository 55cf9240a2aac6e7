"""The end of a search: options of the configs that lead."""

import pytest

from tuner.kernel.config import Config
from tuner.store.records import Outcome, State
from tuner.sweep.search import MAX_REFINEMENTS, REFINED_LEADERS, FixedList, RefinedSearch

CONFIGS = [Config("toy", BLOCK=2**power) for power in range(5)]


def refine(config):
    """Two options of every config but refinements."""
    if len(config) > 1:
        return ()
    return [config.replace(maxnreg=128), config.replace(num_ctas=2)]


def complete(wave):
    """The larger BLOCK, the faster."""
    return {config: Outcome(State.COMPLETE, median_us=100.0 - config.integer("BLOCK")) for config in wave}


def refined(trials=None):
    return RefinedSearch(FixedList(CONFIGS, "every config was tried"), refine, trials, refinable=True)


def run(search):
    outcomes, waves = {}, []
    while wave := search.propose(outcomes):
        waves.append(list(wave))
        outcomes |= complete(wave)
    return waves


def test_leaders_alone_are_refined_once_after_the_search_has_ended():
    search = refined()
    everything, options = run(search)
    assert everything == CONFIGS
    assert options == [*refine(CONFIGS[-1]), *refine(CONFIGS[-2])]
    assert len(options) == 2 * REFINED_LEADERS
    assert search.stopped == "every config was tried"
    assert search.most == len(CONFIGS) + MAX_REFINEMENTS


def test_while_the_search_goes_on_what_its_leaders_would_be_tried_with_is_in_reserve():
    class Halves(FixedList):
        def propose(self, outcomes):
            return CONFIGS[:2] if not outcomes else () if CONFIGS[2] in outcomes else CONFIGS[2:]

    search = RefinedSearch(Halves(CONFIGS, ""), refine, None, refinable=True)
    outcomes = complete(search.propose({}))
    assert search.reserve() == []
    outcomes |= complete(search.propose(outcomes))
    assert search.reserve() == [*refine(CONFIGS[1]), *refine(CONFIGS[0])]
    assert search.propose(outcomes) == [*refine(CONFIGS[4]), *refine(CONFIGS[3])]
    assert search.reserve() == []


@pytest.mark.parametrize(("trials", "tried"), [(len(CONFIGS), 0), (len(CONFIGS) + 1, 1)])
def test_refinements_count_as_trials(trials, tried):
    search = refined(trials)
    waves = run(search)
    assert sum(len(wave) for wave in waves) == len(CONFIGS) + tried
    assert search.most == trials


def test_refinements_that_an_earlier_run_tried_are_proposed_and_take_no_leaders_place():
    """A run that was stopped before its finals goes on: what led there plays them."""
    known = complete(CONFIGS)
    for config in (one for leader in CONFIGS[-REFINED_LEADERS:] for one in refine(leader)):
        known[config] = Outcome(State.COMPLETE, median_us=known[CONFIGS[-1]].median_us - 1)
    search = refined(trials=len(CONFIGS) + 1)
    assert search.propose(known) == CONFIGS
    assert search.reserve() == []
    assert {*search.propose(known)} == {*refine(CONFIGS[-1]), *refine(CONFIGS[-2])}
    assert search.propose(known) == ()


def test_a_refinement_that_led_an_earlier_run_is_proposed_though_another_config_leads_now():
    known = complete(CONFIGS)
    led = CONFIGS[0].replace(num_ctas=2)
    known[led] = Outcome(State.COMPLETE, median_us=1.0)
    stranger = Config("toy", BLOCK=999, num_ctas=2)
    known[stranger] = Outcome(State.COMPLETE, median_us=0.5)
    search = refined()
    search.propose(known)
    wave = search.propose(known)
    assert led in wave
    assert stranger not in wave  # no config of this search has it
    assert {*refine(CONFIGS[-1]), *refine(CONFIGS[-2])} <= {*wave}


def test_no_config_is_proposed_twice():
    search = refined()
    outcomes, waves = complete(CONFIGS[:1]), []
    while wave := search.propose(outcomes):
        waves += wave
        outcomes |= complete(wave)
    assert len(waves) == len(set(waves))


def test_a_search_of_failures_has_no_leaders():
    search = refined()
    outcomes = {config: Outcome(State.COMPILE_ERROR, message="no") for config in search.propose({})}
    assert not search.propose(outcomes)
    assert search.stopped


def test_a_refinement_that_leads_is_not_refined_further():
    search = refined()
    outcomes = complete(search.propose({}))
    outcomes[CONFIGS[0].replace(num_ctas=2)] = Outcome(State.COMPLETE, median_us=1.0)
    assert all(set(config) - {"BLOCK"} in ({"maxnreg"}, {"num_ctas"}) for config in search.propose(outcomes))
