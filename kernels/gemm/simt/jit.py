"""A GEMM of float32 by plain multiply-adds; a program computes a tile, or one split of a tile's sum. In Gluon.

`tl.dot` multiplies float32 the same way, but reads operands that are stored along K from shared memory with bank
conflicts. Here a stage is laid out so that a warp's 16-byte reads have none: 16 bytes of each row, swizzled, for
operands along K; rows of the other side as they are for all others. Registers hold `DEPTH` elements of each row.
"""

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from tuner.kernels.base.blocks import await_predecessor, count_blocks, grouped, multiples_known, steps_of
from tuner.kernels.gemm.hopper.output import finished, store_values, synchronize

# Newer Triton releases have the first name, others the second.
copy_async = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared

DEPTH = gl.constexpr(16)
"""Elements along K that registers hold at a time, the fewest that `dot_fma` takes."""
VECTOR = gl.constexpr(4)
"""Elements of 16 bytes, which a thread reads at a time."""
BANKS = gl.constexpr(32)
"""Elements of one row of shared memory's banks."""


@dataclass(frozen=True)
class Fixed:
    """The kernel's constexprs by name."""

    BLOCK_SIZE_M: int
    BLOCK_SIZE_N: int
    BLOCK_SIZE_K: int
    WARPS: int
    WARPS_M: int
    STAGES: int
    A_TRANSPOSED: bool
    B_TRANSPOSED: bool
    EVEN_K: bool
    ACTIVATION: str
    SCALING: str = "none"
    BIAS_ALONG_M: bool = False


@gluon.constexpr_function
def fixed(*constants):  # noqa: ANN002, ANN201
    """Gather constants into one `Fixed`."""
    return Fixed(*constants)


@gluon.constexpr_function
def layout_of_sums(FIXED):  # noqa: ANN201
    """A warp's threads lie 4 by 8, and have rows or columns that follow each other where operands are stored so."""
    own = [VECTOR.value if FIXED.A_TRANSPOSED else 1, 1 if FIXED.B_TRANSPOSED else VECTOR.value]
    return gl.BlockedLayout(own, [4, 8], [FIXED.WARPS_M, FIXED.WARPS // FIXED.WARPS_M], [1, 0])


@gluon.constexpr_function
def layout_of_copies(extent, vector, along_k, FIXED):  # noqa: ANN201
    """Which thread copies what of a stage [extent, BLOCK_SIZE_K]: neighbours copy neighbours."""
    length, warps = FIXED.BLOCK_SIZE_K, FIXED.WARPS
    if along_k:
        lanes = min(32, length // vector)
        return gl.BlockedLayout([1, vector], [32 // lanes, lanes], [warps, 1], [1, 0])
    lanes = min(32, extent // vector)
    return gl.BlockedLayout([vector, 1], [lanes, 32 // lanes], [1, warps], [0, 1])


@gluon.constexpr_function
def layout_of_stage(along_k, FIXED):  # noqa: ANN201
    """How a stage [extent, BLOCK_SIZE_K] lies in shared memory: 16 bytes of 8 neighbouring rows in different banks."""
    length = FIXED.BLOCK_SIZE_K
    if along_k:
        return gl.SwizzledSharedLayout(VECTOR.value, max(1, BANKS.value // length), min(8, length // 4), [1, 0])
    return gl.SwizzledSharedLayout(1, 1, 1, [0, 1])


@gluon.jit
def first_of(pointer, start, stride, step, stride_k, FIXED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Pointer to the first element of a step's tile."""
    along_k = gl.to_tensor(step).to(gl.int64) * FIXED.BLOCK_SIZE_K * stride_k
    return pointer + gl.to_tensor(start).to(gl.int64) * stride + along_k


@gluon.jit
def offsets_of(  # noqa: ANN201, PLR0917
    start, extent, strides, LAYOUT: gl.constexpr, ROWS: gl.constexpr, WIDE: gl.constexpr, FIXED: gl.constexpr
):
    """Of a tile [ROWS, BLOCK_SIZE_K]: offsets of its elements, which rows exist, and the numbers of its columns."""
    stride, stride_k = strides
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, FIXED.BLOCK_SIZE_K, gl.SliceLayout(0, LAYOUT))
    inside = rows < extent - start
    if WIDE:
        offsets = (rows.to(gl.int64) * stride).expand_dims(1) + (columns.to(gl.int64) * stride_k).expand_dims(0)
    else:
        offsets = (rows * stride).expand_dims(1) + (columns * stride_k).expand_dims(0)
    return offsets, inside.expand_dims(1), columns.expand_dims(0)


@gluon.jit
def copy_step(buffers, stage, tiles, insides, columns, step, ends, FIXED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Start to copy a step of both operands, if there is one; what lies beyond their ends becomes 0.

    ends: K, and one past the last of the program's steps.
    """
    K, beyond = ends
    for side in gl.static_range(2):
        there = insides[side] & (step < beyond)
        if not FIXED.EVEN_K:
            there &= columns[side] < K - step * FIXED.BLOCK_SIZE_K
        copy_async(buffers[side].index(stage), tiles[side], mask=there)
    async_copy.commit_group()


@gluon.jit
def add_step(sums, buffers, stage, LAYOUT: gl.constexpr, FIXED: gl.constexpr):  # noqa: ANN201
    """Add the products of a stage to the sums, one element along K after the other."""
    a, b = buffers[0].index(stage), buffers[1].index(stage).permute([1, 0])
    LENGTH: gl.constexpr = FIXED.BLOCK_SIZE_K
    for first in gl.static_range(0, LENGTH, DEPTH):
        rows = a.slice(first, DEPTH, 1).load(gl.DotOperandLayout(0, LAYOUT, 0))
        columns = b.slice(first, DEPTH, 0).load(gl.DotOperandLayout(1, LAYOUT, 0))
        sums = gl.dot_fma(rows, columns, sums)
    return sums


@gluon.jit
def own_part(partials_ptr, tile, split, sums):  # noqa: ANN201
    """Pointers to where a split's sums of a tile are kept."""
    ROWS: gl.constexpr = sums.shape[0]
    COLUMNS: gl.constexpr = sums.shape[1]
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, sums.type.layout))
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, sums.type.layout))
    number = gl.to_tensor(tile).to(gl.int64) * gl.num_programs(1) + split
    return partials_ptr + number * (ROWS * COLUMNS) + (rows * COLUMNS).expand_dims(1) + columns.expand_dims(0)


@gluon.jit
def publish(sums, partials_ptr, counters_ptr, tile):  # noqa: ANN201
    """As `blocks.publish`: store a split's sums, and return whether this program is the last of its tile."""
    gl.store(own_part(partials_ptr, tile, gl.program_id(1), sums), sums)
    synchronize()
    last = gl.atomic_add(counters_ptr + tile, 1, sem="acq_rel", scope="gpu") == gl.num_programs(1) - 1
    if last:
        gl.store(counters_ptr + tile, 0)
    return last


@gluon.jit
def collect(sums, partials_ptr, tile):  # noqa: ANN201
    """Add up the sums of all splits of a tile, always in the same order."""
    total = gl.zeros_like(sums)
    for split in range(gl.num_programs(1)):
        # Bypass the L1, which does not see stores by other multiprocessors.
        total += gl.load(own_part(partials_ptr, tile, split, sums), cache_modifier=".cg")
    return total


@gluon.jit(
    do_not_specialize=["M", "N", "K", "GROUP_SIZE_M"],
    do_not_specialize_on_alignment=["stride_am", "stride_ak", "stride_bk", "stride_bn", "stride_cm", "stride_cn"],
)
def simt_kernel(  # noqa: ANN201, PLR0917
    a_ptr,
    b_ptr,
    c_ptr,
    bias_ptr,
    partials_ptr,
    counters_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    GROUP_SIZE_M,
    BLOCK_SIZE_M: gl.constexpr,
    BLOCK_SIZE_N: gl.constexpr,
    BLOCK_SIZE_K: gl.constexpr,
    WARPS: gl.constexpr,
    WARPS_M: gl.constexpr,
    STAGES: gl.constexpr,
    A_TRANSPOSED: gl.constexpr,
    B_TRANSPOSED: gl.constexpr,
    C_TRANSPOSED: gl.constexpr,
    A_VECTOR: gl.constexpr,
    B_VECTOR: gl.constexpr,
    C_VECTOR: gl.constexpr,
    EVEN_K: gl.constexpr,
    WIDE: gl.constexpr,
    ACTIVATION: gl.constexpr,
    PDL: gl.constexpr,
):
    """Compute C[M, N] = epilogue(A[M, K] @ B[K, N]) of float32, see `epilogue.finish`.

    The arguments are described at `pointer.jit.matmul_kernel`.

    Args:
        BLOCK_SIZE_K: a multiple of `DEPTH`.
        WARPS, WARPS_M: num_warps, and how many of them lie along M.
        STAGES: steps in shared memory, at least 2: one is read while the others arrive.
    """
    FIXED: gl.constexpr = fixed(
        *(BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K, WARPS, WARPS_M, STAGES, A_TRANSPOSED, B_TRANSPOSED),
        *(EVEN_K, ACTIVATION),
    )
    SUMS: gl.constexpr = layout_of_sums(FIXED)
    A_LAYOUT: gl.constexpr = layout_of_copies(BLOCK_SIZE_M, A_VECTOR, not A_TRANSPOSED, FIXED)
    B_LAYOUT: gl.constexpr = layout_of_copies(BLOCK_SIZE_N, B_VECTOR, B_TRANSPOSED, FIXED)
    A_STAGE: gl.constexpr = layout_of_stage(not A_TRANSPOSED, FIXED)
    B_STAGE: gl.constexpr = layout_of_stage(B_TRANSPOSED, FIXED)
    M, K, stride_am, stride_ak = multiples_known(M, K, stride_am, stride_ak, A_VECTOR, A_TRANSPOSED)
    K, N, stride_bk, stride_bn = multiples_known(K, N, stride_bk, stride_bn, B_VECTOR, B_TRANSPOSED)
    M, N, stride_cm, stride_cn = multiples_known(M, N, stride_cm, stride_cn, C_VECTOR, C_TRANSPOSED)
    tile = gl.program_id(0)
    row, column = grouped(tile, count_blocks(M, BLOCK_SIZE_M), count_blocks(N, BLOCK_SIZE_N), GROUP_SIZE_M)
    start_m, start_n = row * BLOCK_SIZE_M, column * BLOCK_SIZE_N
    first, beyond = steps_of(K, BLOCK_SIZE_K, partials_ptr)

    a_offsets, in_m, a_columns = offsets_of(start_m, M, (stride_am, stride_ak), A_LAYOUT, BLOCK_SIZE_M, WIDE, FIXED)
    b_offsets, in_n, b_columns = offsets_of(start_n, N, (stride_bn, stride_bk), B_LAYOUT, BLOCK_SIZE_N, WIDE, FIXED)
    a_tile = first_of(a_ptr, start_m, stride_am, first, stride_ak, FIXED) + a_offsets
    b_tile = first_of(b_ptr, start_n, stride_bn, first, stride_bk, FIXED) + b_offsets
    a_step = gl.to_tensor(stride_ak).to(gl.int64) * BLOCK_SIZE_K
    b_step = gl.to_tensor(stride_bk).to(gl.int64) * BLOCK_SIZE_K
    buffers = (
        gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_SIZE_M, BLOCK_SIZE_K], A_STAGE),
        gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_SIZE_N, BLOCK_SIZE_K], B_STAGE),
    )
    insides, columns = (in_m, in_n), (a_columns, b_columns)

    await_predecessor(PDL)
    for ahead in gl.static_range(STAGES - 1):
        copy_step(buffers, ahead, (a_tile, b_tile), insides, columns, first + ahead, (K, beyond), FIXED)
        a_tile += a_step
        b_tile += b_step
    sums = gl.zeros([BLOCK_SIZE_M, BLOCK_SIZE_N], gl.float32, SUMS)
    stage = 0
    free = STAGES - 1
    for step in range(first, beyond):
        # This stage has arrived, and all threads have read the one before it, which is filled again.
        async_copy.wait_group(STAGES - 2)
        synchronize()
        copy_step(buffers, free, (a_tile, b_tile), insides, columns, step + STAGES - 1, (K, beyond), FIXED)
        a_tile += a_step
        b_tile += b_step
        sums = add_step(sums, buffers, stage, SUMS, FIXED)
        free = stage
        stage = gl.where(stage == STAGES - 1, 0, stage + 1)
    async_copy.wait_group(0)

    mine = True
    if partials_ptr is not None:
        mine = publish(sums, partials_ptr, counters_ptr, tile)
    if mine:
        if partials_ptr is not None:
            sums = collect(sums, partials_ptr, tile)
        place, vectors = (start_m, start_n), (bias_ptr, None, None, None)
        values = finished(sums, vectors, place, (M, N), FIXED, c_ptr.dtype.element_ty)
        store_values(c_ptr, values, place, (M, N), (stride_cm, stride_cn))
