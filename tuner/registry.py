"""Where KernelSpecs are found: the entry-point group `tuner.kernels`, the same door for ours and for third parties'."""

from __future__ import annotations

import functools
import logging
from importlib.metadata import entry_points

from tuner.config import Config
from tuner.device import Device
from tuner.errors import KernelError
from tuner.kernel import KernelSpec
from tuner.problem import Problem

GROUP = "tuner.kernels"
_log = logging.getLogger(__name__)


@functools.cache
def specs() -> dict[tuple[str, str], KernelSpec]:
    """Every installed kernel by (op, name). An entry point that fails to load is one warning, not an error."""
    found: dict[tuple[str, str], KernelSpec] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            loaded = point.load()
            listed = (loaded,) if isinstance(loaded, KernelSpec) else tuple(loaded)
        except Exception as e:  # noqa: BLE001  a third party's import may raise anything; ours must go on
            _log.warning("kernel %s (%s) did not load: %s: %s", point.name, point.value, type(e).__name__, e)
            continue
        for spec in listed:
            found[spec.op, spec.name] = spec
    return found


def find(op: str, name: str) -> KernelSpec:
    """The kernel `name` of `op`.

    Raises:
        KernelError: nobody registered it.
    """
    try:
        return specs()[op, name]
    except KeyError:
        known = ", ".join(sorted(n for o, n in specs() if o == op)) or "none"
        raise KernelError(f"no kernel {name!r} of op {op!r} is installed: known are {known}") from None


def serving(problem: Problem, device: Device) -> list[KernelSpec]:
    """The kernels that can serve a problem on a device: by precedence, the highest first, then by name.

    Raises:
        KernelError: none can; the message holds each one's reason.
    """
    reasons: list[str] = []
    able: list[KernelSpec] = []
    for (op, name), spec in sorted(specs().items()):
        if op != problem.op:
            continue
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
