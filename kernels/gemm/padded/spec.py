"""The `padded` kernel, which copies operands that TMA cannot read, or reads slowly, before another kernel multiplies.

A config names that inner kernel, contains all of its parameters, and says whose rows are padded for speed (PAD). An
operand that TMA cannot read is always copied; one whose rows are already padded (`ops.pad_weight`) never is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernel.space import SearchSpace
from tuner.kernels.base.operands import Operands, cannot_align
from tuner.kernels.cost import model as cost
from tuner.kernels.cost.terms import Terms
from tuner.kernels.cost.tile import Loop, memory_bytes_per_us
from tuner.kernels.gemm import splitting, sums
from tuner.kernels.gemm.hopper import warp_specialized
from tuner.kernels.gemm.inner import Inner, InnerKernels
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
VERSION = 5


def _plain(terms: Callable[[Config, Problem, Device], Terms]) -> Callable[[Config, Problem, Device], float]:
    """The cost model's estimate without calibration, for which there are no trials of padded operands."""
    return lambda config, problem, device: terms(config, problem, device).us


def _refused(name: str, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    if name == warp_specialized.SPEC.name and problem.k == 1 and dtype.ITEMSIZE[problem.a_dtype] != 2:
        # If B is one row with strides of 1, it also counts as stored along N, and is then not copied.
        return f"K is 1: wgmma reads {problem.a_dtype} along K alone"
    return None


_INNER = InnerKernels(
    NAME,
    {
        tma.SPEC.name: Inner(tma.SPEC, tma.program, _plain(functools.partial(cost.terms, loop=Loop(by_tma=True)))),
        persistent_tma.NAME: Inner(
            persistent_tma.SPEC,
            persistent_tma.program,
            _plain(functools.partial(cost.terms, loop=Loop(by_tma=True, persistent=True))),
        ),
        swap_ab.NAME: Inner(swap_ab.SPEC, swap_ab.program, _plain(swap_ab.terms)),
        warp_specialized.SPEC.name: Inner(
            warp_specialized.SPEC, warp_specialized.program, _plain(warp_specialized.terms)
        ),
    },
    lambda _name, problem: padded_problem(problem),
    own=("PAD", CHUNK_SIZE_K),
    narrowed={"GROUP_SIZE_M": (1, 8)},  # other orders of tiles differ too little here to be worth measuring
    refused=_refused,
)
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
    chosen = str(config["PAD"])
    if CHUNK_SIZE_K in config:
        aligned, copies, arriving = copy_ahead.pad_ahead(operands, chosen, config.integer(CHUNK_SIZE_K))
        return (*copies, *warp_specialized.program(aligned, _INNER.config(config), arriving))
    aligned, copies = padding.pad(operands, chosen)
    return (*copies, *_INNER.program(aligned, config))


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    reason = cannot_align(problem) or cannot_pad(problem)
    if reason or (reason := tma_space.supports(padded_problem(problem), device)):
        return reason
    if problem.aligned and copied_operands(problem, "ab") == "none":
        return "aligned, and rows of whole 128 bytes: nothing is to be padded"
    return _INNER.supports(problem, device)


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space: the inner kernels' spaces, with each choice of operands to pad."""
    axes = {"INNER": _INNER.able(problem, device), "PAD": padding.CHOICES}
    options = (*_INNER.options(problem, device), CHUNK_SIZE_K)
    return SearchSpace(NAME, problem, device, axes, RULES, _canonical, _expand, options, _refine)


def default_config(problem: Problem, device: Device) -> Config:
    """The default of the inner kernel that comes first for the padded problem; rows are padded where they can be.

    Of equals that is `warp_specialized`, whose product may run beside the copy.
    """
    padded = padded_problem(problem)
    able = [_INNER.kernels[name].spec for name in _INNER.able(problem, device)]
    inner = max(able, key=lambda spec: (spec.precedence(padded, device), spec.name == warp_specialized.SPEC.name))
    config = inner.default_config(padded, device)
    if inner.name == swap_ab.NAME and not splitting.by_tma(config):
        by_tma = _INNER.space(inner.name, problem, device)
        cost, ties = (
            functools.partial(of, problem=padded, device=device) for of in (swap_ab.estimate_us, swap_ab.tie_break)
        )
        config = by_tma.best(cost, ties=ties) or config.replace(LOADS="tma")
    chosen, tried = copied_operands(problem, "ab"), space(problem, device)
    ahead = (_outer(*one, chosen) for one in _with_chunks(config.replace(num_warps=4), problem, device))
    return next((one for one in ahead if tried.rejection(one) is None), _outer(config, 0, chosen))


def _outer(inner: Config, chunk: int, chosen: str) -> Config:
    ahead = {CHUNK_SIZE_K: chunk} if chunk and chosen != "none" else {}
    return _INNER.wrapped(inner, PAD=chosen, **ahead)


def _with_chunks(inner: Config, problem: Problem, device: Device) -> Iterator[tuple[Config, int]]:
    return copy_ahead.with_chunks(inner, padded_problem(problem), device, by_pointers=not stored_by_tma(problem))


def _expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    chosen = str(config["PAD"])
    for inner in _INNER.configs(str(config["INNER"]), problem, device):
        yield _outer(inner, 0, chosen)
        for ahead, chunk in _with_chunks(inner, problem, device):
            yield _outer(ahead, chunk, chosen)


def _refine(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    if CHUNK_SIZE_K in config:
        return
    for one in _INNER.refinements(config, problem, device):
        yield _outer(one, 0, str(config["PAD"]))


def _canonical(config: Config, problem: Problem, device: Device) -> Config:
    inner = _INNER.canonical(config, problem, device)
    return _outer(inner, config.integer(CHUNK_SIZE_K, 0), copied_operands(problem, str(config["PAD"])))


def _estimate_us(config: Config, problem: Problem, device: Device) -> float:
    padded = padded_problem(problem)
    elements = {"a": padded.m * padded.k, "b": padded.n * padded.k}
    copied = sum(2 * elements[name] * dtype.ITEMSIZE[padded.a_dtype] for name in elements if name in str(config["PAD"]))
    inner_us = _INNER.estimate_us(config, problem, device)
    copy_us = _COPY_US + copied / memory_bytes_per_us(device) if copied else 0.0
    return inner_us + (_OVERLAPPED if CHUNK_SIZE_K in config else 1) * copy_us


def _order(config: Config, problem: Problem, device: Device) -> sums.Order:
    """How the inner kernel sums: rows of zeros, to which K is padded, change no sum."""
    inner = _INNER.config(config)
    order = _ORDERS.get(inner.kernel, sums.of_tile)
    return order(inner, padded_problem(problem), device)


_ORDERS: dict[str, sums.Ordered] = {
    swap_ab.NAME: swap_ab.order,
    warp_specialized.SPEC.name: warp_specialized.order,
}


@rule("parameters", "the kernel's own", fatal=True)
def _malformed(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    if config.get("PAD") not in padding.CHOICES:
        return f"PAD is {config.get('PAD')!r}: expected one of {', '.join(padding.CHOICES)}"
    return None


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
        config[CHUNK_SIZE_K], _INNER.config(config), padded_problem(problem), device, by_pointers=by_pointers
    )


@rule("nothing gained", "measured on an H200: docs/lessons.md, Products beside their copies")
def _nothing_gained(config: Config, problem: Problem, device: Device) -> str | None:
    if CHUNK_SIZE_K not in config:
        return None
    return copy_ahead.why_no_gain(_INNER.config(config), padded_problem(problem), device)


@rule("storing alone", "kernels/gemm/hopper/warp_specialized.py, program")
def _storing_alone(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    if config["INNER"] != warp_specialized.SPEC.name or "num_ctas" not in config or stored_by_tma(problem):
        return None
    return "num_ctas where rows of the output are unaligned: stores by pointers leave no cluster"


RULES = (
    _malformed,
    *_INNER.rules(),
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
    shared_bytes=_INNER.shared_bytes,
    estimate_us=_estimate_us,
    sources=(
        *(padding_kernel, padding, copy_ahead.pad_ahead, program),
        *(part for module in (tma, persistent_tma, swap_ab, warp_specialized) for part in module.SOURCES),
    ),
    runtime_parameters=("GROUP_SIZE_M", "SPLIT_K", "PAD"),
    order=_order,
)
