"""A persistent, warp-specialized GEMM for Hopper whose tiles have any width that is a multiple of 8. Written in Gluon.

Its products are wgmmas of all columns of a tile (`wgmma_ptx`), which read shared memory where it begins. So the ring of
stages is one allocation, which Triton places first because it is by far the largest; the host checks that in every
binary (`any_width.misplaced`).

A stage has 128 bytes for each row of A and each column of B. Of an operand along K, they are that row's or column's
elements. Otherwise 64 rows or columns are a chunk: for each element along K a row of shared memory with all 64.

With a second A (`gated_any_height`: A is the weight of a gate, the second that of up) both count as one of twice as
many rows, which take turns of 64. Each warpgroup has 64 rows of both, and stores their gated product.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from tuner.kernels.base.blocks import await_predecessor, count_blocks, release_last
from tuner.kernels.base.epilogue import activate
from tuner.kernels.gemm.any_tile.wgmma_ptx import (
    ROW_BYTES,
    chunk_of,
    complete,
    descriptor_of,
    multiply_step,
    ring_address,
)
from tuner.kernels.gemm.hopper import cluster
from tuner.kernels.gemm.hopper.loader import load_block
from tuner.kernels.gemm.hopper.output import finished, store_block, store_registers
from tuner.kernels.gemm.hopper.tile import following, layout_of, passed, rows_each


@dataclass(frozen=True)
class Fixed:
    """The kernel's constexprs by name, in a form that partitions can pass on.

    The field with a default is what the functions shared with `warp_specialized` ask for besides.
    """

    BLOCK_SIZE_M: int
    BLOCK_SIZE_N: int
    BLOCK_SIZE_K: int
    WARPGROUPS: int
    STAGES: int
    TURNS: int
    C_TRANSPOSED: bool
    ACTIVATION: str
    PDL: bool
    CTAS: int
    SHARE_B: bool
    BIAS_ALONG_M: bool
    C_VECTOR: int
    TEAMS: int
    SCALING: str
    A_TRANSPOSED: bool
    B_TRANSPOSED: bool
    GATED: bool
    TRIGGER: int
    BLOCK_SIZE_N_REST: int = 0

    def activated(self) -> Fixed:
        """The same of values that are activated."""
        return replace(self, ACTIVATION="none")


@gluon.constexpr_function
def fixed(*constants):  # noqa: ANN002, ANN201  jit bodies take no such annotation
    """Gather constants into one `Fixed`."""
    return Fixed(*constants)


@gluon.constexpr_function
def box_rows(rows, ctas, transposed, gated=False):  # noqa: ANN201
    """Rows of A that one load takes: the largest power of two that divides a stage's, or 64 if these are apart."""
    return 64 if ctas > 1 or transposed or gated else rows & -rows


@gluon.constexpr_function
def unit_of(rows):  # noqa: ANN201
    """Rows of a block of the ring, which divide those of a stage."""
    return 16 if rows % 16 == 0 else 8


@gluon.constexpr_function
def loaded_columns(columns, transposed):  # noqa: ANN201
    """Columns of B that a stage of a tile with so many loads: where they do not run along K, whole chunks of 64."""
    return columns if transposed else -(-columns // 64) * 64


@gluon.jit
def load_box(b_desc, start_n, start_k, barrier, ring, first, BOX: gl.constexpr, FIXED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Start to load a part of a stage of B, if its columns have this binary digit; the largest lie first."""
    LOADED: gl.constexpr = loaded_columns(FIXED.BLOCK_SIZE_N, FIXED.B_TRANSPOSED)
    if (LOADED & BOX) > 0:
        BEFORE: gl.constexpr = LOADED & ~(2 * BOX - 1)
        SHARED: gl.constexpr = FIXED.CTAS > 1 and FIXED.SHARE_B
        buffer = ring.index(first + BEFORE // ring.shape[1])
        buffer = buffer._reinterpret(b_desc.dtype, b_desc.block_type.shape, b_desc.layout)
        load_block(b_desc, start_n + BEFORE, start_k, barrier, buffer, not FIXED.B_TRANSPOSED, SHARED)


@gluon.jit
def fill(extents, ring, barriers, a_descs, b_descs, FIXED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Run the loading warp, which fills free stages, tile after tile."""
    M, N, K, _ = extents
    ready, free, _ = barriers
    STAGE_ROWS: gl.constexpr = FIXED.BLOCK_SIZE_M + loaded_columns(FIXED.BLOCK_SIZE_N, FIXED.B_TRANSPOSED)
    STAGE_BYTES: gl.constexpr = STAGE_ROWS * ROW_BYTES
    BOX_ROWS: gl.constexpr = box_rows(FIXED.BLOCK_SIZE_M, FIXED.CTAS, FIXED.A_TRANSPOSED, FIXED.GATED)
    MATRICES: gl.constexpr = 2 if FIXED.GATED else 1
    UNIT: gl.constexpr = ring.shape[1]
    A_SHARED: gl.constexpr = FIXED.CTAS > 1 and not FIXED.SHARE_B
    tiles_m, tiles_n = cluster.tiles_of(M, N, FIXED)
    if FIXED.CTAS > 1:
        cluster.meet()
    await_predecessor(FIXED.PDL, FIXED.TRIGGER)
    stage = 0
    phase = 1  # the phase of unused barriers: stages are free at first
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        start_m, start_n = cluster.corner_of(tile, tiles_m, tiles_n, extents, FIXED)
        for step in range(count_blocks(K, FIXED.BLOCK_SIZE_K)):
            start_k = step * FIXED.BLOCK_SIZE_K
            barrier = ready.index(stage)
            first = stage * (STAGE_ROWS // UNIT)
            cluster.await_free(free, stage, phase, FIXED.CTAS)
            mbarrier.expect(barrier, STAGE_BYTES)
            for part in gl.static_range(FIXED.BLOCK_SIZE_M // BOX_ROWS):
                desc = a_descs[part % MATRICES]
                row = start_m // MATRICES + part // MATRICES * BOX_ROWS
                buffer = ring.index(first + part * (BOX_ROWS // UNIT))
                buffer = buffer._reinterpret(desc.dtype, desc.block_type.shape, desc.layout)
                load_block(desc, row, start_k, barrier, buffer, FIXED.A_TRANSPOSED, A_SHARED)
            for digit in gl.static_range(6):
                at = first + FIXED.BLOCK_SIZE_M // UNIT
                load_box(b_descs[digit], start_n, start_k, barrier, ring, at, 256 >> digit, FIXED)
            stage, phase = following(stage, phase, FIXED.STAGES)
    release_last(FIXED.PDL, FIXED.TRIGGER)
    if FIXED.CTAS > 1:
        # Other blocks signal their reads of the last stages to this block, which must not end before.
        for _ in range(FIXED.STAGES):
            cluster.await_free(free, stage, phase, FIXED.CTAS)
            stage, phase = following(stage, phase, FIXED.STAGES)


@gluon.jit
def start_products(base, barriers, stage, phase, K, FIRST: gl.constexpr, dtype: gl.constexpr, FIXED: gl.constexpr):  # noqa: ANN201, PLR0917
    """Sum all steps, and leave the last one under way; return both halves' sums, the next stage and its phase.

    The second half are 64 more rows of 128, or the same sums.
    """
    ready, free, _ = barriers
    WIDTH: gl.constexpr = FIXED.BLOCK_SIZE_N
    CHUNK: gl.constexpr = chunk_of(WIDTH)
    STAGE_BYTES: gl.constexpr = (FIXED.BLOCK_SIZE_M + loaded_columns(WIDTH, FIXED.B_TRANSPOSED)) * ROW_BYTES
    sums = (gl.zeros((64, CHUNK), gl.float32, layout_of(CHUNK, dtype, FIXED.CTAS)),) * (WIDTH // CHUNK)
    more = sums
    for step in range(count_blocks(K, FIXED.BLOCK_SIZE_K)):
        mbarrier.wait(ready.index(stage), phase)
        a = descriptor_of(base + stage * STAGE_BYTES + FIRST * ROW_BYTES, False)
        b = descriptor_of(base + stage * STAGE_BYTES + FIXED.BLOCK_SIZE_M * ROW_BYTES, not FIXED.B_TRANSPOSED)
        # The previous step is done while this one runs, so its stage is free.
        if rows_each(FIXED) == 128:
            sums = multiply_step(sums, a, b, dtype, None, FIXED)
            more = multiply_step(more, a + 64 * ROW_BYTES // 16, b, dtype, 2, FIXED)
        else:
            sums = multiply_step(sums, a, b, dtype, 1, FIXED)
        cluster.release(free, gl.where(stage == 0, FIXED.STAGES - 1, stage - 1), FIXED.CTAS, pred=step > 0)
        stage, phase = following(stage, phase, FIXED.STAGES)
    return sums, more, stage, phase


@gluon.jit
def multiply(  # noqa: ANN201, PLR0917
    extents,
    ring,
    barriers,
    outputs,
    out_buffers,
    vectors,
    WARPGROUP: gl.constexpr,
    TEAM: gl.constexpr,
    FIXED: gl.constexpr,
):
    """Run a multiplying warpgroup, which computes its share of the rows of its team's tiles: 64 or 128."""
    M, N, K, _ = extents
    _, free, order = barriers
    dtype: gl.constexpr = ring.dtype
    FIRST: gl.constexpr = WARPGROUP * rows_each(FIXED)
    TWICE: gl.constexpr = rows_each(FIXED) == 128
    MEMBER: gl.constexpr = TEAM * FIXED.WARPGROUPS + WARPGROUP
    tiles_m, tiles_n = cluster.tiles_of(M, N, FIXED)
    if FIXED.CTAS > 1:
        cluster.meet()
    base = ring_address()
    stage = 0
    phase = 0
    turn = 1 - TEAM  # as in `ping_pong_jit`
    first = gl.program_id(0)
    if TEAM > 0:
        first += gl.num_programs(0)
        stage, phase = passed(stage, phase, count_blocks(K, FIXED.BLOCK_SIZE_K), FIXED.STAGES)
    for tile in range(first, tiles_m * tiles_n, FIXED.TEAMS * gl.num_programs(0)):
        start_m, start_n = cluster.corner_of(tile, tiles_m, tiles_n, extents, FIXED)
        start_m += FIRST
        if FIXED.TEAMS > 1:
            mbarrier.wait(order.index(TEAM), turn)
            turn ^= 1
        sums, more, stage, phase = start_products(base, barriers, stage, phase, K, FIRST, dtype, FIXED)
        if FIXED.TEAMS > 1:
            mbarrier.arrive(order.index(1 - TEAM), count=1)
        sums = complete(sums, FIXED)
        if TWICE:
            more = complete(more, FIXED)
        cluster.release(free, gl.where(stage == 0, FIXED.STAGES - 1, stage - 1), FIXED.CTAS)
        if FIXED.TEAMS > 1:
            stage, phase = passed(stage, phase, count_blocks(K, FIXED.BLOCK_SIZE_K), FIXED.STAGES)
        if FIXED.GATED:
            at = (start_m // 2, start_n)
            values = gated(sums, more, FIXED)
            store_rows(values, at, outputs, out_buffers, vectors, extents, dtype, MEMBER, 0, activated(FIXED))
        else:
            at = (start_m, start_n)
            store_rows(sums, at, outputs, out_buffers, vectors, extents, dtype, MEMBER, 0, FIXED)
            if TWICE:
                at = (start_m + 64, start_n)
                store_rows(more, at, outputs, out_buffers, vectors, extents, dtype, MEMBER, pieces_of(FIXED), FIXED)
    tma.store_wait(0)


@gluon.jit
def gated(gate, up, FIXED: gl.constexpr):  # noqa: ANN201
    """The product of an activated gate and of up."""
    ACTIVATION: gl.constexpr = FIXED.ACTIVATION
    values = gate[:0]
    for part in gl.static_range(FIXED.BLOCK_SIZE_N // chunk_of(FIXED.BLOCK_SIZE_N)):
        values = values + (activate(gate[part], ACTIVATION) * up[part],)
    return values


@gluon.constexpr_function
def activated(FIXED):  # noqa: ANN201
    """The constants of values that are activated."""
    return FIXED.activated()


@gluon.constexpr_function
def pieces_of(FIXED):  # noqa: ANN201
    """Number of stores of 64 rows: 64 columns each, then single tensors of sums."""
    return FIXED.BLOCK_SIZE_N // 64 + FIXED.BLOCK_SIZE_N % 64 // chunk_of(FIXED.BLOCK_SIZE_N)


@gluon.constexpr_function
def pending_of(piece, FIXED):  # noqa: ANN201
    """How many stores may be under way before a piece's: a tile with an odd number ends on the buffer that begins."""
    stored = 64 if FIXED.GATED else rows_each(FIXED)
    odd = pieces_of(FIXED) * (stored // 64) % FIXED.TURNS
    return 0 if piece == 0 and odd else FIXED.TURNS - 1


@gluon.jit
def joined(left, right, dtype: gl.constexpr, FIXED: gl.constexpr):  # noqa: ANN201
    """Two tensors of sums side by side, without data movement."""
    COLUMNS: gl.constexpr = 2 * left.shape[1]
    both = gl.join(left, right).permute([0, 2, 1]).reshape([left.shape[0], COLUMNS])
    return gl.convert_layout(both, layout_of(COLUMNS, dtype, FIXED.CTAS), assert_trivial=True)


@gluon.jit
def sixty_four(sums, first: gl.constexpr, dtype: gl.constexpr, FIXED: gl.constexpr):  # noqa: ANN201
    """64 columns of sums as one tensor, from tensor number `first` on."""
    left = joined(sums[first], sums[first + 1], dtype, FIXED)
    if left.shape[1] < 64:
        left = joined(left, joined(sums[first + 2], sums[first + 3], dtype, FIXED), dtype, FIXED)
    if left.shape[1] < 64:
        right = joined(sums[first + 4], sums[first + 5], dtype, FIXED)
        right = joined(right, joined(sums[first + 6], sums[first + 7], dtype, FIXED), dtype, FIXED)
        left = joined(left, right, dtype, FIXED)
    return left


@gluon.jit
def store_rows(  # noqa: ANN201, PLR0917
    sums,
    place,
    outputs,
    out_buffers,
    vectors,
    extents,
    dtype: gl.constexpr,
    MEMBER: gl.constexpr,
    BEFORE: gl.constexpr,
    FIXED: gl.constexpr,
):
    """Finish 64 rows of sums and store them.

    MEMBER: the warpgroup's number among all that multiply. BEFORE: its pieces of this tile that precede these.
    """
    c, c_rest, strides = outputs
    start_m, start_n = place
    CHUNK: gl.constexpr = chunk_of(FIXED.BLOCK_SIZE_N)
    WIDE: gl.constexpr = FIXED.BLOCK_SIZE_N // 64
    TURNS: gl.constexpr = FIXED.TURNS
    out_dtype: gl.constexpr = c.dtype if strides[0] is None else c.dtype.element_ty
    if TURNS == 0:
        for part in gl.static_range(FIXED.BLOCK_SIZE_N // CHUNK):
            at = (start_m, start_n + part * CHUNK)
            values = finished(sums[part], vectors, at, extents, FIXED, out_dtype)
            store_registers(c, values, at, extents, strides, FIXED.C_VECTOR, FIXED.C_TRANSPOSED)
    else:
        for part in gl.static_range(pieces_of(FIXED)):
            buffer = out_buffers.index(MEMBER * TURNS + (BEFORE + part) % TURNS)
            if part < WIDE:
                at = (start_m, start_n + part * 64)
                values = sixty_four(sums, part * (64 // CHUNK), dtype, FIXED)
            else:
                at = (start_m, start_n + WIDE * 64 + (part - WIDE) * CHUNK)
                values = sums[WIDE * (64 // CHUNK) + part - WIDE]
                if strides[0] is None:
                    buffer = buffer._reinterpret(out_dtype, c_rest.block_type.shape, c_rest.layout)
            values = finished(values, vectors, at, extents, FIXED, out_dtype)
            to = c if part < WIDE else c_rest
            store_block(to, buffer, values, at, extents, strides, pending_of(BEFORE + part, FIXED), FIXED.C_TRANSPOSED)


@gluon.jit(do_not_specialize=["M", "N", "K", "GROUP_SIZE_M"], do_not_specialize_on_alignment=["stride_cm", "stride_cn"])
def any_width_kernel(  # noqa: ANN201, PLR0917
    a_desc,
    up_desc,
    b_256_desc,
    b_128_desc,
    b_64_desc,
    b_32_desc,
    b_16_desc,
    b_8_desc,
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
    GROUP_SIZE_M,
    BLOCK_SIZE_M: gl.constexpr,
    BLOCK_SIZE_N: gl.constexpr,
    BLOCK_SIZE_K: gl.constexpr,
    WARPGROUPS: gl.constexpr,
    STAGES: gl.constexpr,
    TURNS: gl.constexpr,
    LOADER_REGISTERS: gl.constexpr,
    MULTIPLIER_REGISTERS: gl.constexpr,
    A_TRANSPOSED: gl.constexpr,
    B_TRANSPOSED: gl.constexpr,
    C_TRANSPOSED: gl.constexpr,
    ACTIVATION: gl.constexpr,
    SHARE_B: gl.constexpr,
    BIAS_ALONG_M: gl.constexpr,
    C_VECTOR: gl.constexpr,
    PDL: gl.constexpr,
    TRIGGER: gl.constexpr,
    TEAMS: gl.constexpr,
    SCALING: gl.constexpr,
):
    """Compute tiles of C one after the other.

    up_desc: a second A, where A is the weight of a gate and M the rows of both; otherwise None.
    b_256_desc to b_8_desc: B for boxes of so many rows, or None where the columns that a stage holds lack that binary
        digit.
    c, c_rest: C for blocks of 64 columns, and of one tensor of sums, or None.
    WARPGROUPS: 1 to 3, which divide the rows; the launch's num_warps is 4, those of the first.
    TEAMS: 2 if warpgroups take tiles in turn, each of them all rows of its own (`ping_pong_jit`); otherwise 1.
    TURNS: buffers through which a warpgroup stores, in alternation: one or two; 0 to store from registers, where c is a
        pointer and c_rest None.
    C_VECTOR: divides C's leading stride and its contiguous extent, where C is stored from registers.
    SHARE_B: as in `warp_specialized_kernel`.
    """
    CTAS: gl.constexpr = gl.num_ctas()
    IDLE: gl.constexpr = 0 if CTAS == 1 else 3  # warps besides the loader: all of a cluster's must meet
    STAGE_ROWS: gl.constexpr = BLOCK_SIZE_M + loaded_columns(BLOCK_SIZE_N, B_TRANSPOSED)
    UNIT: gl.constexpr = unit_of(STAGE_ROWS)
    RING: gl.constexpr = STAGES * STAGE_ROWS // UNIT
    ring = gl.allocate_shared_memory(a_desc.dtype, [RING, UNIT, BLOCK_SIZE_K], a_desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, CTAS], cluster.barriers_of(CTAS))
    if CTAS == 1:
        free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], cluster.barriers_of(CTAS))
    else:
        free = cluster.free_barriers(STAGES, WARPGROUPS, CTAS)
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        if CTAS == 1:
            mbarrier.init(free.index(stage), count=WARPGROUPS)
    order = ready
    if TEAMS > 1:
        order = gl.allocate_shared_memory(gl.int64, [TEAMS, 1], cluster.barriers_of(CTAS))
        for team in gl.static_range(TEAMS):
            mbarrier.init(order.index(team), count=1)
    if CTAS > 1:
        cluster.publish_barriers()
    fence_async_shared()

    FIXED: gl.constexpr = fixed(
        *(BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K, WARPGROUPS, STAGES, TURNS),
        *(C_TRANSPOSED, ACTIVATION, PDL, CTAS, SHARE_B, BIAS_ALONG_M, C_VECTOR, TEAMS, SCALING),
        *(A_TRANSPOSED, B_TRANSPOSED, up_desc is not None, TRIGGER),
    )
    out_buffers = ring
    if stride_cm is None:
        out_buffers = gl.allocate_shared_memory(c.dtype, [TEAMS * TURNS * WARPGROUPS] + c.block_type.shape, c.layout)
    extents = (M, N, K, GROUP_SIZE_M)
    barriers = (ready, free, order)
    a_descs = (a_desc, up_desc)
    b_descs = (b_256_desc, b_128_desc, b_64_desc, b_32_desc, b_16_desc, b_8_desc)
    outputs = (c, c_rest, (stride_cm, stride_cn))
    vectors = (bias_ptr, a_scale_ptr, b_scale_ptr, None)
    LOADERS: gl.constexpr = [LOADER_REGISTERS] * (1 + IDLE)
    if TEAMS > 1:
        gl.warp_specialize(
            [
                (multiply, (extents, ring, barriers, outputs, out_buffers, vectors, 0, 0, FIXED)),
                (multiply, (extents, ring, barriers, outputs, out_buffers, vectors, 0, 1, FIXED)),
                (fill, (extents, ring, barriers, a_descs, b_descs, FIXED)),
            ],
            [4, 1],
            [MULTIPLIER_REGISTERS, LOADER_REGISTERS],
        )
    elif WARPGROUPS == 1:
        gl.warp_specialize(
            [
                (multiply, (extents, ring, barriers, outputs, out_buffers, vectors, 0, 0, FIXED)),
                (fill, (extents, ring, barriers, a_descs, b_descs, FIXED)),
            ]
            + [(cluster.idle, ())] * IDLE,
            [1] + [1] * IDLE,
            LOADERS,
        )
    elif WARPGROUPS == 2:
        gl.warp_specialize(
            [
                (multiply, (extents, ring, barriers, outputs, out_buffers, vectors, 0, 0, FIXED)),
                (multiply, (extents, ring, barriers, outputs, out_buffers, vectors, 1, 0, FIXED)),
                (fill, (extents, ring, barriers, a_descs, b_descs, FIXED)),
            ]
            + [(cluster.idle, ())] * IDLE,
            [4, 1] + [1] * IDLE,
            [MULTIPLIER_REGISTERS] + LOADERS,
        )
    else:
        gl.warp_specialize(
            [
                (multiply, (extents, ring, barriers, outputs, out_buffers, vectors, 0, 0, FIXED)),
                (multiply, (extents, ring, barriers, outputs, out_buffers, vectors, 1, 0, FIXED)),
                (multiply, (extents, ring, barriers, outputs, out_buffers, vectors, 2, 0, FIXED)),
                (fill, (extents, ring, barriers, a_descs, b_descs, FIXED)),
            ]
            + [(cluster.idle, ())] * IDLE,
            [4, 4, 1] + [1] * IDLE,
            [MULTIPLIER_REGISTERS, MULTIPLIER_REGISTERS] + LOADERS,
        )
