"""The `warp_specialized` kernel: one warp loads, and one to three warpgroups multiply. For Hopper, in Gluon."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tuner.hardware import device as devices
from tuner.hardware.device import Device, multiprocessors
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.base.operands import Operands, exchanged, placement
from tuner.kernels.cost import calibration
from tuner.kernels.cost import model as cost
from tuner.kernels.cost.model import Candidates
from tuner.kernels.cost.terms import Terms
from tuner.kernels.cost.tile import Loop, Sides, tile_of
from tuner.kernels.gemm import launches, sums
from tuner.kernels.gemm.hopper import arrivals, register_operand, resources
from tuner.kernels.gemm.hopper import cluster as warp_specialized_cluster
from tuner.kernels.gemm.hopper import loader as warp_specialized_loader
from tuner.kernels.gemm.hopper import output as warp_specialized_output
from tuner.kernels.gemm.hopper import tile as warp_specialized_tile
from tuner.kernels.gemm.hopper import warp_specialized_jit as warp_specialized_kernel
from tuner.kernels.gemm.hopper.arrivals import Arrivals
from tuner.kernels.gemm.hopper.cluster import everywhere
from tuner.kernels.gemm.hopper.resources import shared_bytes
from tuner.kernels.gemm.hopper.rules import FEW_ROWS, MOST_SWAPPED_ROWS
from tuner.kernels.gemm.hopper.space import NAME, space, supports, variants
from tuner.kernels.gemm.hopper.tile import buffers_of_rows
from tuner.kernels.gemm.spec import MATMUL, gemm_spec, sources_of
from tuner.kernels.gemm.tma.spec import descriptor, destination_strides
from tuner.kernels.space import odd_rows
from tuner.kernels.space.refinements import NUM_CTAS, SHARE_B
from tuner.launch.launch import TILE, Launch, compiler_options
from tuner.problem import Problem
from tuner.problem import dtype as dtypes

VERSION = 3
_ELEMENTS = {
    torch.float16: gl.float16,
    torch.bfloat16: gl.bfloat16,
    torch.float32: gl.float32,
    torch.float8_e4m3fn: gl.float8e4nv,
    torch.float8_e5m2: gl.float8e5,
    torch.int8: gl.int8,
    torch.int32: gl.int32,
}


def program(operands: Operands, config: Config, arriving: Arrivals | None = None) -> tuple[Launch]:
    """The launch of a config; with `arriving`, it runs concurrently with the copy of its operands (`copy_ahead`)."""
    problem = operands.problem
    swapped = bool(config.get("SWAP_AB", False))
    if swapped:
        operands = operands.exchanged()
    a, b, out = operands.a, operands.b, operands.out
    if destination_strides(out)[0]:
        # Through pointers, only a cluster's first block would store: Triton believes that all hold the same values.
        config = single(config)
    view = launches.view_of(operands, exchanged=swapped)
    on_device = a.device.index if a.is_cuda else None
    chunk = arriving.chunk if arriving else 0
    tiles, per_multiprocessor, group, constants, options = _static(problem, view, config, chunk)
    block_m, block_n, block_k = (constants[name] for name in TILE)
    rest, part = constants["BLOCK_SIZE_N_REST"], block_n // constants["EPILOGUE_PARTS"]
    rows, ctas = block_m // constants["WARPGROUPS"], config.integer(NUM_CTAS, 1)
    arguments = (
        laid_out(a, block_m // buffers_of_rows(ctas, constants["WARPGROUPS"]), block_k, ctas),
        laid_out(b, block_k, block_n, ctas),
        laid_out(b, block_k, rest, ctas) if rest else None,
        _destination(out, rows, part, ctas),
        _destination(out, rows, rest, ctas) if rest else None,
        operands.bias,
        operands.scale_a,
        operands.scale_b,
        *view.shape,
        *destination_strides(out),
        *scale_strides(operands),
        group,
        *((arriving.counters, arriving.tiles) if arriving else (None, None)),
    )
    grid = (min(tiles, max(1, per_multiprocessor * multiprocessors(on_device) // ctas)),)
    return (Launch(warp_specialized_kernel.warp_specialized_kernel, grid, arguments, constants, options),)


@functools.lru_cache(maxsize=1024)
def single(config: Config) -> Config:
    """The config with single blocks instead of clusters."""
    return Config(config.kernel, **{name: value for name, value in config.pairs if name not in (NUM_CTAS, SHARE_B)})


def laid_out(matrix: torch.Tensor, rows: int, columns: int, ctas: int) -> TensorDescriptor:
    """`tma.spec.descriptor` with the layout of its blocks in shared memory, which Gluon requires from its caller."""
    return with_layout(descriptor(matrix, rows, columns), matrix.dtype, ctas)


def with_layout(plain: Any, dtype: torch.dtype, ctas: int) -> TensorDescriptor:
    """Gluon's descriptor of one of Triton's, with the layout of its blocks in shared memory."""
    layout = _layout(tuple(plain.block_shape), dtype, ctas)
    return TensorDescriptor(plain.base, plain.shape, plain.strides, plain.block_shape, layout)


@functools.lru_cache(maxsize=1024)
def _layout(block_shape: tuple[int, ...], dtype: torch.dtype, ctas: int) -> gl.NVMMASharedLayout:
    """The layout of a block in shared memory, cached because it takes as long as all other arguments of a launch."""
    return gl.NVMMASharedLayout.get_default_for([*block_shape], _ELEMENTS[dtype], cga_layout=everywhere(ctas))


def _destination(matrix: torch.Tensor, rows: int, columns: int, ctas: int) -> TensorDescriptor | torch.Tensor:
    """The argument through which blocks are stored: a descriptor, or the matrix itself if TMA cannot write it."""
    return matrix if destination_strides(matrix)[0] else laid_out(matrix, rows, columns, ctas)


def scale_strides(operands: Operands) -> tuple[int | None, ...]:
    """The strides of A's and of B's block scales, or None for other kinds of scales."""
    if operands.problem.scaling != "block":
        return (None,) * 4
    assert operands.scale_a is not None
    assert operands.scale_b is not None
    return (*operands.scale_a.stride(), *operands.scale_b.stride())


_SHORT_ROWS = 1.05
"""The factor by which rows of 64 bytes are slower than the model says: the median of unseen-tuned.csv's problems
beyond 256 rows."""


_DEEP = 5
"""With at least this many stages, ties go to longer rows, according to the trials of unseen-tuned.csv."""


class Registers(NamedTuple):
    """Registers of a thread: at the launch, in the loading warps, and in all multiplying warpgroups but the first.

    Loading warps give up registers that they do not need (PTX ISA, setmaxnreg: multiples of 8 from 24 to 256). The
    first multiplying warpgroup gets those that remain.
    """

    launched: int
    loader: int
    multiplier: int


TWO_WARPGROUPS = Registers(168, 40, 232)
"""Two multiplying warpgroups and a loading one use all 65,536 registers of a multiprocessor."""
_THREE_WARPGROUPS = Registers(128, 32, 160)
"""Three multiplying warpgroups and a loading one use all registers of a multiprocessor."""
_ONE_WARPGROUP = Registers(128, 40, 0)
"""The multiplying warpgroup has 216 registers per thread, and two programs fit a multiprocessor."""
_ONE_WIDE = Registers(160, 72, 0)
"""The multiplying warpgroup has 248 registers per thread. At the launch, ptxas needs 154 if one wgmma has 256 columns,
and spills more than 128 sums with fewer registers."""


def registers_of(groups: int, columns: int, sums: float) -> Registers:
    """The registers of so many multiplying warpgroups, for the widest wgmma's columns and a thread's sums."""
    if groups > 1:
        return TWO_WARPGROUPS if groups == 2 else _THREE_WARPGROUPS
    return _ONE_WIDE if columns > 128 or sums > 128 else _ONE_WARPGROUP


@functools.lru_cache(maxsize=4096)
def _static(
    problem: Problem, view: launches.View, config: Config, chunk: int
) -> tuple[int, int, int, dict[str, Any], dict[str, Any]]:
    """Number of tiles, programs per multiprocessor, GROUP_SIZE_M, constexprs and compiler options."""
    inner, _ = resources.as_computed(config, problem)
    groups = resources.warpgroups(config)
    registers = registers_of(groups, inner.integer("BLOCK_SIZE_N"), resources.held_sums(inner, problem))
    given = {
        **launches.of_view(view, inner),
        "BLOCK_SIZE_N_REST": inner.integer("BLOCK_SIZE_N_REST"),
        "EPILOGUE_PARTS": inner.integer("EPILOGUE_PARTS", 1),
        "WARPGROUPS": groups,
        "LOADER_REGISTERS": registers.loader,
        "MULTIPLIER_REGISTERS": registers.multiplier,
        "BY_STEPS": resources.by_steps(problem),
        "SHARE_B": bool(config.get(SHARE_B, False)),
        "CHUNK_SIZE_K": chunk,
        "SUM_PARTS": resources.sum_parts(config, problem),
    }
    constants = launches.named(warp_specialized_kernel.warp_specialized_kernel, given)
    # The launch's num_warps are those of the first multiplying warpgroup. Gluon adds the warps of other partitions.
    options = {**compiler_options(config), "num_warps": 4, "maxnreg": registers.launched}
    del options["num_stages"]
    ctas = config.integer(NUM_CTAS, 1)
    down, across = (ctas, 1) if inner.get(SHARE_B, False) else (1, ctas)
    rows = -(-view.shape[0] // (inner.integer("BLOCK_SIZE_M") * down))
    tiles = rows * -(-view.shape[1] // (resources.width(inner) * across))
    group = min(max(1, config.integer("GROUP_SIZE_M", 1)), rows)
    return tiles, resources.resident(config, problem, devices.KNOWN["sm_90"]), group, constants, options


_SCALED = 1.4
"""How many times as long products take that are scaled block by block, where no forest knows it: the median of trials
of more than 256 rows (docs/decisions.md, 183)."""


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """The cost model's estimate, calibrated; three warpgroups are corrected as two are."""
    return estimates_us((config,), problem, device)[config]


def estimates_us(configs: Iterable[Config], problem: Problem, device: Device) -> dict[Config, float]:
    """The same of many configs."""
    return _corrected({config: terms(config, problem, device) for config in configs}, problem, device)


def _corrected(models: Mapping[Config, Terms], problem: Problem, device: Device) -> dict[Config, float]:
    """The estimates, corrected: exchanged operands have a forest of their own, three warpgroups have none."""
    found = dict[Config, float]()
    scaled = problem.scaling == "block" and not calibration.applies(problem, device)
    for swapped, computed in ((False, problem), (True, exchanged(problem))):
        configs = [config for config in models if bool(config.get("SWAP_AB", False)) is swapped]
        known = [_two(config) for config in configs]
        estimated = [
            (models.get(one) or terms(one, problem, device), resources.as_computed(one, problem)[0]) for one in known
        ]
        corrected = calibration.of_tiles(estimated, computed, device, exchanged=swapped)
        for config, (two, _), one in zip(configs, estimated, corrected, strict=True):
            found[config] = models[config].us * one / two.us * (_SCALED if scaled else 1)
    return found


def _two(config: Config) -> Config:
    """Two warpgroups for three, of which there are few trials."""
    return config if resources.warpgroups(config) < 3 else config.replace(BLOCK_SIZE_M=128, num_warps=8)


def terms(config: Config, problem: Problem, device: Device) -> Terms:
    """The cost model's terms of what the device computes."""
    return cost.terms(*resources.as_computed(config, problem), device, _loop(config))


def _loop(config: Config) -> Loop:
    return Loop(by_tma=True, persistent=True, specialized=True, exchanged=bool(config.get("SWAP_AB", False)))


_WIDE_GROUP = 8


def is_usual(group: int, tile: Config, problem: Problem, device: Device) -> bool:
    """Whether a formula looks at a group: at any where all tiles run at once, for then it matters which start first.

    Elsewhere tiles that read the same columns of B are neighbours, as in what wins.
    """
    inner, computed = resources.as_computed(tile, problem)
    if resources.tiles(inner, computed) <= device.sm_count:
        return True
    if tile.get("SWAP_AB", False) and problem.m <= MOST_SWAPPED_ROWS:
        return group == 1
    return group >= min(_WIDE_GROUP, -(-computed.m // inner.integer("BLOCK_SIZE_M")))


def _shortlist(tried: SearchSpace, problem: Problem, device: Device) -> dict[Config, Terms]:
    """The configs of single blocks in the usual orders whose estimate is near the least one, with the model's terms."""

    def usual(point: Config, splits: int) -> Iterator[dict[str, Value]]:  # noqa: ARG001  no sum is split
        found = variants(point, problem, device)
        return (one for one in found if is_usual(int(one["GROUP_SIZE_M"]), point, problem, device))

    def tiles() -> Iterator[Candidates]:
        for point in tried.points():
            inner, computed = resources.as_computed(point, problem)
            yield Candidates(
                point, tile_of(Sides.of(inner), _loop(point), computed, device), (1,), functools.partial(usual, point)
            )

    return cost.near_least(tiles())


def ties(config: Config) -> tuple[float, ...]:
    """Of equal estimates single blocks come first, exchanged operands, and deep rings.

    Tiles of other rows of A read the same columns of B, so orders come first in which such tiles are neighbours: wide
    groups, or narrow ones if operands are exchanged.
    """
    swapped, group = bool(config.get("SWAP_AB", False)), config.integer("GROUP_SIZE_M")
    order = group if swapped else -group
    stages = config.integer("num_stages")
    ring = stages < _DEEP, -config.integer("BLOCK_SIZE_K"), -stages
    return config.integer(NUM_CTAS, 1), not swapped, order, *ring, -config.integer("num_warps")


def default_config(problem: Problem, device: Device) -> Config:
    """The config with the least estimated time, and for few rows of A refined by its options."""
    tried, calibrated = space(problem, device), calibration.applies(problem, device)

    def slowed(config: Config, us: float) -> float:
        short = not calibrated and config.integer("BLOCK_SIZE_K") * dtypes.ITEMSIZE[problem.a_dtype] < 128
        return us * (_SHORT_ROWS if short else 1)

    def estimated(config: Config) -> float:
        return slowed(config, estimate_us(config, problem, device))

    among = None
    if not any(odd_rows.odd(problem)):  # for which pairs of blocks are tried, too
        near = _corrected(_shortlist(tried, problem, device), problem, device)
        among = {config: slowed(config, us) for config, us in near.items()}
    found = tried.best(estimated, ties=ties, among=among) or tried.smallest()
    return tried.refined(found, estimated) if calibrated and problem.m <= FEW_ROWS else found


def order(config: Config, problem: Problem, device: Device) -> sums.Order:  # noqa: ARG001
    """How a config sums, which is by wgmma in any case."""
    exchanged = bool(config.get("SWAP_AB", False))
    return sums.by_wgmma(config, problem, resources.sum_parts(config, problem), exchanged=exchanged)


SOURCES = (
    *sources_of(
        warp_specialized_kernel,
        warp_specialized_cluster,
        warp_specialized_loader,
        warp_specialized_tile,
        register_operand,
        warp_specialized_output,
        arrivals,
        program,
        single,
        laid_out,
        _destination,
        scale_strides,
        _static,
        descriptor,
        placement,
    ),
    *(resources.as_computed, resources.sum_parts),
)

SPEC = gemm_spec(
    MATMUL,
    NAME,
    VERSION,
    program,
    supports=supports,
    space=space,
    default_config=default_config,
    shared_bytes=shared_bytes,
    estimate_us=estimate_us,
    estimates_us=estimates_us,
    ties=ties,
    sources=SOURCES,
    order=order,
)
