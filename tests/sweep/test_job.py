"""A problem's job, without processes: what a compile decides, who enters the finals, who wins."""

import dataclasses
from collections import defaultdict

import pytest

from tuner.errors import KernelError
from tuner.hardware.device import KNOWN
from tuner.problem import Problem
from tuner.store.records import Outcome, Resources, State
from tuner.sweep.compile_child import Compiled, Failed
from tuner.sweep.job import Job, Stopwatch
from tuner.sweep.measure import VENDOR
from tuner.sweep.search_task import make_search_task
from tuner.sweep.strategies import EXHAUSTIVE

pytest.importorskip("triton")
DEVICE = KNOWN["sm_90"]
PROBLEM = Problem(4096, 4096, 4096, dtype="bfloat16", layout="nt")


class Pool:
    """Answers every request with the result that `decide` gives for a config."""

    def __init__(self, decide):
        self.decide, self.results = decide, {}

    def request(self, spec, problem, config, urgency):
        self.results[config.digest] = self.decide(config)
        return config.digest

    def hasten(self, key, urgency):
        assert key in self.results

    def result(self, key):
        return self.results[key]


def job_of(decide, trials=None):
    job = Job(make_search_task(PROBLEM, DEVICE, trials=trials), EXHAUSTIVE)
    job.resume({})
    pool = Pool(decide)
    job.request(pool)
    return job, pool


def test_the_default_config_is_the_first_candidate_whatever_the_budget():
    job, _ = job_of(lambda config: None, trials=1)
    assert job.candidates == [job.default]


def test_configs_that_differ_in_a_run_time_parameter_alone_are_each_measured():
    job, pool = job_of(lambda config: Compiled(Resources(shared_bytes=0), "one binary for all"))
    batch, decided = job.take(100_000, pool)
    groups = [config["GROUP_SIZE_M"] for config in batch if config.kernel == "pointer"]
    assert sorted(groups) == [1, 4, 8, 16]
    assert {outcome.state for _, outcome in decided} == {State.INVALID}
    # Kernels mean different things by their run-time parameters: only configs of the same kernel are compared.
    assert all(f"same program as {config.kernel}(" in outcome.message for config, outcome in decided)


def test_a_binary_that_needs_too_much_shared_memory_is_not_measured():
    job, pool = job_of(lambda config: Compiled(Resources(shared_bytes=300_000), config.digest), trials=2)
    batch, decided = job.take(16, pool)
    assert batch == []
    assert [outcome.state for _, outcome in decided] == [State.OUT_OF_RESOURCES] * 2
    assert decided[0][1].message == "needs 300000 bytes of shared memory, a block has 232448"


def test_a_failed_compile_is_the_trial():
    job, pool = job_of(lambda config: Failed(State.COMPILE_ERROR, "no"), trials=1)
    assert job.take(16, pool) == ([], [(job.default, Outcome(State.COMPILE_ERROR, "no"))])


def test_configs_wait_for_their_binary_in_their_order():
    job, pool = job_of(lambda config: None, trials=5)
    assert job.take(16, pool) == ([], [])
    assert job.searching
    pool.results[job.candidates[3].digest] = Compiled(Resources(), "x")
    assert job.take(16, pool)[0] == [job.candidates[3]]
    for config in job.candidates:
        pool.results[config.digest] = Compiled(Resources(), config.digest)
    assert job.take(2, pool)[0] == [job.candidates[0], job.candidates[1]]
    assert job.take(9, pool)[0] == [job.candidates[2], job.candidates[4]]
    assert not job.searching


def settle(job, medians):
    for config, us in zip(job.candidates, medians, strict=False):
        job.outcomes[config] = Outcome(State.COMPLETE, median_us=us)


def test_finalists_are_the_fastest_within_five_percent_and_the_default_without_the_rejected():
    job, _ = job_of(lambda config: None, trials=4)
    settle(job, [110.0, 104.0, 106.0, 100.0])
    assert job.finalists() == [job.candidates[3], job.candidates[1], job.default]
    job.rejected[job.candidates[3].digest] = "wrong"
    assert job.finalists() == [job.candidates[1], job.candidates[2], job.default]
    job.rejected[job.default.digest] = "wrong"
    assert job.finalists() == [job.candidates[1], job.candidates[2]]


def test_a_ladder_hears_no_time_of_what_the_finals_rejected_and_of_all_that_failed_that_it_did():
    job = Job(make_search_task(PROBLEM, DEVICE, trials=4), EXHAUSTIVE)
    before = job.default.replace(num_stages=job.default["num_stages"] + 1)
    job.resume({before: Outcome(State.WRONG_RESULT, "wrong")})
    settle(job, [110.0, 104.0, 106.0, 100.0])
    job.rejected[job.candidates[3].digest] = "wrong"
    job.outcomes[job.candidates[2]] = Outcome(State.INVALID, "same program as another")
    assert job.times_us == {job.candidates[0]: 110.0, job.candidates[1]: 104.0}
    assert job.failed == {before, job.candidates[3]}


def test_a_config_that_must_play_the_finals_is_stood_for_by_the_one_whose_program_it_has():
    task = make_search_task(PROBLEM, DEVICE, trials=40)
    first = Job(task, EXHAUSTIVE)
    first.resume({})
    alike = defaultdict(list)  # by kernel and run-time parameters, which no binary tells apart
    for config in first.candidates[1:]:
        runtime = tuple(map(config.get, first.specs[config.kernel].runtime_parameters))
        alike[config.kernel, runtime].append(config)
    twin, served, *_ = next(configs for configs in alike.values() if len(configs) > 1)
    job = Job(task, EXHAUSTIVE, in_finals=[served])
    job.resume({})
    pool = Pool(lambda config: Compiled(Resources(), (twin if config == served else config).digest))
    job.request(pool)
    batch, decided = job.take(100, pool)
    for config, outcome in [*((config, Outcome(State.COMPLETE, median_us=100.0)) for config in batch), *decided]:
        job.finish(config, outcome)
    job.outcomes[twin] = Outcome(State.COMPLETE, median_us=200.0)  # too slow to play by itself
    assert served not in batch
    assert twin in job.finalists()
    job.verdict({config.digest: [job.outcomes[config].median_us] * 30 for config in job.finalists()})
    assert job.ratios[served] == job.ratios[twin] == pytest.approx(2.0)
    job.rejected[twin.digest] = "wrong"
    assert served in job.failed


def test_a_default_whose_program_another_config_has_is_that_one_in_the_finals():
    task = make_search_task(PROBLEM, DEVICE, trials=40)
    first = Job(task, EXHAUSTIVE)
    first.resume({})
    runtime = first.specs[first.default.kernel].runtime_parameters
    twin = next(
        config
        for config in first.candidates[1:]
        if config.kernel == first.default.kernel
        and all(config.get(name) == first.default.get(name) for name in runtime)
    )
    job = Job(task, EXHAUSTIVE)
    job.resume({})
    pool = Pool(lambda config: Compiled(Resources(), (twin if config == job.default else config).digest))
    job.request(pool)
    late, pool.results[job.default.digest] = pool.results[job.default.digest], None
    batch, _ = job.take(100, pool)
    pool.results[job.default.digest] = late  # its binary came last
    measured, decided = job.take(100, pool)
    assert (measured, [config for config, _ in decided]) == ([], [job.default])
    for config, outcome in [*((config, Outcome(State.COMPLETE, median_us=100.0)) for config in batch), *decided]:
        job.finish(config, outcome)
    faster = next(config for config in batch if config != twin)
    played = {config.digest: [104.0 if config == twin else 100.0] * 30 for config in (twin, faster)}
    assert twin in job.finalists()
    assert job.verdict(played).default_us == pytest.approx(104.0)
    tied = job.verdict({twin.digest: [100.0] * 30, faster.digest: [100.0] * 30})
    assert tied.config == twin, "what only ties with the default is not worth a row"


def test_where_a_run_was_stopped_before_its_finals_a_default_left_out_for_anothers_program_is_measured():
    task = make_search_task(PROBLEM, DEVICE, trials=2)
    _, twin = job_of(lambda config: None, trials=2)[0].candidates
    job = Job(task, EXHAUSTIVE)
    left_out = Outcome(State.INVALID, f"same program as {twin}")
    job.resume({twin: Outcome(State.COMPLETE, median_us=100.0), task.default: left_out})
    pool = Pool(lambda config: Compiled(Resources(), "one program for both"))
    assert job.take(16, pool) == ([task.default], [])
    job.finish(task.default, Outcome(State.COMPLETE, median_us=100.0))
    assert task.default in job.finalists()


def test_a_default_that_failed_is_no_finalist():
    job, _ = job_of(lambda config: None, trials=2)
    job.outcomes[job.default] = Outcome(State.CRASHED, "x")
    job.outcomes[job.candidates[1]] = Outcome(State.COMPLETE, median_us=1.0)
    assert job.finalists() == [job.candidates[1]]


def test_a_spent_budget_leaves_the_default_to_be_tried():
    job, pool = job_of(lambda config: Compiled(Resources(), config.digest), trials=5)
    job.abandon()
    assert job.take(16, pool)[0] == [job.default]
    assert not job.searching


def test_of_what_is_close_the_default_wins_and_else_the_simplest():
    job, _ = job_of(lambda config: None, trials=3)
    settle(job, [100.0, 100.0, 100.0])
    first, second, third = (config.digest for config in job.candidates)
    tie = job.verdict({first: [100.2] * 30, second: [100.0] * 30, third: [100.0] * 30, VENDOR: [90.0] * 30})
    assert tie.config == job.default
    assert len(tie.ties) == 3
    assert tie.vendor_us == pytest.approx(90.0)
    beaten = job.verdict({first: [102.0] * 30, second: [100.0] * 30, third: [100.1] * 30})
    assert beaten.config in job.candidates[1:]
    assert beaten.default_us == pytest.approx(102.0, rel=2e-3)
    assert beaten.vendor_us is None


def test_a_tie_that_is_not_close_to_the_fastest_does_not_win():
    job, _ = job_of(lambda config: None, trials=3)
    settle(job, [100.0, 100.0, 100.0])
    first, second, third = (config.digest for config in job.candidates)
    slower = job.verdict({first: [100.4] * 30, second: [100.0] * 30, third: [102.0] * 30})
    assert (slower.config, set(slower.ties)) == (job.candidates[1], set(job.candidates[:2]))
    assert job.candidates[0] == job.default


def unordered(_config):
    raise TypeError("no such field")


@pytest.mark.parametrize(
    ("simplicity", "message"),
    [
        (lambda _config: ("word",), r"^simplicity returns what cannot be compared, .*\('word',\).*: have it"),
        (unordered, "^simplicity of the kernel .* failed: TypeError: no such field: mend it"),
    ],
)
def test_kernels_whose_simplicity_fails_or_cannot_be_compared_are_an_error_that_shows_it(simplicity, message):
    job, _ = job_of(lambda config: None, trials=3)
    settle(job, [100.0] * 3)
    first, *others = job.candidates
    job.specs = {
        name: dataclasses.replace(spec, simplicity=lambda config: simplicity(config) if config == others[0] else (1,))
        for name, spec in job.specs.items()
    }
    with pytest.raises(KernelError, match=message):
        job.verdict({config.digest: [100.0] * 30 for config in (first, *others)})


def test_no_contestant_but_the_vendor_is_no_verdict():
    job, _ = job_of(lambda config: None, trials=1)
    settle(job, [100.0])
    assert job.verdict({VENDOR: [90.0] * 30}) is None


def test_wall_time_is_told_by_phase():
    clock = iter([1.0, 3.0, 3.5, 4.5])
    watch = Stopwatch(lambda: next(clock))
    for phase in ("search", "finals", "search", ""):
        watch.enter(phase)
    assert watch.phases_s == {"search": 3.0, "finals": 0.5}
    assert watch.seconds == 3.5
