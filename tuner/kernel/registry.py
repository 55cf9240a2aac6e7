"""Where KernelSpecs are found: the entry-point group `tuner.kernels`, the same door for ours and for third parties'.

An entry point called `<op>.<kernel>` is loaded when that kernel is asked for, or all of that op; one of any other name
whenever something is asked for that no such name promises. So a process that serves one op imports no other op's
kernels, and of its own only those that its configs name.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint
from typing import Any

from tuner import entry_points as entries
from tuner.entry_points import entry_points
from tuner.errors import KernelError
from tuner.hardware.device import Device
from tuner.kernel import KernelSpec
from tuner.kernel.config import Config
from tuner.problem import Problem

GROUP = "tuner.kernels"
_added: dict[tuple[str, str], KernelSpec] = {}
_lost: list[str] = []
_log = logging.getLogger(__name__)


@functools.cache
def points() -> tuple[EntryPoint, ...]:
    """The entry points of all installed kernels, by name; nothing is loaded."""
    return tuple(entry_points(GROUP))


def add(spec: KernelSpec) -> None:
    """Register a kernel of this process, as `tuner.tuned` does; other processes import it by its origin.

    Raises:
        KernelError: another kernel has its name.
    """
    before = _added.get((spec.op, spec.name))
    # A script that is also imported has its kernels twice, under two origins: they are the same.
    if before is not None and before.origin != spec.origin and before.source_hash() != spec.source_hash():
        raise KernelError(f"{spec.origin} and {before.origin} are both called {spec.op!r}: give one another name=")
    _added[spec.op, spec.name] = spec
    for known in (specs, of, find):
        known.cache_clear()


def references() -> tuple[str, ...]:
    """How another process imports the kernels that were added here: see `load`."""
    return tuple(spec.origin for spec in _added.values())


def load(references: Iterable[str]) -> None:
    """Import kernels that another process added; one that cannot be is a warning, and missed when it is asked for."""
    from tuner import reference

    for each in references:
        try:
            spec_in(reference.load(each))
        except Exception as e:  # noqa: BLE001  a user's module may raise anything; others' kernels must go on
            _lost.append(f"{each} did not load: {type(e).__name__}: {e}")
            _log.warning("kernel %s", _lost[-1])


def spec_in(found: Any) -> KernelSpec | None:
    """The spec that an object is or holds: a KernelSpec, or a kernel under `tuner.tuned`, whatever decorates it."""
    above: list[Any] = []
    while not isinstance(found, KernelSpec) and not hasattr(found, "kernel_spec") and hasattr(found, "fn"):
        above.append(found)
        found = found.fn
    if hasattr(found, "kernel_spec"):
        found = found.kernel_spec(above)
    return found if isinstance(found, KernelSpec) else None


@functools.cache
def specs() -> dict[tuple[str, str], KernelSpec]:
    """Every kernel by (op, name), loaded. An entry point that fails to load is one warning, not an error."""
    return _first(points()) | _added


@functools.cache
def of(op: str) -> dict[str, KernelSpec]:
    """The kernels of one op by name, loaded; those of other ops are not, unless their entry points do not tell."""
    if added := {name: spec for (its, name), spec in _added.items() if its == op}:
        return added
    told = (point for point in points() if "." not in point.name or point.name.partition(".")[0] == op)
    return {name: spec for (its, name), spec in _first(tuple(told)).items() if its == op}


@functools.cache
def find(op: str, name: str) -> KernelSpec:
    """The kernel `name` of `op`; no other is loaded where its entry point is called `<op>.<name>`.

    Raises:
        KernelError: nobody registered it.
    """
    if (op, name) in _added:
        return _added[op, name]
    named = _first(tuple(point for point in points() if point.name == f"{op}.{name}"))
    spec = named.get((op, name)) or of(op).get(name)
    if spec is None:
        known = ", ".join(sorted(of(op))) or "none"
        raise KernelError(f"no kernel {name!r} of op {op!r} is installed: known are {known}")
    return spec


def serving(problem: Problem, device: Device) -> list[KernelSpec]:
    """The kernels that can serve a problem on a device: by precedence, the highest first, then by name.

    Raises:
        KernelError: none can; the message holds each one's reason.
    """
    reasons: list[str] = []
    able: list[KernelSpec] = []
    for name, spec in sorted(of(problem.op).items()):
        reason = spec.supports(problem, device)
        if reason is None:
            able.append(spec)
        else:
            reasons.append(f"{name}: {reason}")
    if not able:
        why = "; ".join(reasons or _lost) or "none is installed"
        if problem.is_keyed and not reasons:
            why += "; name the one that does, with --kernel MODULE:NAME or by importing it"
        raise KernelError(f"no kernel serves {problem} on {device.name}: {why}")
    return sorted(able, key=lambda spec: -spec.precedence(problem, device))


def default_config(problem: Problem, device: Device, without: Mapping[Config, str] | None = None) -> Config:
    """The config to use where nobody tuned: the formula of the kernel of highest precedence.

    Of several kernels as high the one whose config its model says is faster (`KernelSpec.estimate_us`); where one of
    them has no model, the first by name.

    Args:
        problem, device: what is to be computed, and where.
        without: configs that cannot be launched, and why: the next kernel's serves then.

    Raises:
        KernelError: no kernel serves it, or none of those that do is left.
    """
    able = serving(problem, device)
    if without:
        able = [spec for spec in able if spec.default_config(problem, device) not in without]
    if not able:
        why = "; ".join(f"{config.kernel}: {reason}" for config, reason in (without or {}).items())
        raise KernelError(f"no kernel can be launched for {problem} on {device.name}: {why}")
    highest = able[0].precedence(problem, device)
    equals = [spec for spec in able if spec.precedence(problem, device) == highest]
    models = [spec.estimate_us for spec in equals]
    configs = [spec.default_config(problem, device) for spec in (equals if None not in models else equals[:1])]
    if len(configs) == 1:
        return configs[0]
    times = [model(config, problem, device) for model, config in zip(models, configs, strict=True) if model]
    return configs[times.index(min(times))]


def forget() -> None:
    """Have the installed packages asked anew."""
    entries.forget()
    for known in (points, specs, of, find, _loaded):
        known.cache_clear()


def _first(among: tuple[EntryPoint, ...]) -> dict[tuple[str, str], KernelSpec]:
    """What entry points hold; of two kernels of one name the one whose entry point is called so, then the first."""
    found: dict[tuple[str, str], KernelSpec] = {}
    for point in sorted(among, key=lambda point: "." not in point.name):
        for spec in _loaded(point):
            found.setdefault((spec.op, spec.name), spec)
    return found


@functools.cache
def _loaded(point: EntryPoint) -> tuple[KernelSpec, ...]:
    try:
        loaded = point.load()
        one = spec_in(loaded)
        listed = (one,) if one is not None else tuple(loaded)
        names = [f"{spec.op}.{spec.name}" for spec in listed]
    except Exception as e:  # noqa: BLE001  a third party's import may raise anything; ours must go on
        _log.warning("kernel %s (%s) did not load: %s: %s", point.name, point.value, type(e).__name__, e)
        return ()
    if "." in point.name and names != [point.name]:
        found = ", ".join(names) or "nothing"
        _log.warning("kernel %s (%s) is not used: it is %s: name it so", point.name, point.value, found)
        return ()
    return listed
