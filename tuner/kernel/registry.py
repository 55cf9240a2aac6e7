"""Finds KernelSpecs through the entry-point group `tuner.kernels`, third parties' kernels in the same way as ours.

An entry point named `<op>.<kernel>` is loaded when that kernel or the whole op is asked for. One with any other name is
loaded whenever no such name matches what is asked for. A process that serves one op therefore imports no other op's
kernels, and only those of its own op that its configs name.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

from tuner import entry_points as entries
from tuner.entry_points import entry_points
from tuner.errors import BrokenKernelError, KernelError, in_short, one_line
from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.problem import Problem

if TYPE_CHECKING:
    from tuner.kernel import KernelSpec

GROUP = "tuner.kernels"
CAPTURED = (
    "an adopted library's kernel is launched by its captured calls alone: tuner show winners lists its configs, and "
    "tuner run --captured DIR tunes it"
)
"""What to type for an op that `is_of_library`."""
_added: dict[tuple[str, str, str], KernelSpec] = {}
"""Kernels added in this process by op, name and origin: two packages may give theirs one name."""
_lost: list[str] = []
_faults: dict[tuple[str, str], dict[str, str]] = {}
"""Why entry points, by name and value, are not used: for one kernel, "op/name", or "" for all; a warning named each."""
_left_out: set[str] = set()
"""Kernels whose code raised; a warning named each."""
_log = logging.getLogger(__name__)


def is_of_library(op: str) -> bool:
    """Return whether an op that no installed kernel has is named as those of adopted libraries are, `fla-ops-kernel`.

    `tuner.adopt.kernel.op_of` writes a "-" for each dot.
    """
    return "-" in op


@functools.cache
def points() -> tuple[EntryPoint, ...]:
    """Return the entry points of all installed kernels, sorted by name; nothing is loaded."""
    return entry_points(GROUP)


def add(spec: KernelSpec, *, instead_of: KernelSpec | None = None) -> None:
    """Register a kernel in this process, as `tuner.tuned` does; other processes import it by its origin.

    A kernel of the same origin gives way: its module was loaded again, or one function makes several.

    Args:
        spec: the kernel.
        instead_of: the same kernel as it was added before.
    """
    if instead_of is not None and _added.get((instead_of.op, instead_of.name, instead_of.origin)) is instead_of:
        del _added[instead_of.op, instead_of.name, instead_of.origin]
    if _added.get((spec.op, spec.name, spec.origin)) is spec:
        return
    _added[spec.op, spec.name, spec.origin] = spec
    for known in (specs, of, find):
        known.cache_clear()


def references() -> tuple[str, ...]:
    """Return how another process imports the kernels added here; `load` takes the result."""
    from tuner import reference

    return tuple(spec.origin for spec in _added.values() if reference.is_importable(spec.origin))


def load(references: Iterable[str]) -> None:
    """Import kernels that another process added; one that fails is a warning, and an error only where it is needed."""
    from tuner import reference

    for each in references:
        try:
            spec_in(reference.load(each))
        except Exception as e:  # noqa: BLE001  a user's module may raise anything; other kernels must still load
            _lost.append(f"{each} did not load: {type(e).__name__}: {e}")
            _log.warning("kernel %s", _lost[-1])


def spec_in(found: Any) -> KernelSpec | None:
    """Return the spec that an object is or holds: a KernelSpec, or a kernel under `tuner.tuned` and maybe others."""
    from tuner.kernel.spec import KernelSpec

    above: list[Any] = []
    while not isinstance(found, KernelSpec) and not hasattr(found, "kernel_spec") and hasattr(found, "fn"):
        above.append(found)
        found = found.fn
    if hasattr(found, "kernel_spec"):
        found = found.kernel_spec(above)
    return found if isinstance(found, KernelSpec) else None


@functools.cache
def specs() -> dict[tuple[str, str], KernelSpec]:
    """Load and return every kernel by (op, name). An entry point that fails to load is a warning, not an error.

    If several kernels have one name, all but the first have their origin behind it.
    """
    found = _first(points())
    return found | {(op, name): spec for op in {op for op, *_ in _added} for name, spec in _added_of(op).items()}


@functools.cache
def of(op: str) -> dict[str, KernelSpec]:
    """Load and return the kernels of one op by name; other ops' are only loaded where a name does not tell the op."""
    if added := _added_of(op):
        return added
    named = (point for point in points() if "." not in point.name or point.name.partition(".")[0] == op)
    found = {name: spec for (its, name), spec in _first(tuple(named)).items() if its == op}
    return found | _added_of(op)  # a decorated kernel adds itself when its entry point is loaded


@functools.cache
def find(op: str, name: str, source: str = "") -> KernelSpec:
    """Return the kernel `name` of `op`; no other is loaded if its entry point is named `<op>.<name>`.

    Args:
        op, name: as the spec has them.
        source: `Problem.source` of the problem it is for, which tells kernels of one name apart.

    Raises:
        KernelError: no such kernel is registered.
    """
    added = [spec for spec in _added.values() if (spec.op, spec.name) == (op, name)]
    if len(added) > 1:
        return next((spec for spec in added if ask(spec, "source_hash").startswith(source)), added[0])
    if added:
        return added[0]
    named = _first(tuple(point for point in points() if point.name == f"{op}.{name}"))
    spec = named.get((op, name)) or of(op).get(name)
    if spec is None:
        known = ", ".join(sorted(of(op)))
        expected = f"known are {known}" if known else "name its module with --kernel MODULE:NAME, or import it"
        expected = CAPTURED if is_of_library(op) else expected
        raise KernelError(f"no kernel {name!r} of op {op!r} is installed: {expected}")
    return spec


def serving(problem: Problem, device: Device, *, strict: bool = False) -> list[KernelSpec]:
    """Return the kernels that can serve a problem on a device, the highest precedence first, then by name.

    Args:
        problem, device: what is to be computed, and where.
        strict: whether a kernel whose code raises is an error, as it is to a run, which would decide without it. Else
            it is left out with a warning, for others can serve.

    Raises:
        KernelError: none can; the message gives each one's reason.
        BrokenKernelError: the code of one raised, and `strict`.
    """
    reasons: dict[str, list[str]] = {}
    able: list[tuple[int, KernelSpec]] = []
    for name, spec in sorted(of(problem.op).items()):
        try:
            reason = ask(spec, "unserved", problem, device)
            if reason is None:
                able.append((-ask(spec, "precedence", problem, device), spec))
                continue
        except BrokenKernelError as e:
            reason = _leave_out(e, strict=strict)
        reasons.setdefault(reason, []).append(name)
    if not able:
        said = [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]
        why = "; ".join(said or _lost) or "none is installed"
        if is_of_library(problem.op):
            why += f"; {CAPTURED}"
        elif problem.is_keyed and not reasons:
            why += "; name the one that does, with --kernel MODULE:NAME or by importing it"
        elif not said and (ops := sorted({op for op, _ in specs()})):
            why += f"; the ops are {', '.join(ops)}"
        raise KernelError(f"no kernel serves {problem} on {device.name}: {why}")
    return [spec for _, spec in sorted(able, key=lambda one: one[0])]


def default_config(
    problem: Problem, device: Device, without: Mapping[Config, str] | None = None, *, strict: bool = False
) -> Config:
    """Return the config for an untuned problem: the default of the kernel with the highest precedence.

    Among kernels of equal precedence, the one whose config is predicted to be fastest is chosen
    (`KernelSpec.estimate_us`); if one of them has no prediction, the first by name.

    Args:
        problem, device: what is to be computed, and where.
        without: configs that cannot be launched, and why; their kernels are skipped.
        strict: see `serving`.

    Raises:
        KernelError: no kernel serves the problem, or none of those that do is left.
        BrokenKernelError: the code of one raised, and `strict`.
    """
    able, lost = serving(problem, device, strict=strict), dict(without or {})
    reasons = [f"{config.kernel}: {reason}" for config, reason in lost.items()]
    while able:
        try:
            if (config := _default_of(able, problem, device, lost)) is not None:
                return config
            break
        except BrokenKernelError as e:
            reasons.append(_leave_out(e, strict=strict))
            able = [spec for spec in able if _full_name(spec) != e.kernel]
    raise KernelError(f"no kernel can be launched for {problem} on {device.name}: {'; '.join(reasons)}")


def _default_of(
    able: Iterable[KernelSpec], problem: Problem, device: Device, lost: Mapping[Config, str]
) -> Config | None:
    """The config that `default_config` chooses among kernels; None where all of theirs are lost."""
    able = [spec for spec in able if not lost or ask(spec, "default_config", problem, device) not in lost]
    if not able:
        return None
    highest = ask(able[0], "precedence", problem, device)
    equals = [spec for spec in able if ask(spec, "precedence", problem, device) == highest]
    if any(spec.estimate_us is None for spec in equals):
        equals = equals[:1]
    configs: list[Config] = [ask(spec, "default_config", problem, device) for spec in equals]
    if len(configs) == 1:
        return configs[0]
    times = [ask(spec, "estimate_us", config, problem, device) for spec, config in zip(equals, configs, strict=True)]
    return configs[0 if None in times else times.index(min(times))]


def ask(spec: KernelSpec, name: str, *given: Any) -> Any:
    """Call a function of a spec, for instance "supports", which a third party wrote.

    Raises:
        BrokenKernelError: it raised something else than a KernelError, or returned what it must not.
    """
    try:
        try:
            answer = getattr(spec, name)(*given)
        except (KernelError, MemoryError):
            raise
        except Exception as e:
            raise spec.broken(name, f"failed: {in_short(e)}") from e
        spec.check_answer(name, answer)
    except BrokenKernelError as e:  # its search space raises this error too, and knows no origin
        e.kernel = _full_name(spec)
        raise
    return answer


def _full_name(spec: KernelSpec) -> str:
    return f"{spec.op}/{spec.name} {spec.origin}"


def _leave_out(error: BrokenKernelError, *, strict: bool) -> str:
    """Warn once of a kernel that is left out, and return why it is; raise the error where it is `strict`."""
    if strict:
        raise error
    if error.kernel not in _left_out:
        _left_out.add(error.kernel)
        _log.warning("%s; meanwhile others serve", error)
    return str(error)


def forget() -> None:
    """Clear all caches, so that installed packages are searched again."""
    entries.forget()
    for known in (points, specs, of, find, _loaded):
        known.cache_clear()
    _left_out.clear()
    _faults.clear()


def _added_of(op: str) -> dict[str, KernelSpec]:
    found: dict[str, KernelSpec] = {}
    for (its, name, origin), spec in _added.items():
        if its == op:
            found[name if name not in found else f"{name} ({origin})"] = spec
    return found


def _first(among: tuple[EntryPoint, ...]) -> dict[tuple[str, str], KernelSpec]:
    """Load entry points; of two kernels with one name, prefer the one whose entry point is named so, then the first."""
    found: dict[tuple[str, str], tuple[KernelSpec, EntryPoint]] = {}
    for point in sorted(among, key=lambda point: "." not in point.name):
        for spec in _loaded(point):
            first, its = found.setdefault((spec.op, spec.name), (spec, point))
            if first is not spec and not spec.origin:  # those that have an origin are told apart by it
                _note_fault(point, f"{its.value} has that name too: give one of them another", f"{spec.op}/{spec.name}")
    return {key: spec for key, (spec, _) in found.items()}


def _note_fault(point: EntryPoint, why: str, kernel: str = "") -> None:
    """Warn once of an entry point that is not used, or not for one of its kernels."""
    known = _faults.setdefault((point.name, point.value), {})
    if kernel not in known:
        known[kernel] = f"is not used for {kernel}: {why}" if kernel else why
        _log.warning("kernel %s (%s) %s", point.name, point.value, known[kernel])


def used(point: EntryPoint) -> tuple[list[KernelSpec], list[str]]:
    """Load every kernel; return those of an entry point that are used, and why it, or one of its own, is not."""
    specs()
    faults = _faults.get((point.name, point.value), {})
    return [spec for spec in _loaded(point) if f"{spec.op}/{spec.name}" not in faults], list(faults.values())


@functools.cache
def _loaded(point: EntryPoint) -> tuple[KernelSpec, ...]:
    try:
        loaded = point.load()
        one = spec_in(loaded)
        listed = (one,) if one is not None else tuple(loaded)
        names = [f"{spec.op}.{spec.name}" for spec in listed]
    except (Exception, SystemExit) as e:  # noqa: BLE001  a third party's import may raise anything; ours must still load
        _note_fault(point, f"did not load: {type(e).__name__}: {one_line(e)}")
        return ()
    if "." in point.name and names != [point.name]:
        found = ", ".join(names) or "nothing"
        _note_fault(point, f"is not used: it is {found}: name it so")
        return ()
    return listed
