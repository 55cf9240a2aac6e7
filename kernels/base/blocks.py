"""Device code that several GEMM kernels share: tile order, split sums, hints to the compiler and the L2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

_SIZES = [
    *("M", "N", "K", "N_FIRST", "N_SECOND", "N_THIRD", "GROUPS", "GROUP_SIZE_M", "SPLITS"),
    *("stride_ab", "stride_bb", "stride_cb", "stride_bg", "A_BATCHED", "B_BATCHED"),
]
_STRIDES = [
    *("stride_am", "stride_ak", "stride_bk", "stride_bn", "stride_cm", "stride_cn", "stride_prefetched"),
    *("stride_asm", "stride_ask", "stride_bsk", "stride_bsn"),
    *("stride_xm", "stride_xn", "stride_om", "stride_on", "stride_x", "stride_y", "stride_out"),
]


def any_size(kernel: Callable[..., Any]) -> Any:
    """Make a kernel whose binaries serve every size: of its sizes and strides, only strides of 1 are compiled in."""
    return triton.jit(kernel, do_not_specialize=_SIZES, do_not_specialize_on_alignment=_STRIDES)


@triton.jit
def known_multiple(x, divisor: tl.constexpr):  # noqa: ANN201  jit bodies take no such annotation
    """Return `x`, a multiple of `divisor`, in a form from which the compiler can tell that it is one.

    Triton specializes arguments on multiples of 16 only. A bfloat16 stride that is a multiple of 8 (16 bytes) would
    otherwise be loaded 2 bytes at a time, which is many times slower.
    """
    return x // divisor * divisor


@triton.jit
def multiples_known(  # noqa: ANN201, PLR0917
    rows, columns, stride_rows, stride_columns, VECTOR: tl.constexpr, TRANSPOSED: tl.constexpr
):
    """Return a matrix's extents and strides; the contiguous extent and the leading stride are multiples of VECTOR."""
    if TRANSPOSED:
        rows = known_multiple(rows, VECTOR)
        stride_columns = known_multiple(stride_columns, VECTOR)
    else:
        columns = known_multiple(columns, VECTOR)
        stride_rows = known_multiple(stride_rows, VECTOR)
    return rows, columns, stride_rows, stride_columns


@triton.jit
def await_predecessor(PDL: tl.constexpr, TRIGGER: tl.constexpr = 0):  # noqa: ANN201
    """Wait until the previous kernel in the stream is complete; with TRIGGER 0, also let the next kernel start.

    With programmatic dependent launch (`launch_pdl`, sm_90 and newer) a kernel starts while its predecessor still runs.
    Every program calls this before it touches memory.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        if TRIGGER == 0:
            tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def release_midway(step, steps, PDL: tl.constexpr, TRIGGER: tl.constexpr):  # noqa: ANN201
    """Let the next kernel start after TRIGGER eighths of this program's steps along K, if TRIGGER is 1 to 7.

    The next kernel starts when every program has done this. The instruction is predicated and issued at each step, so
    that the loop remains a single pipeline.
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
    """Let the next kernel start after the last step along K, if TRIGGER is 8."""
    if PDL and TRIGGER == 8:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def prefetch_rows(first, stride, rows, length, ROWS: tl.constexpr, BYTES: tl.constexpr):  # noqa: ANN201, PLR0917
    """Prefetch the first BYTES / ROWS bytes of each of ROWS rows into the L2, without waiting for them.

    This is safe before `await_predecessor` even if another kernel still writes these rows: the prefetch has the effect
    of an earlier kernel's read, and later writes update the L2 as usual (PTX ISA, cp.async.bulk.prefetch.L2, sm_90 and
    newer).

    Args:
        first: pointer to the first row, at a multiple of 16 bytes.
        stride: elements from row to row, a multiple of 16 bytes; each row is contiguous.
        rows: number of rows, possibly fewer than ROWS.
        length: elements of a row, possibly fewer than BYTES / ROWS bytes hold.
        ROWS: rows of the block.
        BYTES: bytes to prefetch from all rows together.
    """
    SIZE: tl.constexpr = first.dtype.element_ty.primitive_bitwidth // 8
    # One row per thread. With a smaller block, several threads would prefetch the same row.
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
    """Number of blocks that cover an extent of at least 1, rounded up without a sum that overflows near 2^31."""
    return (extent - 1) // BLOCK + 1


@triton.jit
def moved_within(start, extent, BLOCK: tl.constexpr, UNIT: tl.constexpr = 1):  # noqa: ANN201
    """Start of a block that would reach beyond the end of an extent, moved back so that it ends there.

    TMA takes longer over rows beyond the end than over others. Where a block of rows lies half beyond it, a GEMM took
    up to 1.8 times as long on an H200. The blocks that overlap now compute, and store, the same values twice.

    UNIT: what the start is a multiple of. If an operand is contiguous along this extent, it is 16 bytes: TMA's other
    coordinates along it are illegal instructions. So the block may end up to 15 bytes beyond.
    """
    last = extent - BLOCK
    if UNIT > 1:
        last = (last + UNIT - 1) // UNIT * UNIT
    return min(start, max(last, 0))


@triton.jit
def grouped(tile, tiles_m, tiles_n, GROUP_SIZE_M):  # noqa: ANN201
    """Row and column of a tile by its number, in an order that sweeps GROUP_SIZE_M rows of tiles for L2 reuse."""
    tiles_of_group = GROUP_SIZE_M * tiles_n
    first_m = tile // tiles_of_group * GROUP_SIZE_M
    rows_of_group = min(tiles_m - first_m, GROUP_SIZE_M)
    within = tile % tiles_of_group
    return first_m + within % rows_of_group, within // rows_of_group


@triton.jit
def steps_of(K, BLOCK_SIZE_K: tl.constexpr, partials_ptr):  # noqa: ANN201
    """Range of this program's steps along K: the first, and one past the last; all, or with partial sums its split's.

    Splits lie along grid axis 1.
    """
    first = 0
    beyond = count_blocks(K, BLOCK_SIZE_K)
    if partials_ptr is not None:
        each = (beyond - 1) // tl.num_programs(1) + 1
        first = tl.program_id(1) * each
        beyond = min(first + each, beyond)
    return first, beyond


@triton.jit
def publish(sums, partials_ptr, counters_ptr, tile):  # noqa: ANN201
    """Store this split's sums, and return whether this program is the last of its tile to do so.

    The barrier orders every thread's stores before the release by one thread. The program that acquires the last count
    therefore sees all partial sums (PTX ISA, memory consistency model: causality order is cumulative). The last
    program resets the counter to 0, so nothing needs to be cleared between launches.

    Without counters nobody is the last: another launch adds the parts.
    """
    BLOCK_M: tl.constexpr = sums.shape[0]
    BLOCK_N: tl.constexpr = sums.shape[1]
    splits = tl.num_programs(1)
    within = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    own = partials_ptr + (tl.cast(tile, tl.int64) * splits + tl.program_id(1)) * (BLOCK_M * BLOCK_N)
    tl.store(own + within, sums)
    last = False
    if counters_ptr is not None:
        tl.debug_barrier()
        last = tl.atomic_add(counters_ptr + tile, 1, sem="acq_rel", scope="gpu") == splits - 1
        if last:
            tl.store(counters_ptr + tile, 0)
    return last


@triton.jit
def collect(like, partials_ptr, tile, TOGETHER: tl.constexpr):  # noqa: ANN201
    """Add up the partial sums of all splits of a tile, always in the same order, so that results are deterministic.

    TOGETHER splits are loaded at a time (`workspace.splits_together`) to hide the latency of the L2.
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
            # Bypass the L1, which does not see stores by other multiprocessors.
            part = first + split * (BLOCK_M * BLOCK_N)
            # The mask has the block's shape because Triton 3.9's interpreter accepts no scalar mask.
            there = tl.zeros_like(within) + split < splits
            sums += tl.load(part + within, mask=there, other=0, cache_modifier=".cg")
    return sums
