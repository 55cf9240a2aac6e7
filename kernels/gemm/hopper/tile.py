"""Computes a multiplying warpgroup's sums of one tile from the ring of stages. In Gluon, for Hopper.

The arguments are described at `pointer.jit.matmul_kernel`, `tma.tile` and `warp_specialized_kernel`.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tuner.kernels.gemm.hopper.cluster import everywhere, release


@gluon.jit
def following(stage, phase, STAGES: gl.constexpr):  # noqa: ANN201  jit bodies take no such annotation
    """The next stage in the ring, and its barrier's phase."""
    last = stage == STAGES - 1
    return gl.where(last, 0, stage + 1), gl.where(last, phase ^ 1, phase)


TEAMS = gl.constexpr(2)
"""Warpgroups that take tiles in turn, where they do."""


@gluon.jit
def passed(stage, phase, steps, STAGES: gl.constexpr):  # noqa: ANN201
    """The ring's stage and phase after so many steps of another warpgroup's tile."""
    after = stage + steps
    rounds = after // STAGES
    return after - rounds * STAGES, phase ^ (rounds & 1)


@gluon.constexpr_function
def buffers_of_rows(ctas, warpgroups):  # noqa: ANN201
    """Buffers of a stage of A: one for all warpgroups, or one for each in a cluster or if there are three."""
    return warpgroups if ctas > 1 or warpgroups > 2 else 1


@gluon.jit
def rows_of(buffers, stage, FIRST: gl.constexpr, ROWS: gl.constexpr, FIXED: gl.constexpr):  # noqa: ANN201
    """A warpgroup's rows of a stage of A, [ROWS, BLOCK_SIZE_K]: a slice of the common buffer, or its own buffer."""
    BUFFERS: gl.constexpr = buffers_of_rows(FIXED.CTAS, FIXED.WARPGROUPS)
    if BUFFERS > 1:
        rows = buffers.index(stage * BUFFERS + FIRST // ROWS)
    elif FIXED.A_TRANSPOSED:
        rows = buffers.index(stage).slice(FIRST, ROWS, 1)
    else:
        rows = buffers.index(stage).slice(FIRST, ROWS, 0)
    return rows.permute((1, 0)) if FIXED.A_TRANSPOSED else rows


@gluon.jit
def columns_of(buffer, TRANSPOSED: gl.constexpr):  # noqa: ANN201
    """A stage of B, [BLOCK_SIZE_K, columns]."""
    return buffer.permute((1, 0)) if TRANSPOSED else buffer


@gluon.constexpr_function
def layout_of(columns, dtype, ctas):  # noqa: ANN201
    """The layout of sums in four warps, with 16 rows each. One wgmma has up to 256 columns, or 128 for int8."""
    instruction = [16, min(columns, 128 if dtype.is_int() else 256), 256 // dtype.primitive_bitwidth]
    return gl.NVMMADistributedLayout([3, 0], [4, 1], instruction, everywhere(ctas))


@gluon.constexpr_function
def rows_each(FIXED):  # noqa: ANN201
    """Rows of a tile that one multiplying warpgroup computes."""
    return FIXED.BLOCK_SIZE_M // FIXED.WARPGROUPS


@gluon.jit
def sum_products(buffers, barriers, stage, phase, steps, FIRST: gl.constexpr, FIXED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Sum all steps in the tensor cores; return the sums of a tile's two widths, the next stage and its phase.

    Without a second width, its sums are those of the first.
    """
    sums, rest, stage, phase = start_products(buffers, barriers, stage, phase, steps, FIRST, FIXED)
    sums, rest = await_products(sums, rest, barriers, stage, FIXED)
    return sums, rest, stage, phase


@gluon.jit
def awaited(sums, rest, FIXED: gl.constexpr):  # noqa: ANN201
    """Wait for all products under way; without a second width, `rest` is returned as it is."""
    if FIXED.BLOCK_SIZE_N_REST > 0:
        sums, rest = warpgroup_mma_wait(0, deps=(sums, rest))
    else:
        sums = warpgroup_mma_wait(0, deps=(sums,))
    return sums, rest


@gluon.jit
def start_products(buffers, barriers, stage, phase, steps, FIRST: gl.constexpr, FIXED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Do as `sum_products` does, but leave the last step under way, for `await_products`."""
    a_buffers, b_buffers, rest_buffers = buffers
    ready, free = barriers
    ROWS: gl.constexpr = rows_each(FIXED)
    COLUMNS: gl.constexpr = FIXED.BLOCK_SIZE_N
    COLUMNS_REST: gl.constexpr = FIXED.BLOCK_SIZE_N_REST
    dtype: gl.constexpr = a_buffers.dtype
    sum_dtype: gl.constexpr = gl.int32 if dtype == gl.int8 else gl.float32
    sums = gl.zeros((ROWS, COLUMNS), sum_dtype, layout_of(COLUMNS, dtype, FIXED.CTAS))
    if COLUMNS_REST > 0:
        rest = gl.zeros((ROWS, COLUMNS_REST), sum_dtype, layout_of(COLUMNS_REST, dtype, FIXED.CTAS))
    for step in range(steps):
        mbarrier.wait(ready.index(stage), phase)
        a = rows_of(a_buffers, stage, FIRST, ROWS, FIXED)
        sums = warpgroup_mma(a, columns_of(b_buffers.index(stage), FIXED.B_TRANSPOSED), sums, is_async=True)
        # The previous step is done while this one runs, so its stage is free. (Its number is computed, because Triton's
        # front end does not carry a variable that is assigned another's value in a loop.)
        if COLUMNS_REST > 0:
            rest = warpgroup_mma(a, columns_of(rest_buffers.index(stage), FIXED.B_TRANSPOSED), rest, is_async=True)
            sums, rest = warpgroup_mma_wait(2, deps=(sums, rest))
        else:
            sums = warpgroup_mma_wait(1, deps=(sums,))
        release(free, gl.where(stage == 0, FIXED.STAGES - 1, stage - 1), FIXED.CTAS, pred=step > 0)
        stage, phase = following(stage, phase, FIXED.STAGES)
    if COLUMNS_REST == 0:
        rest = sums
    return sums, rest, stage, phase


@gluon.jit
def await_products(sums, rest, barriers, stage, FIXED: gl.constexpr):  # noqa: ANN201
    """Wait for the last step of `start_products`, which returned this stage, and release its own."""
    _, free = barriers
    sums, rest = awaited(sums, rest, FIXED)
    if FIXED.BLOCK_SIZE_N_REST == 0:
        rest = sums
    release(free, gl.where(stage == 0, FIXED.STAGES - 1, stage - 1), FIXED.CTAS)
    return sums, rest


@gluon.jit
def scales_along(  # noqa: ANN201, PLR0917
    ptr, start, extent, stride, EXTENT: gl.constexpr, GROUP: gl.constexpr, LAYOUT: gl.constexpr
):
    """`block_scaled.jit.scales_along` for vectors with layouts; a cluster's last tiles may lie beyond all scales."""
    if GROUP >= EXTENT:
        scales = gl.load(ptr + start // GROUP * stride, mask=start < extent, other=0.0)
    else:
        offsets = start + gl.arange(0, EXTENT, layout=LAYOUT)
        scales = gl.load(ptr + offsets // GROUP * stride, mask=offsets < extent, other=0.0)
    return scales


@gluon.jit
def scaled(products, a_scale, b_scale, A_ONE: gl.constexpr, B_ONE: gl.constexpr):  # noqa: ANN201
    """Multiply products by the scales of their rows and columns, either of which may be a single number."""
    if A_ONE and B_ONE:
        products *= a_scale * b_scale
    elif A_ONE:
        products *= (a_scale * b_scale).expand_dims(0)
    elif B_ONE:
        products *= (a_scale * b_scale).expand_dims(1)
    else:
        products *= a_scale.expand_dims(1) * b_scale.expand_dims(0)
    return products


@gluon.jit
def scales_of_step(  # noqa: ANN201, PLR0917
    vectors, step, place, extents, LAYOUT: gl.constexpr, LAYOUT_REST: gl.constexpr, FIXED: gl.constexpr
):
    """Load the scales of one step along K: of rows, of columns, and of the second width's columns if there is one."""
    start_m, start_n, start_rest = place
    M, N, _, _ = extents
    COLUMNS: gl.constexpr = FIXED.BLOCK_SIZE_N
    COLUMNS_REST: gl.constexpr = FIXED.BLOCK_SIZE_N_REST
    B_GROUP: gl.constexpr = FIXED.B_GROUP
    _, a_scale_ptr, b_scale_ptr, strides = vectors
    stride_asm, stride_ask, stride_bsk, stride_bsn = strides
    a_scale_ptr += step * stride_ask
    b_scale_ptr += step * stride_bsk
    by_column: gl.constexpr = gl.SliceLayout(0, LAYOUT)
    by_row: gl.constexpr = gl.SliceLayout(1, LAYOUT)
    a_scale = scales_along(a_scale_ptr, start_m, M, stride_asm, rows_each(FIXED), FIXED.A_GROUP, by_row)
    b_scale = scales_along(b_scale_ptr, start_n, N, stride_bsn, COLUMNS, B_GROUP, by_column)
    b_rest_scale = b_scale
    if COLUMNS_REST > 0:
        by_rest: gl.constexpr = gl.SliceLayout(0, LAYOUT_REST)
        b_rest_scale = scales_along(b_scale_ptr, start_rest, N, stride_bsn, COLUMNS_REST, B_GROUP, by_rest)
    return a_scale, b_scale, b_rest_scale


@gluon.jit
def sum_by_steps(  # noqa: ANN201, PLR0917
    buffers, vectors, barriers, stage, phase, place, extents, steps, FIRST: gl.constexpr, FIXED: gl.constexpr
):
    """Do as `sum_products` does, but add each step's products in float32 registers, scaled by blocks or unscaled.

    One warpgroup adds while the other multiplies. A tile's two widths are processed one after the other.
    """
    a_buffers, b_buffers, rest_buffers = buffers
    ready, free = barriers
    ROWS: gl.constexpr = rows_each(FIXED)
    COLUMNS: gl.constexpr = FIXED.BLOCK_SIZE_N
    COLUMNS_REST: gl.constexpr = FIXED.BLOCK_SIZE_N_REST
    SCALED: gl.constexpr = FIXED.SCALING == "block"
    A_ONE: gl.constexpr = FIXED.A_GROUP >= ROWS
    B_ONE: gl.constexpr = FIXED.B_GROUP >= COLUMNS
    LAYOUT: gl.constexpr = layout_of(COLUMNS, a_buffers.dtype, FIXED.CTAS)
    sums = gl.zeros((ROWS, COLUMNS), gl.float32, LAYOUT)
    products = gl.zeros((ROWS, COLUMNS), gl.float32, LAYOUT)
    WIDTH_REST: gl.constexpr = COLUMNS_REST if COLUMNS_REST > 0 else COLUMNS
    LAYOUT_REST: gl.constexpr = layout_of(WIDTH_REST, a_buffers.dtype, FIXED.CTAS)
    rest = gl.zeros((ROWS, WIDTH_REST), gl.float32, LAYOUT_REST)
    rest_products = gl.zeros((ROWS, WIDTH_REST), gl.float32, LAYOUT_REST)
    if SCALED:
        a_scale, b_scale, b_rest_scale = scales_of_step(vectors, 0, place, extents, LAYOUT, LAYOUT_REST, FIXED)
    for step in range(steps):
        mbarrier.wait(ready.index(stage), phase)
        a = rows_of(a_buffers, stage, FIRST, ROWS, FIXED)
        b = columns_of(b_buffers.index(stage), FIXED.B_TRANSPOSED)
        products = warpgroup_mma(a, b, products, use_acc=False, is_async=True)
        if SCALED:
            # Load the next step's scales during this step.
            after = min(step + 1, steps - 1)
            a_next, b_next, b_rest_next = scales_of_step(vectors, after, place, extents, LAYOUT, LAYOUT_REST, FIXED)
        products = warpgroup_mma_wait(0, deps=(products,))
        if COLUMNS_REST == 0:
            release(free, stage, FIXED.CTAS)
        sums += scaled(products, a_scale, b_scale, A_ONE, B_ONE) if SCALED else products
        if COLUMNS_REST > 0:
            b_rest = columns_of(rest_buffers.index(stage), FIXED.B_TRANSPOSED)
            rest_products = warpgroup_mma(a, b_rest, rest_products, use_acc=False, is_async=True)
            rest_products = warpgroup_mma_wait(0, deps=(rest_products,))
            release(free, stage, FIXED.CTAS)
            if SCALED:
                a_rest_scale = a_scale
                if not A_ONE:
                    a_rest_scale = gl.convert_layout(a_scale, gl.SliceLayout(1, LAYOUT_REST), assert_trivial=True)
                rest += scaled(rest_products, a_rest_scale, b_rest_scale, A_ONE, FIXED.B_GROUP >= COLUMNS_REST)
            else:
                rest += rest_products
        if SCALED:
            a_scale = a_next
            b_scale = b_next
            b_rest_scale = b_rest_next
        stage, phase = following(stage, phase, FIXED.STAGES)
    return sums, rest, stage, phase
