"""Samples what each GPU of a sweep does, a hundred times a second; `several_gpus.py` names the causes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

from tuner.sweep.report import Observer
from tuner.sweep.supervisor import Phase, WorkerSupervisor

BEAT_S = 0.01
AT_WORK = {Phase.SETTING_UP: "set up", Phase.SEARCHING: "search", Phase.FINALS: "finals"}


class Watch(Observer):
    """A thread that looks at each supervisor; an observer, because it must know what is left."""

    def __init__(self, supervisors: list[WorkerSupervisor]) -> None:
        self.supervisors = supervisors
        self.seconds: list[Counter[str]] = [Counter() for _ in supervisors]
        self.left: int | None = None
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)

    def started(self, device: Any, environment: Any, problems: Any) -> None:  # noqa: ARG002
        self.left = len(problems)

    def problem_started(self, job: Any, gpu: Any) -> None:  # noqa: ARG002
        assert self.left is not None
        self.left -= 1

    def cause(self, supervisor: WorkerSupervisor) -> str:
        phase, job = supervisor.phase, supervisor.job
        if self.left is None:
            return "start"
        if phase is Phase.FREE or job is None:
            return "no job" if self.left else "end"
        if supervisor.busy:
            return AT_WORK.get(phase, "loop")
        return "compile" if phase is Phase.SEARCHING and job.searching else "loop"

    def _look(self) -> None:
        before = time.monotonic()
        while not self.ended.wait(BEAT_S):
            now = time.monotonic()
            for supervisor, seconds in zip(self.supervisors, self.seconds, strict=True):
                seconds[self.cause(supervisor)] += now - before
            before = now
