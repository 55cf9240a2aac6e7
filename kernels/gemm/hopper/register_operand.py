"""Sums a tile's products with A from registers: TF32 that does not run along K. In Gluon, for Hopper.

wgmma reads 32-bit operands in shared memory along K alone, but its first one from registers, in any order.

Registers of a product under way must not be loaded again. ptxas knows these within a block of code, but not around the
end of a loop: there either no product is under way, or two steps take turns with two sets of registers.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_init

from tuner.kernels.gemm.hopper import tile
from tuner.kernels.gemm.hopper.cluster import release
from tuner.kernels.gemm.hopper.tile import (
    await_products,
    awaited,
    columns_of,
    following,
    layout_of,
    rows_each,
    rows_of,
)


@gluon.constexpr_function
def in_registers(columns, dtype, ctas):  # noqa: ANN201
    """The layout of 16 rows of A in each of four warps, as wgmma reads them from registers for sums of `layout_of`."""
    return gl.DotOperandLayout(0, layout_of(columns, dtype, ctas), 1)


@gluon.constexpr_function
def from_registers(dtype, FIXED):  # noqa: ANN201
    """Whether wgmma reads A from registers, as it must where A has 32 bits and does not run along K."""
    return FIXED.A_TRANSPOSED and dtype.primitive_bitwidth == 32


@gluon.constexpr_function
def loads_ahead(FIXED):  # noqa: ANN201
    """Whether a step's A is loaded while the step before is multiplied.

    A warpgroup by itself has nothing else to hide its loads. Of two, one multiplies while the other loads; and for two,
    or for more rows or columns, ptxas finds too few registers, and lets no two products follow each other.
    """
    columns = FIXED.BLOCK_SIZE_N + FIXED.BLOCK_SIZE_N_REST
    return FIXED.WARPGROUPS == 1 and FIXED.BLOCK_SIZE_M == 64 and columns <= 256


@gluon.constexpr_function
def part_of_step(FIXED):  # noqa: ANN201
    """Elements along K of A whose products take as long as the loads of as many more: fewer with many columns."""
    return min(FIXED.BLOCK_SIZE_K, max(8, 2048 // FIXED.BLOCK_SIZE_N))


@gluon.jit
def sum_products(buffers, barriers, stage, phase, steps, FIRST: gl.constexpr, FIXED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Do as `tile.sum_products` does, with A from registers where it must come from there."""
    if from_registers(buffers[0].dtype, FIXED):
        sums, rest, stage, phase = sum_from_registers(buffers, barriers, stage, phase, steps, FIRST, FIXED)
    else:
        sums, rest, stage, phase = tile.sum_products(buffers, barriers, stage, phase, steps, FIRST, FIXED)
    return sums, rest, stage, phase


@gluon.jit
def sum_from_registers(buffers, barriers, stage, phase, steps, FIRST: gl.constexpr, FIXED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Do as `tile.sum_products` does, with A from registers."""
    ROWS: gl.constexpr = rows_each(FIXED)
    COLUMNS: gl.constexpr = FIXED.BLOCK_SIZE_N
    COLUMNS_REST: gl.constexpr = FIXED.BLOCK_SIZE_N_REST
    dtype: gl.constexpr = buffers[0].dtype
    sums = gl.zeros((ROWS, COLUMNS), gl.float32, layout_of(COLUMNS, dtype, FIXED.CTAS))
    rest = sums
    if COLUMNS_REST > 0:
        rest = gl.zeros((ROWS, COLUMNS_REST), gl.float32, layout_of(COLUMNS_REST, dtype, FIXED.CTAS))
    if loads_ahead(FIXED):
        sums = warpgroup_mma_init(sums)
        if COLUMNS_REST > 0:
            rest = warpgroup_mma_init(rest)
        for pair in range(steps // 2):
            step = 2 * pair
            sums, rest = step_ahead(sums, rest, buffers, barriers, stage, phase, step, FIRST, FIXED)
            stage, phase = following(stage, phase, FIXED.STAGES)
            sums, rest = step_ahead(sums, rest, buffers, barriers, stage, phase, step + 1, FIRST, FIXED)
            stage, phase = following(stage, phase, FIXED.STAGES)
        if steps % 2 == 1:
            sums, rest = step_ahead(sums, rest, buffers, barriers, stage, phase, steps - 1, FIRST, FIXED)
            stage, phase = following(stage, phase, FIXED.STAGES)
        sums, rest = await_products(sums, rest, barriers, stage, FIXED)
    else:
        for _ in range(steps):
            sums, rest = step_in_parts(sums, rest, buffers, barriers, stage, phase, FIRST, FIXED)
            stage, phase = following(stage, phase, FIXED.STAGES)
        if COLUMNS_REST == 0:
            rest = sums
    return sums, rest, stage, phase


@gluon.jit
def step_ahead(  # noqa: ANN201, PLR0917
    sums, rest, buffers, barriers, stage, phase, step, FIRST: gl.constexpr, FIXED: gl.constexpr
):
    """Load a step's rows of A while the step before is multiplied; then await that and start this one."""
    ready, free = barriers
    mbarrier.wait(ready.index(stage), phase)
    WHOLE: gl.constexpr = FIXED.BLOCK_SIZE_K
    a = rows_in_registers(buffers, stage, 0, WHOLE, FIRST, FIXED)
    sums, rest = awaited(sums, rest, FIXED)
    release(free, gl.where(stage == 0, FIXED.STAGES - 1, stage - 1), FIXED.CTAS, pred=step > 0)
    return start_part(sums, rest, a, buffers, stage, 0, WHOLE, FIXED)


@gluon.jit
def step_in_parts(  # noqa: ANN201, PLR0917
    sums, rest, buffers, barriers, stage, phase, FIRST: gl.constexpr, FIXED: gl.constexpr
):
    """Multiply a step part by part, each of which is loaded while the one before is multiplied."""
    ready, free = barriers
    PART: gl.constexpr = part_of_step(FIXED)
    mbarrier.wait(ready.index(stage), phase)
    for part in gl.static_range(FIXED.BLOCK_SIZE_K // PART):
        a = rows_in_registers(buffers, stage, part * PART, PART, FIRST, FIXED)
        sums, rest = start_part(sums, rest, a, buffers, stage, part * PART, PART, FIXED)
    sums, rest = awaited(sums, rest, FIXED)
    release(free, stage, FIXED.CTAS)
    return sums, rest


@gluon.jit
def rows_in_registers(  # noqa: ANN201, PLR0917
    buffers, stage, START: gl.constexpr, PART: gl.constexpr, FIRST: gl.constexpr, FIXED: gl.constexpr
):
    """Load a warpgroup's rows of a stage of A, from START on along K, as wgmma reads them from registers."""
    rows = rows_of(buffers[0], stage, FIRST, rows_each(FIXED), FIXED)
    return rows.slice(START, PART, 1).load(in_registers(FIXED.BLOCK_SIZE_N, buffers[0].dtype, FIXED.CTAS))


@gluon.jit
def start_part(  # noqa: ANN201, PLR0917
    sums, rest, a, buffers, stage, START: gl.constexpr, PART: gl.constexpr, FIXED: gl.constexpr
):
    """Start to multiply rows of A by a stage of B, from START on along K."""
    _, b_buffers, rest_buffers = buffers
    b = columns_of(b_buffers.index(stage), FIXED.B_TRANSPOSED)
    sums = warpgroup_mma(a, b.slice(START, PART, 0), sums, is_async=True)
    if FIXED.BLOCK_SIZE_N_REST > 0:
        LAYOUT: gl.constexpr = in_registers(FIXED.BLOCK_SIZE_N_REST, b_buffers.dtype, FIXED.CTAS)
        b_rest = columns_of(rest_buffers.index(stage), FIXED.B_TRANSPOSED)
        a_rest = gl.convert_layout(a, LAYOUT, assert_trivial=True)
        rest = warpgroup_mma(a_rest, b_rest.slice(START, PART, 0), rest, is_async=True)
    return sums, rest
