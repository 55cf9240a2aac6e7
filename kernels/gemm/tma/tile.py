"""Computes one tile of a product through the tensor memory accelerator's descriptors, which the host makes.

Elements outside an operand are read as 0 and are not stored. No size or stride is compiled in. The arguments are
described at `pointer.jit.matmul_kernel`. An output that TMA cannot write (kernel `padded`) is passed as a pointer with
strides; with a descriptor, the strides are None.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tuner.kernels.base.blocks import release_midway
from tuner.kernels.base.epilogue import finish


@triton.jit
def load(desc, row, column, TRANSPOSED: tl.constexpr):  # noqa: ANN201  jit bodies take no such annotation
    """Load the block of a matrix at (row, column) from a descriptor of the matrix as it is stored."""
    return desc.load([column, row]).T if TRANSPOSED else desc.load([row, column])


@triton.jit
def load_of(  # noqa: ANN201, PLR0917
    desc, index, row, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TRANSPOSED: tl.constexpr
):
    """Load a block of matrix `index` from a descriptor of a batch as it is stored, or of one matrix if it is None."""
    if index is None:
        block = load(desc, row, column, TRANSPOSED)
    elif TRANSPOSED:
        block = desc.load([index, column, row]).reshape(COLUMNS, ROWS).T
    else:
        block = desc.load([index, row, column]).reshape(ROWS, COLUMNS)
    return block


@triton.jit
def sum_products(  # noqa: ANN201, PLR0917
    a_desc,
    b_desc,
    start_m,
    start_n,
    first,
    beyond,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    PRECISION: tl.constexpr,
    MAX_IMPRECISE: tl.constexpr,
    a_index=None,
    b_index=None,
    PDL: tl.constexpr = False,
    TRIGGER: tl.constexpr = 0,
):
    """Sum A @ B over the steps along K from `first` up to `beyond`, for the tile that starts at (start_m, start_n).

    `a_index`, `b_index`: the matrix of a batch, or None if the descriptor is of one matrix.
    PDL, TRIGGER: see `blocks.release_midway`.
    """
    sum_dtype: tl.constexpr = tl.int32 if a_desc.dtype == tl.int8 else tl.float32
    sums = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=sum_dtype)
    for step in range(first, beyond):
        release_midway(step - first, beyond - first, PDL, TRIGGER)
        start_k = step * BLOCK_SIZE_K
        a = load_of(a_desc, a_index, start_m, start_k, BLOCK_SIZE_M, BLOCK_SIZE_K, A_TRANSPOSED)
        b = load_of(b_desc, b_index, start_k, start_n, BLOCK_SIZE_K, BLOCK_SIZE_N, B_TRANSPOSED)
        sums = tl.dot(a, b, sums, input_precision=PRECISION, max_num_imprecise_acc=MAX_IMPRECISE, out_dtype=sum_dtype)
    return sums


@triton.jit
def store(c, start, values, extents, strides, TRANSPOSED: tl.constexpr):  # noqa: ANN201, PLR0917
    """Store a block of a matrix through a descriptor of it as it is stored, or by a pointer and its strides."""
    row, column = start
    stride_m, stride_n = strides
    if stride_m is not None:
        M, N = extents
        offs_m = tl.arange(0, values.shape[0])
        offs_n = tl.arange(0, values.shape[1])
        inside = (offs_m < M - row)[:, None] & (offs_n < N - column)[None, :]
        rows = (row + offs_m).to(tl.int64) * stride_m
        columns = (column + offs_n).to(tl.int64) * stride_n
        tl.store(c + rows[:, None] + columns[None, :], values, mask=inside)
    elif TRANSPOSED:
        c.store([column, row], values.T)
    else:
        c.store([row, column], values)


@triton.jit
def write(  # noqa: ANN201, PLR0917
    c,
    sums,
    vectors,
    start,
    extents,
    strides,
    C_TRANSPOSED: tl.constexpr,
    SCALING: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BIAS_ALONG_M: tl.constexpr = False,
):
    """Store epilogue(sums) at `start` of C, see `epilogue.finish`; extents and strides are C's."""
    out_dtype: tl.constexpr = c.dtype if strides[0] is None else c.dtype.element_ty
    left = (extents[0] - start[0], extents[1] - start[1])
    values = finish(sums, vectors, start, left, BIAS_ALONG_M, SCALING, ACTIVATION, out_dtype)
    store(c, start, values, extents, strides, C_TRANSPOSED)
