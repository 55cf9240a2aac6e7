"""A GEMM for few tiles and a long K on Hopper: blocks of a cluster split the sum of a tile of any width. In Gluon.

Every block loads each SPLITS-th step along K by TMA and multiplies it by wgmma, as `any_width_jit` does. When all
blocks of the cluster have multiplied their last step, their rings of stages are free and take the sums: each block
sends every column of its sums to the block that owns the column, which adds them in the order of the splits and stores
them. So results are deterministic, and partial sums do not pass through global memory.

A cluster may have several tiles side by side, whose blocks of the same split load the same rows of A or columns of B at
about the same time. The L2 serves requests of neighbours for the same lines together (docs/lessons.md).

With block scales a stage holds those of its step, too, and each step's products are scaled (`scaled_steps`).
"""

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from tuner.kernels.base import blocks
from tuner.kernels.gemm.any_tile.any_width_jit import box_rows, load_box, loaded_columns, store_rows, unit_of
from tuner.kernels.gemm.any_tile.scaled_steps import (
    COPIERS,
    copy_scales,
    next_scales,
    scales_from,
    stage_rows,
    sum_scaled_steps,
)
from tuner.kernels.gemm.any_tile.wgmma_ptx import (
    ROW_BYTES,
    chunk_of,
    complete,
    descriptor_of,
    multiply_step,
    ring_address,
)
from tuner.kernels.gemm.hopper import cluster
from tuner.kernels.gemm.hopper.cluster_parts import await_parts, dealt_out, pitch, send_pairs
from tuner.kernels.gemm.hopper.loader import load_block
from tuner.kernels.gemm.hopper.output import finished
from tuner.kernels.gemm.hopper.tile import following, layout_of, rows_each


@dataclass(frozen=True)
class Fixed:
    """The kernel's constexprs by name, in a form that partitions can pass on.

    The functions of `any_width_jit` ask for SHARE_B and TURNS: blocks load for themselves, and store from registers.
    """

    BLOCK_SIZE_M: int
    BLOCK_SIZE_N: int
    BLOCK_SIZE_K: int
    WARPGROUPS: int
    STAGES: int
    CTAS: int
    SPLITS: int
    A_TRANSPOSED: bool
    B_TRANSPOSED: bool
    C_TRANSPOSED: bool
    C_VECTOR: int
    BIAS_ALONG_M: bool
    SCALING: str
    ACTIVATION: str
    PDL: bool
    SHARE_B: bool = False
    TURNS: int = 0


@gluon.constexpr_function
def fixed(*constants):  # noqa: ANN002, ANN201  jit bodies take no such annotation
    """Gather constants into one `Fixed`."""
    return Fixed(*constants)


@gluon.constexpr_function
def columns_each(columns, splits):  # noqa: ANN201
    """Columns of a tile that one block owns, an even number; the last block may own fewer."""
    return -(-columns // (2 * splits)) * 2


@gluon.constexpr_function
def held_columns(columns, splits):  # noqa: ANN201
    """Columns of the tensor in which a block adds its own columns: a power of two."""
    return 1 << (columns_each(columns, splits) - 1).bit_length()


@gluon.constexpr_function
def part_bytes(FIXED):  # noqa: ANN201
    """Bytes of one block's sums that an owner receives."""
    return columns_each(FIXED.BLOCK_SIZE_N, FIXED.SPLITS) // 2 * pitch(FIXED.BLOCK_SIZE_M)


@gluon.jit
def count_arrivals(split, FIXED: gl.constexpr):  # noqa: ANN201
    """Make the barrier that counts the bytes of a block's own columns, and return its address.

    1,024 bytes are reserved so that the ring behind them keeps the alignment that TMA's swizzle needs.
    """
    EACH: gl.constexpr = columns_each(FIXED.BLOCK_SIZE_N, FIXED.SPLITS)
    address = gl.inline_asm_elementwise(
        "{ .shared .align 1024 .b8 arrived[1024]; mov.u32 $0, arrived; }", "=r", [], gl.int32, is_pure=False, pack=1
    )
    own = min(max(FIXED.BLOCK_SIZE_N - split * EACH, 0), EACH)
    gl.inline_asm_elementwise(
        """{
            .reg .pred first; .reg .u32 thread;
            mov.u32 thread, %tid.x;
            setp.eq.u32 first, thread, 0;
            @first mbarrier.init.shared::cta.b64 [$1], 1;
            @first mbarrier.arrive.expect_tx.shared::cta.b64 _, [$1], $2;
            mov.u32 $0, 0;
        }""",
        *("=r,r,r", [address, own * (FIXED.SPLITS * FIXED.BLOCK_SIZE_M * 4)], gl.int32),
        is_pure=False,
        pack=1,
    )
    return address


@gluon.jit
def fill(ring, barriers, a_desc, b_descs, scales, place, extents, split, steps, FIXED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Run the loading warp, which fills free stages with this block's steps along K."""
    ready, free = barriers
    start_m, start_n = place
    STAGE_ROWS: gl.constexpr = stage_rows(FIXED)
    OPERANDS: gl.constexpr = FIXED.BLOCK_SIZE_M + loaded_columns(FIXED.BLOCK_SIZE_N, FIXED.B_TRANSPOSED)
    BOX_ROWS: gl.constexpr = box_rows(FIXED.BLOCK_SIZE_M, FIXED.CTAS, FIXED.A_TRANSPOSED)
    UNIT: gl.constexpr = ring.shape[1]
    blocks.await_predecessor(FIXED.PDL)
    stage = 0
    phase = 1  # the phase of unused barriers: stages are free at first
    if FIXED.SCALING == "block":
        sources = scales_from(scales, split, place, extents, FIXED)
    for step in range(steps):
        start_k = (split + step * FIXED.SPLITS) * FIXED.BLOCK_SIZE_K
        barrier = ready.index(stage)
        at = stage * (STAGE_ROWS // UNIT)
        mbarrier.wait(free.index(stage), phase)
        mbarrier.expect(barrier, OPERANDS * ROW_BYTES)
        for part in gl.static_range(FIXED.BLOCK_SIZE_M // BOX_ROWS):
            buffer = ring.index(at + part * (BOX_ROWS // UNIT))
            buffer = buffer._reinterpret(a_desc.dtype, a_desc.block_type.shape, a_desc.layout)
            load_block(a_desc, start_m + part * BOX_ROWS, start_k, barrier, buffer, FIXED.A_TRANSPOSED, False)
        for digit in gl.static_range(6):
            rest = at + FIXED.BLOCK_SIZE_M // UNIT
            load_box(b_descs[digit], start_n, start_k, barrier, ring, rest, 256 >> digit, FIXED)
        if FIXED.SCALING == "block":
            own = ring_address() + (stage * STAGE_ROWS + OPERANDS) * ROW_BYTES
            copy_scales(own, barrier, sources, FIXED)
            sources = next_scales(sources, scales, FIXED.SPLITS)
        stage, phase = following(stage, phase, FIXED.STAGES)
    if FIXED.CTAS > 1:
        cluster.meet()


@gluon.jit
def sum_steps(base, barriers, steps, FIRST: gl.constexpr, dtype: gl.constexpr, FIXED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Sum this block's steps; return both halves' sums, of which the second are 64 more rows of 128, or the same."""
    ready, free = barriers
    WIDTH: gl.constexpr = FIXED.BLOCK_SIZE_N
    CHUNK: gl.constexpr = chunk_of(WIDTH)
    STAGE_BYTES: gl.constexpr = stage_rows(FIXED) * ROW_BYTES
    sums = (gl.zeros((64, CHUNK), gl.float32, layout_of(CHUNK, dtype, FIXED.CTAS)),) * (WIDTH // CHUNK)
    more = sums
    stage = 0
    phase = 0
    for step in range(steps):
        mbarrier.wait(ready.index(stage), phase)
        a = descriptor_of(base + stage * STAGE_BYTES + FIRST * ROW_BYTES, False)
        b = descriptor_of(base + stage * STAGE_BYTES + FIXED.BLOCK_SIZE_M * ROW_BYTES, not FIXED.B_TRANSPOSED)
        # The previous step is done while this one runs, so its stage is free.
        if rows_each(FIXED) == 128:
            sums = multiply_step(sums, a, b, dtype, None, FIXED)
            more = multiply_step(more, a + 64 * ROW_BYTES // 16, b, dtype, 2, FIXED)
        else:
            sums = multiply_step(sums, a, b, dtype, 1, FIXED)
        mbarrier.arrive(free.index(gl.where(stage == 0, FIXED.STAGES - 1, stage - 1)), count=1, pred=step > 0)
        stage, phase = following(stage, phase, FIXED.STAGES)
    sums = complete(sums, FIXED)
    if rows_each(FIXED) == 128:
        more = complete(more, FIXED)
    return sums, more


@gluon.jit
def send(sums, base, arrived, rank, FIRST: gl.constexpr, FIXED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Send 64 rows of sums to the owners of their columns."""
    CHUNK: gl.constexpr = chunk_of(FIXED.BLOCK_SIZE_N)
    EACH: gl.constexpr = columns_each(FIXED.BLOCK_SIZE_N, FIXED.SPLITS)
    SHARERS: gl.constexpr = FIXED.CTAS // FIXED.SPLITS
    own = base + rank // SHARERS * part_bytes(FIXED)
    for part in gl.static_range(FIXED.BLOCK_SIZE_N // CHUNK):
        values = sums[part]
        rows = FIRST + gl.arange(0, 64, layout=gl.SliceLayout(1, values.type.layout)).expand_dims(1)
        columns = part * CHUNK + gl.arange(0, CHUNK, layout=gl.SliceLayout(0, values.type.layout)).expand_dims(0)
        at = own + columns % EACH // 2 * pitch(FIXED.BLOCK_SIZE_M) + rows * 8
        owner = columns // EACH * SHARERS + rank % SHARERS + gl.zeros_like(rows)
        send_pairs(values, at, owner, arrived)


@gluon.constexpr_function
def collected(ctas, order):  # noqa: ANN201
    """The layout in which a warpgroup adds its own columns of 64 rows."""
    return gl.BlockedLayout([2, 2], [32, 1], [1, 4], order, cga_layout=dealt_out(ctas, ctas))


@gluon.jit
def collect(base, FIRST: gl.constexpr, FIXED: gl.constexpr):  # noqa: ANN201
    """Add up the parts of 64 rows: each block has its own columns, and where these are no power of two some besides."""
    CTAS: gl.constexpr = FIXED.CTAS
    EACH: gl.constexpr = columns_each(FIXED.BLOCK_SIZE_N, FIXED.SPLITS)
    HELD: gl.constexpr = held_columns(FIXED.BLOCK_SIZE_N, FIXED.SPLITS)
    LAYOUT: gl.constexpr = collected(CTAS, [1, 0])
    rows = FIRST + gl.arange(0, 64, layout=gl.SliceLayout(1, LAYOUT)).expand_dims(1)
    columns = gl.arange(0, HELD * CTAS, layout=gl.SliceLayout(0, LAYOUT)).expand_dims(0)
    pair = gl.minimum(columns % HELD // 2, EACH // 2 - 1)
    at = base + pair * pitch(FIXED.BLOCK_SIZE_M) + rows * 8 + columns % 2 * 4
    total = gl.zeros((64, HELD * CTAS), gl.float32, LAYOUT)
    SPLITS: gl.constexpr = FIXED.SPLITS
    for block in gl.static_range(SPLITS):
        total += gl.inline_asm_elementwise(
            "ld.shared.v4.f32 {$0, $1, $2, $3}, [$4];",
            "=f,=f,=f,=f,r,r,r,r",
            [at + block * part_bytes(FIXED)],
            gl.float32,
            is_pure=False,
            pack=4,
        )
    # Threads keep their values, but the order of this layout allows stores of two rows at a time.
    return gl.convert_layout(total, collected(CTAS, [0, 1]), assert_trivial=True)


@gluon.jit
def store(total, rank, vectors, c, place, extents, FIRST: gl.constexpr, FIXED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Finish a block's own columns of 64 rows and store them."""
    EACH: gl.constexpr = columns_each(FIXED.BLOCK_SIZE_N, FIXED.SPLITS)
    HELD: gl.constexpr = held_columns(FIXED.BLOCK_SIZE_N, FIXED.SPLITS)
    start_m, start_n = place
    M, N, stride_cm, stride_cn = extents
    start_m += FIRST
    split = rank // (FIXED.CTAS // FIXED.SPLITS)
    start_n += split * EACH - rank * HELD  # so that column rank * HELD of `total` is the block's first
    values = finished(total, vectors, (start_m, start_n), (M, N), FIXED, c.dtype.element_ty)
    M, N, stride_cm, stride_cn = blocks.multiples_known(M, N, stride_cm, stride_cn, FIXED.C_VECTOR, FIXED.C_TRANSPOSED)
    if FIXED.C_TRANSPOSED:
        start_m = blocks.known_multiple(start_m, FIXED.C_VECTOR)
    rows = start_m + gl.arange(0, 64, layout=gl.SliceLayout(1, values.type.layout))
    column = gl.arange(0, HELD * FIXED.CTAS, layout=gl.SliceLayout(0, values.type.layout))
    columns = start_n + column
    own = (column % HELD < EACH) & (split * EACH + column % HELD < FIXED.BLOCK_SIZE_N)
    inside = (rows < M).expand_dims(1) & (own & (columns < N)).expand_dims(0)
    offsets = (rows.to(gl.int64) * stride_cm).expand_dims(1) + (columns.to(gl.int64) * stride_cn).expand_dims(0)
    gl.store(c + offsets, values, mask=inside)


@gluon.jit
def multiply(  # noqa: ANN201, PLR0917
    ring, barriers, arrived, vectors, c, place, extents, steps, rank, WARPGROUP: gl.constexpr, FIXED: gl.constexpr
):
    """Run a multiplying warpgroup, which computes its share of the tile's rows: 64 or 128."""
    FIRST: gl.constexpr = WARPGROUP * rows_each(FIXED)
    TWICE: gl.constexpr = rows_each(FIXED) == 128
    base = ring_address()
    if FIXED.SCALING == "block":
        sums = sum_scaled_steps(base, barriers, steps, place[0], FIRST, ring.dtype, FIXED)
        more = sums
    else:
        sums, more = sum_steps(base, barriers, steps, FIRST, ring.dtype, FIXED)
    if FIXED.CTAS == 1:
        start_m, start_n = place
        M, N, stride_cm, stride_cn = extents
        outputs = (c, None, (stride_cm, stride_cn))
        at = (start_m + FIRST, start_n)
        store_rows(sums, at, outputs, ring, vectors, (M, N), ring.dtype, WARPGROUP, 0, FIXED)
    else:
        cluster.meet()
        send(sums, base, arrived, rank, FIRST, FIXED)
        if TWICE:
            send(more, base, arrived, rank, FIRST + 64, FIXED)
        await_parts(arrived)
        store(collect(base, FIRST, FIXED), rank, vectors, c, place, extents, FIRST, FIXED)
        if TWICE:
            store(collect(base, FIRST + 64, FIXED), rank, vectors, c, place, extents, FIRST + 64, FIXED)


@gluon.jit(
    do_not_specialize=["M", "N", "K", "stride_asm", "stride_ask", "stride_bsk", "stride_bsn"],
    do_not_specialize_on_alignment=["stride_cm", "stride_cn"],
)
def any_height_split_kernel(  # noqa: ANN201, PLR0917
    a_desc,
    b_256_desc,
    b_128_desc,
    b_64_desc,
    b_32_desc,
    b_16_desc,
    b_8_desc,
    c_ptr,
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
    BLOCK_SIZE_M: gl.constexpr,
    BLOCK_SIZE_N: gl.constexpr,
    BLOCK_SIZE_K: gl.constexpr,
    WARPGROUPS: gl.constexpr,
    STAGES: gl.constexpr,
    LOADER_REGISTERS: gl.constexpr,
    MULTIPLIER_REGISTERS: gl.constexpr,
    A_TRANSPOSED: gl.constexpr,
    B_TRANSPOSED: gl.constexpr,
    C_TRANSPOSED: gl.constexpr,
    C_VECTOR: gl.constexpr,
    BIAS_ALONG_M: gl.constexpr,
    SCALING: gl.constexpr,
    ACTIVATION: gl.constexpr,
    PDL: gl.constexpr,
    SPLITS: gl.constexpr,
    SHARE_B: gl.constexpr,
):
    """Compute tiles of C, [BLOCK_SIZE_M, BLOCK_SIZE_N], one for every SPLITS blocks of a cluster.

    a_scale_ptr, b_scale_ptr: of blocks, [M/128, K/128] and [K/128, N] with these strides, or as `finished` takes them.
    SHARE_B: the tiles of a cluster lie along M, so that its blocks load the same columns of B; otherwise along N.
    b_256_desc to b_8_desc: B for boxes of so many rows, or None where the columns that a stage holds lack that binary
        digit.
    WARPGROUPS: 1 to 3, which divide the rows; the launch's num_warps is 4, those of the first.
    """
    CTAS: gl.constexpr = gl.num_ctas()
    IDLE: gl.constexpr = 0 if CTAS == 1 else 3  # warps besides the loader: all of a cluster's must meet
    FIXED: gl.constexpr = fixed(
        *(BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K, WARPGROUPS, STAGES, CTAS, SPLITS),
        *(A_TRANSPOSED, B_TRANSPOSED, C_TRANSPOSED, C_VECTOR, BIAS_ALONG_M, SCALING, ACTIVATION, PDL),
    )
    UNIT: gl.constexpr = unit_of(stage_rows(FIXED))
    RING: gl.constexpr = STAGES * stage_rows(FIXED) // UNIT
    ring = gl.allocate_shared_memory(a_desc.dtype, [RING, UNIT, BLOCK_SIZE_K], a_desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, CTAS], cluster.barriers_of(CTAS))
    free = gl.allocate_shared_memory(gl.int64, [STAGES, CTAS], cluster.barriers_of(CTAS))
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1 + COPIERS if SCALING == "block" else 1)
        mbarrier.init(free.index(stage), count=WARPGROUPS)
    rank = cluster.rank_of(CTAS)
    SHARERS: gl.constexpr = CTAS // SPLITS
    split = rank // SHARERS
    arrived = split
    if CTAS > 1:
        arrived = count_arrivals(split, FIXED)
        cluster.publish_barriers()
    fence_async_shared()
    ACROSS: gl.constexpr = 1 if SHARE_B else SHARERS
    tiles_n = blocks.count_blocks(N, BLOCK_SIZE_N * ACROSS)
    row = gl.program_id(0) // tiles_n
    column = gl.program_id(0) % tiles_n
    if SHARE_B:
        row = row * SHARERS + rank % SHARERS
    else:
        column = column * SHARERS + rank % SHARERS
    start_m = row * BLOCK_SIZE_M
    start_n = column * BLOCK_SIZE_N
    # Where a cluster has more tiles than are left, a block without one has no steps, and stores nothing.
    there = (start_m < M) & (start_n < N)
    A_UNIT: gl.constexpr = cluster.start_unit(A_TRANSPOSED)
    B_UNIT: gl.constexpr = cluster.start_unit(not B_TRANSPOSED)
    if SCALING != "block":  # where a tile's rows begin says which scales are theirs
        start_m = gl.where(there, blocks.moved_within(start_m, M, BLOCK_SIZE_M, A_UNIT), start_m)
    start_n = gl.where(there, blocks.moved_within(start_n, N, BLOCK_SIZE_N, B_UNIT), start_n)
    all_steps = blocks.count_blocks(K, BLOCK_SIZE_K)  # no fewer than SPLITS
    steps = gl.where(there, (all_steps - 1 - split) // SPLITS + 1, 0)

    place = (start_m, start_n)
    extents = (M, N, stride_cm, stride_cn)
    barriers = (ready, free)
    b_descs = (b_256_desc, b_128_desc, b_64_desc, b_32_desc, b_16_desc, b_8_desc)
    vectors = (bias_ptr, a_scale_ptr, b_scale_ptr, None)
    scales = (a_scale_ptr, b_scale_ptr, (stride_asm, stride_ask, stride_bsk, stride_bsn))
    LOADERS: gl.constexpr = [LOADER_REGISTERS] * (1 + IDLE)
    if WARPGROUPS == 1:
        gl.warp_specialize(
            [
                (multiply, (ring, barriers, arrived, vectors, c_ptr, place, extents, steps, rank, 0, FIXED)),
                (fill, (ring, barriers, a_desc, b_descs, scales, place, (M, N), split, steps, FIXED)),
            ]
            + [(cluster.idle, ())] * IDLE,
            [1] + [1] * IDLE,
            LOADERS,
        )
    elif WARPGROUPS == 2:
        gl.warp_specialize(
            [
                (multiply, (ring, barriers, arrived, vectors, c_ptr, place, extents, steps, rank, 0, FIXED)),
                (multiply, (ring, barriers, arrived, vectors, c_ptr, place, extents, steps, rank, 1, FIXED)),
                (fill, (ring, barriers, a_desc, b_descs, scales, place, (M, N), split, steps, FIXED)),
            ]
            + [(cluster.idle, ())] * IDLE,
            [4, 1] + [1] * IDLE,
            [MULTIPLIER_REGISTERS] + LOADERS,
        )
    else:
        gl.warp_specialize(
            [
                (multiply, (ring, barriers, arrived, vectors, c_ptr, place, extents, steps, rank, 0, FIXED)),
                (multiply, (ring, barriers, arrived, vectors, c_ptr, place, extents, steps, rank, 1, FIXED)),
                (multiply, (ring, barriers, arrived, vectors, c_ptr, place, extents, steps, rank, 2, FIXED)),
                (fill, (ring, barriers, a_desc, b_descs, scales, place, (M, N), split, steps, FIXED)),
            ]
            + [(cluster.idle, ())] * IDLE,
            [4, 4, 1] + [1] * IDLE,
            [MULTIPLIER_REGISTERS, MULTIPLIER_REGISTERS] + LOADERS,
        )
