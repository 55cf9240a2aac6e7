"""A persistent, warp-specialized bmm (bf16, Hopper, Gluon): a warp loads tiles ahead, stores are TMA's and not awaited.

PINGPONG: each warpgroup computes whole tiles in turn, so one stores while the other multiplies; otherwise the
warpgroups divide a tile's rows. With one warpgroup several programs share a multiprocessor.
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

from tuner.kernels.base.blocks import await_predecessor, count_blocks, grouped, moved_within

async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
async_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@dataclass(frozen=True)
class Fixed:
    BLOCK_M: int
    BLOCK_N: int
    ROWS: int  # rows of a warpgroup
    PART: int  # columns of one store
    WARPGROUPS: int
    STAGES: int
    TURNS: int
    PINGPONG: bool
    B_TRANSPOSED: bool
    PDL: bool


@gluon.constexpr_function
def fixed(*constants):
    return Fixed(*constants)


@gluon.constexpr_function
def layout_of(columns):
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16])


@gluon.jit
def place(tile, extents, FIXED: gl.constexpr):
    M, N, _, _, GROUP_SIZE_M = extents
    tiles_m = count_blocks(M, FIXED.BLOCK_M)
    tiles_n = count_blocks(N, FIXED.BLOCK_N)
    each = tiles_m * tiles_n
    index = tile // each
    row, column = grouped(tile % each, tiles_m, tiles_n, GROUP_SIZE_M)
    # As in batched.jit: TMA is slow over rows that are not there, so the last tiles are moved back.
    return (
        index,
        moved_within(row * FIXED.BLOCK_M, M, FIXED.BLOCK_M),
        moved_within(column * FIXED.BLOCK_N, N, FIXED.BLOCK_N),
    )


@gluon.jit
def count_tiles(extents, FIXED: gl.constexpr):
    M, N, _, B, _ = extents
    return B * count_blocks(M, FIXED.BLOCK_M) * count_blocks(N, FIXED.BLOCK_N)


@gluon.jit
def fill(extents, a_buffers, b_buffers, barriers, a_desc, b_desc, FIXED: gl.constexpr):
    K = extents[2]
    ready, free = barriers
    BYTES: gl.constexpr = (FIXED.BLOCK_M + FIXED.BLOCK_N) * 64 * 2
    await_predecessor(FIXED.PDL)
    steps = count_blocks(K, 64)
    stage = 0
    phase = 1
    for tile in range(gl.program_id(0), count_tiles(extents, FIXED), gl.num_programs(0)):
        index, start_m, start_n = place(tile, extents, FIXED)
        for step in range(steps):
            barrier = ready.index(stage)
            mbarrier.wait(free.index(stage), phase)
            mbarrier.expect(barrier, BYTES)
            a = a_buffers.index(stage)._reinterpret(gl.bfloat16, [1, FIXED.BLOCK_M, 64], a_desc.layout)
            async_load(a_desc, [index, start_m, step * 64], barrier, a)
            if FIXED.B_TRANSPOSED:
                b = b_buffers.index(stage)._reinterpret(gl.bfloat16, [1, FIXED.BLOCK_N, 64], b_desc.layout)
                async_load(b_desc, [index, start_n, step * 64], barrier, b)
            else:
                b = b_buffers.index(stage)._reinterpret(gl.bfloat16, [1, 64, FIXED.BLOCK_N], b_desc.layout)
                async_load(b_desc, [index, step * 64, start_n], barrier, b)
            last = stage == FIXED.STAGES - 1
            stage = gl.where(last, 0, stage + 1)
            phase = gl.where(last, phase ^ 1, phase)


@gluon.jit
def halves(sums, LAYOUT: gl.constexpr):
    ROWS: gl.constexpr = sums.shape[0]
    HALF: gl.constexpr = sums.shape[1] // 2
    left, right = sums.reshape([ROWS, 2, HALF]).permute([0, 2, 1]).split()
    return gl.convert_layout(left, LAYOUT, assert_trivial=True), gl.convert_layout(right, LAYOUT, assert_trivial=True)


@gluon.jit
def multiply(
    extents, a_buffers, b_buffers, barriers, c_desc, out_buffers, WARPGROUP: gl.constexpr, FIXED: gl.constexpr
):
    K = extents[2]
    ready, free = barriers
    ROWS: gl.constexpr = FIXED.ROWS
    COLUMNS: gl.constexpr = FIXED.BLOCK_N
    FIRST: gl.constexpr = 0 if FIXED.PINGPONG else WARPGROUP * ROWS
    APART: gl.constexpr = FIXED.WARPGROUPS if FIXED.PINGPONG else 1
    OFFSET: gl.constexpr = WARPGROUP if FIXED.PINGPONG else 0
    PARTS: gl.constexpr = COLUMNS // FIXED.PART
    PIECE: gl.constexpr = layout_of(FIXED.PART)
    TURNS: gl.constexpr = FIXED.TURNS
    steps = count_blocks(K, 64)
    position = OFFSET * steps
    first_tile = gl.program_id(0) + OFFSET * gl.num_programs(0)
    for tile in range(first_tile, count_tiles(extents, FIXED), APART * gl.num_programs(0)):
        index, start_m, start_n = place(tile, extents, FIXED)
        sums = gl.zeros((ROWS, COLUMNS), gl.float32, layout_of(COLUMNS))
        for step in range(steps):
            stage = (position + step) % FIXED.STAGES
            phase = (position + step) // FIXED.STAGES & 1
            mbarrier.wait(ready.index(stage), phase)
            a = a_buffers.index(stage)
            if FIXED.BLOCK_M > ROWS:
                a = a.slice(FIRST, ROWS, 0)
            b = b_buffers.index(stage)
            if FIXED.B_TRANSPOSED:
                b = b.permute((1, 0))
            sums = warpgroup_mma(a, b, sums, is_async=True)
            sums = warpgroup_mma_wait(0, deps=(sums,))
            mbarrier.arrive(free.index(stage), count=1)
        position += steps * APART
        values = sums.to(gl.bfloat16)
        parts = (values,)
        if PARTS == 2:
            parts = halves(values, PIECE)
        elif PARTS == 4:
            left, right = halves(values, layout_of(COLUMNS // 2))
            parts = halves(left, PIECE) + halves(right, PIECE)
        for part in gl.static_range(PARTS):
            buffer = out_buffers.index(WARPGROUP * TURNS + part % TURNS)
            tma.store_wait(TURNS - 1)
            gl.barrier()
            buffer.store(parts[part])
            fence_async_shared()
            gl.barrier()
            box = buffer._reinterpret(gl.bfloat16, [1, ROWS, FIXED.PART], c_desc.layout)
            async_store(c_desc, [index, start_m + FIRST, start_n + part * FIXED.PART], box)
        if PARTS == 1 and TURNS == 2:
            gl.static_assert(False, "two turns need two parts")
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["M", "N", "K", "B", "GROUP_SIZE_M"])
def bmm_kernel(
    a_desc,
    b_desc,
    c_desc,
    M,
    N,
    K,
    B,
    GROUP_SIZE_M,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    PART: gl.constexpr,
    WARPGROUPS: gl.constexpr,
    STAGES: gl.constexpr,
    TURNS: gl.constexpr,
    PINGPONG: gl.constexpr,
    B_TRANSPOSED: gl.constexpr,
    LOADER_REGISTERS: gl.constexpr,
    MULTIPLIER_REGISTERS: gl.constexpr,
    PDL: gl.constexpr,
):
    ROWS: gl.constexpr = BLOCK_M if PINGPONG else BLOCK_M // WARPGROUPS
    SHAPE_A: gl.constexpr = [BLOCK_M, 64]
    LAYOUT_A: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_M, 64], gl.bfloat16)
    a_buffers = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BLOCK_M, 64], LAYOUT_A)
    if B_TRANSPOSED:
        LAYOUT_B: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, 64], gl.bfloat16)
        b_buffers = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BLOCK_N, 64], LAYOUT_B)
    else:
        LAYOUT_BN: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, BLOCK_N], gl.bfloat16)
        b_buffers = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 64, BLOCK_N], LAYOUT_BN)
    LAYOUT_C: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, PART], gl.bfloat16)
    out_buffers = gl.allocate_shared_memory(gl.bfloat16, [TURNS * WARPGROUPS, ROWS, PART], LAYOUT_C)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(free.index(stage), count=1 if PINGPONG else WARPGROUPS)
    fence_async_shared()
    FIXED: gl.constexpr = fixed(BLOCK_M, BLOCK_N, ROWS, PART, WARPGROUPS, STAGES, TURNS, PINGPONG, B_TRANSPOSED, PDL)
    extents = (M, N, K, B, GROUP_SIZE_M)
    barriers = (ready, free)
    if WARPGROUPS == 1:
        gl.warp_specialize(
            [
                (multiply, (extents, a_buffers, b_buffers, barriers, c_desc, out_buffers, 0, FIXED)),
                (fill, (extents, a_buffers, b_buffers, barriers, a_desc, b_desc, FIXED)),
            ],
            [1],
            [LOADER_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (multiply, (extents, a_buffers, b_buffers, barriers, c_desc, out_buffers, 0, FIXED)),
                (multiply, (extents, a_buffers, b_buffers, barriers, c_desc, out_buffers, 1, FIXED)),
                (fill, (extents, a_buffers, b_buffers, barriers, a_desc, b_desc, FIXED)),
            ],
            [4, 1],
            [MULTIPLIER_REGISTERS, LOADER_REGISTERS],
        )
