"""A warp that only loads beside warpgroups that only multiply: a persistent GEMM for Hopper, in Gluon.

The one fills a ring of stages by TMA; the others empty it by wgmma and store their rows of the tile, while the next
tile's loads fly. `tl.range(warp_specialize=True)` acts on few shapes of Hopper; Gluon says it outright.
The arguments are those of `tma_kernel.composite_kernel`; `BLOCK_SIZE_N_REST` is 0 where a tile has one width.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
)

from tuner.kernels.blocks import await_predecessor, count_blocks, grouped
from tuner.kernels.warp_specialized_tile import (
    finished,
    following,
    halves,
    layout_of,
    store_block,
    sum_by_steps,
    sum_products,
)

# The name of newer Tritons first, then that of 3.6.
async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared


@gluon.jit
def load_block(desc, row, column, barrier, buffer, TRANSPOSED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Start to load a block of a matrix, by its own row and column, from a descriptor of it as it is stored."""
    if TRANSPOSED:
        async_load(desc, [column, row], barrier, buffer)
    else:
        async_load(desc, [row, column], barrier, buffer)


@gluon.jit
def fill(  # noqa: ANN201, PLR0917
    descriptors,
    buffers,
    ready,
    free,
    M,
    N,
    K,
    GROUP_SIZE_M,
    BLOCK_SIZE_M: gl.constexpr,
    BLOCK_SIZE_N: gl.constexpr,
    BLOCK_SIZE_N_REST: gl.constexpr,
    BLOCK_SIZE_K: gl.constexpr,
    STAGES: gl.constexpr,
    A_TRANSPOSED: gl.constexpr,
    B_TRANSPOSED: gl.constexpr,
    PDL: gl.constexpr,
):
    """The loading warp: fills every stage that is free, tile after tile."""
    a_desc, b_desc, rest_desc = descriptors
    a_buffers, b_buffers, rest_buffers = buffers
    WIDTH: gl.constexpr = BLOCK_SIZE_N + BLOCK_SIZE_N_REST
    STAGE_BYTES: gl.constexpr = (BLOCK_SIZE_M + WIDTH) * BLOCK_SIZE_K * a_desc.dtype.primitive_bitwidth // 8
    tiles_m = count_blocks(M, BLOCK_SIZE_M)
    tiles_n = count_blocks(N, WIDTH)
    # Only these loads read what the predecessor wrote: results are stored, and scales read, after the first of them.
    await_predecessor(PDL)
    stage = 0
    phase = 1  # of barriers that nobody has used: a stage is free at first
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        pid_m, pid_n = grouped(tile, tiles_m, tiles_n, GROUP_SIZE_M)
        start_m = pid_m * BLOCK_SIZE_M
        start_n = pid_n * WIDTH
        for step in range(count_blocks(K, BLOCK_SIZE_K)):
            start_k = step * BLOCK_SIZE_K
            barrier = ready.index(stage)
            mbarrier.wait(free.index(stage), phase)
            mbarrier.expect(barrier, STAGE_BYTES)
            load_block(a_desc, start_m, start_k, barrier, a_buffers.index(stage), A_TRANSPOSED)
            load_block(b_desc, start_k, start_n, barrier, b_buffers.index(stage), B_TRANSPOSED)
            if BLOCK_SIZE_N_REST > 0:
                rest = start_n + BLOCK_SIZE_N
                load_block(rest_desc, start_k, rest, barrier, rest_buffers.index(stage), B_TRANSPOSED)
            stage, phase = following(stage, phase, STAGES)


@gluon.jit
def multiply(  # noqa: ANN201, PLR0917
    outputs,
    strides,
    buffers,
    out_buffers,
    vectors,
    scale_strides,
    ready,
    free,
    M,
    N,
    K,
    GROUP_SIZE_M,
    FIRST: gl.constexpr,
    BLOCK_SIZE_M: gl.constexpr,
    BLOCK_SIZE_N: gl.constexpr,
    BLOCK_SIZE_N_REST: gl.constexpr,
    BLOCK_SIZE_K: gl.constexpr,
    EPILOGUE_PARTS: gl.constexpr,
    WARPGROUPS: gl.constexpr,
    STAGES: gl.constexpr,
    A_TRANSPOSED: gl.constexpr,
    B_TRANSPOSED: gl.constexpr,
    C_TRANSPOSED: gl.constexpr,
    BIAS_ALONG_M: gl.constexpr,
    BY_STEPS: gl.constexpr,
    SCALING: gl.constexpr,
    A_GROUP: gl.constexpr,
    B_GROUP: gl.constexpr,
    ACTIVATION: gl.constexpr,
):
    """A multiplying warpgroup: the rows from FIRST on of every tile of its program."""
    c, c_rest = outputs
    a_buffers, _, _ = buffers
    c_buffers, c_rest_buffer = out_buffers
    ROWS: gl.constexpr = BLOCK_SIZE_M // WARPGROUPS
    PART: gl.constexpr = BLOCK_SIZE_N // EPILOGUE_PARTS
    PENDING: gl.constexpr = 0 if EPILOGUE_PARTS == 1 else 1  # stores, where two buffers take turns
    WIDTH: gl.constexpr = BLOCK_SIZE_N + BLOCK_SIZE_N_REST
    dtype: gl.constexpr = a_buffers.dtype
    out_dtype: gl.constexpr = c.dtype if strides[0] is None else c.dtype.element_ty
    tiles_m = count_blocks(M, BLOCK_SIZE_M)
    tiles_n = count_blocks(N, WIDTH)
    stage = 0
    phase = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        pid_m, pid_n = grouped(tile, tiles_m, tiles_n, GROUP_SIZE_M)
        start_m = pid_m * BLOCK_SIZE_M + FIRST
        start_n = pid_n * WIDTH
        steps = count_blocks(K, BLOCK_SIZE_K)
        if BY_STEPS:
            sums, rest, stage, phase = sum_by_steps(
                buffers,
                vectors,
                scale_strides,
                ready,
                free,
                stage,
                phase,
                start_m,
                start_n,
                M,
                N,
                steps,
                FIRST,
                ROWS,
                BLOCK_SIZE_N,
                BLOCK_SIZE_N_REST,
                STAGES,
                A_TRANSPOSED,
                B_TRANSPOSED,
                SCALING == "block",
                A_GROUP,
                B_GROUP,
            )
        else:
            sums, rest, stage, phase = sum_products(
                buffers,
                ready,
                free,
                stage,
                phase,
                steps,
                FIRST,
                ROWS,
                BLOCK_SIZE_N,
                BLOCK_SIZE_N_REST,
                STAGES,
                A_TRANSPOSED,
                B_TRANSPOSED,
            )
        parts = (sums,)
        if EPILOGUE_PARTS == 2:
            parts = halves(sums, layout_of(PART, dtype))
        elif EPILOGUE_PARTS == 4:
            left, right = halves(sums, layout_of(BLOCK_SIZE_N // 2, dtype))
            parts = halves(left, layout_of(PART, dtype)) + halves(right, layout_of(PART, dtype))
        for part in gl.static_range(EPILOGUE_PARTS):
            start_part = start_n + part * PART
            values = finished(
                parts[part], vectors, start_m, start_part, M, N, BIAS_ALONG_M, SCALING, ACTIVATION, out_dtype
            )
            buffer = c_buffers.index(part % 2)
            store_block(c, buffer, values, start_m, start_part, M, N, strides, PENDING, C_TRANSPOSED)
        if BLOCK_SIZE_N_REST > 0:
            start_rest = start_n + BLOCK_SIZE_N
            values = finished(rest, vectors, start_m, start_rest, M, N, BIAS_ALONG_M, SCALING, ACTIVATION, out_dtype)
            store_block(c_rest, c_rest_buffer, values, start_m, start_rest, M, N, strides, 0, C_TRANSPOSED)
    tma.store_wait(0)


@gluon.jit
def out_buffers_of(c, c_rest, unused, stride_cm, EPILOGUE_PARTS: gl.constexpr):  # noqa: ANN201
    """A warpgroup's own buffers of C on its way out: one or two that take turns, and the rest's.

    `unused` stands for a buffer that is not needed: without a rest, or where C is written by pointers.
    """
    c_buffers = unused
    c_rest_buffer = unused
    if stride_cm is None:
        BUFFERS: gl.constexpr = 1 if EPILOGUE_PARTS == 1 else 2
        c_buffers = gl.allocate_shared_memory(c.dtype, [BUFFERS] + c.block_type.shape, c.layout)
        if c_rest is not None:
            c_rest_buffer = gl.allocate_shared_memory(c.dtype, c_rest.block_type.shape, c_rest.layout)
    return c_buffers, c_rest_buffer


@gluon.jit(
    do_not_specialize=["M", "N", "K", "GROUP_SIZE_M"],
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
    SCALING: gl.constexpr,
    A_GROUP: gl.constexpr,
    B_GROUP: gl.constexpr,
    ACTIVATION: gl.constexpr,
    PDL: gl.constexpr,
):
    """Tiles of C, one after the other, each of `BLOCK_SIZE_N` and `BLOCK_SIZE_N_REST` columns side by side.

    WARPGROUPS: 1 or 2 that multiply, each its share of the rows; the launch's num_warps is 4, those of the first.
    """
    a_buffers = gl.allocate_shared_memory(a_desc.dtype, [STAGES] + a_desc.block_type.shape, a_desc.layout)
    b_buffers = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + b_desc.block_type.shape, b_desc.layout)
    rest_buffers = b_buffers
    if BLOCK_SIZE_N_REST > 0:
        rest_buffers = gl.allocate_shared_memory(
            b_desc.dtype, [STAGES] + b_rest_desc.block_type.shape, b_rest_desc.layout
        )
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(free.index(stage), count=WARPGROUPS)
    fence_async_shared()

    descriptors = (a_desc, b_desc, b_rest_desc)
    outputs = (c, c_rest)
    strides = (stride_cm, stride_cn)
    buffers = (a_buffers, b_buffers, rest_buffers)
    vectors = (bias_ptr, a_scale_ptr, b_scale_ptr)
    scale_strides = (stride_asm, stride_ask, stride_bsk, stride_bsn)
    # Constants stay constants only where they are written out, not by way of a variable.
    first_buffers = out_buffers_of(c, c_rest, a_buffers, stride_cm, EPILOGUE_PARTS)
    if WARPGROUPS == 1:
        gl.warp_specialize(
            [
                (
                    multiply,
                    (
                        outputs,
                        strides,
                        buffers,
                        first_buffers,
                        vectors,
                        scale_strides,
                        ready,
                        free,
                        M,
                        N,
                        K,
                        GROUP_SIZE_M,
                        0,
                        BLOCK_SIZE_M,
                        BLOCK_SIZE_N,
                        BLOCK_SIZE_N_REST,
                        BLOCK_SIZE_K,
                        EPILOGUE_PARTS,
                        WARPGROUPS,
                        STAGES,
                        A_TRANSPOSED,
                        B_TRANSPOSED,
                        C_TRANSPOSED,
                        BIAS_ALONG_M,
                        BY_STEPS,
                        SCALING,
                        A_GROUP,
                        B_GROUP,
                        ACTIVATION,
                    ),
                ),
                (
                    fill,
                    (
                        descriptors,
                        buffers,
                        ready,
                        free,
                        M,
                        N,
                        K,
                        GROUP_SIZE_M,
                        BLOCK_SIZE_M,
                        BLOCK_SIZE_N,
                        BLOCK_SIZE_N_REST,
                        BLOCK_SIZE_K,
                        STAGES,
                        A_TRANSPOSED,
                        B_TRANSPOSED,
                        PDL,
                    ),
                ),
            ],
            [1],
            [LOADER_REGISTERS],
        )
    else:
        second_buffers = out_buffers_of(c, c_rest, a_buffers, stride_cm, EPILOGUE_PARTS)
        gl.warp_specialize(
            [
                (
                    multiply,
                    (
                        outputs,
                        strides,
                        buffers,
                        first_buffers,
                        vectors,
                        scale_strides,
                        ready,
                        free,
                        M,
                        N,
                        K,
                        GROUP_SIZE_M,
                        0,
                        BLOCK_SIZE_M,
                        BLOCK_SIZE_N,
                        BLOCK_SIZE_N_REST,
                        BLOCK_SIZE_K,
                        EPILOGUE_PARTS,
                        WARPGROUPS,
                        STAGES,
                        A_TRANSPOSED,
                        B_TRANSPOSED,
                        C_TRANSPOSED,
                        BIAS_ALONG_M,
                        BY_STEPS,
                        SCALING,
                        A_GROUP,
                        B_GROUP,
                        ACTIVATION,
                    ),
                ),
                (
                    multiply,
                    (
                        outputs,
                        strides,
                        buffers,
                        second_buffers,
                        vectors,
                        scale_strides,
                        ready,
                        free,
                        M,
                        N,
                        K,
                        GROUP_SIZE_M,
                        BLOCK_SIZE_M // 2,
                        BLOCK_SIZE_M,
                        BLOCK_SIZE_N,
                        BLOCK_SIZE_N_REST,
                        BLOCK_SIZE_K,
                        EPILOGUE_PARTS,
                        WARPGROUPS,
                        STAGES,
                        A_TRANSPOSED,
                        B_TRANSPOSED,
                        C_TRANSPOSED,
                        BIAS_ALONG_M,
                        BY_STEPS,
                        SCALING,
                        A_GROUP,
                        B_GROUP,
                        ACTIVATION,
                    ),
                ),
                (
                    fill,
                    (
                        descriptors,
                        buffers,
                        ready,
                        free,
                        M,
                        N,
                        K,
                        GROUP_SIZE_M,
                        BLOCK_SIZE_M,
                        BLOCK_SIZE_N,
                        BLOCK_SIZE_N_REST,
                        BLOCK_SIZE_K,
                        STAGES,
                        A_TRANSPOSED,
                        B_TRANSPOSED,
                        PDL,
                    ),
                ),
            ],
            [4, 1],
            [MULTIPLIER_REGISTERS, LOADER_REGISTERS],
        )
