"""Finishes a warpgroup's part of C from its sums, and stores it through its own buffers. In Gluon, for Hopper.

The arguments are described at `pointer.jit.matmul_kernel`, `tma.tile` and `warp_specialized_kernel`.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from tuner.kernels.base.blocks import known_multiple, multiples_known
from tuner.kernels.base.epilogue import activate, saturate
from tuner.kernels.gemm.hopper.tile import layout_of

# Newer Triton releases have the first name, Triton 3.6 the second.
synchronize = getattr(gl, "barrier", None) or gl.thread_barrier
async_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@gluon.constexpr_function
def turns_of(FIXED):  # noqa: ANN201
    """Number of buffers through which a warpgroup stores parts of C, in alternation: one or two.

    There is one if there is only one part. There is also one if the second width of the tile equals that of a part: it
    uses the same buffer, and the memory saved allows one more stage.
    """
    alone = FIXED.EPILOGUE_PARTS == 1 or FIXED.BLOCK_SIZE_N // FIXED.EPILOGUE_PARTS == FIXED.BLOCK_SIZE_N_REST
    return 1 if alone else 2


@gluon.jit
def out_buffers_of(c, c_rest, unused, stride_cm, FIXED: gl.constexpr):  # noqa: ANN201
    """Allocate every warpgroup's buffers for storing C, then those for the tile's second width.

    `unused` is returned in place of buffers that are not needed: without a second width, or if C is stored by pointers.
    """
    c_buffers = unused
    c_rest_buffers = unused
    if stride_cm is None:
        BUFFERS: gl.constexpr = FIXED.WARPGROUPS * turns_of(FIXED)
        c_buffers = gl.allocate_shared_memory(c.dtype, [BUFFERS] + c.block_type.shape, c.layout)
        if FIXED.BLOCK_SIZE_N_REST == FIXED.BLOCK_SIZE_N // FIXED.EPILOGUE_PARTS:
            c_rest_buffers = c_buffers
        elif c_rest is not None:
            c_rest_buffers = gl.allocate_shared_memory(
                c.dtype, [FIXED.WARPGROUPS] + c_rest.block_type.shape, c_rest.layout
            )
    return c_buffers, c_rest_buffers


@gluon.jit
def finished(sums, vectors, place, extents, FIXED: gl.constexpr, out_dtype: gl.constexpr):  # noqa: ANN201, PLR0917
    """`epilogue.finish` for vectors with layouts: scale sums, add the bias, activate and round."""
    bias_ptr, a_scale_ptr, b_scale_ptr, _ = vectors
    start_m, start_n = place
    M, N = extents[0], extents[1]
    values = sums if sums.dtype == gl.int32 and FIXED.SCALING == "none" else sums.to(gl.float32)
    offs_m = start_m + gl.arange(0, sums.shape[0], layout=gl.SliceLayout(1, sums.type.layout))
    offs_n = start_n + gl.arange(0, sums.shape[1], layout=gl.SliceLayout(0, sums.type.layout))
    if FIXED.SCALING == "scalar":
        values *= gl.load(a_scale_ptr) * gl.load(b_scale_ptr)
    elif FIXED.SCALING == "row":
        values *= gl.load(a_scale_ptr + offs_m, mask=offs_m < M, other=0.0).expand_dims(1)
        values *= gl.load(b_scale_ptr + offs_n, mask=offs_n < N, other=0.0).expand_dims(0)
    else:
        known: gl.constexpr = FIXED.SCALING == "none" or FIXED.SCALING == "block"  # noqa: PLR1714  jit bodies have no `in`
        gl.static_assert(known, "unknown scaling")
    if bias_ptr is not None:
        if FIXED.BIAS_ALONG_M:
            bias = gl.load(bias_ptr + offs_m, mask=offs_m < M, other=0.0).expand_dims(1)
        else:
            bias = gl.load(bias_ptr + offs_n, mask=offs_n < N, other=0.0).expand_dims(0)
        values += bias.to(gl.float32)
    ACTIVATION: gl.constexpr = FIXED.ACTIVATION  # Triton 3.6 does not pass on plain strings
    if ACTIVATION != "none":
        values = activate(values, ACTIVATION)
    return saturate(values, out_dtype).to(out_dtype)


@gluon.constexpr_function
def along(transposed):  # noqa: ANN201
    """A layout in which a warp's threads are neighbours in a row, or in a column of a transposed matrix."""
    if transposed:
        return gl.BlockedLayout([1, 1], [32, 1], [1, 4], [0, 1])
    return gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])


@gluon.jit
def store_values(c, values, place, extents, strides):  # noqa: ANN201
    """Store a block of C through its pointer and strides, in the layout that its values have."""
    row, column = place
    M, N = extents
    stride_m, stride_n = strides
    rows = row + gl.arange(0, values.shape[0], layout=gl.SliceLayout(1, values.type.layout))
    columns = column + gl.arange(0, values.shape[1], layout=gl.SliceLayout(0, values.type.layout))
    inside = (rows < M).expand_dims(1) & (columns < N).expand_dims(0)
    offsets = (rows.to(gl.int64) * stride_m).expand_dims(1) + (columns.to(gl.int64) * stride_n).expand_dims(0)
    gl.store(c + offsets, values, mask=inside)


@gluon.jit
def store_block(c, buffer, values, place, extents, strides, PENDING: gl.constexpr, TRANSPOSED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Store a block of C through its pointer and strides, or start to store it through a descriptor of C as stored.

    PENDING: how many earlier stores may still be reading their buffers, which are used in alternation.
    """
    row, column = place
    M, N = extents[0], extents[1]
    if strides[0] is not None:
        # Let each warp store neighbours. In the layout of the sums, each of its stores would touch eight rows.
        store_values(c, gl.convert_layout(values, along(TRANSPOSED)), place, (M, N), strides)
    else:
        tma.store_wait(PENDING)
        synchronize()
        if TRANSPOSED:
            buffer.permute((1, 0)).store(values)
        else:
            buffer.store(values)
        fence_async_shared()
        synchronize()
        if TRANSPOSED:
            async_store(c, [column, row], buffer)
        else:
            async_store(c, [row, column], buffer)


@gluon.constexpr_function
def in_registers(columns, transposed):  # noqa: ANN201
    """A layout of 64 rows and 16 or 32 columns in four warps, of 16 rows each, with eight neighbours in each thread.

    Triton passes values from the sums' layout to it through shared memory, 16 columns of a warpgroup at a time.
    """
    half, warps = [[0, 16]] if columns == 32 else [], [[16, 0], [32, 0]]
    down, across = [[1, 0], [2, 0], [4, 0]], [[0, 1], [0, 2], [0, 4]]
    if transposed:
        return gl.DistributedLinearLayout(down + half, [[8, 0], *across, [0, 8]], warps, [], [64, columns])
    rest = [[8, 0]]
    own, lanes = (across + rest, [[0, 8], *half, *down]) if half else (across, [[0, 8], *down, *rest])
    return gl.DistributedLinearLayout(own, lanes, warps, [], [64, columns])


@gluon.jit
def store_registers(c, values, place, extents, strides, VECTOR: gl.constexpr, TRANSPOSED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Store 64 rows and 16 or 32 columns of C from registers; VECTOR: divides its leading stride, contiguous extent."""
    row, column = place
    if TRANSPOSED:
        row = known_multiple(row, VECTOR)
    else:
        column = known_multiple(column, min(VECTOR, values.shape[1]))
    values = gl.convert_layout(values, in_registers(values.shape[1], TRANSPOSED))
    M, N, stride_m, stride_n = multiples_known(extents[0], extents[1], strides[0], strides[1], VECTOR, TRANSPOSED)
    store_values(c, values, (row, column), (M, N), (stride_m, stride_n))


@gluon.jit
def halves(sums, LAYOUT: gl.constexpr):  # noqa: ANN201
    """The left and the right half of sums, without data movement: each thread holds its part of both."""
    ROWS: gl.constexpr = sums.shape[0]
    HALF: gl.constexpr = sums.shape[1] // 2
    left, right = sums.reshape([ROWS, 2, HALF]).permute([0, 2, 1]).split()
    return gl.convert_layout(left, LAYOUT, assert_trivial=True), gl.convert_layout(right, LAYOUT, assert_trivial=True)


@gluon.jit
def columns_apart(sums, PARTS: gl.constexpr, dtype: gl.constexpr, CTAS: gl.constexpr):  # noqa: ANN201
    """Sums as one, two or four parts of equal columns, without data movement; dtype: the operands'."""
    COLUMNS: gl.constexpr = sums.shape[1]
    parts = (sums,)
    if PARTS == 2:
        parts = halves(sums, layout_of(COLUMNS // 2, dtype, CTAS))
    elif PARTS == 4:
        left, right = halves(sums, layout_of(COLUMNS // 2, dtype, CTAS))
        parts = halves(left, layout_of(COLUMNS // 4, dtype, CTAS)) + halves(right, layout_of(COLUMNS // 4, dtype, CTAS))
    return parts
