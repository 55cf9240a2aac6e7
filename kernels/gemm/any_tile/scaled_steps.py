"""Sums of fp8 products with block scales in tiles of any height: each step's are scaled, then added. In Gluon.

The device computes the transposed output: rows of a tile are columns of the weight, 128 of which share a scale with 128
elements along K, and columns are rows of A, of which each has its own. A stage ends with the scales of its step, which
the loading warp's threads copy one by one, because they are seldom where TMA could read them. A warpgroup has two sets
of products: while the tensor cores compute one step, it scales the products of the step before and adds them.

FIXED: a kernel's constants, of which these functions read BLOCK_SIZE_M, BLOCK_SIZE_N, WARPGROUPS, STAGES, CTAS, and
what `wgmma_ptx` reads.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from tuner.kernels.base.operands import SCALE_GROUP
from tuner.kernels.gemm.any_tile.any_width_jit import loaded_columns
from tuner.kernels.gemm.any_tile.wgmma_ptx import (
    ROW_BYTES,
    chunk_of,
    complete,
    descriptor_of,
    multiply_step,
    several,
    tied,
)
from tuner.kernels.gemm.hopper.cluster import line_of
from tuner.kernels.gemm.hopper.tile import following, layout_of

GROUP = gl.constexpr(SCALE_GROUP)
"""Elements along K, and columns of the weight, that share a scale."""
SCALE_ROWS = gl.constexpr(8)
"""Rows of 128 bytes that a stage's scales take: whole groups of eight, as the swizzle of the next stage needs."""
MOST_COLUMNS = gl.constexpr(128)
"""Columns of a tile, rows of A, that a stage has room for scales of; behind them lie those of two blocks of weights."""
COPIERS = gl.constexpr(32)
"""Threads of the loading warp, of which each arrives at a stage's barrier when its scales are there."""


@gluon.constexpr_function
def stage_rows(FIXED):  # noqa: ANN201  jit bodies take no such annotation
    """Rows of 128 bytes of a stage: of A, of B, and for block scales."""
    operands = FIXED.BLOCK_SIZE_M + loaded_columns(FIXED.BLOCK_SIZE_N, FIXED.B_TRANSPOSED)
    return operands + (SCALE_ROWS.value if FIXED.SCALING == "block" else 0)


@gluon.jit
def scales_from(scales, step, place, extents, FIXED: gl.constexpr):  # noqa: ANN201
    """Where a step's scales lie, for `copy_scales`: pointers to those of rows of A and of blocks, and which to copy.

    scales: those of the weight and of A, both [rows or blocks of them, K/128], then the strides of both.
    """
    weights, rows, strides = scales
    stride_block, stride_block_k, stride_k, stride_row = strides
    start_m, start_n = place
    M, N = extents
    by_lane: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0], cga_layout=line_of(FIXED.CTAS))
    lane = gl.arange(0, MOST_COLUMNS, layout=by_lane)
    row = start_n + lane
    of_rows = rows + gl.to_tensor(step).to(gl.int64) * stride_k + row.to(gl.int64) * stride_row
    first = gl.arange(0, COPIERS, layout=by_lane)
    block = start_m // GROUP + first
    of_blocks = weights + gl.to_tensor(step).to(gl.int64) * stride_block_k + block.to(gl.int64) * stride_block
    return of_rows, of_blocks, (lane < FIXED.BLOCK_SIZE_N) & (row < N), (first < 2) & (block * GROUP < M)


@gluon.jit
def copy_scales(at, barrier, sources, FIXED: gl.constexpr):  # noqa: ANN201
    """Start to copy a step's scales to an address of its stage; each thread arrives when its own are there."""
    of_rows, of_blocks, rows_there, blocks_there = sources
    by_lane: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0], cga_layout=line_of(FIXED.CTAS))
    copy_floats(at + 4 * gl.arange(0, MOST_COLUMNS, layout=by_lane), of_rows, rows_there)
    copy_floats(at + 4 * (MOST_COLUMNS + gl.arange(0, COPIERS, layout=by_lane)), of_blocks, blocks_there)
    async_copy.mbarrier_arrive(barrier, increment_count=False)


@gluon.jit
def next_scales(sources, scales, STEPS: gl.constexpr):  # noqa: ANN201
    """Where the scales of so many steps later lie."""
    of_rows, of_blocks, rows_there, blocks_there = sources
    _, _, strides = scales
    return of_rows + STEPS * strides[2], of_blocks + STEPS * strides[1], rows_there, blocks_there


@gluon.jit
def copy_floats(at, source, copied):  # noqa: ANN201
    """Start to copy single floats to addresses of shared memory where `copied` says so."""
    gl.inline_asm_elementwise(
        """{
            .reg .pred copied;
            setp.ne.u32 copied, $3, 0;
            @copied cp.async.ca.shared.global [$1], [$2], 4;
            mov.u32 $0, 0;
        }""",
        *("=r,r,l,r", [at, source, copied.to(gl.int32)], gl.int32),
        is_pure=False,
        pack=1,
    )


@gluon.jit
def sum_scaled_steps(  # noqa: ANN201, PLR0917
    base, barriers, steps, start_m, FIRST: gl.constexpr, dtype: gl.constexpr, FIXED: gl.constexpr
):
    """Sum a block's steps, for 64 rows of its tile from row FIRST on."""
    CHUNK: gl.constexpr = chunk_of(FIXED.BLOCK_SIZE_N)
    LAYOUT: gl.constexpr = layout_of(CHUNK, dtype, FIXED.CTAS)
    sums = (gl.zeros((64, CHUNK), gl.float32, LAYOUT),) * (FIXED.BLOCK_SIZE_N // CHUNK)
    one = sums
    other = sums
    block = (start_m % GROUP + FIRST) // GROUP
    stage = 0
    phase = 0
    if not has_two_sets(FIXED):
        for _ in range(steps):
            one = complete(started(one, base, barriers, stage, phase, FIRST, dtype, FIXED), FIXED)
            sums = added(sums, one, base, barriers, stage, block, FIXED)
            stage, phase = following(stage, phase, FIXED.STAGES)
    elif steps > 0:
        one = started(one, base, barriers, stage, phase, FIRST, dtype, FIXED)
        for _ in range((steps - 1) // 2):
            after, turned = following(stage, phase, FIXED.STAGES)
            other = started(other, base, barriers, after, turned, FIRST, dtype, FIXED)
            one = complete(one, FIXED, 1)
            sums = added(sums, one, base, barriers, stage, block, FIXED)
            stage, phase = following(after, turned, FIXED.STAGES)
            one = started(one, base, barriers, stage, phase, FIRST, dtype, FIXED)
            other = complete(other, FIXED, 1)
            sums = added(sums, other, base, barriers, after, block, FIXED)
        if steps % 2 == 0:
            after, turned = following(stage, phase, FIXED.STAGES)
            other = started(other, base, barriers, after, turned, FIRST, dtype, FIXED)
            one = complete(one, FIXED, 1)
            sums = added(sums, one, base, barriers, stage, block, FIXED)
            other = complete(other, FIXED)
            sums = added(sums, other, base, barriers, after, block, FIXED)
        else:
            one = complete(one, FIXED)
            sums = added(sums, one, base, barriers, stage, block, FIXED)
    return sums


@gluon.jit
def started(products, base, barriers, stage, phase, FIRST: gl.constexpr, dtype: gl.constexpr, FIXED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Start the products of a stage's step once it is loaded, in place of others."""
    ready, _ = barriers
    mbarrier.wait(ready.index(stage), phase)
    at = base + stage * (stage_rows(FIXED) * ROW_BYTES)
    b = descriptor_of(at + FIXED.BLOCK_SIZE_M * ROW_BYTES, False)
    return multiply_step(products, descriptor_of(at + FIRST * ROW_BYTES, False), b, dtype, None, FIXED, True)


@gluon.jit
def added(sums, products, base, barriers, stage, block, FIXED: gl.constexpr):  # noqa: ANN201, PLR0917
    """The sums and products of a stage's step, scaled; the stage is free afterwards."""
    _, free = barriers
    scales = base + stage * (stage_rows(FIXED) * ROW_BYTES) + (FIXED.BLOCK_SIZE_M + FIXED.BLOCK_SIZE_N) * ROW_BYTES
    CHUNK: gl.constexpr = chunk_of(FIXED.BLOCK_SIZE_N)
    of_block = gl.inline_asm_elementwise(
        "ld.shared.f32 $0, [$1];", "=f,r", [scales + 4 * (MOST_COLUMNS + block)], gl.float32, is_pure=False, pack=1
    )
    found = sums[:0]
    for part in gl.static_range(FIXED.BLOCK_SIZE_N // CHUNK):
        column = part * CHUNK + gl.arange(0, CHUNK, layout=gl.SliceLayout(0, sums[part].type.layout))
        of_columns = gl.inline_asm_elementwise(
            "ld.shared.v2.f32 {$0, $1}, [$2];", "=f,=f,r,r", [scales + 4 * column], gl.float32, is_pure=False, pack=2
        )
        found = found + (products[part] * (of_columns * of_block).expand_dims(0) + sums[part],)
    mbarrier.arrive(free.index(stage), count=1)
    return kept(found, FIXED)


@gluon.constexpr_function
def has_two_sets(FIXED):  # noqa: ANN201
    """Whether a thread's registers have room for two steps' products beside the sums: one step's are scaled meanwhile.

    With three multiplying warpgroups a thread has 160 registers (compiled for sm_90).
    """
    return FIXED.WARPGROUPS < 3 or FIXED.BLOCK_SIZE_N <= 88


@gluon.jit
def kept(sums, FIXED: gl.constexpr):  # noqa: ANN201
    """The same sums, added up here: see `block_scaled.hopper_jit.kept`."""
    CHUNK: gl.constexpr = chunk_of(FIXED.BLOCK_SIZE_N)
    return gl.inline_asm_elementwise(
        "",
        tied(FIXED.BLOCK_SIZE_N, 0),
        sums,
        several(gl.float32, FIXED.BLOCK_SIZE_N // CHUNK),
        is_pure=False,
        pack=CHUNK // 2,
    )
