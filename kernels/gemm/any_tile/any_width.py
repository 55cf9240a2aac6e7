"""The `any_width` kernel: one warp loads, two or three warpgroups multiply, and tiles have any multiple of 16 columns.

For Hopper, in Gluon. Between the powers of two there is often a width whose tiles fill the last wave.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tuner.errors import KernelError
from tuner.hardware import device as devices
from tuner.hardware.device import Device, multiprocessors
from tuner.kernel import KernelSpec
from tuner.kernel.config import Config
from tuner.kernels.base.operands import VECTOR_BYTES, Operands, placement
from tuner.kernels.cost import calibration
from tuner.kernels.cost import model as cost
from tuner.kernels.cost.terms import Terms
from tuner.kernels.cost.tile import Loop
from tuner.kernels.gemm import launches, sums
from tuner.kernels.gemm.any_tile import any_width_jit, wgmma_ptx
from tuner.kernels.gemm.any_tile.any_width_space import (
    NAME,
    in_halves,
    is_narrow_pair,
    ring_bytes,
    shared_bytes,
    space,
    supports,
    turns,
)
from tuner.kernels.gemm.hopper import cluster as warp_specialized_cluster
from tuner.kernels.gemm.hopper import loader as warp_specialized_loader
from tuner.kernels.gemm.hopper import output, tile
from tuner.kernels.gemm.hopper.cluster_sizes import clusters_at_once
from tuner.kernels.gemm.hopper.resources import warpgroups
from tuner.kernels.gemm.hopper.warp_specialized import Registers, laid_out, registers_of, single
from tuner.kernels.gemm.spec import MATMUL, gemm_spec, sources_of
from tuner.kernels.gemm.tma.spec import descriptor, destination_strides
from tuner.kernels.space.refinements import NUM_CTAS, SHARE_B
from tuner.launch.launch import TILE, Launch, compiler_options
from tuner.problem import Problem, dtype

VERSION = 1
BOXES = (256, 128, 64, 32, 16, 8)
"""Rows of B that one load may take."""
_WIDE_SUMS, _WIDE = 192, Registers(168, 24, 240)
"""Registers where threads of two multiplying warpgroups hold more sums than that: with 232 they spill (compiled for
sm_90), and a loader needs but 24."""
_PAIRED = 0.95
"""What a narrow tile's pairs take over what it takes alone: 0.91 to 0.97 in the four of 24 problems of which it is the
default (benchmarks/results/cluster-tiles-*.json). The forest's trials are of before decision 151, when pairs took
longer."""


def program(operands: Operands, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    return launched(operands, config)


def launched(operands: Operands, config: Config, *, exchanged: bool = False, teams: int = 1) -> tuple[Launch]:
    """The launch of a config as the device computes it.

    exchanged: whether the caller exchanged the operands, so that a bias runs along the rows.
    teams: how many warpgroups take tiles in turn; 1 if all share each tile.
    """
    a, weight, out = operands.a, operands.b.t(), operands.out
    if destination_strides(out)[0]:
        # Through pointers, only a cluster's first block would store: Triton believes that all hold the same values.
        config = single(config)
    view = launches.view_of(operands, exchanged=exchanged)
    tiles, group, constants, options = static(view, config, teams)
    rows, columns, length = (constants[name] for name in TILE)
    loaded, ctas = any_width_jit.loaded_columns(columns, view.transposed[1]), config.integer(NUM_CTAS, 1)
    from_registers = constants["TURNS"] == 0
    arguments = (
        laid_out(a, any_width_jit.box_rows(rows, ctas, view.transposed[0]), length, ctas),
        None,
        *(laid_out(weight, box, length, ctas) if loaded & box else None for box in BOXES),
        out if from_registers else _destination(out, 64, ctas),
        _destination(out, wgmma_ptx.chunk_of(columns), ctas) if columns % 64 and not from_registers else None,
        operands.bias,
        operands.scale_a,
        operands.scale_b,
        *view.shape,
        *(out.stride() if from_registers else destination_strides(out)),
        group,
    )
    at_once = clusters_at_once(ctas, multiprocessors(a.device.index if a.is_cuda else None))
    return (Launch(any_width_jit.any_width_kernel, (min(tiles, at_once),), arguments, constants, options),)


def _destination(matrix: torch.Tensor, columns: int, ctas: int) -> TensorDescriptor | torch.Tensor:
    """The argument through which 64 rows are stored: a descriptor, or the matrix itself if TMA cannot write it."""
    return matrix if destination_strides(matrix)[0] else laid_out(matrix, 64, columns, ctas)


def _turns(view: launches.View, config: Config) -> int:
    """The buffers to store through; none where TMA cannot write and the ring leaves no room for another layout."""
    by_tma = view.vectors[2] * dtype.ITEMSIZE[view.problem.out_dtype] == VECTOR_BYTES
    return turns(config, view.problem, devices.KNOWN["sm_90"]) if by_tma or not in_halves(config) else 0


@functools.lru_cache(maxsize=4096)
def static(view: launches.View, config: Config, teams: int) -> tuple[int, int, dict[str, Any], dict[str, Any]]:
    """Number of tiles, GROUP_SIZE_M, constexprs and compiler options."""
    groups, ctas = warpgroups(config), config.integer(NUM_CTAS, 1)
    columns = config.integer("BLOCK_SIZE_N")
    sums = config.integer("BLOCK_SIZE_M") * columns / (128 * groups // teams)
    registers = registers_for(groups, columns, sums)
    stored_by = _turns(view, config)
    given = {
        **launches.of_view(view, config),
        **({"C_VECTOR": 1} if stored_by else {}),
        "WARPGROUPS": groups // teams,
        "TEAMS": teams,
        "TURNS": stored_by,
        "LOADER_REGISTERS": registers.loader,
        "MULTIPLIER_REGISTERS": registers.multiplier,
        "SHARE_B": bool(config.get(SHARE_B, False)),
    }
    constants = launches.named(any_width_jit.any_width_kernel, given)
    # The launch's num_warps are those of the first multiplying warpgroup. Gluon adds the warps of other partitions.
    options = {**compiler_options(config), "num_warps": 4, "maxnreg": registers.launched}
    del options["num_stages"]
    down, across = (ctas, 1) if config.get(SHARE_B, False) else (1, ctas)
    rows = -(-view.shape[0] // (config.integer("BLOCK_SIZE_M") * down))
    tiles = rows * -(-view.shape[1] // (columns * across))
    return tiles, min(max(1, config.integer("GROUP_SIZE_M", 1)), rows), constants, options


def registers_for(groups: int, columns: int, sums: float) -> Registers:
    """The registers of so many multiplying warpgroups, for a wgmma's columns and a thread's sums."""
    return _WIDE if sums > _WIDE_SUMS else registers_of(groups, columns, sums)


def terms(config: Config, problem: Problem, device: Device) -> Terms:
    """The cost model's terms."""
    return cost.terms(config, problem, device, _LOOP)


_LOOP = Loop(by_tma=True, persistent=True, specialized=True)


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """The cost model's estimate, calibrated."""
    return estimates_us((config,), problem, device)[config]


def estimates_us(configs: Iterable[Config], problem: Problem, device: Device) -> dict[Config, float]:
    """The same of many configs; of a narrow tile's pairs it is what the tile takes alone, and less."""
    listed = list(configs)
    alone = {one: single(one) if is_narrow_pair(one) else one for one in listed}
    estimated = [(terms(one, problem, device), one) for one in dict.fromkeys(alone.values())]
    of_terms = calibration.of_tiles(estimated, problem, device)
    found = {one: us for (_, one), us in zip(estimated, of_terms, strict=True)}
    return {one: found[alone[one]] * (1 if alone[one] == one else _PAIRED) for one in listed}


def ties(config: Config) -> int:
    """Of equal estimates wide groups come first, as of `warp_specialized`."""
    return -config.integer("GROUP_SIZE_M")


_RING = re.compile(r"@global_smem, i(?:32|64) (\d+)")
"""What lies at a constant offset in Triton's shared memory, in LLVM IR. Of the ring, stages are found by a variable."""


def misplaced(llir: str, config: Config, problem: Problem) -> str | None:
    """Why the ring of a compiled config does not lie where wgmma reads it, at the beginning of shared memory, or None.

    Everything else lies at constant offsets. If none of them is within the ring's bytes, and there is less of it than
    of the ring, then it lies behind the ring.
    """
    others, ring = sorted({int(offset) for offset in _RING.findall(llir)}), ring_bytes(config, problem)
    if not others:
        return "nothing is known of where Triton placed the ring of stages"
    behind = ring <= others[0] and others[-1] < 2 * ring
    return None if behind else f"the ring of {ring} bytes is not first in shared memory: others lie at {others[:4]}"


def ring_checked(
    spec: KernelSpec,
    computed: Callable[[Config, Problem], tuple[Config, Problem]] = lambda config, problem: (config, problem),
) -> KernelSpec:
    """Describe a kernel that compiles nothing whose ring lies elsewhere than where wgmma reads it: a KernelError.

    computed: a config and a problem as the device computes them.
    """

    def compile_checked(problem: Problem, config: Config) -> Any:
        compiled = spec.compile(problem, config)
        # A kernel that ships was looked at when it was exported, and has no LLVM IR.
        llir = getattr(compiled, "asm", {}).get("llir")
        if llir is not None and (reason := misplaced(llir, *computed(config, problem))):
            raise KernelError(f"{config.kernel}: {reason}; use another kernel, or Triton 3.7.1")
        return compiled

    return dataclasses.replace(spec, compile=compile_checked)


SOURCES = (
    *sources_of(any_width_jit, wgmma_ptx, warp_specialized_cluster, warp_specialized_loader, tile, output),
    program,
    single,
    launched,
    clusters_at_once,
    laid_out,
    registers_for,
    registers_of,
    _destination,
    static,
    _turns,
    turns,
    in_halves,
    descriptor,
    placement,
)


def order(config: Config, problem: Problem, device: Device) -> sums.Order:  # noqa: ARG001
    """How a config sums: whole, by wgmma; exchanged operands make no difference."""
    return sums.by_wgmma(config, problem)


SPEC = ring_checked(
    gemm_spec(
        MATMUL,
        NAME,
        VERSION,
        program,
        supports=supports,
        space=space,
        shared_bytes=shared_bytes,
        estimate_us=estimate_us,
        estimates_us=estimates_us,
        ties=ties,
        sources=SOURCES,
        order=order,
    ),
)
