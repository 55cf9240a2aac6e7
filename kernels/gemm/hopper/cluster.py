"""Blocks of a cluster, side by side: one loads for all of them what their tiles share. In Gluon, for Hopper.

To Triton a cluster is one program whose blocks share out a tile. Here each block has a tile of its own: layouts say
that all hold the same, and coordinates differ by the block's rank. The tiles lie along N and share A, or with SHARE_B
along M and share B: the cluster's first block sends that to all (TMA multicast). A stage is free when every block's
warpgroups have read it. Triton 3.7 knows no arrival at another block's barrier, nor a barrier of all warps of a
cluster: both are PTX here, the former in shared memory of their own.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from tuner.kernels.base.blocks import count_blocks, grouped


@gluon.constexpr_function
def everywhere(ctas):  # noqa: ANN201
    """The `cga_layout` of a matrix that every block has its own of."""
    return [[0, 0]] * (ctas.bit_length() - 1)


@gluon.constexpr_function
def barriers_of(ctas):  # noqa: ANN201
    """The layout of one barrier a block."""
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
    """Rows and columns of tiles; of a cluster's tiles, which lie side by side, one counts."""
    DOWN: gl.constexpr = FIXED.CTAS if FIXED.SHARE_B else 1
    ACROSS: gl.constexpr = 1 if FIXED.SHARE_B else FIXED.CTAS
    WIDTH: gl.constexpr = FIXED.BLOCK_SIZE_N + FIXED.BLOCK_SIZE_N_REST
    return count_blocks(M, FIXED.BLOCK_SIZE_M * DOWN), count_blocks(N, WIDTH * ACROSS)


@gluon.jit
def corner_of(tile, tiles_m, tiles_n, GROUP_SIZE_M, FIXED: gl.constexpr):  # noqa: ANN201
    """First row and column of this block's tile, of those that its cluster takes together."""
    row, column = grouped(tile, tiles_m, tiles_n, GROUP_SIZE_M)
    if FIXED.SHARE_B:
        row = row * FIXED.CTAS + rank_of(FIXED.CTAS)
    else:
        column = column * FIXED.CTAS + rank_of(FIXED.CTAS)
    return row * FIXED.BLOCK_SIZE_M, column * (FIXED.BLOCK_SIZE_N + FIXED.BLOCK_SIZE_N_REST)


@gluon.jit
def free_barriers(STAGES: gl.constexpr, WARPGROUPS: gl.constexpr, CTAS: gl.constexpr):  # noqa: ANN201
    """The address of each stage's barrier: it counts this block's warpgroups, the first block's those of all blocks.

    1,024 bytes are reserved: so the stages, which lie behind them, stay where the swizzle of TMA has them.
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
    """Wait for every warp of the cluster: all barriers are made then."""
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
    """Let other blocks see, once they have met, the barriers that this thread made."""
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
    """A warpgroup has read a stage: one of its threads tells its own block, another the cluster's first.

    Without a scope of clusters, which would make each arrival a fence of all memory; CUTLASS writes none either.
    """
    if CTAS == 1:
        mbarrier.arrive(free.index(stage), count=1, pred=pred)
    else:
        gl.inline_asm_elementwise(
            """{
                .reg .pred own, other; .reg .u32 thread, rank, remote;
                mov.u32 thread, %tid.x;
                and.b32 thread, thread, 127;
                mov.u32 rank, %cluster_ctarank;
                setp.eq.u32 own, thread, 0;
                setp.eq.u32 other, thread, 32;
                setp.ne.and.u32 other, rank, 0, other;
                setp.ne.and.u32 own, $2, 0, own;
                setp.ne.and.u32 other, $2, 0, other;
                mapa.shared::cluster.u32 remote, $1, 0;
                @own mbarrier.arrive.shared::cta.b64 _, [$1];
                @other mbarrier.arrive.shared::cluster.b64 _, [remote];
                mov.u32 $0, 0;
            }""",
            *("=r,r,r", [free + 8 * stage, gl.to_tensor(pred).to(gl.int32)], gl.int32),
            is_pure=False,
            pack=1,
        )


@gluon.jit
def idle():  # noqa: ANN201
    """A warp that does nothing else: Triton starts warps by fours, and all of a cluster's must meet."""
    meet()
