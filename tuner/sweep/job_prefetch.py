"""Drafts: the jobs of problems to come, made in a thread while workers start and measure.

To list a problem's search space and to rank it takes tenths of a second, and the kernels' first import about one. No
GPU waits for either, as long as somebody asked in time.
"""

from __future__ import annotations

import importlib
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait

from tuner.hardware.device import Device
from tuner.problem import Problem
from tuner.store.records import Winner
from tuner.sweep.job import Job
from tuner.sweep.neighbours import nearest
from tuner.sweep.report import Plan
from tuner.sweep.search_problem import survey


class Drafts:
    """Makes one job after the other, in the order they were asked for; a context manager.

    Attributes:
        winners: of the device: the neighbours of the jobs' problems; whoever drives the jobs adds to them.
    """

    def __init__(self, plan: Plan) -> None:
        """Nothing is made yet.

        Args:
            plan: what to do for each problem.
        """
        self.winners: list[Winner] = []
        self._plan = plan
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tuner-drafts")
        self._made: deque[tuple[Problem, Future[Job]]] = deque()

    def __enter__(self) -> Drafts:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def __len__(self) -> int:
        return len(self._made)

    def warm_up(self) -> None:
        """Have imported what every kernel imports."""
        for module in ("torch", "triton", "triton.language"):
            self._thread.submit(importlib.import_module, module)

    def ask(self, problem: Problem, device: Device) -> None:
        """Have a problem's job made."""
        self._made.append((problem, self._thread.submit(self._make, problem, device)))

    @property
    def problems(self) -> list[Problem]:
        """Those asked for and not taken, in order."""
        return [problem for problem, _ in self._made]

    @property
    def ready(self) -> bool:
        """Whether the first of them is made."""
        return bool(self._made) and self._made[0][1].done()

    def wait(self, timeout_s: float) -> None:
        """Wait for the first of them, not longer than this."""
        if self._made:
            wait([self._made[0][1]], timeout_s)

    def take(self) -> Job:
        """The first of them.

        Raises:
            KernelError: no kernel serves its problem.
        """
        _, made = self._made.popleft()
        return made.result()

    def clear(self) -> None:
        """Forget those that were not taken."""
        for _, made in self._made:
            made.cancel()
        self._made.clear()

    def _make(self, problem: Problem, device: Device) -> Job:
        plan, start = self._plan, time.monotonic()
        field = survey(
            problem,
            device,
            trials=plan.trials,
            seed=plan.seed,
            nearby=lambda: nearest(problem, self.winners, device.sm_count),
            suggested=plan.suggested.get(problem, ()),
        )
        job = Job(field, plan.strategy)
        job.draft_s = time.monotonic() - start
        return job
