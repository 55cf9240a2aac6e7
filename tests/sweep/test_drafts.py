"""Jobs drafted in a thread: in their order, and what went wrong there comes out where they are taken."""

import pytest

from tuner.errors import KernelError
from tuner.hardware.device import KNOWN
from tuner.problem import Problem
from tuner.sweep.job_prefetch import Drafts
from tuner.sweep.report import Plan

pytest.importorskip("triton")
DEVICE = KNOWN["sm_90"]
SMALL = Problem(256, 256, 64, dtype="float32")
UNKNOWN = Problem(256, 256, 64, dtype="float32", op="unheard of")


def test_jobs_come_in_the_order_they_were_asked_for_and_failures_where_they_are_taken():
    with Drafts(Plan(trials=7)) as drafts:
        drafts.ask(UNKNOWN, DEVICE)
        drafts.ask(SMALL, DEVICE)
        assert drafts.problems == [UNKNOWN, SMALL]
        drafts.wait(60)
        assert drafts.ready
        with pytest.raises(KernelError, match="unheard of"):
            drafts.take()
        job = drafts.take()
        assert (job.problem, job.most, len(drafts)) == (SMALL, 7, 0)
        assert job.draft_s > 0


def test_drafts_that_are_forgotten_do_not_come():
    with Drafts(Plan()) as drafts:
        for _ in range(3):
            drafts.ask(SMALL, DEVICE)
        drafts.clear()
        assert not drafts.ready
        assert len(drafts) == 0
        drafts.ask(UNKNOWN, DEVICE)
        assert drafts.problems == [UNKNOWN]
