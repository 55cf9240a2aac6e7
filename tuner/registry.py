"""Where KernelSpecs are found: the entry-point group `tuner.kernels`, the same door for ours and for third parties'.

An entry point called `<op>.<kernel>` is loaded when that kernel is asked for, or all of that op; one of any other name
whenever something is asked for that no such name promises. So a process that serves one op imports no other op's
kernels, and of its own only those that its configs name.
"""

from __future__ import annotations

import functools
import logging
from importlib.metadata import EntryPoint, entry_points

from tuner.config import Config
from tuner.device import Device
from tuner.errors import KernelError
from tuner.kernel import KernelSpec
from tuner.problem import Problem

GROUP = "tuner.kernels"
_log = logging.getLogger(__name__)


@functools.cache
def points() -> tuple[EntryPoint, ...]:
    """The entry points of all installed kernels, by name; nothing is loaded."""
    found = sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value))
    return tuple(dict.fromkeys(found))


@functools.cache
def specs() -> dict[tuple[str, str], KernelSpec]:
    """Every installed kernel by (op, name), loaded. An entry point that fails to load is one warning, not an error."""
    return _first(points())


@functools.cache
def of(op: str) -> dict[str, KernelSpec]:
    """The kernels of one op by name, loaded; those of other ops are not, unless their entry points do not tell."""
    told = (point for point in points() if "." not in point.name or point.name.partition(".")[0] == op)
    return {name: spec for (its, name), spec in _first(tuple(told)).items() if its == op}


@functools.cache
def find(op: str, name: str) -> KernelSpec:
    """The kernel `name` of `op`; no other is loaded where its entry point is called `<op>.<name>`.

    Raises:
        KernelError: nobody registered it.
    """
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
        raise KernelError(f"no kernel serves {problem} on {device.name}: {'; '.join(reasons) or 'none is installed'}")
    return sorted(able, key=lambda spec: -spec.precedence(problem, device))


def default_config(problem: Problem, device: Device) -> Config:
    """The config to use where nobody tuned: the formula of the kernel of highest precedence.

    Raises:
        KernelError: no kernel serves it.
    """
    return serving(problem, device)[0].default_config(problem, device)


def forget() -> None:
    """Have the installed packages asked anew."""
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
        listed = (loaded,) if isinstance(loaded, KernelSpec) else tuple(loaded)
        names = [f"{spec.op}.{spec.name}" for spec in listed]
    except Exception as e:  # noqa: BLE001  a third party's import may raise anything; ours must go on
        _log.warning("kernel %s (%s) did not load: %s: %s", point.name, point.value, type(e).__name__, e)
        return ()
    if "." in point.name and names != [point.name]:
        found = ", ".join(names) or "nothing"
        _log.warning("kernel %s (%s) is not used: it is %s: name it so", point.name, point.value, found)
        return ()
    return listed
