"""Computes many products of different sizes in one launch; the device finds out how many tiles each product has.

Programs take tile after tile, as in Triton's tutorial 08. The product to which a tile belongs is found by a single
comparison with the last tiles of all products, instead of one by one. The arguments are described at
`pointer.jit.matmul_kernel`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tuner.kernels.base.blocks import any_size, await_predecessor, count_blocks, grouped, known_multiple
from tuner.kernels.gemm.pointer.tile import fixed, multiply

COLUMNS = tl.constexpr(12)
"""Columns of `listed_kernel`'s table: the addresses of A, B and C; M, N, K; row and column strides of A, B and C."""


@triton.jit
def blocks_of(extents, BLOCK: tl.constexpr):  # noqa: ANN201  jit bodies take no such annotation
    """Number of blocks that cover each extent, 0 for an extent below 1."""
    return tl.where(extents > 0, count_blocks(tl.maximum(extents, 1), BLOCK), 0)


@triton.jit
def locate(beyond, tile):  # noqa: ANN201
    """The product to which a tile belongs, and the tile's number in it; `beyond`: one past each product's last tile."""
    before = beyond <= tile
    return tl.sum(before.to(tl.int32), axis=0), tile - tl.max(tl.where(before, beyond, 0), axis=0)


@triton.jit
def bounds(ends_ptr, group, GROUPS, M):  # noqa: ANN201
    """First row of one or several groups, and one past the last, limited to M rows whatever the ends are."""
    known = group < GROUPS
    first = tl.load(ends_ptr + group - 1, mask=known & (group > 0), other=0)
    beyond = tl.load(ends_ptr + group, mask=known, other=0)
    first = tl.minimum(tl.maximum(first, 0), M)
    return first, tl.maximum(tl.minimum(beyond, M), first)


@triton.jit
def last_tiles(ends_ptr, GROUPS, M, tiles_n, BLOCK_SIZE_M: tl.constexpr, BLOCK_GROUPS: tl.constexpr):  # noqa: ANN201, PLR0917
    """One past the last tile of each group, where the tiles of all groups are numbered consecutively."""
    first, last = bounds(ends_ptr, tl.arange(0, BLOCK_GROUPS), GROUPS, M)
    return tl.cumsum(blocks_of(last - first, BLOCK_SIZE_M) * tiles_n, axis=0)


@triton.jit
def place(tile, beyond, ends_ptr, GROUPS, M, tiles_n, GROUP_SIZE_M, BLOCK_SIZE_M: tl.constexpr):  # noqa: ANN201, PLR0917
    """The group of a tile, the group's first row and one past its last, and the tile's row and column in the group."""
    group, within = locate(beyond, tile)
    start, end = bounds(ends_ptr, group, GROUPS, M)
    pid_m, pid_n = grouped(within, count_blocks(end - start, BLOCK_SIZE_M), tiles_n, GROUP_SIZE_M)
    return group, start, end, pid_m, pid_n


@any_size
def grouped_kernel(  # noqa: ANN201, PLR0917
    a_ptr,
    b_ptr,
    c_ptr,
    bias_ptr,
    ends_ptr,
    M,
    N,
    K,
    GROUPS,
    stride_am,
    stride_ak,
    stride_bg,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    GROUP_SIZE_M,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    C_TRANSPOSED: tl.constexpr,
    A_VECTOR: tl.constexpr,
    B_VECTOR: tl.constexpr,
    C_VECTOR: tl.constexpr,
    EVEN_K: tl.constexpr,
    WIDE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    MAX_IMPRECISE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute rows of C = epilogue(rows of A @ B[group]); `ends_ptr` [GROUPS] gives one past each group's last row.

    The bias is [GROUPS, N]. BLOCK_GROUPS is a power of two that is at least GROUPS. Rows of C that belong to no group
    are not written.
    """
    FIXED: tl.constexpr = fixed(
        *(BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K, A_TRANSPOSED, B_TRANSPOSED, C_TRANSPOSED, A_VECTOR, B_VECTOR),
        *(C_VECTOR, EVEN_K, WIDE, "none", ACTIVATION, PRECISION, MAX_IMPRECISE),
    )
    await_predecessor(PDL)
    tiles_n = count_blocks(N, BLOCK_SIZE_N)
    beyond = last_tiles(ends_ptr, GROUPS, M, tiles_n, BLOCK_SIZE_M, BLOCK_GROUPS)
    for tile in range(tl.program_id(0), tl.max(beyond, axis=0), tl.num_programs(0)):
        group, start, end, pid_m, pid_n = place(tile, beyond, ends_ptr, GROUPS, M, tiles_n, GROUP_SIZE_M, BLOCK_SIZE_M)
        start = start.to(tl.int64)
        pointers = (
            a_ptr + start * (stride_am if A_TRANSPOSED else known_multiple(stride_am, A_VECTOR)),
            b_ptr + group.to(tl.int64) * known_multiple(stride_bg, B_VECTOR),
            c_ptr + start * (stride_cm if C_TRANSPOSED else known_multiple(stride_cm, C_VECTOR)),
        )
        extents = (end - start.to(tl.int32), N, K)
        strides = (stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn)
        vectors = (None if bias_ptr is None else bias_ptr + group.to(tl.int64) * N, None, None)
        multiply(pointers, vectors, (pid_m, pid_n), extents, strides, (None, None), FIXED)


@triton.jit
def pointer_at(cell_ptr, like_ptr, VECTOR: tl.constexpr):  # noqa: ANN201
    """Read an address from a cell as a pointer of `like_ptr`'s type, aligned to VECTOR elements."""
    bytes_known: tl.constexpr = VECTOR * like_ptr.dtype.element_ty.primitive_bitwidth // 8
    return tl.multiple_of(tl.load(cell_ptr).to(like_ptr.dtype), bytes_known)


@triton.jit
def strides_at(cell_ptr, STORED: tl.constexpr, WIDE: tl.constexpr):  # noqa: ANN201
    """Read the row and column strides from two cells; the compiler knows the one that is 1 according to STORED."""
    along_rows = tl.load(cell_ptr)
    along_columns = tl.load(cell_ptr + 1)
    if not WIDE:
        along_rows = along_rows.to(tl.int32)
        along_columns = along_columns.to(tl.int32)
    return 1 if STORED == "t" else along_rows, 1 if STORED == "n" else along_columns


@any_size
def listed_kernel(  # noqa: ANN201, PLR0917
    table_ptr,
    a_like_ptr,
    b_like_ptr,
    c_like_ptr,
    GROUPS,
    GROUP_SIZE_M,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    A_STORED: tl.constexpr,
    B_STORED: tl.constexpr,
    C_STORED: tl.constexpr,
    A_VECTOR: tl.constexpr,
    B_VECTOR: tl.constexpr,
    C_VECTOR: tl.constexpr,
    EVEN_K: tl.constexpr,
    WIDE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    MAX_IMPRECISE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute C[i] = epilogue(A[i] @ B[i]) for products of any sizes, described by int64 `table_ptr` [GROUPS, COLUMNS].

    A_STORED, B_STORED, C_STORED: "n" if all of these matrices have contiguous rows, "t" if all have contiguous columns,
    else "". The pointers `..._like_ptr` only give types. EVEN_K: BLOCK_SIZE_K divides every K, and none is 0.
    """
    FIXED: tl.constexpr = fixed(
        *(BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K, A_STORED == "t", B_STORED == "t", C_STORED == "t", A_VECTOR),
        *(B_VECTOR, C_VECTOR, EVEN_K, WIDE, "none", ACTIVATION, PRECISION, MAX_IMPRECISE),
    )
    await_predecessor(PDL)
    products = tl.arange(0, BLOCK_GROUPS)
    rows = tl.load(table_ptr + products * COLUMNS + 3, mask=products < GROUPS, other=0).to(tl.int32)
    columns = tl.load(table_ptr + products * COLUMNS + 4, mask=products < GROUPS, other=0).to(tl.int32)
    beyond = tl.cumsum(blocks_of(rows, BLOCK_SIZE_M) * blocks_of(columns, BLOCK_SIZE_N), axis=0)
    for tile in range(tl.program_id(0), tl.max(beyond, axis=0), tl.num_programs(0)):
        product, within = locate(beyond, tile)
        row_ptr = table_ptr + product * COLUMNS
        M = tl.load(row_ptr + 3).to(tl.int32)
        N = tl.load(row_ptr + 4).to(tl.int32)
        K = tl.load(row_ptr + 5).to(tl.int32)
        stride_am, stride_ak = strides_at(row_ptr + 6, A_STORED, WIDE)
        stride_bk, stride_bn = strides_at(row_ptr + 8, B_STORED, WIDE)
        stride_cm, stride_cn = strides_at(row_ptr + 10, C_STORED, WIDE)
        tiles_m, tiles_n = count_blocks(M, BLOCK_SIZE_M), count_blocks(N, BLOCK_SIZE_N)
        pid_m, pid_n = grouped(within, tiles_m, tiles_n, GROUP_SIZE_M)
        pointers = (
            pointer_at(row_ptr, a_like_ptr, A_VECTOR),
            pointer_at(row_ptr + 1, b_like_ptr, B_VECTOR),
            pointer_at(row_ptr + 2, c_like_ptr, C_VECTOR),
        )
        strides = (stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn)
        multiply(pointers, (None, None, None), (pid_m, pid_n), (M, N, K), strides, (None, None), FIXED)


@triton.jit(
    do_not_specialize=["ROW", "A", "B", "C", "M", "N", "K", "S0", "S1", "S2", "S3", "S4", "S5"],
)
def write_row(table_ptr, ROW, A, B, C, M, N, K, S0, S1, S2, S3, S4, S5):  # noqa: ANN201, PLR0917
    """Write one row of `listed_kernel`'s table, from a launch's arguments instead of the host's memory."""
    values = (A, B, C, M, N, K, S0, S1, S2, S3, S4, S5)
    for column in tl.static_range(COLUMNS):
        tl.store(table_ptr + ROW * COLUMNS + column, values[column].to(tl.int64))
