"""Pieces that several GEMM kernels share on the device: tile order, split sums, hints."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def known_multiple(x, divisor: tl.constexpr):  # noqa: ANN201  jit bodies take no such annotation
    """`x`, which the host knows to be a multiple of `divisor`, so written that the compiler knows it too.

    Triton's own specialization knows multiples of 16 and nothing below: bfloat16 rows of 8 elements' alignment (16
    bytes) would load 2 bytes at a time, many times slower.
    """
    return x // divisor * divisor


@triton.jit
def await_predecessor(PDL: tl.constexpr, TRIGGER: tl.constexpr = 0):  # noqa: ANN201
    """Wait for the kernel before this one in the stream; with TRIGGER 0 the next one may come as far as this at once.

    With programmatic dependent launch (`launch_pdl`, sm_90 on) a kernel starts while its predecessor still runs. All
    programs call this before they touch memory: whatever ran before is then complete.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        if TRIGGER == 0:
            tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def release_midway(step, steps, PDL: tl.constexpr, TRIGGER: tl.constexpr):  # noqa: ANN201
    """Let the next kernel start once TRIGGER eighths of this program's steps along K are done, where it is 1 to 7.

    It starts when all programs came by. A predicated instruction at each step, so that the loop is one pipeline still.
    """
    if PDL and TRIGGER > 0 and TRIGGER < 8:
        tl.inline_asm_elementwise(
            """{
                .reg .pred reached;
                setp.ge.s32 reached, $1, 0;
                @reached griddepcontrol.launch_dependents;
                mov.b32 $0, 0;
            }""",
            "=r,r",
            [step - steps * TRIGGER // 8],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def release_last(PDL: tl.constexpr, TRIGGER: tl.constexpr):  # noqa: ANN201
    """Let the next kernel start after the last step along K, where TRIGGER is 8."""
    if PDL and TRIGGER == 8:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def prefetch_rows(first, stride, rows, length, ROWS: tl.constexpr, BYTES: tl.constexpr):  # noqa: ANN201, PLR0917
    """Start to move the first BYTES / ROWS bytes of each of ROWS rows into the L2; nothing waits for them.

    It may come before `await_predecessor`, whoever writes these rows meanwhile: the L2 is left as by an earlier
    kernel's read, and later writes reach it as they always do. (PTX ISA, cp.async.bulk.prefetch.L2, sm_90 on.)

    first: pointer to the first row, at a multiple of 16 bytes. stride: elements from row to row, each contiguous, whole
    16 bytes. rows, length: rows that there are, and elements of each, possibly fewer.
    """
    SIZE: tl.constexpr = first.dtype.element_ty.primitive_bitwidth // 8
    # A row a thread: of a smaller block several threads would move each.
    row = tl.arange(0, max(ROWS, tl.extra.cuda.num_threads()))
    most = tl.minimum(length, BYTES // ROWS // SIZE) // (16 // SIZE) * (16 // SIZE)
    elements = tl.where(row < min(rows, ROWS), most, 0)
    at = first + row.to(tl.int64) * stride
    tl.inline_asm_elementwise(
        """{
            .reg .pred there;
            setp.gt.s32 there, $2, 0;
            @there cp.async.bulk.prefetch.L2.global [$1], $2;
            mov.b32 $0, 0;
        }""",
        "=r,l,r",
        [at.to(tl.int64), elements * SIZE],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def count_blocks(extent, BLOCK: tl.constexpr):  # noqa: ANN201
    """Blocks that cover an extent of at least 1; rounded up without adding, which would overflow near 2^31."""
    return (extent - 1) // BLOCK + 1


@triton.jit
def grouped(tile, tiles_m, tiles_n, GROUP_SIZE_M):  # noqa: ANN201
    """Row and column of the tile-th tile where GROUP_SIZE_M rows of tiles are swept together, for the L2's sake."""
    tiles_of_group = GROUP_SIZE_M * tiles_n
    first_m = tile // tiles_of_group * GROUP_SIZE_M
    rows_of_group = min(tiles_m - first_m, GROUP_SIZE_M)
    within = tile % tiles_of_group
    return first_m + within % rows_of_group, within // rows_of_group


@triton.jit
def steps_of_split(steps):  # noqa: ANN201
    """First step along K of this program's split (grid axis 1), and one beyond its last."""
    each = (steps - 1) // tl.num_programs(1) + 1
    first = tl.program_id(1) * each
    return first, min(first + each, steps)


@triton.jit
def publish(sums, partials_ptr, counters_ptr, tile):  # noqa: ANN201
    """Store this split's sums; True in the program that is the last of its tile to do so.

    The barrier orders every thread's stores before the one thread's release; who acquires the last count sees the
    partial sums of all (PTX ISA, memory consistency model: causality order is cumulative). The counter is 0 again when
    the tile is done: nothing has to be cleared between launches.
    """
    BLOCK_M: tl.constexpr = sums.shape[0]
    BLOCK_N: tl.constexpr = sums.shape[1]
    splits = tl.num_programs(1)
    within = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    own = partials_ptr + (tl.cast(tile, tl.int64) * splits + tl.program_id(1)) * (BLOCK_M * BLOCK_N)
    tl.store(own + within, sums)
    tl.debug_barrier()
    last = tl.atomic_add(counters_ptr + tile, 1, sem="acq_rel", scope="gpu") == splits - 1
    if last:
        tl.store(counters_ptr + tile, 0)
    return last


@triton.jit
def collect(like, partials_ptr, tile, TOGETHER: tl.constexpr):  # noqa: ANN201
    """The sums of all splits of a tile, added in the order of the splits, whoever came last: always the same bits.

    TOGETHER splits are loaded at a time, see `workspace.splits_together`: one by one, each load would wait for the L2.
    """
    BLOCK_M: tl.constexpr = like.shape[0]
    BLOCK_N: tl.constexpr = like.shape[1]
    splits = tl.num_programs(1)
    within = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    first = partials_ptr + tl.cast(tile, tl.int64) * splits * (BLOCK_M * BLOCK_N)
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=like.dtype)
    for start in range(0, splits, TOGETHER):
        for offset in tl.static_range(TOGETHER):
            split = start + offset
            # Past the L1, which no other multiprocessor's stores reach.
            part = first + split * (BLOCK_M * BLOCK_N)
            # A mask of the block's shape: Triton 3.9's interpreter takes no scalar one.
            there = tl.zeros_like(within) + split < splits
            sums += tl.load(part + within, mask=there, other=0, cache_modifier=".cg")
    return sums
