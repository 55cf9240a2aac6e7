"""A GEMM for few tiles and a long K: the blocks of a cluster split a tile's sum along K. Written in Gluon, for Hopper.

Every block loads its own range of K by TMA, multiplies it by wgmma, and sends each column of its sums to the block that
owns the column (`cluster_parts`). Partial sums do not pass through global memory, so there is no workspace and no
counter. The operands are exchanged, as in `swap_ab`: rows are columns of B, and columns are rows of A.
"""

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from tuner.kernels.base import blocks
from tuner.kernels.gemm.hopper.cluster import barriers_of, line_of, rank_of, start_unit
from tuner.kernels.gemm.hopper.cluster_parts import await_parts, collect, make_room, owners_of, send
from tuner.kernels.gemm.hopper.loader import load_block
from tuner.kernels.gemm.hopper.output import finished, synchronize
from tuner.kernels.gemm.hopper.register_operand import from_registers, in_registers
from tuner.kernels.gemm.hopper.tile import columns_of, following, layout_of


@dataclass(frozen=True)
class Fixed:
    """The kernel's constexprs by name."""

    BLOCK_SIZE_M: int
    BLOCK_SIZE_N: int
    BLOCK_SIZE_K: int
    STAGES: int
    A_TRANSPOSED: bool
    B_TRANSPOSED: bool
    BY_STEPS: bool
    PDL: bool
    TRIGGER: int
    BIAS_ALONG_M: bool
    SCALING: str
    ACTIVATION: str


@gluon.constexpr_function
def fixed(*constants):  # noqa: ANN002, ANN201
    """Gather constants into one `Fixed`."""
    return Fixed(*constants)


@gluon.jit
def fetch_ahead(first, stride, rows, length, ROWS: gl.constexpr, BYTES: gl.constexpr):  # noqa: ANN201, PLR0917
    """Prefetch the first BYTES / ROWS bytes of each of ROWS rows into the L2, one cache line per thread at a time.

    `blocks.prefetch_rows` explains its arguments, and why it is safe before the wait for the predecessor. Single lines
    are prefetched because bulk prefetches would delay the loads behind them in TMA's queue.
    """
    SIZE: gl.constexpr = first.dtype.element_ty.primitive_bitwidth // 8
    THREADS: gl.constexpr = 32 * gl.num_warps()
    LINES: gl.constexpr = max(1, BYTES // ROWS // 128)
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0], cga_layout=line_of(gl.num_ctas()))
    thread = gl.arange(0, THREADS, layout=LAYOUT)
    for part in range(-(-ROWS * LINES // THREADS)):
        line = part * THREADS + thread
        row = line // LINES
        element = line % LINES * (128 // SIZE)
        there = (row < min(rows, ROWS)) & (element < length)
        gl.inline_asm_elementwise(
            """{
                .reg .pred there;
                setp.ne.s32 there, $2, 0;
                @there prefetch.global.L2 [$1];
                mov.b32 $0, 0;
            }""",
            *("=r,l,r", [(first + row.to(gl.int64) * stride + element).to(gl.int64), there.to(gl.int32)], gl.int32),
            is_pure=False,
            pack=1,
        )


@gluon.jit
def load_stage(descriptors, buffers, ready, stage, place, step, FIXED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Start to load one step along K of both operands."""
    a_desc, b_desc = descriptors
    a_buffers, b_buffers = buffers
    start_m, start_n = place
    start_k = step * FIXED.BLOCK_SIZE_K
    barrier = ready.index(stage)
    load_block(a_desc, start_m, start_k, barrier, a_buffers.index(stage), FIXED.A_TRANSPOSED, False)
    load_block(b_desc, start_k, start_n, barrier, b_buffers.index(stage), FIXED.B_TRANSPOSED, False)


@gluon.constexpr_function
def stage_bytes(dtype, FIXED):  # noqa: ANN201
    """Bytes of one step along K of both operands."""
    return (FIXED.BLOCK_SIZE_M + FIXED.BLOCK_SIZE_N) * FIXED.BLOCK_SIZE_K * dtype.primitive_bitwidth // 8


@gluon.jit
def reload_stage(  # noqa: ANN201, PLR0917
    descriptors, buffers, ready, stage, place, first, step, steps, FIXED: gl.constexpr
):
    """Once the step before this stage's is done, load the next step that is not loaded yet in its place."""
    after = step - 1 + FIXED.STAGES
    STEP_BYTES: gl.constexpr = stage_bytes(descriptors[0].dtype, FIXED)
    if (step > 0) & (after < steps):
        synchronize()
        free = gl.where(stage == 0, FIXED.STAGES - 1, stage - 1)
        mbarrier.expect(ready.index(free), STEP_BYTES)
        load_stage(descriptors, buffers, ready, free, place, first + after, FIXED)


@gluon.jit
def sum_range(descriptors, buffers, ready, place, first, steps, FIXED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Sum the products of `steps` steps along K from `first` on, and reload the ring's stages meanwhile."""
    a_buffers, b_buffers = buffers
    ROWS: gl.constexpr = FIXED.BLOCK_SIZE_M
    COLUMNS: gl.constexpr = FIXED.BLOCK_SIZE_N
    STAGES: gl.constexpr = FIXED.STAGES
    LAYOUT: gl.constexpr = layout_of(COLUMNS, a_buffers.dtype, gl.num_ctas())
    sums = gl.zeros((ROWS, COLUMNS), gl.float32, LAYOUT)
    products = gl.zeros((ROWS, COLUMNS), gl.float32, LAYOUT)
    stage = 0
    phase = 0
    for step in range(steps):
        mbarrier.wait(ready.index(stage), phase)
        a = a_buffers.index(stage)
        if FIXED.A_TRANSPOSED:
            a = a.permute((1, 0))
        b = columns_of(b_buffers.index(stage), FIXED.B_TRANSPOSED)
        if FIXED.BY_STEPS:
            products = warpgroup_mma(a, b, products, use_acc=False, is_async=True)
            products = warpgroup_mma_wait(0, deps=(products,))
            sums += products
        else:
            sums = warpgroup_mma(a, b, sums, is_async=True)
            sums = warpgroup_mma_wait(1, deps=(sums,))
        reload_stage(descriptors, buffers, ready, stage, place, first, step, steps, FIXED)
        stage, phase = following(stage, phase, STAGES)
        blocks.release_midway(step, steps, FIXED.PDL, FIXED.TRIGGER)
    return warpgroup_mma_wait(0, deps=(sums,))


@gluon.jit
def sum_range_from_registers(descriptors, buffers, ready, place, first, steps, FIXED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Do as `sum_range` does with A from registers; two steps take turns, as `register_operand` explains."""
    LAYOUT: gl.constexpr = layout_of(FIXED.BLOCK_SIZE_N, buffers[0].dtype, gl.num_ctas())
    ROWS: gl.constexpr = FIXED.BLOCK_SIZE_M
    COLUMNS: gl.constexpr = FIXED.BLOCK_SIZE_N
    sums = gl.zeros((ROWS, COLUMNS), gl.float32, LAYOUT)
    stage = 0
    phase = 0
    sums = step_from_registers(sums, descriptors, buffers, ready, stage, phase, place, first, 0, steps, FIXED)
    stage, phase = following(stage, phase, FIXED.STAGES)
    sums = warpgroup_mma_init(warpgroup_mma_wait(0, deps=(sums,)))
    for pair in range((steps - 1) // 2):
        step = 2 * pair + 1
        sums = step_from_registers(sums, descriptors, buffers, ready, stage, phase, place, first, step, steps, FIXED)
        stage, phase = following(stage, phase, FIXED.STAGES)
        step += 1
        sums = step_from_registers(sums, descriptors, buffers, ready, stage, phase, place, first, step, steps, FIXED)
        stage, phase = following(stage, phase, FIXED.STAGES)
    if steps % 2 == 0:
        step = steps - 1
        sums = step_from_registers(sums, descriptors, buffers, ready, stage, phase, place, first, step, steps, FIXED)
    return warpgroup_mma_wait(0, deps=(sums,))


@gluon.jit
def step_from_registers(  # noqa: ANN201, PLR0917
    sums, descriptors, buffers, ready, stage, phase, place, first, step, steps, FIXED: gl.constexpr
):
    """Load a step's rows of A while the step before is multiplied; await that, load into its stage, start this one."""
    a_buffers, b_buffers = buffers
    mbarrier.wait(ready.index(stage), phase)
    a = a_buffers.index(stage).permute((1, 0)).load(in_registers(FIXED.BLOCK_SIZE_N, a_buffers.dtype, gl.num_ctas()))
    sums = warpgroup_mma_wait(0, deps=(sums,))
    sums = warpgroup_mma(a, columns_of(b_buffers.index(stage), FIXED.B_TRANSPOSED), sums, is_async=True)
    reload_stage(descriptors, buffers, ready, stage, place, first, step, steps, FIXED)
    blocks.release_midway(step, steps, FIXED.PDL, FIXED.TRIGGER)
    return sums


@gluon.jit(
    do_not_specialize=["M", "N", "K", "stride_ahead"],
    do_not_specialize_on_alignment=["stride_cm", "stride_cn"],
)
def cluster_k_kernel(  # noqa: ANN201, PLR0917
    a_desc,
    b_desc,
    ahead_ptr,
    c_ptr,
    bias_ptr,
    a_scale_ptr,
    b_scale_ptr,
    M,
    N,
    K,
    stride_ahead,
    stride_cm,
    stride_cn,
    BLOCK_SIZE_M: gl.constexpr,
    BLOCK_SIZE_N: gl.constexpr,
    BLOCK_SIZE_K: gl.constexpr,
    STAGES: gl.constexpr,
    A_TRANSPOSED: gl.constexpr,
    B_TRANSPOSED: gl.constexpr,
    C_VECTOR: gl.constexpr,
    BY_STEPS: gl.constexpr,
    BIAS_ALONG_M: gl.constexpr,
    SCALING: gl.constexpr,
    ACTIVATION: gl.constexpr,
    PDL: gl.constexpr,
    TRIGGER: gl.constexpr,
    PREFETCH: gl.constexpr,
):
    """Compute one tile of C, [BLOCK_SIZE_M, BLOCK_SIZE_N], per cluster; blocks' ranges of K differ by at most a step.

    C_VECTOR: elements that divide stride_cn and M if C's columns are contiguous, else 1. PREFETCH: bytes of A, whose
    rows start at `ahead_ptr`, that a block prefetches into the L2 while it waits for its predecessor.
    """
    CTAS: gl.constexpr = gl.num_ctas()
    FIXED: gl.constexpr = fixed(
        *(BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K, STAGES, A_TRANSPOSED, B_TRANSPOSED, BY_STEPS, PDL, TRIGGER),
        *(BIAS_ALONG_M, SCALING, ACTIVATION),
    )
    parts, arrived = make_room(BLOCK_SIZE_M, BLOCK_SIZE_N, CTAS)
    a_buffers = gl.allocate_shared_memory(a_desc.dtype, [STAGES] + a_desc.block_type.shape, a_desc.layout)
    b_buffers = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + b_desc.block_type.shape, b_desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, CTAS], barriers_of(CTAS))
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
    fence_async_shared()
    tiles_n = blocks.count_blocks(N, BLOCK_SIZE_N)
    start_m = gl.program_id(0) // tiles_n * BLOCK_SIZE_M
    start_n = gl.program_id(0) % tiles_n * BLOCK_SIZE_N
    start_m = blocks.moved_within(start_m, M, BLOCK_SIZE_M, start_unit(A_TRANSPOSED))
    start_n = blocks.moved_within(start_n, N, BLOCK_SIZE_N, start_unit(not B_TRANSPOSED))
    rank = rank_of(CTAS)
    all_steps = blocks.count_blocks(K, BLOCK_SIZE_K)
    first = all_steps * rank // CTAS
    steps = all_steps * (rank + 1) // CTAS - first
    STEP_BYTES: gl.constexpr = stage_bytes(a_desc.dtype, FIXED)
    for stage in gl.static_range(STAGES):
        mbarrier.expect(ready.index(stage), STEP_BYTES, pred=stage < steps)
    if PREFETCH > 0:
        start_k = first * BLOCK_SIZE_K
        length = min(steps * BLOCK_SIZE_K, K - start_k)
        ahead = ahead_ptr + start_m.to(gl.int64) * stride_ahead + start_k
        fetch_ahead(ahead, stride_ahead, M - start_m, length, BLOCK_SIZE_M, PREFETCH)
    blocks.await_predecessor(PDL, TRIGGER)
    buffers = (a_buffers, b_buffers)
    descriptors = (a_desc, b_desc)
    place = (start_m, start_n)
    for stage in gl.static_range(STAGES):
        if stage < steps:
            load_stage(descriptors, buffers, ready, stage, place, first + stage, FIXED)
    if from_registers(a_desc.dtype, FIXED):
        sums = sum_range_from_registers(descriptors, buffers, ready, place, first, steps, FIXED)
    else:
        sums = sum_range(descriptors, buffers, ready, place, first, steps, FIXED)
    blocks.release_last(PDL, TRIGGER)
    send(sums, parts, arrived, rank, CTAS)
    if rank < owners_of(BLOCK_SIZE_N, CTAS):
        await_parts(arrived)
        total = collect(parts, BLOCK_SIZE_M, BLOCK_SIZE_N, CTAS)
        vectors = (bias_ptr, a_scale_ptr, b_scale_ptr, None)
        values = finished(total, vectors, place, (M, N), FIXED, c_ptr.dtype.element_ty)
        first_row = blocks.known_multiple(start_m, C_VECTOR)
        rows = first_row + gl.arange(0, BLOCK_SIZE_M, layout=gl.SliceLayout(1, values.type.layout))
        columns = start_n + gl.arange(0, BLOCK_SIZE_N, layout=gl.SliceLayout(0, values.type.layout))
        inside = (rows < blocks.known_multiple(M, C_VECTOR)).expand_dims(1) & (columns < N).expand_dims(0)
        row_offsets = (rows.to(gl.int64) * stride_cm).expand_dims(1)
        offsets = row_offsets + (columns.to(gl.int64) * blocks.known_multiple(stride_cn, C_VECTOR)).expand_dims(0)
        gl.store(c_ptr + offsets, values, mask=inside)
