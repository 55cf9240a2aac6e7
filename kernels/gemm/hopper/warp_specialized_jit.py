"""A persistent GEMM for Hopper in which one warp only loads and warpgroups only multiply. Written in Gluon.

The loading warp fills a ring of stages by TMA. The warpgroups consume it by wgmma, and store their rows of a tile while
the next tile is loaded. On Hopper, `tl.range(warp_specialize=True)` works for few shapes; in Gluon it is explicit.
`BLOCK_SIZE_N_REST` is a tile's second width, or 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
)

from tuner.kernels.base.blocks import count_blocks
from tuner.kernels.gemm.hopper import cluster
from tuner.kernels.gemm.hopper.loader import fill
from tuner.kernels.gemm.hopper.output import columns_apart, finished, out_buffers_of, store_block, turns_of
from tuner.kernels.gemm.hopper.register_operand import sum_products
from tuner.kernels.gemm.hopper.tile import buffers_of_rows, rows_each, sum_by_steps


@dataclass(frozen=True)
class Fixed:
    """The kernel's constexprs by name, in a form that partitions can pass on."""

    BLOCK_SIZE_M: int
    BLOCK_SIZE_N: int
    BLOCK_SIZE_N_REST: int
    BLOCK_SIZE_K: int
    EPILOGUE_PARTS: int
    WARPGROUPS: int
    STAGES: int
    A_TRANSPOSED: bool
    B_TRANSPOSED: bool
    C_TRANSPOSED: bool
    BIAS_ALONG_M: bool
    BY_STEPS: bool
    SCALING: str
    A_GROUP: int
    B_GROUP: int
    ACTIVATION: str
    PDL: bool
    CTAS: int
    SHARE_B: bool
    CHUNK_SIZE_K: int
    SUM_PARTS: int


@gluon.constexpr_function
def fixed(*constants):  # noqa: ANN002, ANN201
    """Gather constants into one `Fixed`."""
    return Fixed(*constants)


@gluon.jit
def multiply(  # noqa: ANN201, PLR0917
    extents, buffers, barriers, outputs, out_buffers, vectors, WARPGROUP: gl.constexpr, FIXED: gl.constexpr
):
    """Run a multiplying warpgroup, which computes its share of the rows of every tile of its program."""
    M, N, K, _ = extents
    c, c_rest, strides = outputs
    a_buffers, _, _ = buffers
    c_buffers, c_rest_buffers = out_buffers
    FIRST: gl.constexpr = WARPGROUP * rows_each(FIXED)
    COLUMNS: gl.constexpr = FIXED.BLOCK_SIZE_N
    COLUMNS_REST: gl.constexpr = FIXED.BLOCK_SIZE_N_REST
    PARTS: gl.constexpr = FIXED.EPILOGUE_PARTS
    PART: gl.constexpr = COLUMNS // PARTS
    TURNS: gl.constexpr = turns_of(FIXED)
    dtype: gl.constexpr = a_buffers.dtype
    out_dtype: gl.constexpr = c.dtype if strides[0] is None else c.dtype.element_ty
    tiles_m, tiles_n = cluster.tiles_of(M, N, FIXED)
    if FIXED.CTAS > 1:
        cluster.meet()
    stage = 0
    phase = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        start_m, start_n = cluster.corner_of(tile, tiles_m, tiles_n, extents, FIXED)
        start_m += FIRST
        start_rest = cluster.rest_of(start_n, N, FIXED)
        steps = count_blocks(K, FIXED.BLOCK_SIZE_K)
        if FIXED.BY_STEPS:
            place = (start_m, start_n, start_rest)
            sums, rest, stage, phase = sum_by_steps(
                buffers, vectors, barriers, stage, phase, place, extents, steps, FIRST, FIXED
            )
        elif FIXED.SUM_PARTS > 1:
            each = steps // FIXED.SUM_PARTS
            sums, rest, stage, phase = sum_products(buffers, barriers, stage, phase, each, FIRST, FIXED)
            for _later in range(1, FIXED.SUM_PARTS):
                more, rest, stage, phase = sum_products(buffers, barriers, stage, phase, each, FIRST, FIXED)
                sums += more
        else:
            sums, rest, stage, phase = sum_products(buffers, barriers, stage, phase, steps, FIRST, FIXED)
        parts = columns_apart(sums, PARTS, dtype, FIXED.CTAS)
        for part in gl.static_range(PARTS):
            at = (start_m, start_n + part * PART)
            values = finished(parts[part], vectors, at, extents, FIXED, out_dtype)
            buffer = c_buffers.index(WARPGROUP * TURNS + part % TURNS)
            store_block(c, buffer, values, at, extents, strides, TURNS - 1, FIXED.C_TRANSPOSED)
        if COLUMNS_REST > 0:
            at = (start_m, start_rest)
            values = finished(rest, vectors, at, extents, FIXED, out_dtype)
            buffer = c_rest_buffers.index(WARPGROUP)
            store_block(c_rest, buffer, values, at, extents, strides, 0, FIXED.C_TRANSPOSED)
    tma.store_wait(0)


@gluon.jit(
    do_not_specialize=["M", "N", "K", "GROUP_SIZE_M", "tiles_of_chunk"],
    do_not_specialize_on_alignment=[
        *("stride_cm", "stride_cn", "stride_asm", "stride_ask", "stride_bsk", "stride_bsn"),
    ],
)
def warp_specialized_kernel(  # noqa: ANN201, PLR0917
    a_desc,
    b_desc,
    b_rest_desc,
    c,
    c_rest,
    bias_ptr,
    a_scale_ptr,
    b_scale_ptr,
    M,
    N,
    K,
    stride_cm,
    stride_cn,
    stride_asm,
    stride_ask,
    stride_bsk,
    stride_bsn,
    GROUP_SIZE_M,
    counters,
    tiles_of_chunk,
    BLOCK_SIZE_M: gl.constexpr,
    BLOCK_SIZE_N: gl.constexpr,
    BLOCK_SIZE_N_REST: gl.constexpr,
    BLOCK_SIZE_K: gl.constexpr,
    EPILOGUE_PARTS: gl.constexpr,
    WARPGROUPS: gl.constexpr,
    STAGES: gl.constexpr,
    LOADER_REGISTERS: gl.constexpr,
    MULTIPLIER_REGISTERS: gl.constexpr,
    A_TRANSPOSED: gl.constexpr,
    B_TRANSPOSED: gl.constexpr,
    C_TRANSPOSED: gl.constexpr,
    BIAS_ALONG_M: gl.constexpr,
    BY_STEPS: gl.constexpr,
    SHARE_B: gl.constexpr,
    SCALING: gl.constexpr,
    A_GROUP: gl.constexpr,
    B_GROUP: gl.constexpr,
    ACTIVATION: gl.constexpr,
    PDL: gl.constexpr,
    CHUNK_SIZE_K: gl.constexpr,
    SUM_PARTS: gl.constexpr,
):
    """Compute tiles of C one after the other, each with `BLOCK_SIZE_N` + `BLOCK_SIZE_N_REST` columns.

    WARPGROUPS: 1 to 3 multiplying warpgroups, which divide the rows; the launch's num_warps is 4, those of the first.
    SHARE_B: the blocks of a cluster lie along M and share B's loads; otherwise they lie along N and share A's.
    CHUNK_SIZE_K: if not 0, operands are still being copied in chunks of this many elements along K, and the counters
    and tiles of `arrivals.Arrivals` are given; otherwise they are None.
    SUM_PARTS: parts of a sum along K, all of one number of steps, that are added in order; with more than one there is
        no second width.
    """
    CTAS: gl.constexpr = gl.num_ctas()
    IDLE: gl.constexpr = 0 if CTAS == 1 else 3  # warps besides the loader: all of a cluster's must meet
    A_BUFFERS: gl.constexpr = STAGES * buffers_of_rows(CTAS, WARPGROUPS)
    a_buffers = gl.allocate_shared_memory(a_desc.dtype, [A_BUFFERS] + a_desc.block_type.shape, a_desc.layout)
    b_buffers = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + b_desc.block_type.shape, b_desc.layout)
    rest_buffers = b_buffers
    if BLOCK_SIZE_N_REST > 0:
        rest_buffers = gl.allocate_shared_memory(
            b_desc.dtype, [STAGES] + b_rest_desc.block_type.shape, b_rest_desc.layout
        )
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, CTAS], cluster.barriers_of(CTAS))
    if CTAS == 1:
        free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], cluster.barriers_of(CTAS))
    else:
        free = cluster.free_barriers(STAGES, WARPGROUPS, CTAS)
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        if CTAS == 1:
            mbarrier.init(free.index(stage), count=WARPGROUPS)
    if CTAS > 1:
        cluster.publish_barriers()
    fence_async_shared()

    FIXED: gl.constexpr = fixed(
        *(BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_N_REST, BLOCK_SIZE_K, EPILOGUE_PARTS, WARPGROUPS, STAGES),
        *(A_TRANSPOSED, B_TRANSPOSED, C_TRANSPOSED, BIAS_ALONG_M, BY_STEPS),
        *(SCALING, A_GROUP, B_GROUP, ACTIVATION, PDL, CTAS, SHARE_B, CHUNK_SIZE_K, SUM_PARTS),
    )
    extents = (M, N, K, GROUP_SIZE_M)
    buffers = (a_buffers, b_buffers, rest_buffers)
    barriers = (ready, free)
    descriptors = (a_desc, b_desc, b_rest_desc)
    arriving = (counters, tiles_of_chunk)
    outputs = (c, c_rest, (stride_cm, stride_cn))
    vectors = (bias_ptr, a_scale_ptr, b_scale_ptr, (stride_asm, stride_ask, stride_bsk, stride_bsn))
    out_buffers = out_buffers_of(c, c_rest, a_buffers, stride_cm, FIXED)
    LOADERS: gl.constexpr = [LOADER_REGISTERS] * (1 + IDLE)
    if WARPGROUPS == 1:
        gl.warp_specialize(
            [
                (multiply, (extents, buffers, barriers, outputs, out_buffers, vectors, 0, FIXED)),
                (fill, (extents, buffers, barriers, descriptors, arriving, FIXED)),
            ]
            + [(cluster.idle, ())] * IDLE,
            [1] + [1] * IDLE,
            LOADERS,
        )
    elif WARPGROUPS == 2:
        gl.warp_specialize(
            [
                (multiply, (extents, buffers, barriers, outputs, out_buffers, vectors, 0, FIXED)),
                (multiply, (extents, buffers, barriers, outputs, out_buffers, vectors, 1, FIXED)),
                (fill, (extents, buffers, barriers, descriptors, arriving, FIXED)),
            ]
            + [(cluster.idle, ())] * IDLE,
            [4, 1] + [1] * IDLE,
            [MULTIPLIER_REGISTERS] + LOADERS,
        )
    else:
        gl.warp_specialize(
            [
                (multiply, (extents, buffers, barriers, outputs, out_buffers, vectors, 0, FIXED)),
                (multiply, (extents, buffers, barriers, outputs, out_buffers, vectors, 1, FIXED)),
                (multiply, (extents, buffers, barriers, outputs, out_buffers, vectors, 2, FIXED)),
                (fill, (extents, buffers, barriers, descriptors, arriving, FIXED)),
            ]
            + [(cluster.idle, ())] * IDLE,
            [4, 4, 1] + [1] * IDLE,
            [MULTIPLIER_REGISTERS, MULTIPLIER_REGISTERS] + LOADERS,
        )
