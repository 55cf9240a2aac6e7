"""A persistent GEMM for Hopper whose two multiplying warpgroups take tiles in turn. Written in Gluon.

While one warpgroup scales, rounds and stores its tile, the other multiplies the next one ("ping-pong" in CUTLASS): the
tensor cores wait for no epilogue. The ring's stages hold the steps of one tile after the other's. A warpgroup passes
over those of the other's tiles, and begins when the other has begun its last step: the phase of a stage's barrier tells
even fills from odd ones only, so a warpgroup that came earlier would take an earlier fill for its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from tuner.kernels.base.blocks import count_blocks
from tuner.kernels.gemm.hopper import cluster
from tuner.kernels.gemm.hopper.loader import fill
from tuner.kernels.gemm.hopper.output import columns_apart, finished, store_block
from tuner.kernels.gemm.hopper.tile import TEAMS, await_products, passed, start_products

PART = gl.constexpr(64)
"""Columns that a warpgroup stores at a time."""


@dataclass(frozen=True)
class Fixed:
    """The kernel's constexprs by name, in a form that partitions can pass on.

    The fields with defaults are what the functions shared with `warp_specialized` ask for besides.
    """

    BLOCK_SIZE_M: int
    BLOCK_SIZE_N: int
    BLOCK_SIZE_N_REST: int
    BLOCK_SIZE_K: int
    STAGES: int
    A_TRANSPOSED: bool
    B_TRANSPOSED: bool
    C_TRANSPOSED: bool
    SCALING: str
    ACTIVATION: str
    PDL: bool
    WARPGROUPS: int = 1
    CTAS: int = 1
    SHARE_B: bool = False
    BIAS_ALONG_M: bool = False
    CHUNK_SIZE_K: int = 0


@gluon.constexpr_function
def fixed(*constants):  # noqa: ANN002, ANN201  jit bodies take no such annotation
    """Gather constants into one `Fixed`."""
    return Fixed(*constants)


@gluon.jit
def multiply(extents, buffers, barriers, outputs, out_buffers, vectors, TEAM: gl.constexpr, FIXED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Run a multiplying warpgroup, which computes every second tile of its program."""
    M, N, K, _ = extents
    ready, free, order = barriers
    c, strides = outputs
    dtype: gl.constexpr = buffers[0].dtype
    out_dtype: gl.constexpr = c.dtype if strides[0] is None else c.dtype.element_ty
    PARTS: gl.constexpr = FIXED.BLOCK_SIZE_N // PART
    ALL_PARTS: gl.constexpr = PARTS + FIXED.BLOCK_SIZE_N_REST // PART
    tiles_m, tiles_n = cluster.tiles_of(M, N, FIXED)
    steps = count_blocks(K, FIXED.BLOCK_SIZE_K)
    stage, phase = passed(0, 0, TEAM * steps, FIXED.STAGES)
    turn = 1 - TEAM  # the phase of unused barriers for the first warpgroup, which waits for nobody at first
    programs = gl.num_programs(0)
    for tile in range(gl.program_id(0) + TEAM * programs, tiles_m * tiles_n, TEAMS * programs):
        start_m, start_n = cluster.corner_of(tile, tiles_m, tiles_n, extents, FIXED)
        start_rest = cluster.rest_of(start_n, N, FIXED)
        mbarrier.wait(order.index(TEAM), turn)
        turn ^= 1
        sums, rest, stage, phase = start_products(buffers, (ready, free), stage, phase, steps, 0, FIXED)
        mbarrier.arrive(order.index(1 - TEAM), count=1)
        sums, rest = await_products(sums, rest, (ready, free), stage, FIXED)
        stage, phase = passed(stage, phase, steps, FIXED.STAGES)
        parts = columns_apart(sums, PARTS, dtype, 1)
        if FIXED.BLOCK_SIZE_N_REST > 0:
            parts = parts + (rest,)
        for part in gl.static_range(ALL_PARTS):
            at = (start_m, start_n + part * PART if part < PARTS else start_rest)
            values = finished(parts[part], vectors, at, extents, FIXED, out_dtype)
            store_block(c, out_buffers.index(TEAM), values, at, extents, strides, 0, FIXED.C_TRANSPOSED)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["M", "N", "K", "GROUP_SIZE_M"], do_not_specialize_on_alignment=["stride_cm", "stride_cn"])
def ping_pong_kernel(  # noqa: ANN201, PLR0917
    a_desc,
    b_desc,
    b_rest_desc,
    c,
    bias_ptr,
    a_scale_ptr,
    b_scale_ptr,
    M,
    N,
    K,
    stride_cm,
    stride_cn,
    GROUP_SIZE_M,
    BLOCK_SIZE_M: gl.constexpr,
    BLOCK_SIZE_N: gl.constexpr,
    BLOCK_SIZE_N_REST: gl.constexpr,
    BLOCK_SIZE_K: gl.constexpr,
    STAGES: gl.constexpr,
    LOADER_REGISTERS: gl.constexpr,
    MULTIPLIER_REGISTERS: gl.constexpr,
    A_TRANSPOSED: gl.constexpr,
    B_TRANSPOSED: gl.constexpr,
    C_TRANSPOSED: gl.constexpr,
    SCALING: gl.constexpr,
    ACTIVATION: gl.constexpr,
    PDL: gl.constexpr,
):
    """Compute tiles of C one after the other, each with `BLOCK_SIZE_N` + `BLOCK_SIZE_N_REST` columns.

    BLOCK_SIZE_N_REST: 0 or 64, the columns of one part. The launch's num_warps is 4, those of the first warpgroup.
    """
    a_buffers = gl.allocate_shared_memory(a_desc.dtype, [STAGES] + a_desc.block_type.shape, a_desc.layout)
    b_buffers = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + b_desc.block_type.shape, b_desc.layout)
    rest_buffers = b_buffers
    if BLOCK_SIZE_N_REST > 0:
        rest_buffers = gl.allocate_shared_memory(
            b_desc.dtype, [STAGES] + b_rest_desc.block_type.shape, b_rest_desc.layout
        )
    out_buffers = a_buffers  # unused where C is stored by pointers
    if stride_cm is None:
        out_buffers = gl.allocate_shared_memory(c.dtype, [TEAMS] + c.block_type.shape, c.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], cluster.barriers_of(1))
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], cluster.barriers_of(1))
    order = gl.allocate_shared_memory(gl.int64, [TEAMS, 1], cluster.barriers_of(1))
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(free.index(stage), count=1)
    for team in gl.static_range(TEAMS):
        mbarrier.init(order.index(team), count=1)
    fence_async_shared()

    FIXED: gl.constexpr = fixed(
        *(BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_N_REST, BLOCK_SIZE_K, STAGES),
        *(A_TRANSPOSED, B_TRANSPOSED, C_TRANSPOSED, SCALING, ACTIVATION, PDL),
    )
    extents = (M, N, K, GROUP_SIZE_M)
    buffers = (a_buffers, b_buffers, rest_buffers)
    barriers = (ready, free, order)
    outputs = (c, (stride_cm, stride_cn))
    vectors = (bias_ptr, a_scale_ptr, b_scale_ptr, (None, None, None, None))
    gl.warp_specialize(
        [
            (multiply, (extents, buffers, barriers, outputs, out_buffers, vectors, 0, FIXED)),
            (multiply, (extents, buffers, barriers, outputs, out_buffers, vectors, 1, FIXED)),
            (fill, (extents, buffers, (ready, free), (a_desc, b_desc, b_rest_desc), (None, None), FIXED)),
        ],
        [4, 1],
        [MULTIPLIER_REGISTERS, LOADER_REGISTERS],
    )
