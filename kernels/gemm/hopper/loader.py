"""The loading warp of `warp_specialized_kernel`, which fills the ring's stages by TMA. In Gluon, for Hopper."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from tuner.kernels.base.blocks import await_predecessor, count_blocks
from tuner.kernels.gemm.hopper.arrivals import await_chunk, forget
from tuner.kernels.gemm.hopper.cluster import await_free, corner_of, meet, rest_of, tiles_of
from tuner.kernels.gemm.hopper.tile import buffers_of_rows, following

# Newer Triton releases have the first name, Triton 3.6 the second.
async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared


@gluon.jit
def load_block(desc, row, column, barrier, buffer, TRANSPOSED: gl.constexpr, SHARED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Start to load a block of a matrix at (row, column) from a descriptor of the matrix as it is stored.

    SHARED: the cluster's first block loads for all its blocks.
    """
    coordinates = [column, row] if TRANSPOSED else [row, column]
    if SHARED:
        async_load(desc, coordinates, barrier, buffer, multicast=True)
    else:
        async_load(desc, coordinates, barrier, buffer)


@gluon.jit
def load_rows(desc, row, column, barrier, buffers, stage, FIXED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Start to load a stage of A, one buffer at a time."""
    PARTS: gl.constexpr = buffers_of_rows(FIXED.CTAS, FIXED.WARPGROUPS)
    SHARED: gl.constexpr = FIXED.CTAS > 1 and not FIXED.SHARE_B
    for part in gl.static_range(PARTS):
        start = row + part * (FIXED.BLOCK_SIZE_M // PARTS)
        load_block(desc, start, column, barrier, buffers.index(stage * PARTS + part), FIXED.A_TRANSPOSED, SHARED)


@gluon.jit
def fill(extents, buffers, barriers, descriptors, arriving, FIXED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Run the loading warp, which fills free stages, tile after tile."""
    M, N, K, _ = extents
    a_buffers, b_buffers, rest_buffers = buffers
    ready, free = barriers
    a_desc, b_desc, rest_desc = descriptors
    WIDTH: gl.constexpr = FIXED.BLOCK_SIZE_N + FIXED.BLOCK_SIZE_N_REST
    STAGE_ELEMENTS: gl.constexpr = (FIXED.BLOCK_SIZE_M + WIDTH) * FIXED.BLOCK_SIZE_K
    STAGE_BYTES: gl.constexpr = STAGE_ELEMENTS * a_desc.dtype.primitive_bitwidth // 8
    B_TRANSPOSED: gl.constexpr = FIXED.B_TRANSPOSED
    B_SHARED: gl.constexpr = FIXED.CTAS > 1 and FIXED.SHARE_B
    tiles_m, tiles_n = tiles_of(M, N, FIXED)
    if FIXED.CTAS > 1:
        meet()
    counters, tiles_of_chunk = arriving
    if FIXED.CHUNK_SIZE_K == 0:
        # Only these loads need to wait: scales are read and results stored after the first load has arrived.
        await_predecessor(FIXED.PDL)
    stage = 0
    phase = 1  # the phase of unused barriers: stages are free at first
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        start_m, start_n = corner_of(tile, tiles_m, tiles_n, extents, FIXED)
        start_rest = rest_of(start_n, N, FIXED)
        for step in range(count_blocks(K, FIXED.BLOCK_SIZE_K)):
            start_k = step * FIXED.BLOCK_SIZE_K
            if FIXED.CHUNK_SIZE_K > 0:  # noqa: SIM102  the first condition is a constant
                if start_k % FIXED.CHUNK_SIZE_K == 0:
                    await_chunk(counters, start_k // FIXED.CHUNK_SIZE_K, tiles_of_chunk)
            barrier = ready.index(stage)
            await_free(free, stage, phase, FIXED.CTAS)
            mbarrier.expect(barrier, STAGE_BYTES)
            load_rows(a_desc, start_m, start_k, barrier, a_buffers, stage, FIXED)
            load_block(b_desc, start_k, start_n, barrier, b_buffers.index(stage), B_TRANSPOSED, B_SHARED)
            if FIXED.BLOCK_SIZE_N_REST > 0:
                load_block(rest_desc, start_k, start_rest, barrier, rest_buffers.index(stage), B_TRANSPOSED, B_SHARED)
            stage, phase = following(stage, phase, FIXED.STAGES)
    if FIXED.CHUNK_SIZE_K > 0:
        forget(counters, count_blocks(K, FIXED.CHUNK_SIZE_K))
    if FIXED.CTAS > 1:
        # Other blocks signal their reads of the last stages to this block, which must not end before.
        for _ in range(FIXED.STAGES):
            await_free(free, stage, phase, FIXED.CTAS)
            stage, phase = following(stage, phase, FIXED.STAGES)
