"""Processes that launch cases, each of which a fault may take down: the case is named, another process goes on."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pebble
from attempts import Attempt, attempt
from covering import Case

from tuner.hardware import device as devices
from tuner.hardware.device import Device
from tuner.store.records import State
from tuner.sweep.measure import failure_of
from tuner.sweep.process import (
    clear_output,
    describe_exit,
    die_with_parent,
    last_output_line,
    redirect_output,
    scratch_folder,
)

LOST = 70
"""Exit code of a process whose CUDA context is lost."""


class Launchers:
    """Processes that launch cases, one at a time each; every one may die."""

    def __init__(self, torch_device: str, count: int, limit_s: float) -> None:
        self.torch_device, self.limit_s = torch_device, limit_s
        self._scratch = scratch_folder()
        self._pool = pebble.ProcessPool(
            count,
            initializer=start_child,
            initargs=(self._scratch.name,),
            context=multiprocessing.get_context("spawn"),
        )

    def __enter__(self) -> Launchers:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.stop()
        self._pool.join()
        self._scratch.cleanup()

    def device(self) -> Device:
        return self._pool.schedule(devices.current).result()

    def launch(self, case: Case) -> concurrent.futures.Future[Attempt]:
        return self._pool.schedule(attempt_in_child, args=(case, self.torch_device), timeout=self.limit_s)

    def outcome(self, future: concurrent.futures.Future[Attempt]) -> Attempt:
        """The result of a launch that ended, whichever way."""
        error = future.exception()
        if error is None:
            return future.result()
        if isinstance(error, (TimeoutError, concurrent.futures.TimeoutError)):
            return Attempt(State.TIMEOUT, f"took more than {self.limit_s:g} s, killed")
        log = Path(self._scratch.name) / f"{getattr(error, 'pid', None)}.log"
        return Attempt(State.CRASHED, f"{describe_exit(getattr(error, 'exitcode', None))}{last_output_line(log)}")


def start_child(log_folder: str) -> None:
    die_with_parent()
    redirect_output(Path(log_folder) / f"{os.getpid()}.log")


def attempt_in_child(case: Case, torch_device: str) -> Attempt:
    """What `attempt` gives, or the state that an exception means; a process without a working context ends."""
    from triton import knobs

    clear_output()
    compiles: Counter[bool] = Counter()
    knobs.compilation.listener = lambda *_, cache_hit=False, **__: compiles.update([not cache_hit])
    try:
        return replace(attempt(case, torch_device), compiled=compiles[True])
    except Exception as e:  # noqa: BLE001  the boundary of a child process: whatever was raised is the result
        outcome = failure_of(e)
        if torch_device != "cpu" and context_is_lost():
            print(outcome.message, file=sys.stderr, flush=True)
            os._exit(LOST)
        return Attempt(outcome.state, outcome.message)


def context_is_lost() -> bool:
    import torch

    try:
        torch.cuda.synchronize()
    except Exception:  # noqa: BLE001  whatever it raises, nothing works on this context any more
        return True
    return False
