"""Makes the jobs of coming problems in threads, while workers start and measure.

Listing and ranking a problem's search space takes tenths of a second, and the first import of the kernels takes about
one second. No GPU waits for either as long as a job is requested in time. The compile pool's children list what they
can: in a thread of this process it would hold up the loop that feeds the GPUs.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from tuner.errors import KernelError
from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.store.records import Winner
from tuner.sweep.compile_pool import CompilePool
from tuner.sweep.job import Job
from tuner.sweep.ladder import TuningStep
from tuner.sweep.neighbours import errors_nearby, nearest
from tuner.sweep.plan import Plan
from tuner.sweep.search_task import Listing, list_spaces, make_search_task

_IMPORTED = ("torch", "triton", "triton.language")
_THREADS = 4
"""Jobs whose search spaces children list at a time."""


@dataclass(frozen=True, slots=True)
class SweepKnowledge:
    """What a sweep knows of other problems.

    Attributes:
        winners: the device's winners, of earlier runs too.
        errors: by step of a ladder that this sweep took up, the `model_errors` of the configs that were measured.
    """

    winners: list[Winner] = field(default_factory=list)
    errors: dict[Problem, Mapping[Config, float]] = field(default_factory=dict)


def make_job(
    step: TuningStep,
    device: Device,
    plan: Plan,
    knowledge: SweepKnowledge | None = None,
    listing: Listing | None = None,
) -> Job:
    """List a problem's search space, unless that was done already, and begin a job on it.

    Raises:
        KernelError: no kernel serves the problem, or it cannot be measured.
    """
    start = time.monotonic()
    problem, knowledge = step.problem, knowledge or SweepKnowledge()
    try:
        task = make_search_task(
            problem,
            device,
            trials=plan.trials,
            seed=plan.seed,
            nearby=lambda: nearest(problem, knowledge.winners, device.sm_count),
            suggested=[*step.configs, *plan.suggested.get(problem, ())],
            errors=(lambda: errors_nearby(problem, knowledge.errors)) if step.warm_started else dict,
            listing=listing,
        )
        job = Job(task, step.strategy or plan.strategy, in_finals=step.configs if step.in_finals else ())
    except SystemExit as e:  # of a user's `make_inputs` or rules
        raise KernelError(f"the code of its kernel called sys.exit({e})") from e
    job.draft_s = time.monotonic() - start
    return job


class JobPrefetcher(AbstractContextManager["JobPrefetcher"]):
    """Makes jobs, which are taken in the order they were requested; a context manager.

    Attributes:
        knowledge: what is known of other problems; the sweep adds to it as problems end.
        pool: whose children may list search spaces, once there is one.
    """

    def __init__(self, plan: Plan) -> None:
        """Start without any request; each problem is searched as the plan says."""
        self.knowledge = SweepKnowledge()
        self.pool: CompilePool | None = None
        self._plan = plan
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="tuner-jobs")
        self._here = threading.Lock()
        self._imports: list[Future[object]] = []
        self._requested: deque[tuple[TuningStep, Future[Job]]] = deque()

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def __len__(self) -> int:
        return len(self._requested)

    def import_ahead(self) -> None:
        """Import in a thread what every kernel imports; jobs are made after it.

        One thread does it: where several import modules that import each other, Python breaks the deadlock and gives
        one of them a module that is half made.
        """
        self._imports.append(self._threads.submit(lambda: [*map(importlib.import_module, _IMPORTED)]))

    def request(self, step: TuningStep, device: Device) -> None:
        """Have a problem's job made."""
        future = self._threads.submit(self._make, step, device)
        self._requested.append((step, future))

    def _make(self, step: TuningStep, device: Device) -> Job:
        problem, listing = step.problem, None
        if self.pool is not None and not problem.is_keyed:  # a user's kernel may need this process
            listing = self.pool.call(list_spaces, problem, device, estimated=True)
        wait(self._imports)
        with self._here:  # one at a time: the first is done sooner, and a user's code need not be safe in threads
            return make_job(step, device, self._plan, self.knowledge, listing)

    @property
    def problems(self) -> list[Problem]:
        """The problems whose jobs were requested and not taken, in order."""
        return [step.problem for step in self.steps]

    @property
    def steps(self) -> list[TuningStep]:
        """The steps whose jobs were requested and not taken, in order."""
        return [step for step, _ in self._requested]

    @property
    def ready(self) -> bool:
        """Whether the next job is made."""
        return bool(self._requested) and self._requested[0][1].done()

    def wait(self, timeout_s: float) -> None:
        """Wait for the next job, at most this long; where none was requested, exactly this long."""
        if self._requested:
            wait([self._requested[0][1]], timeout_s)
        else:
            time.sleep(timeout_s)

    def take(self) -> Job:
        """Return the next job, waiting for it if need be.

        Raises:
            KernelError: no kernel serves its problem, or it cannot be measured.
        """
        _, future = self._requested.popleft()
        return future.result()

    def clear(self) -> None:
        """Cancel the requests whose jobs were not taken."""
        for _, future in self._requested:
            future.cancel()
        self._requested.clear()
