"""Computes a gated linear layer on Hopper: one warp loads x, gate and up by TMA, warpgroups multiply. In Gluon.

It is `gemm.hopper.warp_specialized_jit` with two sums of a tile, of which one gated product is stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tuner.kernels.base.blocks import await_predecessor, count_blocks, grouped, moved_within, release_last
from tuner.kernels.base.epilogue import activate
from tuner.kernels.gated.jit import AFTER_LAST_STEP
from tuner.kernels.gemm.hopper.loader import async_load
from tuner.kernels.gemm.hopper.output import halves, store_block, turns_of
from tuner.kernels.gemm.hopper.tile import following, layout_of


@dataclass(frozen=True)
class Fixed:
    """The kernel's constexprs by name, and what `hopper.output` asks for besides."""

    BLOCK_SIZE_M: int
    BLOCK_SIZE_N: int
    BLOCK_SIZE_K: int
    SWAP_AB: bool
    EPILOGUE_PARTS: int
    WARPGROUPS: int
    STAGES: int
    ACTIVATION: str
    PDL: bool
    BLOCK_SIZE_N_REST: int = 0


@gluon.constexpr_function
def fixed(*constants):  # noqa: ANN002, ANN201
    """Gather constants into one `Fixed`."""
    return Fixed(*constants)


@gluon.jit
def count_tiles(extents, FIXED: gl.constexpr):  # noqa: ANN201
    """Number of tiles of the output."""
    M, N, _, _ = extents
    return count_blocks(M, FIXED.BLOCK_SIZE_M) * count_blocks(N, FIXED.BLOCK_SIZE_N // 2)


@gluon.jit
def place(tile, extents, FIXED: gl.constexpr):  # noqa: ANN201
    """A tile's first row and column."""
    M, N, _, GROUP_SIZE_M = extents
    HALF: gl.constexpr = FIXED.BLOCK_SIZE_N // 2
    tiles_m = count_blocks(M, FIXED.BLOCK_SIZE_M)
    row, column = grouped(tile, tiles_m, count_blocks(N, HALF), GROUP_SIZE_M)
    start_m = moved_within(row * FIXED.BLOCK_SIZE_M, M, FIXED.BLOCK_SIZE_M)
    return start_m, moved_within(column * HALF, N, HALF)


@gluon.jit
def fill(extents, buffers, barriers, descriptors, FIXED: gl.constexpr):  # noqa: ANN201
    """Run the loading warp, which fills free stages, tile after tile."""
    x_buffers, gate_buffers, up_buffers = buffers
    ready, free = barriers
    x_desc, gate_desc, up_desc = descriptors
    STAGE_ELEMENTS: gl.constexpr = (FIXED.BLOCK_SIZE_M + FIXED.BLOCK_SIZE_N) * FIXED.BLOCK_SIZE_K
    STAGE_BYTES: gl.constexpr = STAGE_ELEMENTS * x_desc.dtype.primitive_bitwidth // 8
    # Only these loads need to wait: results are stored after the first load has arrived.
    await_predecessor(FIXED.PDL, AFTER_LAST_STEP)
    steps = count_blocks(extents[2], FIXED.BLOCK_SIZE_K)
    stage = 0
    phase = 1  # the phase of unused barriers: stages are free at first
    for tile in range(gl.program_id(0), count_tiles(extents, FIXED), gl.num_programs(0)):
        start_m, start_n = place(tile, extents, FIXED)
        for step in range(steps):
            start_k = step * FIXED.BLOCK_SIZE_K
            barrier = ready.index(stage)
            mbarrier.wait(free.index(stage), phase)
            mbarrier.expect(barrier, STAGE_BYTES)
            async_load(gate_desc, [start_n, start_k], barrier, gate_buffers.index(stage))
            async_load(up_desc, [start_n, start_k], barrier, up_buffers.index(stage))
            async_load(x_desc, [start_m, start_k], barrier, x_buffers.index(stage))
            stage, phase = following(stage, phase, FIXED.STAGES)
    release_last(FIXED.PDL, AFTER_LAST_STEP)


@gluon.jit
def multiply(extents, buffers, barriers, out_desc, out_buffers, WARPGROUP: gl.constexpr, FIXED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Run a multiplying warpgroup, which computes its share of the rows of every tile; with SWAP_AB, of the columns."""
    x_buffers, gate_buffers, up_buffers = buffers
    ready, free = barriers
    SWAP_AB: gl.constexpr = FIXED.SWAP_AB
    HALF: gl.constexpr = FIXED.BLOCK_SIZE_N // 2
    SIDE: gl.constexpr = HALF if SWAP_AB else FIXED.BLOCK_SIZE_M
    COLUMNS: gl.constexpr = FIXED.BLOCK_SIZE_M if SWAP_AB else HALF
    ROWS: gl.constexpr = SIDE // FIXED.WARPGROUPS
    FIRST: gl.constexpr = WARPGROUP * ROWS
    PARTS: gl.constexpr = FIXED.EPILOGUE_PARTS
    PART: gl.constexpr = COLUMNS // PARTS
    TURNS: gl.constexpr = turns_of(FIXED)
    ACTIVATION: gl.constexpr = FIXED.ACTIVATION
    dtype: gl.constexpr = x_buffers.dtype
    LAYOUT: gl.constexpr = layout_of(COLUMNS, dtype, 1)
    steps = count_blocks(extents[2], FIXED.BLOCK_SIZE_K)
    stage = 0
    phase = 0
    for tile in range(gl.program_id(0), count_tiles(extents, FIXED), gl.num_programs(0)):
        start_m, start_n = place(tile, extents, FIXED)
        gate = gl.zeros((ROWS, COLUMNS), gl.float32, LAYOUT)
        up = gl.zeros((ROWS, COLUMNS), gl.float32, LAYOUT)
        for step in range(steps):
            mbarrier.wait(ready.index(stage), phase)
            if SWAP_AB:
                x = x_buffers.index(stage).permute((1, 0))
                gate = warpgroup_mma(gate_buffers.index(stage).slice(FIRST, ROWS, 0), x, gate, is_async=True)
                up = warpgroup_mma(up_buffers.index(stage).slice(FIRST, ROWS, 0), x, up, is_async=True)
            else:
                x = x_buffers.index(stage).slice(FIRST, ROWS, 0)
                gate = warpgroup_mma(x, gate_buffers.index(stage).permute((1, 0)), gate, is_async=True)
                up = warpgroup_mma(x, up_buffers.index(stage).permute((1, 0)), up, is_async=True)
            # The previous step is done while this one runs, so its stage is free.
            gate, up = warpgroup_mma_wait(2, deps=(gate, up))
            mbarrier.arrive(free.index(gl.where(stage == 0, FIXED.STAGES - 1, stage - 1)), pred=step > 0)
            stage, phase = following(stage, phase, FIXED.STAGES)
        gate, up = warpgroup_mma_wait(0, deps=(gate, up))
        mbarrier.arrive(free.index(gl.where(stage == 0, FIXED.STAGES - 1, stage - 1)))
        gates = (gate,)
        ups = (up,)
        if PARTS == 2:
            gates = halves(gate, layout_of(PART, dtype, 1))
            ups = halves(up, layout_of(PART, dtype, 1))
        for part in gl.static_range(PARTS):
            values = (activate(gates[part], ACTIVATION) * ups[part]).to(out_desc.dtype)
            row = (start_n if SWAP_AB else start_m) + FIRST
            at = (row, (start_m if SWAP_AB else start_n) + part * PART)
            buffer = out_buffers.index(WARPGROUP * TURNS + part % TURNS)
            store_block(out_desc, buffer, values, at, extents, (None, None), TURNS - 1, SWAP_AB)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["M", "N", "K", "GROUP_SIZE_M"])
def gated_kernel(  # noqa: ANN201, PLR0917
    x_desc,
    gate_desc,
    up_desc,
    out_desc,
    M,
    N,
    K,
    GROUP_SIZE_M,
    BLOCK_SIZE_M: gl.constexpr,
    BLOCK_SIZE_N: gl.constexpr,
    BLOCK_SIZE_K: gl.constexpr,
    SWAP_AB: gl.constexpr,
    EPILOGUE_PARTS: gl.constexpr,
    WARPGROUPS: gl.constexpr,
    STAGES: gl.constexpr,
    LOADER_REGISTERS: gl.constexpr,
    MULTIPLIER_REGISTERS: gl.constexpr,
    ACTIVATION: gl.constexpr,
    PDL: gl.constexpr,
):
    """Compute tiles of activation(x @ gate.T) * (x @ up.T) one after the other.

    BLOCK_SIZE_N: columns of both products: half of them are gate's, the others up's.
    SWAP_AB: the weights' rows fill the tensor cores' rows, and the tile is stored transposed.
    WARPGROUPS: 1 or 2 multiplying warpgroups; the launch's num_warps is 4, those of the first.
    """
    FIXED: gl.constexpr = fixed(
        *(BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K, SWAP_AB, EPILOGUE_PARTS, WARPGROUPS, STAGES, ACTIVATION, PDL)
    )
    x_buffers = gl.allocate_shared_memory(x_desc.dtype, [STAGES] + x_desc.block_type.shape, x_desc.layout)
    gate_buffers = gl.allocate_shared_memory(x_desc.dtype, [STAGES] + gate_desc.block_type.shape, gate_desc.layout)
    up_buffers = gl.allocate_shared_memory(x_desc.dtype, [STAGES] + up_desc.block_type.shape, up_desc.layout)
    OUT_BUFFERS: gl.constexpr = WARPGROUPS * turns_of(FIXED)
    out_buffers = gl.allocate_shared_memory(out_desc.dtype, [OUT_BUFFERS] + out_desc.block_type.shape, out_desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(free.index(stage), count=WARPGROUPS)
    fence_async_shared()
    extents = (M, N, K, GROUP_SIZE_M)
    buffers = (x_buffers, gate_buffers, up_buffers)
    barriers = (ready, free)
    descriptors = (x_desc, gate_desc, up_desc)
    if WARPGROUPS == 1:
        gl.warp_specialize(
            [
                (multiply, (extents, buffers, barriers, out_desc, out_buffers, 0, FIXED)),
                (fill, (extents, buffers, barriers, descriptors, FIXED)),
            ],
            [1],
            [LOADER_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (multiply, (extents, buffers, barriers, out_desc, out_buffers, 0, FIXED)),
                (multiply, (extents, buffers, barriers, out_desc, out_buffers, 1, FIXED)),
                (fill, (extents, buffers, barriers, descriptors, FIXED)),
            ],
            [4, 1],
            [MULTIPLIER_REGISTERS, LOADER_REGISTERS],
        )
