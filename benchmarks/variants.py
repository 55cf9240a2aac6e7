"""Variants of configs that play each other: compiled side by side beforehand, and checked before they play."""

from __future__ import annotations

import concurrent.futures
import itertools
import multiprocessing
import os

from tuner.kernel import registry
from tuner.sweep import cross_target, verify


def compile_all(pairs, arch):
    """Compile problems' configs into Triton's cache, in processes; what went wrong with each pair, or ""."""
    with concurrent.futures.ProcessPoolExecutor(
        max_workers=max(1, (os.cpu_count() or 2) - 2), mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        return dict(zip(pairs, pool.map(_compiled, *zip(*pairs, strict=True), itertools.repeat(arch)), strict=True))


def _compiled(problem, config, arch):
    cross_target.activate(arch)
    try:
        registry.find(problem.op, config.kernel).compile(problem, config)
    except Exception as e:  # noqa: BLE001  a compiler raises anything; it is the row's error
        return _told(e)
    return ""


def playing(bench, problem, named):
    """Check a problem's configs, by name.

    Returns:
        The calls of those whose result is right, their KernelSpec, the operands they rotate over, the others' errors.
    """
    spec, sets = bench.operands(problem)
    reference = spec.reference(sets[0])
    calls, failed = {}, {}
    for name, config in named.items():
        call = bench.launcher(problem, config, sets)
        verify.poison(sets[0])
        try:
            call(0)
            bench.timer.synchronize()
        except Exception as e:  # noqa: BLE001  a launch raises anything; it is the row's error
            failed[name] = _told(e)
            continue
        found = verify.check(sets[0], reference, problem.k, spec.tolerance(problem))
        if found.failure is None:
            calls[name] = call
        else:
            failed[name] = str(found.failure)
    return calls, spec, sets, failed


def _told(error):
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:200]
