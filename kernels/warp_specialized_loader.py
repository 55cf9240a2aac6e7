"""The warp of `warp_specialized_kernel` that loads: it fills the ring's stages by TMA. In Gluon, for Hopper."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from tuner.kernels.blocks import await_predecessor, count_blocks, grouped
from tuner.kernels.warp_specialized_cluster import await_free, meet, rank_of
from tuner.kernels.warp_specialized_tile import following

# The name of newer Tritons first, then that of 3.6.
async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared


@gluon.jit
def load_block(desc, row, column, barrier, buffer, TRANSPOSED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Start to load a block of a matrix, by its own row and column, from a descriptor of it as it is stored."""
    if TRANSPOSED:
        async_load(desc, [column, row], barrier, buffer)
    else:
        async_load(desc, [row, column], barrier, buffer)


@gluon.jit
def send_rows(desc, row, column, barrier, buffers, stage, FIXED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Start to load a stage of A for all blocks of the cluster, if this is its first: a warpgroup's rows at a time."""
    ROWS: gl.constexpr = FIXED.BLOCK_SIZE_M // FIXED.WARPGROUPS
    for part in gl.static_range(FIXED.BLOCK_SIZE_M // ROWS):
        buffer = buffers.index(stage * FIXED.WARPGROUPS + part)
        start = row + part * ROWS
        if FIXED.A_TRANSPOSED:
            async_load(desc, [column, start], barrier, buffer, multicast=True)
        else:
            async_load(desc, [start, column], barrier, buffer, multicast=True)


@gluon.jit
def fill(extents, buffers, barriers, descriptors, FIXED: gl.constexpr):  # noqa: ANN201
    """The loading warp: fills every stage that is free, tile after tile."""
    M, N, K, GROUP_SIZE_M = extents
    a_buffers, b_buffers, rest_buffers = buffers
    ready, free = barriers
    a_desc, b_desc, rest_desc = descriptors
    WIDTH: gl.constexpr = FIXED.BLOCK_SIZE_N + FIXED.BLOCK_SIZE_N_REST
    STAGE_ELEMENTS: gl.constexpr = (FIXED.BLOCK_SIZE_M + WIDTH) * FIXED.BLOCK_SIZE_K
    STAGE_BYTES: gl.constexpr = STAGE_ELEMENTS * a_desc.dtype.primitive_bitwidth // 8
    tiles_m = count_blocks(M, FIXED.BLOCK_SIZE_M)
    tiles_n = count_blocks(N, WIDTH * FIXED.CTAS)
    if FIXED.CTAS > 1:
        meet()
    # Only these loads read what the predecessor wrote: results are stored, and scales read, after the first of them.
    await_predecessor(FIXED.PDL)
    stage = 0
    phase = 1  # of barriers that nobody has used: a stage is free at first
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        pid_m, pid_n = grouped(tile, tiles_m, tiles_n, GROUP_SIZE_M)
        start_m = pid_m * FIXED.BLOCK_SIZE_M
        start_n = (pid_n * FIXED.CTAS + rank_of(FIXED.CTAS)) * WIDTH
        for step in range(count_blocks(K, FIXED.BLOCK_SIZE_K)):
            start_k = step * FIXED.BLOCK_SIZE_K
            barrier = ready.index(stage)
            await_free(free, stage, phase, FIXED.CTAS)
            mbarrier.expect(barrier, STAGE_BYTES)
            if FIXED.CTAS == 1:
                load_block(a_desc, start_m, start_k, barrier, a_buffers.index(stage), FIXED.A_TRANSPOSED)
            else:
                send_rows(a_desc, start_m, start_k, barrier, a_buffers, stage, FIXED)
            load_block(b_desc, start_k, start_n, barrier, b_buffers.index(stage), FIXED.B_TRANSPOSED)
            if FIXED.BLOCK_SIZE_N_REST > 0:
                rest = start_n + FIXED.BLOCK_SIZE_N
                load_block(rest_desc, start_k, rest, barrier, rest_buffers.index(stage), FIXED.B_TRANSPOSED)
            stage, phase = following(stage, phase, FIXED.STAGES)
    if FIXED.CTAS > 1:
        # Other blocks tell this one of stages that they have read: it stays until they are done.
        for _ in range(FIXED.STAGES):
            await_free(free, stage, phase, FIXED.CTAS)
            stage, phase = following(stage, phase, FIXED.STAGES)
