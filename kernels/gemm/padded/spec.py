"""The `padded` kernel, which copies operands that TMA cannot read, or reads slowly, before another kernel multiplies.

A config names that inner kernel, contains all of its parameters, and says whose rows are padded for speed (PAD). An
operand that TMA cannot read is always copied; one whose rows are already padded (`ops.pad_weight`) never is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator

from tuner.hardware.device import Device
from tuner.kernel import KernelSpec
from tuner.kernel.config import Config
from tuner.kernel.space import SearchSpace
from tuner.kernels.base.operands import Operands, cannot_align
from tuner.kernels.base.program import Program
from tuner.kernels.cost import model as cost
from tuner.kernels.cost.terms import Terms
from tuner.kernels.cost.tile import Loop, memory_bytes_per_us
from tuner.kernels.gemm import splitting, sums
from tuner.kernels.gemm.hopper import warp_specialized
from tuner.kernels.gemm.padded import copy as padding
from tuner.kernels.gemm.padded import copy_ahead
from tuner.kernels.gemm.padded import copy_jit as padding_kernel
from tuner.kernels.gemm.padded.copy_ahead import CHUNK_SIZE_K
from tuner.kernels.gemm.padded.problem import cannot_pad, copied_operands, padded_problem, stored_by_tma
from tuner.kernels.gemm.small_m import swap_ab
from tuner.kernels.gemm.spec import MATMUL, gemm_spec
from tuner.kernels.gemm.tma import persistent as persistent_tma
from tuner.kernels.gemm.tma import space as tma_space
from tuner.kernels.gemm.tma import spec as tma
from tuner.kernels.space.rule import rule
from tuner.launch.launch import Launch
from tuner.problem import Problem, dtype

NAME = "padded"
VERSION = 4
_PROGRAMS: dict[str, tuple[KernelSpec, Program[Operands]]] = {
    tma.SPEC.name: (tma.SPEC, tma.program),
    persistent_tma.NAME: (persistent_tma.SPEC, persistent_tma.program),
    swap_ab.NAME: (swap_ab.SPEC, swap_ab.program),
    warp_specialized.SPEC.name: (warp_specialized.SPEC, warp_specialized.program),
}
"""The kernels that may multiply, by the values of INNER. Configs of `swap_ab` must load by TMA."""
_GROUPS = (1, 8)
"""Values of GROUP_SIZE_M to try. Other orders of tiles differ too little here to be worth measuring."""
_COPY_US = 1.0
"""Launch and tail of a copy. Its bytes, read and written, move at 4.5 TB/s on an H200 (docs/lessons.md, Slow rows)."""
_OVERLAPPED = 0.7
"""Share of a copy's time that remains where the product runs beside it.

Measured on an H200: docs/lessons.md, Products beside their copies.
"""


def program(operands: Operands, config: Config) -> tuple[Launch, ...]:
    """The launch that copies, if anything must be copied, and that of the inner kernel."""
    # The copy does not overlap with the previous kernel: that slowed the product by more than it gained
    # (docs/lessons.md, Slow rows).
    inner, chosen = _inner(config), str(config["PAD"])
    if CHUNK_SIZE_K in config:
        aligned, copies, arriving = copy_ahead.pad_ahead(operands, chosen, config.integer(CHUNK_SIZE_K))
        return (*copies, *warp_specialized.program(aligned, inner, arriving))
    aligned, copies = padding.pad(operands, chosen)
    _, multiply = _PROGRAMS[inner.kernel]
    return (*copies, *multiply(aligned, inner))


@functools.lru_cache(maxsize=65536)
def _inner(config: Config) -> Config:
    """The inner kernel's own config."""
    parameters = {name: value for name, value in config.pairs if name not in ("INNER", "PAD", CHUNK_SIZE_K)}
    return Config(str(config["INNER"]), **parameters)


@functools.lru_cache(maxsize=1024)
def _reasons(problem: Problem, device: Device) -> dict[str, str | None]:
    """Why each inner kernel cannot serve a problem once it is padded, or None if it can."""
    reasons = {name: spec.unserved(padded_problem(problem), device) for name, (spec, _) in _PROGRAMS.items()}
    if problem.k == 1 and dtype.ITEMSIZE[problem.a_dtype] != 2:
        # If B is one row with strides of 1, it also counts as stored along N, and is then not copied.
        reasons[warp_specialized.SPEC.name] = f"K is 1: wgmma reads {problem.a_dtype} along K alone"
    return reasons


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    reason = cannot_align(problem) or cannot_pad(problem)
    if reason or (reason := tma_space.supports(padded_problem(problem), device)):
        return reason
    if problem.aligned and copied_operands(problem, "ab") == "none":
        return "aligned, and rows of whole 128 bytes: nothing is to be padded"
    reasons = _reasons(problem, device)
    return None if None in reasons.values() else "; ".join(f"{name}: {reason}" for name, reason in reasons.items())


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space: the inner kernels' spaces, with each choice of operands to pad."""
    kernels = tuple(name for name, reason in _reasons(problem, device).items() if reason is None)
    axes = {"INNER": kernels, "PAD": padding.CHOICES}
    options: Iterable[str] = {option for name in kernels for option in _inner_space(name, problem, device).options}
    options = (*sorted(options), CHUNK_SIZE_K)
    return SearchSpace(NAME, problem, device, axes, RULES, _canonical, _expand, options, _refine)


def default_config(problem: Problem, device: Device) -> Config:
    """The default of the inner kernel that comes first for the padded problem; rows are padded where they can be.

    Of equals that is `warp_specialized`, whose product may run beside the copy.
    """
    padded = padded_problem(problem)
    able = [_PROGRAMS[name][0] for name, reason in _reasons(problem, device).items() if reason is None]
    inner = max(able, key=lambda spec: (spec.precedence(padded, device), spec.name == warp_specialized.SPEC.name))
    config = inner.default_config(padded, device)
    if inner.name == swap_ab.NAME and not splitting.by_tma(config):
        by_tma = _inner_space(inner.name, problem, device)
        cost, ties = (
            functools.partial(of, problem=padded, device=device) for of in (swap_ab.estimate_us, swap_ab.tie_break)
        )
        config = by_tma.best(cost, ties=ties) or config.replace(LOADS="tma")
    chosen, tried = copied_operands(problem, "ab"), space(problem, device)
    ahead = (_outer(*one, chosen) for one in _with_chunks(config.replace(num_warps=4), problem, device))
    return next((one for one in ahead if tried.rejection(one) is None), _outer(config, 0, chosen))


def _outer(inner: Config, chunk: int, chosen: str) -> Config:
    ahead = {CHUNK_SIZE_K: chunk} if chunk and chosen != "none" else {}
    return Config(NAME, **dict(inner.pairs), INNER=inner.kernel, PAD=chosen, **ahead)


def _with_chunks(inner: Config, problem: Problem, device: Device) -> Iterator[tuple[Config, int]]:
    return copy_ahead.with_chunks(inner, padded_problem(problem), device, by_pointers=not stored_by_tma(problem))


def _inner_space(name: str, problem: Problem, device: Device) -> SearchSpace:
    spec, _ = _PROGRAMS[name]
    return spec.space(padded_problem(problem), device).narrowed(LOADS=("tma",), GROUP_SIZE_M=_GROUPS)


@functools.lru_cache(maxsize=16)
def _inner_configs(name: str, problem: Problem, device: Device) -> list[Config]:
    return _inner_space(name, problem, device).configs()


def _expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    chosen = str(config["PAD"])
    for inner in _inner_configs(str(config["INNER"]), problem, device):
        yield _outer(inner, 0, chosen)
        for ahead, chunk in _with_chunks(inner, problem, device):
            yield _outer(ahead, chunk, chosen)


def _refine(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    inner = _inner(config)
    if CHUNK_SIZE_K in config:
        return
    for one in _inner_space(inner.kernel, problem, device).refinements(inner):
        yield _outer(one, 0, str(config["PAD"]))


def _canonical(config: Config, problem: Problem, device: Device) -> Config:
    inner = _inner_space(str(config["INNER"]), problem, device).canonicalize(_inner(config))
    return _outer(inner, config.integer(CHUNK_SIZE_K, 0), copied_operands(problem, str(config["PAD"])))


def _shared_bytes(config: Config, problem: Problem, device: Device) -> int:
    """Shared memory of the inner kernel (an upper bound if sums are stored as they are); the copy takes none."""
    spec, _ = _PROGRAMS[str(config["INNER"])]
    assert spec.shared_bytes is not None
    return spec.shared_bytes(_inner(config), padded_problem(problem), device)


_MODELS: dict[str, Callable[[Config, Problem, Device], Terms]] = {
    tma.SPEC.name: functools.partial(cost.terms, loop=Loop(by_tma=True)),
    persistent_tma.NAME: functools.partial(cost.terms, loop=Loop(by_tma=True, persistent=True)),
    swap_ab.NAME: swap_ab.terms,
    warp_specialized.SPEC.name: warp_specialized.terms,
}
"""The cost model of each inner kernel without calibration, for which there are no trials of padded operands."""


def _estimate_us(config: Config, problem: Problem, device: Device) -> float:
    padded = padded_problem(problem)
    elements = {"a": padded.m * padded.k, "b": padded.n * padded.k}
    copied = sum(2 * elements[name] * dtype.ITEMSIZE[padded.a_dtype] for name in elements if name in str(config["PAD"]))
    inner_us = _MODELS[str(config["INNER"])](_inner(config), padded, device).us
    copy_us = _COPY_US + copied / memory_bytes_per_us(device) if copied else 0.0
    return inner_us + (_OVERLAPPED if CHUNK_SIZE_K in config else 1) * copy_us


def _order(config: Config, problem: Problem, device: Device) -> sums.Order:
    """How the inner kernel sums: rows of zeros, to which K is padded, change no sum."""
    inner = _inner(config)
    order = _ORDERS.get(inner.kernel, sums.of_tile)
    return order(inner, padded_problem(problem), device)


_ORDERS: dict[str, sums.Ordered] = {
    swap_ab.NAME: swap_ab.order,
    warp_specialized.SPEC.name: warp_specialized.order,
}


@rule("parameters", "the kernel's own", fatal=True)
def _malformed(config: Config, problem: Problem, device: Device) -> str | None:
    if config.get("INNER") not in _PROGRAMS:
        return f"INNER is {config.get('INNER')!r}: expected one of {', '.join(_PROGRAMS)}"
    if config.get("PAD") not in padding.CHOICES:
        return f"PAD is {config.get('PAD')!r}: expected one of {', '.join(padding.CHOICES)}"
    if config.get("LOADS", "tma") != "tma":
        return f"LOADS is {config.get('LOADS')!r}: padded operands are loaded by TMA"
    return _reasons(problem, device)[str(config["INNER"])]


@rule("inner kernel", "its own rules", fatal=True)
def _inner_cannot(config: Config, problem: Problem, device: Device) -> str | None:
    return _inner_space(str(config["INNER"]), problem, device).rejection(_inner(config), fatal_only=True)


@rule("inner kernel", "its own rules")
def _inner_would_not(config: Config, problem: Problem, device: Device) -> str | None:
    return _inner_space(str(config["INNER"]), problem, device).rejection(_inner(config))


@rule("idle", "the shape itself")
def _idle(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    if not problem.aligned:
        return None
    if config["PAD"] == "none":
        return f"nothing is padded: that is what {config['INNER']} itself does"
    smaller = "a" if problem.m < problem.n else "b" if problem.n < problem.m else None
    return f"PAD is {smaller}: the larger operand would gain more" if config["PAD"] == smaller else None


@rule("no room", "kernels/gemm/padded/copy_ahead.py", fatal=True)
def _no_room(config: Config, problem: Problem, device: Device) -> str | None:
    if CHUNK_SIZE_K not in config:
        return None
    by_pointers = not stored_by_tma(problem)
    return copy_ahead.rejection(
        config[CHUNK_SIZE_K], _inner(config), padded_problem(problem), device, by_pointers=by_pointers
    )


@rule("nothing gained", "measured on an H200: docs/lessons.md, Products beside their copies")
def _nothing_gained(config: Config, problem: Problem, device: Device) -> str | None:
    if CHUNK_SIZE_K not in config:
        return None
    return copy_ahead.why_no_gain(_inner(config), padded_problem(problem), device)


@rule("storing alone", "kernels/gemm/hopper/warp_specialized.py, program")
def _storing_alone(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    if config["INNER"] != warp_specialized.SPEC.name or "num_ctas" not in config or stored_by_tma(problem):
        return None
    return "num_ctas where rows of the output are unaligned: stores by pointers leave no cluster"


RULES = (
    _malformed,
    _inner_cannot,
    _inner_would_not,
    _idle,
    _no_room,
    _nothing_gained,
    _storing_alone,
)


SPEC = gemm_spec(
    MATMUL,
    NAME,
    VERSION,
    program,
    supports=supports,
    space=space,
    default_config=default_config,
    shared_bytes=_shared_bytes,
    estimate_us=_estimate_us,
    sources=(
        *(padding_kernel, padding, copy_ahead.pad_ahead, program),
        *(part for module in (tma, persistent_tma, swap_ab, warp_specialized) for part in module.SOURCES),
    ),
    runtime_parameters=("GROUP_SIZE_M", "SPLIT_K", "PAD"),
    order=_order,
)
