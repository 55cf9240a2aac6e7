"""A persistent GEMM of fp8 operands with block scales, for Hopper: one warp loads, warpgroups multiply. In Gluon.

As in `warp_specialized_kernel` the loading warp fills a ring of stages, but here a stage also holds the scales of its
step: what multiplies never waits for global memory. A warpgroup has two sets of products. While the tensor cores
compute one step, it scales the products of the step before and adds them to its sums.
"""

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tuner.kernels.base.blocks import await_predecessor, count_blocks, grouped, moved_within
from tuner.kernels.gemm.hopper.cluster import barriers_of
from tuner.kernels.gemm.hopper.loader import async_load
from tuner.kernels.gemm.hopper.output import columns_apart, finished, out_buffers_of, store_block, turns_of
from tuner.kernels.gemm.hopper.tile import following, layout_of

# Newer Triton releases have the first name, others the second.
copy_async = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared

LENGTH = gl.constexpr(128)
"""Elements along K of a stage, and of a scale's block. A scale of B also belongs to as many columns."""
DEPTH = gl.constexpr(4)
"""Steps along K after which both sets of products have been added up."""
WGMMA_ROWS = gl.constexpr(64)
"""Rows of A that a warpgroup multiplies, whether the tile has as many or not."""
AHEAD = gl.constexpr(32)
"""Scales of B that a stage has room for: 128 bytes, the alignment that TMA requires in shared memory."""
VECTOR = gl.constexpr(4)
"""Scales of 16 bytes, of which TMA's coordinates and strides are multiples."""


@dataclass(frozen=True)
class Fixed:
    """The kernel's constexprs by name, in a form that partitions can pass on."""

    BLOCK_SIZE_M: int
    BLOCK_SIZE_N: int
    EPILOGUE_PARTS: int
    WARPGROUPS: int
    STAGES: int
    REST: int
    SCALES_BY_TMA: bool
    C_TRANSPOSED: bool
    ACTIVATION: str
    PDL: bool
    BLOCK_SIZE_N_REST: int = 0
    BIAS_ALONG_M: bool = False
    SCALING: str = "block"


@gluon.constexpr_function
def fixed(*constants):  # noqa: ANN002, ANN201
    """Gather constants into one `Fixed`."""
    return Fixed(*constants)


@gluon.constexpr_function
def plain():  # noqa: ANN201
    """The layout of a stage's scales in shared memory."""
    return gl.NVMMASharedLayout(0, 32, rank=2)


@gluon.constexpr_function
def scaled_rows(FIXED):  # noqa: ANN201
    """Scales of A in a stage: at least those of a warpgroup's rows, where the tile has fewer."""
    return max(FIXED.BLOCK_SIZE_M, WGMMA_ROWS.value)


@gluon.jit
def corner_of(tile, extents, FIXED: gl.constexpr):  # noqa: ANN201  jit bodies take no such annotation
    """First row and column of a tile. The last tile of rows ends with the rows of A, or, for TMA, up to 3 later."""
    M, N, _, GROUP_SIZE_M = extents
    tiles_m, tiles_n = count_blocks(M, FIXED.BLOCK_SIZE_M), count_blocks(N, FIXED.BLOCK_SIZE_N)
    row, column = grouped(tile, tiles_m, tiles_n, GROUP_SIZE_M)
    start_m = moved_within(row * FIXED.BLOCK_SIZE_M, M, FIXED.BLOCK_SIZE_M)
    if FIXED.SCALES_BY_TMA:
        start_m = (start_m + VECTOR - 1) // VECTOR * VECTOR
    return start_m, column * FIXED.BLOCK_SIZE_N


@gluon.jit
def kept(sums):  # noqa: ANN201
    """The same sums, added up here. LLVM would otherwise move additions behind the next wgmma.

    That wgmma could then not overwrite the products added, and copies of them would spill. It costs no instruction.
    """
    return gl.inline_asm_elementwise("", "=f,0", [sums], gl.float32, is_pure=False, pack=1)


@gluon.jit
def scales_of_step(scale_buffers, stage, step, FIRST: gl.constexpr, LAYOUT: gl.constexpr, FIXED: gl.constexpr):  # noqa: ANN201, PLR0917
    """The factors of a step's products by row, [64, 1]."""
    a_scales, b_scales = scale_buffers
    ROWS: gl.constexpr = scaled_rows(FIXED)
    of_rows = a_scales.index(stage).reshape([ROWS])
    if ROWS > WGMMA_ROWS:
        of_rows = of_rows.slice(FIRST, WGMMA_ROWS, 0)
    by_row = of_rows.load(gl.SliceLayout(1, LAYOUT))
    # Every thread reads the scales of VECTOR steps at once and selects one. As integers, loads and sums of those that
    # are never selected fold to nothing.
    everywhere: gl.constexpr = gl.BlockedLayout([AHEAD], [32], [4], [0])
    values = b_scales.index(stage).reshape([AHEAD]).load(everywhere).to(gl.int32, bitcast=True)
    selected = gl.arange(0, AHEAD, layout=everywhere) == step % VECTOR
    of_columns = gl.sum(gl.where(selected, values, 0), axis=0).to(gl.float32, bitcast=True)
    return (by_row * of_columns).expand_dims(1)


@gluon.jit
def add_steps(  # noqa: ANN201, PLR0917
    sums,
    first,
    second,
    buffers,
    scale_buffers,
    barriers,
    stage,
    phase,
    step,
    FIRST: gl.constexpr,
    STEPS: gl.constexpr,
    FIXED: gl.constexpr,
):
    """Add up so many steps from `step` on, whose products go to `first` and `second` in alternation.

    No product is in flight at the end: ptxas would serialize a loop that carries one to its next iteration.
    """
    a_buffers, b_buffers = buffers
    ready, free = barriers
    LAYOUT: gl.constexpr = sums.type.layout
    before = stage
    factor = None
    for ahead in gl.static_range(STEPS):
        mbarrier.wait(ready.index(stage), phase)
        after = scales_of_step(scale_buffers, stage, step + ahead, FIRST, LAYOUT, FIXED)
        a = a_buffers.index(stage)
        if FIXED.WARPGROUPS > 1:
            a = a.slice(FIRST, WGMMA_ROWS, 0)
        b = b_buffers.index(stage).permute((1, 0))
        first = warpgroup_mma(a, b, first, use_acc=False, is_async=True)
        if ahead > 0:
            second, first = warpgroup_mma_wait(1, deps=(second, first))
            mbarrier.arrive(free.index(before), count=1)
            sums = kept(sums + second * factor)
        factor = after
        before = stage
        first, second = second, first
        stage, phase = following(stage, phase, FIXED.STAGES)
    second = warpgroup_mma_wait(0, deps=(second,))
    mbarrier.arrive(free.index(before), count=1)
    sums = kept(sums + second * factor)
    return sums, first, second, stage, phase


@gluon.jit
def multiply(  # noqa: ANN201, PLR0917
    extents,
    buffers,
    scale_buffers,
    barriers,
    outputs,
    c_buffers,
    vectors,
    WARPGROUP: gl.constexpr,
    FIXED: gl.constexpr,
):
    """Run a multiplying warpgroup, which computes its 64 rows of every tile of its program."""
    M, N, K, _ = extents
    c, strides = outputs
    a_buffers, _ = buffers
    FIRST: gl.constexpr = WARPGROUP * WGMMA_ROWS
    COLUMNS: gl.constexpr = FIXED.BLOCK_SIZE_N
    PARTS: gl.constexpr = FIXED.EPILOGUE_PARTS
    PART: gl.constexpr = COLUMNS // PARTS
    TURNS: gl.constexpr = turns_of(FIXED)
    dtype: gl.constexpr = a_buffers.dtype
    out_dtype: gl.constexpr = c.dtype if strides[0] is None else c.dtype.element_ty
    LAYOUT: gl.constexpr = layout_of(COLUMNS, dtype, 1)
    tiles = count_blocks(M, FIXED.BLOCK_SIZE_M) * count_blocks(N, COLUMNS)
    steps = count_blocks(K, LENGTH)
    stage = 0
    phase = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        start_m, start_n = corner_of(tile, extents, FIXED)
        start_m += FIRST
        sums = gl.zeros((WGMMA_ROWS, COLUMNS), gl.float32, LAYOUT)
        first = gl.zeros((WGMMA_ROWS, COLUMNS), gl.float32, LAYOUT)
        second = gl.zeros((WGMMA_ROWS, COLUMNS), gl.float32, LAYOUT)
        for turn in range(steps // DEPTH):
            sums, first, second, stage, phase = add_steps(
                *(sums, first, second, buffers, scale_buffers, barriers, stage, phase),
                *(turn * DEPTH, FIRST, DEPTH, FIXED),
            )
        if FIXED.REST > 0:
            sums, first, second, stage, phase = add_steps(
                *(sums, first, second, buffers, scale_buffers, barriers, stage, phase),
                *(steps - FIXED.REST, FIRST, FIXED.REST, FIXED),
            )
        parts = columns_apart(sums, PARTS, dtype, 1)
        for part in gl.static_range(PARTS):
            at = (start_m, start_n + part * PART)
            values = finished(parts[part], vectors, at, extents, FIXED, out_dtype)
            buffer = c_buffers.index(WARPGROUP * TURNS + part % TURNS)
            store_block(c, buffer, values, at, extents, strides, TURNS - 1, FIXED.C_TRANSPOSED)
    tma.store_wait(0)


@gluon.jit
def load_scales(scales, scale_buffers, barrier, stage, step, place, extents, FIXED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Start to load a step's scales: of the tile's rows, and of its columns those of VECTOR steps."""
    a_scales, b_scales, strides = scales
    a_buffers, b_buffers = scale_buffers
    start_m, start_n = place
    block = start_n // LENGTH
    first = step // VECTOR * VECTOR
    if FIXED.SCALES_BY_TMA:
        async_load(a_scales, [step, start_m], barrier, a_buffers.index(stage))
        async_load(b_scales, [block, first], barrier, b_buffers.index(stage))
    else:
        M, _, K, _ = extents
        ROWS: gl.constexpr = scaled_rows(FIXED)
        stride_am, stride_ak, stride_bk, stride_bn = strides
        by_lane: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
        rows = start_m + gl.arange(0, ROWS, layout=by_lane)
        a_at = a_scales + gl.to_tensor(step).to(gl.int64) * stride_ak + rows.to(gl.int64) * stride_am
        copy_async(a_buffers.index(stage).reshape([ROWS]), a_at, mask=rows < M)
        steps = first + gl.arange(0, AHEAD, layout=by_lane)
        b_at = b_scales + gl.to_tensor(block).to(gl.int64) * stride_bn + steps.to(gl.int64) * stride_bk
        wanted = (steps < first + VECTOR) & (steps < count_blocks(K, LENGTH))
        copy_async(b_buffers.index(stage).reshape([AHEAD]), b_at, mask=wanted)
        # Each of the warp's threads arrives once what it copied is there.
        async_copy.mbarrier_arrive(barrier, increment_count=False)


@gluon.constexpr_function
def stage_bytes(FIXED):  # noqa: ANN201
    """Bytes that TMA loads for a stage, of 8-bit operands and float32 scales."""
    operands = (FIXED.BLOCK_SIZE_M + FIXED.BLOCK_SIZE_N) * LENGTH.value
    return operands + (4 * (scaled_rows(FIXED) + AHEAD.value) if FIXED.SCALES_BY_TMA else 0)


@gluon.jit
def fill(extents, buffers, scale_buffers, barriers, descriptors, scales, FIXED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Run the loading warp, which fills free stages, tile after tile."""
    M, N, K, _ = extents
    a_buffers, b_buffers = buffers
    ready, free = barriers
    a_desc, b_desc = descriptors
    tiles = count_blocks(M, FIXED.BLOCK_SIZE_M) * count_blocks(N, FIXED.BLOCK_SIZE_N)
    # Only these loads need to wait: results are stored after the first load has arrived.
    await_predecessor(FIXED.PDL)
    stage = 0
    phase = 1  # the phase of unused barriers: stages are free at first
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        start_m, start_n = corner_of(tile, extents, FIXED)
        for step in range(count_blocks(K, LENGTH)):
            barrier = ready.index(stage)
            mbarrier.wait(free.index(stage), phase)
            mbarrier.expect(barrier, stage_bytes(FIXED))
            a_buffer = a_buffers.index(stage)
            if FIXED.BLOCK_SIZE_M < WGMMA_ROWS:
                # The other rows keep what they hold: their products go to rows of C that are not stored.
                a_buffer = a_buffer.slice(0, FIXED.BLOCK_SIZE_M, 0)
            async_load(a_desc, [start_m, step * LENGTH], barrier, a_buffer)
            async_load(b_desc, [start_n, step * LENGTH], barrier, b_buffers.index(stage))
            load_scales(scales, scale_buffers, barrier, stage, step, (start_m, start_n), extents, FIXED)
            stage, phase = following(stage, phase, FIXED.STAGES)


@gluon.jit(
    do_not_specialize=["M", "N", "K", "GROUP_SIZE_M", "stride_asm", "stride_ask", "stride_bsk", "stride_bsn"],
    do_not_specialize_on_alignment=["stride_cm", "stride_cn"],
)
def block_scaled_kernel(  # noqa: ANN201, PLR0917
    a_desc,
    b_desc,
    a_scales,
    b_scales,
    c,
    bias_ptr,
    M,
    N,
    K,
    stride_asm,
    stride_ask,
    stride_bsk,
    stride_bsn,
    stride_cm,
    stride_cn,
    GROUP_SIZE_M,
    BLOCK_SIZE_M: gl.constexpr,
    BLOCK_SIZE_N: gl.constexpr,
    EPILOGUE_PARTS: gl.constexpr,
    WARPGROUPS: gl.constexpr,
    STAGES: gl.constexpr,
    REST: gl.constexpr,
    LOADER_REGISTERS: gl.constexpr,
    MULTIPLIER_REGISTERS: gl.constexpr,
    C_TRANSPOSED: gl.constexpr,
    ACTIVATION: gl.constexpr,
    PDL: gl.constexpr,
):
    """Compute tiles of C one after the other: A[M, K] with scales of 1x128, B[K, N] stored [N, K] with 128x128.

    a_scales, b_scales: descriptors of the scales [K/128, M] and [N/128, K/128], with strides None; or pointers.
    c: a descriptor, with strides None, or a pointer.
    BLOCK_SIZE_M: rows of A to load; fewer than 64 only if A has no more.
    WARPGROUPS: 1, or 2 for 128 rows; the launch's num_warps is 4, those of the first.
    REST: steps along K, modulo `DEPTH`.
    """
    SCALES_BY_TMA: gl.constexpr = stride_asm is None
    FIXED: gl.constexpr = fixed(
        *(BLOCK_SIZE_M, BLOCK_SIZE_N, EPILOGUE_PARTS, WARPGROUPS, STAGES, REST, SCALES_BY_TMA),
        *(C_TRANSPOSED, ACTIVATION, PDL),
    )
    ROWS: gl.constexpr = WGMMA_ROWS * WARPGROUPS
    a_buffers = gl.allocate_shared_memory(a_desc.dtype, [STAGES, ROWS, LENGTH], a_desc.layout)
    b_buffers = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + b_desc.block_type.shape, b_desc.layout)
    a_scale_buffers = gl.allocate_shared_memory(gl.float32, [STAGES, 1, scaled_rows(FIXED)], plain())
    b_scale_buffers = gl.allocate_shared_memory(gl.float32, [STAGES, 1, AHEAD], plain())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barriers_of(1))
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barriers_of(1))
    for stage in gl.static_range(STAGES):
        # With the threads of the loading warp, where these copy the scales.
        mbarrier.init(ready.index(stage), count=1 if SCALES_BY_TMA else 33)
        mbarrier.init(free.index(stage), count=WARPGROUPS)
    fence_async_shared()

    extents = (M, N, K, GROUP_SIZE_M)
    buffers = (a_buffers, b_buffers)
    scale_buffers = (a_scale_buffers, b_scale_buffers)
    barriers = (ready, free)
    descriptors = (a_desc, b_desc)
    scales = (a_scales, b_scales, (stride_asm, stride_ask, stride_bsk, stride_bsn))
    outputs = (c, (stride_cm, stride_cn))
    vectors = (bias_ptr, None, None, None)
    c_buffers, _ = out_buffers_of(c, None, a_buffers, stride_cm, FIXED)
    if WARPGROUPS == 1:
        gl.warp_specialize(
            [
                (multiply, (extents, buffers, scale_buffers, barriers, outputs, c_buffers, vectors, 0, FIXED)),
                (fill, (extents, buffers, scale_buffers, barriers, descriptors, scales, FIXED)),
            ],
            [1],
            [LOADER_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (multiply, (extents, buffers, scale_buffers, barriers, outputs, c_buffers, vectors, 0, FIXED)),
                (multiply, (extents, buffers, scale_buffers, barriers, outputs, c_buffers, vectors, 1, FIXED)),
                (fill, (extents, buffers, scale_buffers, barriers, descriptors, scales, FIXED)),
            ],
            [4, 1],
            [MULTIPLIER_REGISTERS, LOADER_REGISTERS],
        )
