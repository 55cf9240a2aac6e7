"""What a miss logs: that nobody tuned a problem, and the command that tunes it."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import shlex
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from tuner.errors import KernelError, ProblemError
from tuner.hardware.device import Device
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.lookup import match_rules
from tuner.lookup.decision import TUNED, Decision, Match, Refusal
from tuner.lookup.row import Row
from tuner.problem import Problem
from tuner.problem.batches import batch_of, split
from tuner.problem.gemm_fields import MAX_SIZE
from tuner.problem.merged_parts import MOST_ROWS

if TYPE_CHECKING:
    from tuner.kernel import KernelSpec

_MOST_CHARACTERS = 2000
"""The longest command that a warning says to type: a key may hold words of any length."""
_RECORD = "TUNER_MISSES=misses.json, then tuner run --from-misses misses.json"
_log = logging.getLogger("tuner.lookup.lookup")  # the name under which people silence or keep it


FEWEST_LAST_M = 512
"""The least last M of the range that a miss's command tunes."""


def command(
    problem: Problem, untuned: tuple[int | None, int | None] = (None, None), *, kernel: str | None = None
) -> str:
    """The command that tunes a problem.

    Args:
        problem: what was called.
        untuned: where given, the command tunes the ranges of Ms and of batches that begin here, hold the problem's and
            end at a power of two.
        kernel: how a kernel of the user's was named, FILE.py:NAME for instance; by its module where that is None.
    """
    from tuner.problem import text

    p = problem
    if p.is_keyed:
        return shlex.join(["tuner", "run", "--kernel", kernel or _origin(p), "--problem", text.write_key(p)])
    said: dict[str, Any] = {"layout": p.layout, "scaling": p.scaling, "precision": p.precision}
    if p == Problem(*p.shape, dtype=p.a_dtype, **said, invariant=p.invariant):
        ms = _range(untuned[0], p.m, FEWEST_LAST_M)
        usual = ("none", "default", "ieee")
        options = "".join(f" --{name} {value}" for name, value in said.items() if value not in usual)
        invariant = " --invariant" if p.invariant else ""
        return f"tuner run --shape {ms}x{p.n}x{p.k} --dtype {p.a_dtype}{options}{invariant}"
    try:
        op = str(p.op)  # of a damaged row it may be anything
        ranges: dict[str, str] = {}
        if op not in text.ONE_M:
            batch = batch_of(p)
            ranges = {"M": _range(untuned[0], p.m, MOST_ROWS if op == "merged_linear" else FEWEST_LAST_M)}
            ranges |= {} if batch is None else {"batch": _range(untuned[1], batch, 1)}
        return shlex.join(["tuner", "run", "--kernel", op, "--problem", text.write(p, **ranges)])
    except ProblemError:
        return f"no command tunes op {p.op!r} with {', '.join(name for name, _ in p.extras)}; tuner.sweep does"


def shipping(problem: Problem, match: Match) -> str:
    """What to type so that a binary of an answer ships."""
    kernel = f" --kernel {shlex.quote(_origin(problem))}" if problem.is_keyed else ""
    export = f"tuner export DIR --with-kernels{kernel}"
    return f"to ship one: {export}" if match.rule in TUNED else f"{_advice(problem)}, then {export}"


def how_to_tune(problem: Problem, typed: str) -> str:
    """What to do about a miss; `typed` is the command that tunes the problem, once its kernel can be found and run."""
    from tuner import reference

    spec = _spec(problem) if problem.is_keyed else None
    steps = []
    if spec is not None and not reference.is_importable(spec.origin):
        steps.append("define the kernel at the top level of a file")
    if spec is not None and not spec.has_inputs():
        steps.append(f"give the kernel inputs (@{_function(spec)}.make_inputs)")
    return f"to tune it: {', '.join([*steps, f'then {typed}']) if steps else typed}"


def _spec(problem: Problem) -> KernelSpec | None:
    """The kernel of a key; None where this process knows none."""
    known = [spec for spec in registry.of(problem.op).values() if spec.origin]
    if len(known) > 1:
        known = [spec for spec in known if registry.ask(spec, "source_hash").startswith(problem.source)]
    return known[0] if known else None


def _origin(problem: Problem) -> str:
    """How a command names the kernel of a key."""
    from tuner import reference

    spec = _spec(problem)
    if spec is None:
        return problem.op
    return spec.origin if reference.is_importable(spec.origin) else f"FILE.py:{_function(spec)}"


def _function(spec: KernelSpec) -> str:
    """The name of a kernel's function, where it is or would be at the top level of a module."""
    return spec.origin.rpartition(":")[2].rpartition("<locals>.")[2]


def _range(first: int | None, called: int, fewest: int) -> str:
    """The range from the first size to a power of two that holds what was called, as text; a size where it is one."""
    last = min(max(fewest, 1 << (called - 1).bit_length()), MAX_SIZE)
    return str(called) if first is None or first == last else f"{first}-{last}"


def _advice(problem: Problem, untuned: tuple[int | None, int | None] = (None, None)) -> str:
    """What to do about a miss: type a command, if a shell takes it."""
    typed = command(problem, untuned)
    return how_to_tune(problem, typed) if len(typed) <= _MOST_CHARACTERS else f"to record and tune it: {_RECORD}"


def report(
    problem: Problem, device: Device, decision: Decision, reported: set[Hashable], *, is_measured: bool = False
) -> None:
    """Log a miss and the refusals of a problem's own rows; log nothing where all is well.

    Only the first problem of a family is logged, because a server's M, or batch, takes every value. The others are
    counted, and the end of the process says how many they were.

    Args:
        problem, device, decision: what was looked up, and what was decided.
        reported: the families that were logged; one that is logged is added.
        is_measured: whether the caller measures a miss now and says what came of it: then refusals alone are logged.
    """
    missing = {(r.row.config.kernel, r.source) for r in decision.refused if not _is_installed(r.row)}
    for kernel, source in sorted(missing):
        _report_missing(problem.op, kernel, source)
    # That the row of another range, key or device does not fit is no fault of it: `tuner.explain` tells.
    own = [r for r in decision.refused if r.rule == "exact" and (r.row.config.kernel, r.source) not in missing]
    formulas = [config for config in decision.failed if config not in {r.row.config for r in decision.refused}]
    refused = _refused(decision, own, formulas)
    is_missed = decision.match.rule in ("default", "near_key")
    if not (refused or (is_missed and not is_measured)):
        return
    kind = (device.slug, _family(problem), is_missed, bool(own), *(config.kernel for config in formulas))
    if kind in reported:
        count_another()
        return
    reported.add(kind)
    _log_answer(problem, device, decision, refused)


def _refused(decision: Decision, own: Sequence[Refusal], formulas: Sequence[Config]) -> str:
    """Each thing that may not serve, after a semicolon: the problem's own rows, the formula's configs, ranges."""
    said = [f"refused {r.row.config} from {r.source}: {r.reason}" for r in own[:3]]
    said += [f"the formula's {config} {match_rules.FAILED}: {decision.failed[config]}" for config in formulas[-1:]]
    return "".join(f"; {each}" for each in (*said, *decision.fallen[:1]))


def _log_answer(problem: Problem, device: Device, decision: Decision, refused: str) -> None:
    """Log what serves a problem in place of what was refused, or of a row that nobody tuned; then also what to type."""
    match = decision.match
    if match.rule == "default":
        _log.warning(
            "no tuned config for %.1000s on %s%s: using the default formula's, %s; performance may be below what "
            "tuning finds; %s",
            problem,
            device.slug,
            refused,
            match.config,
            _advice(problem, decision.untuned),
        )
    elif match.rule == "near_key":
        assert decision.row is not None
        unsure = "" if decision.row.problem.source else ", whose row does not say for which source it was tuned"
        _log.warning(
            "no tuned config for %.1000s on %s%s: using that of %.1000s%s, %s; performance may be below what tuning "
            "finds; %s",
            problem,
            device.slug,
            refused,
            decision.row.problem,
            unsure,
            match.config,
            _advice(problem),
        )
    else:
        _log.warning("%s on %s%s: using %s (%s)", problem, device.slug, refused, match.config, match.rule)


def report_no_binary(problem: Problem, device: Device, match: Match, instead: str, reported: set[Hashable]) -> None:
    """Log, for the first problem of a family, that no shipped binary launches an answer; see `report`."""
    kind = (device.slug, _family(problem), "no binary")
    if kind not in reported:
        reported.add(kind)
        _log.warning(
            "no shipped binary launches %s for %.1000s on %s, and nothing is compiled (strict): %s serves it; %s",
            match.config,
            problem,
            device.slug,
            instead,
            shipping(problem, match),
        )


def _family(problem: Problem) -> Hashable:
    return (problem.op, problem.a_dtype) if problem.is_keyed else split(problem)[0]


def count_another() -> None:
    """Count a problem of a family that was logged; the caller holds `lookup_lock`."""
    global _others  # noqa: PLW0603
    if not _others:
        atexit.register(_report_others)
    _others += 1


def _report_others() -> None:
    """Log at the end of the process how many problems the warnings left out, and the command that tunes them."""
    global _others  # noqa: PLW0603
    from tuner.lookup import miss_counts

    if not _others:
        return  # a fork of a process that counted some
    path = miss_counts.path()
    advice = f"to record and tune them: {_RECORD}"
    if path is not None:
        advice = f"to tune them: tuner run --from-misses {shlex.quote(str(path))}"
    counted = "1 more problem" if _others == 1 else f"{_others} more problems"
    were = "was" if _others == 1 else "were"
    _log.warning("%s of the families above %s called untuned, or with refused rows; %s", counted, were, advice)
    _others = 0  # a fork that counts has registered this again


def _begin_anew() -> None:
    global _others  # noqa: PLW0603
    _others = 0


def _is_installed(row: Row) -> bool:
    try:
        registry.find(row.problem.op, row.config.kernel)
    except KernelError:
        return False
    return True


@functools.cache
def _report_missing(op: str, kernel: str, source: str) -> None:
    """Log once a process, not once a row, that rows name a kernel which is not installed."""
    _log.warning(
        "%s: rows of kernel %s of op %s are passed over, it is not installed (another package has it, or this "
        "triton-tuner no longer does): `tuner verify` lists them",
        source,
        kernel,
        op,
    )


_others = 0
if hasattr(os, "register_at_fork"):  # where processes fork
    os.register_at_fork(after_in_child=_begin_anew)
