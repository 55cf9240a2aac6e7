"""Jobs made ahead in a thread: in their order, and what went wrong there comes out where they are taken."""

import os
import sys
import time

import pytest

from tuner.errors import KernelError
from tuner.hardware.device import INTERPRETER, KNOWN
from tuner.kernel import registry
from tuner.problem import Problem
from tuner.sweep import job_prefetch
from tuner.sweep.compile_pool import CompilePool
from tuner.sweep.job_prefetch import JobPrefetcher, SweepKnowledge, make_job
from tuner.sweep.ladder import TuningStep
from tuner.sweep.plan import Plan
from tuner.sweep.search_task import make_search_task

pytest.importorskip("triton")
DEVICE = KNOWN["sm_90"]
SMALL = Problem(256, 256, 64, dtype="float32")
UNKNOWN = Problem(256, 256, 64, dtype="float32", op="unheard-of")


def test_jobs_come_in_the_order_they_were_asked_for_and_failures_where_they_are_taken():
    with JobPrefetcher(Plan(trials=7)) as prefetcher:
        prefetcher.request(TuningStep(UNKNOWN), DEVICE)
        prefetcher.request(TuningStep(SMALL), DEVICE)
        assert prefetcher.problems == [UNKNOWN, SMALL]
        prefetcher.wait(60)
        assert prefetcher.ready
        with pytest.raises(KernelError, match="unheard-of"):
            prefetcher.take()
        job = prefetcher.take()
        assert (job.problem, job.most, len(prefetcher)) == (SMALL, 7, 0)
        assert job.draft_s > 0


def test_requests_that_are_cleared_give_no_job():
    with JobPrefetcher(Plan()) as prefetcher:
        for _ in range(3):
            prefetcher.request(TuningStep(SMALL), DEVICE)
        prefetcher.clear()
        assert not prefetcher.ready
        assert len(prefetcher) == 0
        prefetcher.request(TuningStep(UNKNOWN), DEVICE)
        assert prefetcher.problems == [UNKNOWN]


def test_only_steps_of_a_ladder_are_searched_shortly_by_what_their_neighbours_took():
    """Two problems of a plain suite may be of one family, too; each is raced in full."""
    tuned, problem = (Problem(m, 4096, 4096, dtype="bf16", layout="nt") for m in (64, 128))
    knowledge = SweepKnowledge(errors={tuned: {registry.default_config(problem, DEVICE): 0.1}})
    most = {}
    for warm_started in (False, True):
        job = make_job(TuningStep(problem, warm_started=warm_started), DEVICE, Plan(), knowledge)
        job.resume({})
        most[warm_started] = job.most
    assert most[True] < 30 < most[False]


def test_a_default_outside_of_the_search_space_is_counted_as_a_config():
    problem = Problem(4, 16, 16, op="gated_linear", layout="nt", epilogue="silu")
    task = make_search_task(problem, INTERPRETER)
    job = make_job(TuningStep(problem), INTERPRETER, Plan())
    assert task.default not in task.configs
    assert job.considered == len(task.configs) + 1


def test_a_child_of_the_pool_lists_the_search_space_once_there_is_one(monkeypatch):
    here = make_job(TuningStep(SMALL), DEVICE, Plan())
    with CompilePool(DEVICE, workers=1) as pool, JobPrefetcher(Plan()) as prefetcher:
        while pool.call(os.getpid) is None:
            time.sleep(0.1)  # it is starting
        prefetcher.pool = pool
        monkeypatch.setattr(registry, "default_config", lambda *_, **_strict: pytest.fail("listed in this process"))
        prefetcher.request(TuningStep(SMALL), DEVICE)
        job = prefetcher.take()
    assert (job.default, job.considered, job.most) == (here.default, here.considered, here.most)


def test_jobs_are_made_once_what_all_kernels_import_is_there(monkeypatch, tmp_path):
    """Several threads that import modules which import each other find them half made."""
    (tmp_path / "slowly_imported.py").write_text("import time\ntime.sleep(0.5)\ndone = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(job_prefetch, "_IMPORTED", ("slowly_imported",))
    seen = []

    def make(*_arguments):
        seen.append(hasattr(sys.modules.get("slowly_imported"), "done"))

    monkeypatch.setattr(job_prefetch, "make_job", make)
    with JobPrefetcher(Plan()) as prefetcher:
        prefetcher.import_ahead()
        prefetcher.request(TuningStep(SMALL), DEVICE)
        prefetcher.wait(60)
    assert seen == [True]
