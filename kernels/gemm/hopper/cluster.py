"""Clusters whose blocks compute neighbouring tiles and share the loads of one operand. Written in Gluon, for Hopper.

Triton treats a cluster as one program whose blocks divide a tile. Here each block has its own tile: the layouts declare
that all blocks hold the same values, and coordinates depend on the block's rank. The tiles lie along N and share A, or
with SHARE_B they lie along M and share B; the cluster's first block multicasts the shared operand by TMA. A stage is
free when the warpgroups of every block have read it. Triton 3.7 offers neither an arrival at another block's barrier
nor a barrier for all warps of a cluster. Both are written in PTX, the former with barriers in separate shared memory.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from tuner.kernels.base.blocks import count_blocks, grouped, moved_within


@gluon.constexpr_function
def everywhere(ctas):  # noqa: ANN201
    """The `cga_layout` of a matrix of which every block has its own."""
    return [[0, 0]] * (ctas.bit_length() - 1)


@gluon.constexpr_function
def line_of(ctas):  # noqa: ANN201
    """The `cga_layout` of a vector of which every block has its own."""
    return [[0]] * (ctas.bit_length() - 1)


@gluon.constexpr_function
def barriers_of(ctas):  # noqa: ANN201
    """The layout of one barrier per block."""
    return mbarrier.MBarrierLayout([[1 << bit] for bit in range(ctas.bit_length() - 1)])


@gluon.jit
def rank_of(CTAS: gl.constexpr):  # noqa: ANN201
    """This block's rank in its cluster."""
    if CTAS == 1:
        rank = 0
    else:
        rank = gl.inline_asm_elementwise("mov.u32 $0, %cluster_ctarank;", "=r", [], gl.int32, is_pure=True, pack=1)
    return rank


@gluon.jit
def tiles_of(M, N, FIXED: gl.constexpr):  # noqa: ANN201
    """Number of tiles along M and along N, where the neighbouring tiles of a cluster count as one."""
    DOWN: gl.constexpr = FIXED.CTAS if FIXED.SHARE_B else 1
    ACROSS: gl.constexpr = 1 if FIXED.SHARE_B else FIXED.CTAS
    WIDTH: gl.constexpr = FIXED.BLOCK_SIZE_N + FIXED.BLOCK_SIZE_N_REST
    return count_blocks(M, FIXED.BLOCK_SIZE_M * DOWN), count_blocks(N, WIDTH * ACROSS)


@gluon.constexpr_function
def start_unit(contiguous):  # noqa: ANN201
    """What tiles start at multiples of along an extent: 16 bytes where an operand is contiguous, of 16 bits each."""
    return 8 if contiguous else 1


@gluon.jit
def corner_of(tile, tiles_m, tiles_n, extents, FIXED: gl.constexpr):  # noqa: ANN201
    """First row and column of this block's own tile among the tiles of its cluster; the last ones end with C.

    But not along N, or M if operands are exchanged, where scales are of blocks: a tile lies within one of these.
    """
    M, N, _, GROUP_SIZE_M = extents
    row, column = grouped(tile, tiles_m, tiles_n, GROUP_SIZE_M)
    if FIXED.SHARE_B:
        row = row * FIXED.CTAS + rank_of(FIXED.CTAS)
    else:
        column = column * FIXED.CTAS + rank_of(FIXED.CTAS)
    WIDTH: gl.constexpr = FIXED.BLOCK_SIZE_N + FIXED.BLOCK_SIZE_N_REST
    A_UNIT: gl.constexpr = start_unit(FIXED.A_TRANSPOSED)
    B_UNIT: gl.constexpr = start_unit(not FIXED.B_TRANSPOSED)
    start_m = row * FIXED.BLOCK_SIZE_M
    start_n = column * WIDTH
    if FIXED.SCALING != "block" or not FIXED.BIAS_ALONG_M:
        start_m = moved_within(start_m, M, FIXED.BLOCK_SIZE_M, A_UNIT)
    if FIXED.SCALING != "block" or FIXED.BIAS_ALONG_M:
        start_n = moved_within(start_n, N, WIDTH, B_UNIT)
    return start_m, start_n


@gluon.jit
def rest_of(start_n, N, FIXED: gl.constexpr):  # noqa: ANN201
    """First column of a tile's second width, which ends with C's columns even where the whole tile is wider than C."""
    B_UNIT: gl.constexpr = start_unit(not FIXED.B_TRANSPOSED)
    start_rest = start_n + FIXED.BLOCK_SIZE_N
    if FIXED.SCALING != "block" or FIXED.BIAS_ALONG_M:
        start_rest = moved_within(start_rest, N, FIXED.BLOCK_SIZE_N_REST, B_UNIT)
    return start_rest


@gluon.jit
def free_barriers(STAGES: gl.constexpr, WARPGROUPS: gl.constexpr, CTAS: gl.constexpr):  # noqa: ANN201
    """Make a barrier for each stage in shared memory, and return the first one's address.

    A block's barriers count its own warpgroups, those of the cluster's first block the warpgroups of all blocks. 1,024
    bytes are reserved so that the stages behind them keep the alignment that TMA's swizzle needs. Here no loop reads
    %tid (see `release`).
    """
    address = gl.inline_asm_elementwise(
        "{ .shared .align 1024 .b8 free_stages[1024]; mov.u32 $0, free_stages; }",
        *("=r", [], gl.int32),
        is_pure=False,
        pack=1,
    )
    count = gl.where(rank_of(CTAS) == 0, WARPGROUPS * CTAS, WARPGROUPS)
    for stage in gl.static_range(STAGES):
        gl.inline_asm_elementwise(
            """{
                .reg .pred first; .reg .u32 thread;
                mov.u32 thread, %tid.x;
                setp.eq.u32 first, thread, 0;
                @first mbarrier.init.shared::cta.b64 [$1], $2;
                mov.u32 $0, 0;
            }""",
            *("=r,r,r", [address + 8 * stage, count], gl.int32),
            is_pure=False,
            pack=1,
        )
    return address


@gluon.jit
def meet():  # noqa: ANN201
    """Wait for every warp of the cluster, after which all barriers are initialized."""
    gl.inline_asm_elementwise(
        """{
            barrier.cluster.arrive.relaxed.aligned;
            barrier.cluster.wait.aligned;
            mov.u32 $0, 0;
        }""",
        *("=r", [], gl.int32),
        is_pure=False,
        pack=1,
    )


@gluon.jit
def publish_barriers():  # noqa: ANN201
    """Make the barriers that this thread initialized visible to other blocks once they have met."""
    gl.inline_asm_elementwise(
        "{ fence.mbarrier_init.release.cluster; mov.u32 $0, 0; }", "=r", [], gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def await_free(free, stage, phase, CTAS: gl.constexpr):  # noqa: ANN201
    """Wait until a stage may be filled again."""
    if CTAS == 1:
        mbarrier.wait(free.index(stage), phase)
    else:
        gl.inline_asm_elementwise(
            """{
                .reg .pred done;
                again:
                mbarrier.try_wait.parity.shared::cta.b64 done, [$1], $2;
                @!done bra.uni again;
                mov.u32 $0, 0;
            }""",
            *("=r,r,r", [free + 8 * stage, phase], gl.int32),
            is_pure=False,
            pack=1,
        )


@gluon.jit
def release(free, stage, CTAS: gl.constexpr, pred=True):  # noqa: ANN201
    """Signal that a warpgroup has read a stage: one thread to its own block, another to the cluster's first block.

    The arrivals have no cluster scope, which would turn each into a fence of all memory; CUTLASS uses none either.
    Threads are told their numbers: where PTX in a loop reads %tid, ptxas takes no `elect.sync` of the kernel for the
    choice of one thread, and each load by TMA becomes a loop over threads, of about 130 cycles.
    """
    if CTAS == 1:
        mbarrier.arrive(free.index(stage), count=1, pred=pred)
    else:
        thread = gl.arange(0, 128, layout=gl.BlockedLayout([1], [32], [4], [0], cga_layout=line_of(CTAS)))
        everybody = gl.zeros_like(thread)
        gl.inline_asm_elementwise(
            """{
                .reg .pred own, other; .reg .u32 rank, remote;
                mov.u32 rank, %cluster_ctarank;
                setp.eq.u32 own, $3, 0;
                setp.eq.u32 other, $3, 32;
                setp.ne.and.u32 other, rank, 0, other;
                setp.ne.and.u32 own, $2, 0, own;
                setp.ne.and.u32 other, $2, 0, other;
                mapa.shared::cluster.u32 remote, $1, 0;
                @own mbarrier.arrive.shared::cta.b64 _, [$1];
                @other mbarrier.arrive.shared::cluster.b64 _, [remote];
                mov.u32 $0, 0;
            }""",
            *(
                "=r,r,r,r",
                [free + 8 * stage + everybody, gl.to_tensor(pred).to(gl.int32) + everybody, thread],
                gl.int32,
            ),
            is_pure=False,
            pack=1,
        )


@gluon.jit
def idle():  # noqa: ANN201
    """Run a warp that only takes part in `meet`: Triton starts warps in fours, and all warps of a cluster must meet."""
    meet()
