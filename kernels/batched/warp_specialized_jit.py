"""The persistent kernel of `bmm` for Hopper in which one warp loads and warpgroups multiply. Written in Gluon.

It is `hopper.warp_specialized_jit` for many products, loaded and stored through descriptors [batch, rows, columns]. The
loading warp is tiles ahead where K is short, and stores are TMA's, so that neither is awaited. The warpgroups divide a
tile's rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from tuner.kernels.base.blocks import await_predecessor, count_blocks, grouped, moved_within
from tuner.kernels.gemm.hopper.loader import async_load
from tuner.kernels.gemm.hopper.output import async_store, columns_apart, finished, synchronize, turns_of
from tuner.kernels.gemm.hopper.register_operand import sum_products
from tuner.kernels.gemm.hopper.tile import following, rows_each

_Buffer = gl.shared_memory_descriptor
# Newer Triton releases have the first name, Triton 3.6 and 3.7 the second.
reinterpret = getattr(_Buffer, "reinterpret", None) or _Buffer._reinterpret


@dataclass(frozen=True)
class Fixed:
    """The kernel's constexprs by name, and what `hopper.tile` and `hopper.output` ask for besides."""

    BLOCK_SIZE_M: int
    BLOCK_SIZE_N: int
    BLOCK_SIZE_K: int
    EPILOGUE_PARTS: int
    WARPGROUPS: int
    STAGES: int
    A_TRANSPOSED: bool
    B_TRANSPOSED: bool
    C_TRANSPOSED: bool
    BIAS_ALONG_M: bool
    ACTIVATION: str
    PDL: bool
    BLOCK_SIZE_N_REST: int = 0
    CTAS: int = 1
    SCALING: str = "none"


@gluon.constexpr_function
def fixed(*constants):  # noqa: ANN002, ANN201
    """Gather constants into one `Fixed`."""
    return Fixed(*constants)


@gluon.constexpr_function
def matrix_layout(block_shape, dtype):  # noqa: ANN201
    """The layout in shared memory of a block [1, rows, columns] without its first dimension."""
    return gl.NVMMASharedLayout.get_default_for(list(block_shape[1:]), dtype)


@gluon.jit
def buffers_for(desc, BUFFERS: gl.constexpr):  # noqa: ANN201
    """Allocate buffers for the matrices of a descriptor's blocks."""
    SHAPE: gl.constexpr = desc.block_type.shape
    LAYOUT: gl.constexpr = matrix_layout(SHAPE, desc.dtype)
    return gl.allocate_shared_memory(desc.dtype, [BUFFERS] + SHAPE[1:], LAYOUT)


@gluon.jit
def as_block(buffer, desc):  # noqa: ANN201
    """A buffer's matrix as a block of its descriptor."""
    return reinterpret(buffer, desc.dtype, desc.block_type.shape, desc.layout)


@gluon.jit
def count_tiles(extents, FIXED: gl.constexpr):  # noqa: ANN201
    """Number of tiles of all products."""
    M, N, _, B, _ = extents
    return B * count_blocks(M, FIXED.BLOCK_SIZE_M) * count_blocks(N, FIXED.BLOCK_SIZE_N)


@gluon.jit
def place(tile, extents, FIXED: gl.constexpr):  # noqa: ANN201
    """The product of a tile, and the tile's first row and column."""
    M, N, _, _, GROUP_SIZE_M = extents
    tiles_m = count_blocks(M, FIXED.BLOCK_SIZE_M)
    tiles_n = count_blocks(N, FIXED.BLOCK_SIZE_N)
    index = tile // (tiles_m * tiles_n)
    row, column = grouped(tile % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP_SIZE_M)
    start_m = moved_within(row * FIXED.BLOCK_SIZE_M, M, FIXED.BLOCK_SIZE_M)
    return index, start_m, moved_within(column * FIXED.BLOCK_SIZE_N, N, FIXED.BLOCK_SIZE_N)


@gluon.jit
def load_block(desc, index, row, column, barrier, buffer, TRANSPOSED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Start to load a block of one matrix at (row, column) from a descriptor of the batch as it is stored."""
    coordinates = [index, column, row] if TRANSPOSED else [index, row, column]
    async_load(desc, coordinates, barrier, as_block(buffer, desc))


@gluon.jit
def fill(extents, buffers, barriers, descriptors, batched, FIXED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Run the loading warp, which fills free stages, tile after tile."""
    a_buffers, b_buffers = buffers
    ready, free = barriers
    a_desc, b_desc = descriptors
    a_batched, b_batched = batched
    STAGE_ELEMENTS: gl.constexpr = (FIXED.BLOCK_SIZE_M + FIXED.BLOCK_SIZE_N) * FIXED.BLOCK_SIZE_K
    STAGE_BYTES: gl.constexpr = STAGE_ELEMENTS * a_desc.dtype.primitive_bitwidth // 8
    # Only these loads need to wait: the bias is read and results stored after the first load has arrived.
    await_predecessor(FIXED.PDL)
    steps = count_blocks(extents[2], FIXED.BLOCK_SIZE_K)
    stage = 0
    phase = 1  # the phase of unused barriers: stages are free at first
    for tile in range(gl.program_id(0), count_tiles(extents, FIXED), gl.num_programs(0)):
        index, start_m, start_n = place(tile, extents, FIXED)
        for step in range(steps):
            start_k = step * FIXED.BLOCK_SIZE_K
            barrier = ready.index(stage)
            mbarrier.wait(free.index(stage), phase)
            mbarrier.expect(barrier, STAGE_BYTES)
            a, b = a_buffers.index(stage), b_buffers.index(stage)
            load_block(a_desc, index * a_batched, start_m, start_k, barrier, a, FIXED.A_TRANSPOSED)
            load_block(b_desc, index * b_batched, start_k, start_n, barrier, b, FIXED.B_TRANSPOSED)
            stage, phase = following(stage, phase, FIXED.STAGES)


@gluon.jit
def store_block(  # noqa: ANN201, PLR0917
    c_desc, index, row, column, buffer, values, PENDING: gl.constexpr, TRANSPOSED: gl.constexpr
):
    """Start to store a block of one matrix; PENDING earlier stores may still be reading their buffers."""
    tma.store_wait(PENDING)
    synchronize()
    if TRANSPOSED:
        buffer.permute((1, 0)).store(values)
    else:
        buffer.store(values)
    fence_async_shared()
    synchronize()
    coordinates = [index, column, row] if TRANSPOSED else [index, row, column]
    async_store(c_desc, coordinates, as_block(buffer, c_desc))


@gluon.jit
def multiply(  # noqa: ANN201, PLR0917
    extents, buffers, barriers, c_desc, c_buffers, bias_ptr, WARPGROUP: gl.constexpr, FIXED: gl.constexpr
):
    """Run a multiplying warpgroup, which computes its share of the rows of every tile of its program.

    Every warpgroup awaits every fill of every stage, because a barrier only tells even fills from odd ones. Warpgroups
    that take tiles in turn need barriers of their own for that, as `ping_pong_kernel` has.
    """
    FIRST: gl.constexpr = WARPGROUP * rows_each(FIXED)
    PARTS: gl.constexpr = FIXED.EPILOGUE_PARTS
    PART: gl.constexpr = FIXED.BLOCK_SIZE_N // PARTS
    TURNS: gl.constexpr = turns_of(FIXED)
    dtype: gl.constexpr = buffers[0].dtype
    steps = count_blocks(extents[2], FIXED.BLOCK_SIZE_K)
    stage = 0
    phase = 0
    for tile in range(gl.program_id(0), count_tiles(extents, FIXED), gl.num_programs(0)):
        index, start_m, start_n = place(tile, extents, FIXED)
        start_m += FIRST
        # `sum_products` ignores the third buffers of a tile without a second width.
        sums, _, stage, phase = sum_products(
            (buffers[0], buffers[1], buffers[1]), barriers, stage, phase, steps, FIRST, FIXED
        )
        parts = columns_apart(sums, PARTS, dtype, 1)
        for part in gl.static_range(PARTS):
            at = (start_m, start_n + part * PART)
            values = finished(parts[part], (bias_ptr, None, None, None), at, extents, FIXED, c_desc.dtype)
            buffer = c_buffers.index(WARPGROUP * TURNS + part % TURNS)
            store_block(c_desc, index, at[0], at[1], buffer, values, TURNS - 1, FIXED.C_TRANSPOSED)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["M", "N", "K", "B", "A_BATCHED", "B_BATCHED", "GROUP_SIZE_M"])
def bmm_kernel(  # noqa: ANN201, PLR0917
    a_desc,
    b_desc,
    c_desc,
    bias_ptr,
    M,
    N,
    K,
    B,
    A_BATCHED,
    B_BATCHED,
    GROUP_SIZE_M,
    BLOCK_SIZE_M: gl.constexpr,
    BLOCK_SIZE_N: gl.constexpr,
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
    ACTIVATION: gl.constexpr,
    PDL: gl.constexpr,
):
    """Compute tiles of B products one after the other, C[i] = epilogue(A[i] @ B[i]).

    A_BATCHED, B_BATCHED: 0 if all products share one matrix, else 1.
    WARPGROUPS: 1 or 2 multiplying warpgroups; the launch's num_warps is 4, those of the first.
    """
    FIXED: gl.constexpr = fixed(
        *(BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K, EPILOGUE_PARTS, WARPGROUPS, STAGES),
        *(A_TRANSPOSED, B_TRANSPOSED, C_TRANSPOSED, BIAS_ALONG_M, ACTIVATION, PDL),
    )
    C_BUFFERS: gl.constexpr = WARPGROUPS * turns_of(FIXED)
    buffers = (buffers_for(a_desc, STAGES), buffers_for(b_desc, STAGES))
    c_buffers = buffers_for(c_desc, C_BUFFERS)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(free.index(stage), count=WARPGROUPS)
    fence_async_shared()
    extents = (M, N, K, B, GROUP_SIZE_M)
    barriers = (ready, free)
    descriptors = (a_desc, b_desc)
    batched = (A_BATCHED, B_BATCHED)
    if WARPGROUPS == 1:
        gl.warp_specialize(
            [
                (multiply, (extents, buffers, barriers, c_desc, c_buffers, bias_ptr, 0, FIXED)),
                (fill, (extents, buffers, barriers, descriptors, batched, FIXED)),
            ],
            [1],
            [LOADER_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (multiply, (extents, buffers, barriers, c_desc, c_buffers, bias_ptr, 0, FIXED)),
                (multiply, (extents, buffers, barriers, c_desc, c_buffers, bias_ptr, 1, FIXED)),
                (fill, (extents, buffers, barriers, descriptors, batched, FIXED)),
            ],
            [4, 1],
            [MULTIPLIER_REGISTERS, LOADER_REGISTERS],
        )
