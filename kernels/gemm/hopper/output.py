"""A warpgroup's part of C: finished from its sums and stored by way of its own buffers. In Gluon, for Hopper.

What the arguments mean is said at `pointer_kernel.matmul_kernel`, `tma_tile` and `warp_specialized_kernel`.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from tuner.kernels.base.epilogue import activate, saturate

# The names of newer Tritons first, then that of 3.6.
synchronize = getattr(gl, "barrier", None) or gl.thread_barrier
async_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@gluon.constexpr_function
def turns_of(FIXED):  # noqa: ANN201
    """Buffers of a warpgroup that parts of C take turns in: two, but one where there is one part of its width.

    And one where the rest is as wide as a part: it goes out the same way, and there is room for a stage more.
    """
    alone = FIXED.EPILOGUE_PARTS == 1 or FIXED.BLOCK_SIZE_N // FIXED.EPILOGUE_PARTS == FIXED.BLOCK_SIZE_N_REST
    return 1 if alone else 2


@gluon.jit
def out_buffers_of(c, c_rest, unused, stride_cm, FIXED: gl.constexpr):  # noqa: ANN201
    """Every warpgroup's buffers of C on its way out, and the rest's, one after the other.

    `unused` stands for buffers that are not needed: without a rest, or where C is written by pointers.
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
def finished(  # noqa: ANN201, PLR0917
    sums,
    vectors,
    start_m,
    start_n,
    M,
    N,
    FIXED: gl.constexpr,
    out_dtype: gl.constexpr,
):
    """`epilogue.finish` where vectors have layouts: values of the output from sums, scaled, biased, activated."""
    bias_ptr, a_scale_ptr, b_scale_ptr, _ = vectors
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
    ACTIVATION: gl.constexpr = FIXED.ACTIVATION  # Triton 3.6 hands no plain string on
    if ACTIVATION != "none":
        values = activate(values, ACTIVATION)
    return saturate(values, out_dtype).to(out_dtype)


@gluon.constexpr_function
def along(transposed):  # noqa: ANN201
    """A warp's threads side by side in a row, in a column of a transposed matrix."""
    if transposed:
        return gl.BlockedLayout([1, 1], [32, 1], [1, 4], [0, 1])
    return gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])


@gluon.jit
def store_block(  # noqa: ANN201, PLR0917
    c,
    buffer,
    values,
    row,
    column,
    M,
    N,
    strides,
    PENDING: gl.constexpr,
    TRANSPOSED: gl.constexpr,
):
    """Write a block of C by its pointer and strides, or start to through a descriptor of it as it is stored.

    PENDING: stores before it that may still read their buffers, which take turns.
    """
    stride_m, stride_n = strides
    if stride_m is not None:
        # A warp stores neighbours: as the sums lie, each of its stores would touch eight rows.
        values = gl.convert_layout(values, along(TRANSPOSED))
        rows = row + gl.arange(0, values.shape[0], layout=gl.SliceLayout(1, values.type.layout))
        columns = column + gl.arange(0, values.shape[1], layout=gl.SliceLayout(0, values.type.layout))
        inside = (rows < M).expand_dims(1) & (columns < N).expand_dims(0)
        offsets = (rows.to(gl.int64) * stride_m).expand_dims(1) + (columns.to(gl.int64) * stride_n).expand_dims(0)
        gl.store(c + offsets, values, mask=inside)
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


@gluon.jit
def halves(sums, LAYOUT: gl.constexpr):  # noqa: ANN201
    """The left and the right half of sums: each thread has its part of both, nothing moves."""
    ROWS: gl.constexpr = sums.shape[0]
    HALF: gl.constexpr = sums.shape[1] // 2
    left, right = sums.reshape([ROWS, 2, HALF]).permute([0, 2, 1]).split()
    return gl.convert_layout(left, LAYOUT, assert_trivial=True), gl.convert_layout(right, LAYOUT, assert_trivial=True)
