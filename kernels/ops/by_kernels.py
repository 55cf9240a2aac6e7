"""Launches a call by its kernel's host code: by shipped binaries, by what Triton compiles, or by torch if strict."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from tuner.bounded import make_room
from tuner.errors import KernelError
from tuner.hardware import device as devices
from tuner.hardware import triton_settings
from tuner.hardware.device import Device
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.kernels.ops import compile_ahead, ready, torch_fallback
from tuner.kernels.ops.checked_call import CheckedCall
from tuner.kernels.ops.ready import serves
from tuner.launch import binaries, cuda
from tuner.launch.binaries import NotShippedError
from tuner.launch.failure import failures, is_no_fault
from tuner.launch.launch import Launch
from tuner.launch.plan import (
    LaunchRange,
    PreparedLaunches,
    PreparedRange,
    Recording,
    launches_without_memory,
    recorded,
)
from tuner.launch.step import RecordedLaunch
from tuner.lookup import strict
from tuner.lookup.decision import TUNED
from tuner.lookup.lookup import counter, drop, on_change, ranges_of_family
from tuner.problem import Problem

_launched: set[tuple[Problem, str, Config]] = set()
_MOST_LAUNCHED = 65_536
_families: dict[Hashable, list[PreparedRange]] = {}
"""By families that were prepared and the device's index, what their ranges launch, where binaries say so."""
on_change(_families.clear)
_torch_serves: dict[Hashable, tuple[Callable[[Any], torch.Tensor | None], Callable[[], Any] | None]] = {}
"""By kinds of calls that no shipped binary serves in a strict process, torch's function and what counts them."""
_MOST_KINDS = 8192
on_change(_torch_serves.clear)


def launch(call: CheckedCall) -> Recording:
    """Launch what a lookup found, or what takes its place, on the current device; see `dispatch.launch`."""
    problem, device = call.problem, call.device
    with devices.expected(device), recorded(_shipped(problem.op, device, call.index)) as recording:
        if _torch_serves and _compute_as_before(call):
            return recording
        while True:
            try:
                registry.find(problem.op, call.match.kernel).launch(call.operands, call.match.config)
            except NotShippedError:
                recording.forget()
                _compute_by_torch(call)
                return recording
            except failures() as e:
                if _launch_key(call) in _launched or is_no_fault(e):
                    raise
                recording.forget()
                reason = f"{type(e).__name__}: {(str(e).splitlines() or [''])[0]}"[:300]
                try:
                    call = replace(call, match=drop(problem, device, call.match, reason))
                except KernelError:
                    raise e from None
            else:
                break
        # A capture prepares nothing: Triton's own loading, where it loads, may be refused. A later call does it.
        is_capturing = call.index is not None and torch.cuda.is_current_stream_capturing()
        if ready.is_of_problem(call.operands) and not is_capturing:
            _prepare(call, recording)
    recording.count = counter(problem, device)
    if call.match.rule in (*TUNED, "default"):
        recording.launch_range = _launch_range(call)
    make_room(_launched, _MOST_LAUNCHED)
    _launched.add(_launch_key(call))
    return recording


def _launch_key(call: CheckedCall) -> tuple[Problem, str, Config]:
    """What tells whether a config was launched before."""
    return call.problem, call.device.slug, call.match.config


def _prepare(call: CheckedCall, recording: Recording) -> None:
    """Make ready, while the GPU works, what other Ms of a family need: no later M waits for it."""
    problem, match = call.problem, call.match
    if match.rule not in (*ready.MEASURED, "default"):
        return
    compile_ahead.prepare(call, recording)
    if match.rule == "default":
        return
    family = (problem.family, call.device.slug, call.index)
    # Calls that never get a plan, of a program with a profiler for one, are not to pay for it each time.
    ranges = _families.get(family)  # another thread may name other tables, and so empty it, at any time
    is_first = ranges is None or _launch_key(call) not in _launched
    if ranges is None:
        ranges = _families[family] = [*_ranges_of(call, recording)]
    if is_first and ranges and (own := _without_memory(problem, match.config, recording.find)) is not None:
        recording.ahead = PreparedLaunches(own, ranges)


def _ranges_of(call: CheckedCall, recording: Recording) -> Iterator[PreparedRange]:
    """What the ranges of a problem's family launch; their kernels are imported, and loaded where they ship."""
    seen: set[Config] = set()
    for row in dict.fromkeys(row for _, row in ranges_of_family(call.problem, call.device, call.match)):
        if recording.find is None:
            with contextlib.suppress(KernelError):
                registry.find(row.problem.op, row.config.kernel)
            continue
        _without_memory(row.problem, row.config, recording.find)
        for launch_range in () if row.config in seen else _launch_ranges_of(row.problem, call.device, row.config):
            launches = _without_memory(row.problem.with_m(launch_range.first_m), row.config, recording.find)
            if launches is not None:
                served = launch_range._replace(serves=serves(row.problem, call.device, row.config, TUNED))
                yield PreparedRange(served, functools.partial(_kept, launches))
        seen.add(row.config)


def _kept(launches: Sequence[RecordedLaunch]) -> Sequence[RecordedLaunch]:
    return launches


def _without_memory(problem: Problem, config: Config, find: Any) -> Sequence[RecordedLaunch] | None:
    """What operands without memory launch by shipped kernels, which are loaded."""
    with contextlib.suppress(KernelError, NotImplementedError, *failures()), recorded(find) as seen:
        registry.find(problem.op, config.kernel).compile(problem, config)
        for launch, kernel in seen.launches:
            if launch.concurrent:
                cuda.ask_for_shared(kernel)
        return launches_without_memory(seen)
    return None


def _launch_ranges_of(problem: Problem, device: Device, config: Config) -> Sequence[LaunchRange]:
    """The Ms of a family that a config's shipped binaries are known to launch alike."""
    shipped = None if problem.is_keyed else binaries.shipped_binaries(problem.op, device.slug)
    return () if shipped is None else shipped.ranges.get(binaries.range_key(problem, config), ())


def _launch_range(call: CheckedCall) -> LaunchRange | None:
    """The Ms of a range whose launches are known to be like those of this one.

    Of a tuned range the index of its binaries says so; of a family without binaries, what compiled it ahead.
    """
    problem, device, match = call.problem, call.device, call.match
    if problem.is_keyed:
        return None
    shipped = None if match.rule == "default" else binaries.shipped_binaries(problem.op, device.slug)
    launch_range = None if shipped is None else shipped.launch_range(problem, match.config)
    launch_range = launch_range or compile_ahead.launch_range(problem, device, match.config)
    if launch_range is None:
        return None
    rules = ("default",) if match.rule == "default" else TUNED
    return launch_range._replace(serves=serves(problem, device, match.config, rules))


def _shipped(op: str, device: Device, index: int | None) -> Callable[[Launch], Any] | None:
    """The function that finds a launch's shipped kernel, or None if Triton makes all of them."""
    if device.is_interpreter:
        return None
    is_strict, by_triton = strict.is_on(), triton_settings.is_instrumented()
    shipped = None if by_triton else binaries.shipped_binaries(op, device.slug)
    if shipped is None and not is_strict:
        return None

    def find(launch: Launch) -> Any:
        kernel = None if shipped is None else shipped.kernel(launch.key, launch.function, index)
        if kernel is None and is_strict:
            raise NotShippedError(f"no binary of {launch.function.__name__} ships for this launch")
        return kernel

    return find


def _compute_by_torch(call: CheckedCall) -> None:
    """Write the output of a call that no shipped binary serves, count it as a miss, and keep what served it."""
    problem, device, match = call.problem, call.device, call.match
    if problem.invariant:
        why = NotImplementedError("torch's library sums in another order for another M")
        raise KernelError(strict.refusal(problem, device, match, why))
    vendor = registry.serving(problem, device)[0].vendor
    try:
        torch_fallback.compute(call.operands, vendor)
    except NotImplementedError as e:
        raise KernelError(strict.refusal(problem, device, match, e)) from None
    count, kind = strict.note(problem, device, match, "torch's library"), _kind(call)
    if kind is not None:
        make_room(_torch_serves, _MOST_KINDS)
        _torch_serves[kind] = vendor, count


def _compute_as_before(call: CheckedCall) -> bool:
    """Write the output by torch and return True, if an earlier call of this kind was served so."""
    vendor, count = _torch_serves.get(_kind(call), (None, None))
    if vendor is None:
        return False
    torch_fallback.compute(call.operands, vendor)
    if count is not None:
        count()
    return True


def _kind(call: CheckedCall) -> Hashable:
    """All that decides which binaries a call needs; None of a list of matrices."""
    operands: Any = call.operands
    given = [getattr(operands, each.name) for each in fields(operands) if each.name != "buffer"]
    if isinstance(given[0], tuple):
        return None
    tensors = ((t.data_ptr() & 15, t.stride(), t.dtype) if isinstance(t, torch.Tensor) else t for t in given)
    return (call.device.slug, *tensors)
