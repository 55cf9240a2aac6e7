"""Block-scaled fp8 GEMMs for Hopper whose scales come through the ring of stages. In Gluon (Triton 3.7.1).

One loading warp, one or two multiplying warpgroups. What differs between variants are constexprs:

MODE "plain": a warpgroup multiplies a step, waits for it, adds it.
MODE "order": as plain, but the warpgroups take turns in issuing, so that one adds while the other multiplies.
MODE "double": a warpgroup holds two steps' products (64 + 64 registers) and adds one while the next is multiplied.
MODE "apart": two warpgroups take alternate steps along K of the same rows, and the first adds up both sums at the end.
MODE "bare": no scales, and wrong sums: an upper bound.
BM, BN: the tile. A warpgroup has 64x128 sums, or two parts of 64x128, along M (BM = 256) or along N (BN = 256).
CTAS, SHARE_B: clusters whose blocks share A's loads, or B's.
SWAPPED: the operands are exchanged: A is the weight (scales 128x128), B are the tokens (scales 1x128).
"""

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tuner.kernels.base.blocks import await_predecessor, count_blocks
from tuner.kernels.gemm.hopper import cluster
from tuner.kernels.gemm.hopper.cluster import await_free, release
from tuner.kernels.gemm.hopper.loader import load_block
from tuner.kernels.gemm.hopper.output import halves, store_block, synchronize
from tuner.kernels.gemm.hopper.tile import following, layout_of

AHEAD = gl.constexpr(32)
"""Steps' scales in one load of the 128x128 side: 128 bytes, the alignment that TMA asks of shared memory."""


@dataclass(frozen=True)
class Fixed:
    """Constexprs by name; the names in long form are those that `cluster` reads."""

    BLOCK_SIZE_M: int
    BLOCK_SIZE_N: int
    STAGES: int
    WARPGROUPS: int
    CTAS: int
    SHARE_B: bool
    SWAPPED: bool
    MODE: str
    STORE_N: int
    TURNS: int
    PDL: bool
    DEPTH: int
    A_LOADED: bool
    BLOCK_SIZE_N_REST: int = 0
    BLOCK_SIZE_K: int = 128
    A_TRANSPOSED: bool = False
    B_TRANSPOSED: bool = True

    @property
    def BIAS_ALONG_M(self):
        return self.SWAPPED


@gluon.constexpr_function
def fixed(*constants):
    return Fixed(*constants)


@gluon.constexpr_function
def rows_each(F):
    return F.BLOCK_SIZE_M if F.MODE == "apart" else F.BLOCK_SIZE_M // F.WARPGROUPS


@gluon.constexpr_function
def part_columns(F):
    return min(F.BLOCK_SIZE_N, 128)


@gluon.constexpr_function
def weight_blocks(F):
    """Blocks of 128 along the side whose scales are 128x128."""
    return max(1, (F.BLOCK_SIZE_M if F.SWAPPED else F.BLOCK_SIZE_N) // 128)


@gluon.constexpr_function
def a_parts(F):
    """Buffers of A's rows of a stage: a cluster's layouts cannot be sliced, so it has one for each warpgroup."""
    return F.WARPGROUPS if F.CTAS > 1 else 1


@gluon.constexpr_function
def b_parts(F):
    return F.BLOCK_SIZE_N // part_columns(F)


@gluon.constexpr_function
def readers(F):
    return 1 if F.MODE == "apart" else F.WARPGROUPS


@gluon.jit
def named(NAME: gl.constexpr, WAIT: gl.constexpr):
    """Wait at, or arrive at, a named barrier of two warpgroups. Triton's own have the lowest numbers."""
    if WAIT:
        if NAME == 0:
            gl.inline_asm_elementwise("{ bar.sync 8, 256; mov.u32 $0, 0; }", "=r", [], gl.int32, is_pure=False, pack=1)
        else:
            gl.inline_asm_elementwise("{ bar.sync 9, 256; mov.u32 $0, 0; }", "=r", [], gl.int32, is_pure=False, pack=1)
    else:
        if NAME == 0:
            gl.inline_asm_elementwise(
                "{ bar.arrive 8, 256; mov.u32 $0, 0; }", "=r", [], gl.int32, is_pure=False, pack=1
            )
        else:
            gl.inline_asm_elementwise(
                "{ bar.arrive 9, 256; mov.u32 $0, 0; }", "=r", [], gl.int32, is_pure=False, pack=1
            )


@gluon.jit
def a_rows(a_buffers, stage, FIRST: gl.constexpr, WARPGROUP: gl.constexpr, PART: gl.constexpr, F: gl.constexpr):
    """64 rows of A's stage."""
    if a_parts(F) > 1:
        rows = a_buffers.index(stage * a_parts(F) + WARPGROUP)
        if rows_each(F) > 64:
            rows = rows.slice(PART * 64, 64, 0)
    elif F.BLOCK_SIZE_M == 64:
        rows = a_buffers.index(stage)
    else:
        rows = a_buffers.index(stage).slice(FIRST + PART * 64, 64, 0)
    return rows


@gluon.jit
def b_columns(b_buffers, stage, PART: gl.constexpr, F: gl.constexpr):
    """Up to 128 columns of B's stage, [128, columns]."""
    return b_buffers.index(stage * b_parts(F) + PART).permute((1, 0))


@gluon.jit
def fine_scales(buffers, stage, FIRST: gl.constexpr, COUNT: gl.constexpr, TOTAL: gl.constexpr, LAYOUT: gl.constexpr):
    """A step's scales of COUNT rows (or columns) from FIRST on, of the side with 1x128 blocks."""
    if COUNT < TOTAL:
        buffer = buffers.index(stage).reshape([TOTAL]).slice(FIRST, COUNT, 0)
    else:
        buffer = buffers.index(stage).reshape([TOTAL])
    return buffer.load(LAYOUT)


@gluon.jit
def coarse_scale(buffers, stage, step, BLOCK: gl.constexpr, F: gl.constexpr):
    """A step's scale of one 128x128 block: one of the four from a multiple of four on."""
    # A cluster's buffers cannot be sliced. As integers, loads and sums of what is never chosen fold to nothing.
    TOTAL: gl.constexpr = weight_blocks(F) * AHEAD
    all: gl.constexpr = gl.BlockedLayout([TOTAL], [32], [4], [0], cga_layout=cluster_vector(F.CTAS))
    values = buffers.index(stage).reshape([TOTAL]).load(all).to(gl.int32, bitcast=True)
    chosen = gl.arange(0, TOTAL, layout=all) == (step & 3) + BLOCK * AHEAD
    return gl.sum(gl.where(chosen, values, 0), axis=0).to(gl.float32, bitcast=True)


@gluon.constexpr_function
def cluster_vector(ctas):
    return [[0]] * (ctas.bit_length() - 1)


@gluon.jit
def scales_at(
    scale_buffers,
    stage,
    step,
    FIRST: gl.constexpr,
    MP: gl.constexpr,
    NP: gl.constexpr,
    LAYOUT: gl.constexpr,
    F: gl.constexpr,
):
    """The factor of a part's products in a step: by row [64, 1], or by column [1, columns] if exchanged."""
    fine, coarse = scale_buffers
    if F.SWAPPED:
        columns: gl.constexpr = gl.SliceLayout(0, LAYOUT)
        one = fine_scales(fine, stage, 0, part_columns(F), F.BLOCK_SIZE_N, columns)
        other = coarse_scale(coarse, stage, step, 0, F)
        factor = (one * other).expand_dims(0)
    else:
        rows: gl.constexpr = gl.SliceLayout(1, LAYOUT)
        if a_parts(F) > 1:
            one = fine_scales(fine, stage * a_parts(F) + FIRST // 64, 0, 64, 64, rows)
        else:
            one = fine_scales(fine, stage, FIRST + MP * 64, 64, F.BLOCK_SIZE_M, rows)
        other = coarse_scale(coarse, stage, step, NP, F)
        factor = (one * other).expand_dims(1)
    return factor


@gluon.jit
def scale_zero(LAYOUT: gl.constexpr, F: gl.constexpr):
    if F.SWAPPED:
        factor = gl.zeros((part_columns(F),), gl.float32, gl.SliceLayout(0, LAYOUT)).expand_dims(0)
    else:
        factor = gl.zeros((64,), gl.float32, gl.SliceLayout(1, LAYOUT)).expand_dims(1)
    return factor


@gluon.jit
def store_part(c, c_buffers, sums, place, extents, WARPGROUP: gl.constexpr, F: gl.constexpr, dtype: gl.constexpr):
    """Store a 64-row part through the warpgroup's buffers, STORE_N columns at a time."""
    row, column = place
    N: gl.constexpr = F.STORE_N
    PIECES: gl.constexpr = part_columns(F) // N
    pieces = (sums,)
    if PIECES == 2:
        pieces = halves(sums, layout_of(N, dtype, F.CTAS))
    for piece in gl.static_range(PIECES):
        values = pieces[piece].to(c.dtype)
        buffer = c_buffers.index(WARPGROUP * F.TURNS + piece % F.TURNS)
        store_block(c, buffer, values, (row, column + piece * N), extents, (None, None), F.TURNS - 1, F.SWAPPED)


@gluon.jit
def previous(stage, STAGES: gl.constexpr):
    return gl.where(stage == 0, STAGES - 1, stage - 1)


@gluon.jit
def kept(sums):
    """The same sums, which LLVM must have added up here. It would move the additions behind the next wgmma, whose
    registers then could not be those of the products added."""
    return gl.inline_asm_elementwise("", "=f,0", [sums], gl.float32, is_pure=False, pack=1)


@gluon.jit
def freed(free, stage, F: gl.constexpr):
    """Signal that this warpgroup has read a stage, its scales too."""
    if F.CTAS > 1:
        synchronize()  # Triton does so before its own arrivals, not before those written in PTX
    release(free, stage, F.CTAS)


@gluon.jit
def sum_one(
    buffers, scale_buffers, barriers, stage, phase, steps, FIRST: gl.constexpr, WARPGROUP: gl.constexpr, F: gl.constexpr
):
    """One part a warpgroup: MODE plain or order."""
    a_buffers, b_buffers = buffers
    ready, free = barriers
    COLUMNS: gl.constexpr = part_columns(F)
    LAYOUT: gl.constexpr = layout_of(COLUMNS, a_buffers.dtype, F.CTAS)
    sums = gl.zeros((64, COLUMNS), gl.float32, LAYOUT)
    products = gl.zeros((64, COLUMNS), gl.float32, LAYOUT)
    for step in range(steps):
        mbarrier.wait(ready.index(stage), phase)
        factor = scales_at(scale_buffers, stage, step, FIRST, 0, 0, LAYOUT, F)
        if F.MODE == "order":
            named(WARPGROUP, True)
        a = a_rows(a_buffers, stage, FIRST, WARPGROUP, 0, F)
        products = warpgroup_mma(a, b_columns(b_buffers, stage, 0, F), products, use_acc=False, is_async=True)
        if F.MODE == "order":
            named(1 - WARPGROUP, False)
        products = warpgroup_mma_wait(0, deps=(products,))
        freed(free, stage, F)
        sums = kept(sums + products * factor)
        stage, phase = following(stage, phase, F.STAGES)
    return sums, stage, phase


@gluon.jit
def sum_two(
    buffers, scale_buffers, barriers, stage, phase, steps, FIRST: gl.constexpr, WARPGROUP: gl.constexpr, F: gl.constexpr
):
    """Two parts a warpgroup, one after the other through the same registers: MODE plain or order."""
    a_buffers, b_buffers = buffers
    ready, free = barriers
    COLUMNS: gl.constexpr = part_columns(F)
    LAYOUT: gl.constexpr = layout_of(COLUMNS, a_buffers.dtype, F.CTAS)
    DOWN: gl.constexpr = 1 if rows_each(F) > 64 else 0
    ACROSS: gl.constexpr = 1 - DOWN
    first = gl.zeros((64, COLUMNS), gl.float32, LAYOUT)
    second = gl.zeros((64, COLUMNS), gl.float32, LAYOUT)
    products = gl.zeros((64, COLUMNS), gl.float32, LAYOUT)
    for step in range(steps):
        mbarrier.wait(ready.index(stage), phase)
        factor = scales_at(scale_buffers, stage, step, FIRST, 0, 0, LAYOUT, F)
        a = a_rows(a_buffers, stage, FIRST, WARPGROUP, 0, F)
        if F.A_LOADED:
            a = a.load(gl.DotOperandLayout(0, LAYOUT, 4))
        if F.MODE == "order":
            named(WARPGROUP, True)
        products = warpgroup_mma(a, b_columns(b_buffers, stage, 0, F), products, use_acc=False, is_async=True)
        if F.MODE == "order":
            named(1 - WARPGROUP, False)
        products = warpgroup_mma_wait(0, deps=(products,))
        first = kept(first + products * factor)
        factor = scales_at(scale_buffers, stage, step, FIRST, DOWN, ACROSS, LAYOUT, F)
        if DOWN > 0:
            a = a_rows(a_buffers, stage, FIRST, WARPGROUP, DOWN, F)
            if F.A_LOADED:
                a = a.load(gl.DotOperandLayout(0, LAYOUT, 4))
        if F.MODE == "order":
            named(WARPGROUP, True)
        products = warpgroup_mma(a, b_columns(b_buffers, stage, ACROSS, F), products, use_acc=False, is_async=True)
        if F.MODE == "order":
            named(1 - WARPGROUP, False)
        products = warpgroup_mma_wait(0, deps=(products,))
        freed(free, stage, F)
        second = kept(second + products * factor)
        stage, phase = following(stage, phase, F.STAGES)
    return first, second, stage, phase


@gluon.jit
def sum_double(
    buffers, scale_buffers, barriers, stage, phase, steps, FIRST: gl.constexpr, WARPGROUP: gl.constexpr, F: gl.constexpr
):
    """One part a warpgroup, whose products alternate between two sets of registers. An even number of steps."""
    a_buffers, b_buffers = buffers
    ready, free = barriers
    COLUMNS: gl.constexpr = part_columns(F)
    LAYOUT: gl.constexpr = layout_of(COLUMNS, a_buffers.dtype, F.CTAS)
    DEPTH: gl.constexpr = F.DEPTH
    sums = gl.zeros((64, COLUMNS), gl.float32, LAYOUT)
    even = gl.zeros((64, COLUMNS), gl.float32, LAYOUT)
    odd = gl.zeros((64, COLUMNS), gl.float32, LAYOUT)
    # No product is in flight from one turn of the loop to the next: ptxas would serialize them all (C7514).
    for turn in range(steps // DEPTH):
        mbarrier.wait(ready.index(stage), phase)
        factor = scales_at(scale_buffers, stage, DEPTH * turn, FIRST, 0, 0, LAYOUT, F)
        a = a_rows(a_buffers, stage, FIRST, WARPGROUP, 0, F)
        even = warpgroup_mma(a, b_columns(b_buffers, stage, 0, F), even, use_acc=False, is_async=True)
        stage, phase = following(stage, phase, F.STAGES)
        for ahead in gl.static_range(1, DEPTH):
            mbarrier.wait(ready.index(stage), phase)
            after = scales_at(scale_buffers, stage, DEPTH * turn + ahead, FIRST, 0, 0, LAYOUT, F)
            a = a_rows(a_buffers, stage, FIRST, WARPGROUP, 0, F)
            if ahead % 2 == 1:
                odd = warpgroup_mma(a, b_columns(b_buffers, stage, 0, F), odd, use_acc=False, is_async=True)
                even, odd = warpgroup_mma_wait(1, deps=(even, odd))
                freed(free, previous(stage, F.STAGES), F)
                sums = kept(sums + even * factor)
            else:
                even = warpgroup_mma(a, b_columns(b_buffers, stage, 0, F), even, use_acc=False, is_async=True)
                odd, even = warpgroup_mma_wait(1, deps=(odd, even))
                freed(free, previous(stage, F.STAGES), F)
                sums = kept(sums + odd * factor)
            factor = after
            stage, phase = following(stage, phase, F.STAGES)
        odd = warpgroup_mma_wait(0, deps=(odd,))
        freed(free, previous(stage, F.STAGES), F)
        sums = kept(sums + odd * factor)
    return sums, stage, phase


@gluon.jit
def sum_bare(buffers, barriers, stage, phase, steps, FIRST: gl.constexpr, WARPGROUP: gl.constexpr, F: gl.constexpr):
    """No scales at all, for an upper bound on what a tile and its ring can do: the sums are wrong."""
    a_buffers, b_buffers = buffers
    ready, free = barriers
    COLUMNS: gl.constexpr = part_columns(F)
    LAYOUT: gl.constexpr = layout_of(COLUMNS, a_buffers.dtype, F.CTAS)
    TWO: gl.constexpr = b_parts(F) == 2
    first = gl.zeros((64, COLUMNS), gl.float32, LAYOUT)
    second = gl.zeros((64, COLUMNS), gl.float32, LAYOUT)
    for step in range(steps):
        mbarrier.wait(ready.index(stage), phase)
        a = a_rows(a_buffers, stage, FIRST, WARPGROUP, 0, F)
        first = warpgroup_mma(a, b_columns(b_buffers, stage, 0, F), first, is_async=True)
        if TWO:
            second = warpgroup_mma(a, b_columns(b_buffers, stage, 1, F), second, is_async=True)
            first, second = warpgroup_mma_wait(2, deps=(first, second))
        else:
            first = warpgroup_mma_wait(1, deps=(first,))
        release(free, previous(stage, F.STAGES), F.CTAS, pred=step > 0)
        stage, phase = following(stage, phase, F.STAGES)
    if TWO:
        first, second = warpgroup_mma_wait(0, deps=(first, second))
    else:
        first = warpgroup_mma_wait(0, deps=(first,))
    release(free, previous(stage, F.STAGES), F.CTAS)
    return first, second, stage, phase


@gluon.jit
def sum_apart(buffers, scale_buffers, barriers, stage, phase, steps, WARPGROUP: gl.constexpr, F: gl.constexpr):
    """All rows, every other step; `stage` and `phase` are those of the next step of either warpgroup."""
    a_buffers, b_buffers = buffers
    ready, free = barriers
    COLUMNS: gl.constexpr = part_columns(F)
    LAYOUT: gl.constexpr = layout_of(COLUMNS, a_buffers.dtype, F.CTAS)
    sums = gl.zeros((64, COLUMNS), gl.float32, LAYOUT)
    products = gl.zeros((64, COLUMNS), gl.float32, LAYOUT)
    for step in range(steps):
        if step % 2 == WARPGROUP:
            mbarrier.wait(ready.index(stage), phase)
            factor = scales_at(scale_buffers, stage, step, 0, 0, 0, LAYOUT, F)
            a = a_rows(a_buffers, stage, 0, WARPGROUP, 0, F)
            products = warpgroup_mma(a, b_columns(b_buffers, stage, 0, F), products, use_acc=False, is_async=True)
            products = warpgroup_mma_wait(0, deps=(products,))
            freed(free, stage, F)
            sums = kept(sums + products * factor)
        stage, phase = following(stage, phase, F.STAGES)
    return sums, stage, phase


@gluon.jit
def multiply(
    extents, buffers, scale_buffers, barriers, c, c_buffers, handing, WARPGROUP: gl.constexpr, F: gl.constexpr
):
    M, N, K, _ = extents
    a_buffers, _ = buffers
    dtype: gl.constexpr = a_buffers.dtype
    FIRST: gl.constexpr = 0 if F.MODE == "apart" else WARPGROUP * rows_each(F)
    PARTS: gl.constexpr = rows_each(F) // 64 * (F.BLOCK_SIZE_N // part_columns(F))
    DOWN: gl.constexpr = 64 if rows_each(F) > 64 else 0
    ACROSS: gl.constexpr = 0 if rows_each(F) > 64 else 128
    tiles_m, tiles_n = cluster.tiles_of(M, N, F)
    if F.CTAS > 1:
        cluster.meet()
    if F.MODE == "order":
        if WARPGROUP == 1:
            named(0, False)
    stage = 0
    phase = 0
    turn = 0
    steps = count_blocks(K, 128)
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        start_m, start_n = cluster.corner_of(tile, tiles_m, tiles_n, extents, F)
        start_m += FIRST
        if F.MODE == "apart":
            sums, stage, phase = sum_apart(buffers, scale_buffers, barriers, stage, phase, steps, WARPGROUP, F)
            room, given, taken = handing
            if WARPGROUP == 1:
                mbarrier.wait(taken, turn ^ 1)
                room.store(sums)
                mbarrier.arrive(given, count=1)
            else:
                mbarrier.wait(given, turn)
                sums += room.load(sums.type.layout)
                mbarrier.arrive(taken, count=1)
                store_part(c, c_buffers, sums, (start_m, start_n), extents, 0, F, dtype)
            turn ^= 1
        elif PARTS == 2:
            if F.MODE == "bare":
                first, second, stage, phase = sum_bare(buffers, barriers, stage, phase, steps, FIRST, WARPGROUP, F)
            else:
                first, second, stage, phase = sum_two(
                    buffers, scale_buffers, barriers, stage, phase, steps, FIRST, WARPGROUP, F
                )
            store_part(c, c_buffers, first, (start_m, start_n), extents, WARPGROUP, F, dtype)
            store_part(c, c_buffers, second, (start_m + DOWN, start_n + ACROSS), extents, WARPGROUP, F, dtype)
        else:
            if F.MODE == "double":
                sums, stage, phase = sum_double(
                    buffers, scale_buffers, barriers, stage, phase, steps, FIRST, WARPGROUP, F
                )
            elif F.MODE == "bare":
                sums, unused, stage, phase = sum_bare(buffers, barriers, stage, phase, steps, FIRST, WARPGROUP, F)
            else:
                sums, stage, phase = sum_one(buffers, scale_buffers, barriers, stage, phase, steps, FIRST, WARPGROUP, F)
            store_part(c, c_buffers, sums, (start_m, start_n), extents, WARPGROUP, F, dtype)
    tma.store_wait(0)


@gluon.jit
def fill(extents, buffers, scale_buffers, barriers, descriptors, F: gl.constexpr):
    """The loading warp."""
    M, N, K, _ = extents
    a_buffers, b_buffers = buffers
    fine_buffers, coarse_buffers = scale_buffers
    ready, free = barriers
    a_desc, b_desc, fine_desc, coarse_desc = descriptors
    FINE: gl.constexpr = F.BLOCK_SIZE_N if F.SWAPPED else F.BLOCK_SIZE_M
    STAGE_BYTES: gl.constexpr = (F.BLOCK_SIZE_M + F.BLOCK_SIZE_N) * 128 + 4 * (FINE + weight_blocks(F) * AHEAD)
    AP: gl.constexpr = a_parts(F)
    BP: gl.constexpr = b_parts(F)
    FP: gl.constexpr = 1 if F.SWAPPED else AP
    A_SHARED: gl.constexpr = F.CTAS > 1 and not F.SHARE_B
    B_SHARED: gl.constexpr = F.CTAS > 1 and F.SHARE_B
    tiles_m, tiles_n = cluster.tiles_of(M, N, F)
    if F.CTAS > 1:
        cluster.meet()
    await_predecessor(F.PDL)
    stage = 0
    phase = 1
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        start_m, start_n = cluster.corner_of(tile, tiles_m, tiles_n, extents, F)
        fine_start = start_m
        coarse_start = start_n // 128
        if F.SWAPPED:
            fine_start = start_n
            coarse_start = start_m // 128
        for step in range(count_blocks(K, 128)):
            barrier = ready.index(stage)
            await_free(free, stage, phase, F.CTAS)
            mbarrier.expect(barrier, STAGE_BYTES)
            for part in gl.static_range(AP):
                rows = start_m + part * (F.BLOCK_SIZE_M // AP)
                load_block(a_desc, rows, step * 128, barrier, a_buffers.index(stage * AP + part), False, A_SHARED)
            for part in gl.static_range(BP):
                columns = start_n + part * part_columns(F)
                load_block(b_desc, step * 128, columns, barrier, b_buffers.index(stage * BP + part), True, B_SHARED)
            for part in gl.static_range(FP):
                at = fine_start + part * (FINE // FP)
                load_block(fine_desc, step, at, barrier, fine_buffers.index(stage * FP + part), False, False)
            load_block(coarse_desc, coarse_start, step // 4 * 4, barrier, coarse_buffers.index(stage), False, False)
            stage, phase = following(stage, phase, F.STAGES)
    if F.CTAS > 1:
        for _ in range(F.STAGES):
            await_free(free, stage, phase, F.CTAS)
            stage, phase = following(stage, phase, F.STAGES)


@gluon.jit(do_not_specialize=["M", "N", "K", "GROUP_SIZE_M"])
def staged_kernel(
    a_desc,
    b_desc,
    fine_desc,
    coarse_desc,
    c,
    M,
    N,
    K,
    GROUP_SIZE_M,
    BLOCK_SIZE_M: gl.constexpr,
    BLOCK_SIZE_N: gl.constexpr,
    STAGES: gl.constexpr,
    WARPGROUPS: gl.constexpr,
    SHARE_B: gl.constexpr,
    SWAPPED: gl.constexpr,
    MODE: gl.constexpr,
    STORE_N: gl.constexpr,
    TURNS: gl.constexpr,
    PDL: gl.constexpr,
    DEPTH: gl.constexpr,
    A_LOADED: gl.constexpr,
    LOADER_REGISTERS: gl.constexpr,
    MULTIPLIER_REGISTERS: gl.constexpr,
):
    CTAS: gl.constexpr = gl.num_ctas()
    IDLE: gl.constexpr = 0 if CTAS == 1 else 3
    F: gl.constexpr = fixed(
        BLOCK_SIZE_M,
        BLOCK_SIZE_N,
        STAGES,
        WARPGROUPS,
        CTAS,
        SHARE_B,
        SWAPPED,
        MODE,
        STORE_N,
        TURNS,
        PDL,
        DEPTH,
        A_LOADED,
    )
    a_buffers = gl.allocate_shared_memory(a_desc.dtype, [STAGES * a_parts(F)] + a_desc.block_type.shape, a_desc.layout)
    b_buffers = gl.allocate_shared_memory(b_desc.dtype, [STAGES * b_parts(F)] + b_desc.block_type.shape, b_desc.layout)
    FINE_PARTS: gl.constexpr = 1 if SWAPPED else a_parts(F)
    fine = gl.allocate_shared_memory(gl.float32, [STAGES * FINE_PARTS] + fine_desc.block_type.shape, fine_desc.layout)
    coarse = gl.allocate_shared_memory(gl.float32, [STAGES] + coarse_desc.block_type.shape, coarse_desc.layout)
    STORERS: gl.constexpr = readers(F)
    c_buffers = gl.allocate_shared_memory(c.dtype, [STORERS * TURNS] + c.block_type.shape, c.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, CTAS], cluster.barriers_of(CTAS))
    if CTAS == 1:
        free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], cluster.barriers_of(CTAS))
    else:
        free = cluster.free_barriers(STAGES, WARPGROUPS, CTAS)
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        if CTAS == 1:
            mbarrier.init(free.index(stage), count=readers(F))
    handing = (a_buffers, ready, ready)
    if MODE == "apart":
        plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
        room = gl.allocate_shared_memory(gl.float32, [64, part_columns(F)], plain)
        given = gl.allocate_shared_memory(gl.int64, [1, 1], cluster.barriers_of(1))
        taken = gl.allocate_shared_memory(gl.int64, [1, 1], cluster.barriers_of(1))
        mbarrier.init(given.index(0), count=1)
        mbarrier.init(taken.index(0), count=1)
        handing = (room, given.index(0), taken.index(0))
    if CTAS > 1:
        cluster.publish_barriers()
    fence_async_shared()

    extents = (M, N, K, GROUP_SIZE_M)
    buffers = (a_buffers, b_buffers)
    scale_buffers = (fine, coarse)
    barriers = (ready, free)
    descriptors = (a_desc, b_desc, fine_desc, coarse_desc)
    LOADERS: gl.constexpr = [LOADER_REGISTERS] * (1 + IDLE)
    if WARPGROUPS == 1:
        gl.warp_specialize(
            [
                (multiply, (extents, buffers, scale_buffers, barriers, c, c_buffers, handing, 0, F)),
                (fill, (extents, buffers, scale_buffers, barriers, descriptors, F)),
            ]
            + [(cluster.idle, ())] * IDLE,
            [1] + [1] * IDLE,
            LOADERS,
        )
    else:
        gl.warp_specialize(
            [
                (multiply, (extents, buffers, scale_buffers, barriers, c, c_buffers, handing, 0, F)),
                (multiply, (extents, buffers, scale_buffers, barriers, c, c_buffers, handing, 1, F)),
                (fill, (extents, buffers, scale_buffers, barriers, descriptors, F)),
            ]
            + [(cluster.idle, ())] * IDLE,
            [4, 1] + [1] * IDLE,
            [MULTIPLIER_REGISTERS] + LOADERS,
        )
