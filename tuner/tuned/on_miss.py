"""`tuned(tune_on_miss=True)`: measures a missed problem in the caller's process, on copies of the call's arguments.

This follows protocol 1 like a sweep, but without child processes, so that a config that hangs or loses the CUDA context
takes the caller with it. The winner is stored in the database, where the next process finds it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import platform
import time
from typing import Any

from tuner.errors import KernelError, StoreError, SweepError, first_line
from tuner.hardware.device import Device, Environment
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.store.records import Outcome, Trial, Verdict
from tuner.sweep import gpu_lock
from tuner.sweep.device_session import open_session
from tuner.sweep.job import Job
from tuner.sweep.measure import ContextLostError, Measurement
from tuner.sweep.race import RACE
from tuner.sweep.search_task import make_search_task
from tuner.sweep.supervisor import BATCH
from tuner.tuned.arguments import Arguments, are_addresses, is_same, tensors_of, with_tensors
from tuner.tuned.inputs import CallInputs
from tuner.tuned.spec import expected_from_first_config
from tuner.tuned.tuned_kernel import TunedKernel

MOST_ADDRESSES = 4096
"""How many elements of a tensor are looked at to see that they are addresses."""
_log = logging.getLogger(__name__)


def tune(kernel: TunedKernel, problem: Problem, arguments: Arguments, device: Device) -> Config | None:
    """Measure a problem now and return its winner; None, with one warning, where that is impossible.

    Raises:
        SweepError: a config lost the CUDA context, so nothing works in this process any more.
    """
    import torch

    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        _log.warning("%s is not tuned now: a CUDA graph is being captured", problem)
        return None
    start = time.monotonic()
    try:
        job, verdict, trials, environment = _measured(kernel, problem, arguments, device)
    except (torch.cuda.OutOfMemoryError, MemoryError, KernelError, gpu_lock.GpuBusyError) as e:
        _log.warning("%s is not tuned now: %s", problem, first_line(e))
        return None
    except ContextLostError as e:
        raise SweepError(f"{e.config} lost the CUDA context while it was measured: {e}") from e
    if verdict is None:
        _log.warning("%s is not tuned: none of %d configs worked", problem, job.measured)
        return None
    _keep(job, verdict, trials, environment)
    _log.warning("tuned %s in %.1f s: %s of %d", problem, time.monotonic() - start, verdict.config, job.measured)
    return verdict.config


def _measured(
    kernel: TunedKernel, problem: Problem, arguments: Arguments, device: Device
) -> tuple[Job, Verdict | None, list[Trial], Environment]:
    import torch

    gpu = None if device.is_interpreter else torch.cuda.current_device()
    outputs = _outputs(kernel, problem)
    if not outputs and (table := _table_of_addresses(kernel, arguments)) is not None:
        raise KernelError(f"{table} holds addresses, and what lies there is neither copied nor compared")
    spec = dataclasses.replace(
        kernel.spec,
        make_inputs=lambda _problem, _device, _seed: _CopiedInputs(kernel, arguments, outputs),
        reference=lambda inputs: _expected(kernel, inputs),
    )
    job = Job(make_search_task(problem, device), RACE)
    job.resume({})
    trials: list[Trial] = []

    def note(config: Config, outcome: Outcome) -> None:
        job.finish(config, outcome)
        trials.append(Trial(problem, config, job.version(config), outcome))

    with contextlib.ExitStack() as stack:
        if gpu is not None:
            torch.cuda.synchronize()  # the arguments may still be being written on the caller's stream
        session = open_session(gpu, stack)
        stack.enter_context(gpu_lock.hold([session.gpu_uuid], wait=False))
        measurement = Measurement(spec, problem, session.timer, session.monitor, session.torch_device)
        while batch := job.take(BATCH, None)[0]:
            for config, outcome in measurement.search(batch, _silent, drop=RACE.drop):
                note(config, dataclasses.replace(outcome, gpu_uuid=session.gpu_uuid))
        verdict = None
        while verdict is None and (finalists := job.finalists()):
            times, rejected = measurement.finals(
                finalists, seed=len(job.rejected), rounds=RACE.rounds, heartbeat=_silent
            )
            job.rejected |= rejected
            verdict = job.verdict(times)
    return job, verdict, trials, session.environment


def _table_of_addresses(kernel: TunedKernel, arguments: Arguments) -> str | None:
    """Return the name of a tensor that holds addresses."""
    import torch

    for name, tensor in tensors_of(kernel.signature.named(arguments.args, arguments.kwargs)).items():
        if tensor.dtype in (torch.int64, torch.uint64) and are_addresses(tensor.flatten()[:MOST_ADDRESSES].tolist()):
            return name
    return None


def _expected(kernel: TunedKernel, inputs: _CopiedInputs) -> dict[str, Any]:
    """Return what the first config that runs writes.

    Raises:
        KernelError: no config runs, or nothing was written that could be compared.
    """
    expected = expected_from_first_config(kernel, inputs)
    if not inputs.is_changed:
        raise KernelError(
            f"{kernel.options.name} changes none of its arguments here, so that no config can be told right: "
            "make_inputs may name its outputs"
        )
    return expected


def _outputs(kernel: TunedKernel, problem: Problem) -> tuple[str, ...]:
    """Return the names of the arguments that the kernel writes by `make_inputs`; () where it does not name them."""
    try:
        told = kernel.arguments_factory.shaped(problem).outputs
    except KernelError:
        return ()
    named = tuple(each for each in told if isinstance(each, str))
    return named if len(named) == len(told) else ()


def _keep(job: Job, verdict: Verdict, trials: list[Trial], environment: Environment) -> None:
    """Store trials and winner in the database; where that fails, the winner serves this process alone."""
    from tuner.store.store import RunStatus, Store

    try:
        # In one transaction no other writer sees a run that has begun, so that a sweep may hold the file meanwhile.
        with Store.open(None) as store, store.in_one_transaction():
            run = store.begin_run(job.device, environment, argv=["tune_on_miss"], host=platform.node())
            store.record(run, trials)
            store.decide(run, job.problem, job.version(verdict.config), verdict)
            store.end_run(run, RunStatus.DONE)
    except StoreError as e:
        _log.warning("the winner of %s serves this process alone: %s", job.problem, e)


def _silent(_config: Config | None) -> None:
    """Do nothing, because no parent process waits for a sign of life."""


class _CopiedInputs(CallInputs):
    """Copies of a call's arguments. Where the kernel's outputs are unknown, every tensor is compared."""

    def __init__(self, kernel: TunedKernel, arguments: Arguments, outputs: tuple[str, ...]) -> None:
        copies = _copies(arguments)
        named = kernel.signature.named(copies.args, copies.kwargs)
        tensors = tensors_of(named)
        super().__init__(dataclasses.replace(copies, outputs=outputs or tuple(tensors)), named, kernel.options)
        theirs = tensors_of(kernel.signature.named(arguments.args, arguments.kwargs))
        self._found = [(tensor, theirs[name]) for name, tensor in tensors.items()]

        self._are_named = bool(outputs)

    @property
    def is_changed(self) -> bool:
        """Whether a launch left any tensor other than it was; outputs that are named are taken to be written."""
        return self._are_named or not all(is_same(copy, original) for copy, original in self._found)

    def poison(self) -> None:
        """Restore the original values of every tensor, because it is unknown which of them a launch reads."""
        for copy, original in self._found:
            copy.copy_(original.detach())
        self.checking = True


def _copies(arguments: Arguments) -> Arguments:
    """Copy a call's arguments; views of one allocation stay views of one, with their strides and alignment."""
    storages: dict[int, Any] = {}

    def copy(memory: Any) -> Any:
        storage = memory.untyped_storage()
        if storage.data_ptr() not in storages:
            storages[storage.data_ptr()] = storage.clone()
        view = (storages[storage.data_ptr()], memory.storage_offset(), memory.size(), memory.stride())
        return memory.detach().new_empty(0).set_(*view)

    kwargs = {name: with_tensors(value, copy) for name, value in arguments.kwargs.items()}
    return Arguments(arguments.grid, tuple(with_tensors(value, copy) for value in arguments.args), kwargs)
