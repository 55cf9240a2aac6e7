"""Compares rows of a batch-invariant family bit for bit between its Ms. Runs in the GPU's worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.errors import KernelError
from tuner.kernel import KernelSpec, registry
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.sweep import verify
from tuner.sweep.timer import Timer


def changed_rows(
    spec: KernelSpec, problem: Problem, configs: Sequence[tuple[int, Config]], timer: Timer, torch_device: str
) -> Mapping[int, int]:
    """Return by M how many of the first M rows have other bits than as rows of the largest problem.

    Args:
        spec: a kernel that serves the problem.
        problem: the family's problem with the largest M.
        configs: Ms with the config that serves each, the problem's own among them.
        timer: the device's.
        torch_device: where.

    Raises:
        KernelError: the problem's kernels have no bits to compare.
    """
    if spec.invariance is None or not problem.invariant:
        raise KernelError(f"{problem} is not invariant: its rows may have other bits in another batch")
    whole = spec.make_inputs(problem, torch_device, 0)
    _write(problem, whole, dict(configs)[problem.m], timer)
    changed: dict[int, int] = {}
    for m, config in configs:
        part = spec.invariance.rows(whole, m)
        _write(problem, part, config, timer)
        changed[m] = int(verify.differs(part.output, whole.output[:m]).any(dim=1).sum())
    return changed


def _write(problem: Problem, inputs: object, config: Config, timer: Timer) -> None:
    spec = registry.find(problem.op, config.kernel)
    verify.poison(inputs)  # type: ignore[arg-type]
    spec.launch(inputs, config)
    timer.synchronize()
