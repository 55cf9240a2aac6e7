"""Launches of a kernel that are judged: right by float64, nothing written elsewhere, and the same bits each time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch

from tuner.hardware import device
from tuner.kernel import KernelSpec
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.sweep import verify


def skip_where_refused(spec: KernelSpec, problem: Problem, config: Config) -> None:
    """Skip a test that the current GPU cannot run."""
    here = device.current()
    if refused := spec.unserved(problem, here) or spec.space(problem, here).rejection(config, fatal_only=True):
        pytest.skip(refused)


def check_configs(
    spec: KernelSpec, problem: Problem, configs: Iterable[Config], *, on: str = "cpu", launches: int = 2
) -> None:
    """Check each launch of configs on a torch device."""
    inputs = spec.make_inputs(problem, on, 0)
    right = spec.reference(inputs)
    for config in configs:
        once = None
        for _ in range(launches):
            verify.poison(inputs)
            spec.launch(inputs, config)
            found = verify.check(inputs, right, problem.k, spec.tolerance(problem))
            assert found.failure is None, str(config)
            once = inputs.output.clone() if once is None else once
            assert torch.equal(once, inputs.output), str(config)


def check_sample(spec: KernelSpec, problem: Problem, most: int) -> None:
    """Check the default and a sample of the space on the current GPU."""
    here = device.current()
    configs = spec.space(problem, here).configs()
    sample = random.Random(0).sample(configs, min(most, len(configs)))
    check_configs(spec, problem, [spec.default_config(problem, here), *sample], on="cuda")


def check_in_turn(spec: KernelSpec, problem: Problem, config: Config) -> None:
    """Check on the current GPU that launches on four sets of operands in turn do not disturb each other."""
    sets = [spec.make_inputs(problem, "cuda", seed) for seed in range(4)]
    for inputs in sets:
        spec.launch(inputs, config)
    torch.cuda.synchronize()
    alone = [inputs.output.clone() for inputs in sets]
    for _ in range(50):
        for inputs in sets:
            verify.poison(inputs)
        for inputs in sets:
            spec.launch(inputs, config)
        assert all(torch.equal(once, inputs.output) for once, inputs in zip(alone, sets, strict=True))


def check_streams(call: Callable[..., torch.Tensor], sets: Sequence[Sequence[Any]]) -> list[torch.Tensor]:
    """Check that calls on streams of their own do not disturb each other; returns what each gives alone."""
    streams = [torch.cuda.Stream() for _ in sets]
    alone = [call(*given) for given in sets]
    torch.cuda.synchronize()
    found: list[list[torch.Tensor]] = [[] for _ in sets]
    for _ in range(50):
        for stream, given, results in zip(streams, sets, found, strict=True):
            with torch.cuda.stream(stream):
                results.append(call(*given))
    torch.cuda.synchronize()
    for once, results in zip(alone, found, strict=True):
        assert all(torch.equal(once, each) for each in results)
    return alone
