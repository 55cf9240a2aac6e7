"""How far a copy has come, told chunk by chunk to the product that runs beside it.

The copy is a launch like any other: it starts when all that is before it in the stream has ended. Its programs let
the product start as their first act, and the device starts the product when each of them has done so or has ended (CUDA
C++ Programming Guide, programmatic dependent launch). So who waits for a chunk waits for programs that have their
place, wait for nothing and end: there can be no deadlock, whatever room the product finds and other streams do. Where
the product starts late it finds every chunk there.

The product may overwrite what kernels before the copy read: they have ended. It waits for the copy's end last of all,
so that a kernel after the product is after the copy too. The last of its programs leaves zeros, for the stream's next
launch. TMA reads what other threads stored after a fence between the proxies, which the reader makes (PTX ISA, memory
consistency model, causality order).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tuner.kernels.base.blocks import await_predecessor
from tuner.kernels.base.workspace import MOST_TILES, workspace

STRIDE = tl.constexpr(32)
"""Between two counters: lines of their own, for many programs ask for one at a time."""
MOST_CHUNKS = MOST_TILES // STRIDE.value - 1
"""Chunks that can be counted; one more counter is for programs."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What a product must know of the copy beside it.

    Attributes:
        counters: int32 zeros on the operands' device: of the product's programs that are done, then of each chunk's
            tiles that are copied.
        tiles: of a chunk.
        chunk: elements along K of one chunk.
    """

    counters: torch.Tensor
    tiles: int
    chunk: int


def arrivals(tiles: int, chunk: int, device: torch.device) -> Arrivals:
    """Arrivals of a launch on the current stream, none of which has come."""
    return Arrivals(workspace(1, torch.float32, device).counters, tiles, chunk)


@triton.jit
def arrive(counters, chunk):  # noqa: ANN201  jit bodies take no such annotation
    """This program has stored a tile of a chunk."""
    # The barrier orders every thread's stores before the one thread's release, as in `blocks.publish`.
    tl.debug_barrier()
    tl.atomic_add(counters + (1 + chunk) * STRIDE, 1, sem="release", scope="gpu")


@gluon.jit
def await_chunk(counters, chunk, tiles):  # noqa: ANN201
    """Wait, as a whole warp, until all tiles of a chunk are copied; TMA may read them then."""
    # All lanes go on at once: in a warp that has parted, instructions of TMA would be issued more than once.
    gl.inline_asm_elementwise(
        """{
            .reg .pred missing; .reg .u32 found;
            again:
            ld.acquire.gpu.global.u32 found, [$1];
            setp.lo.u32 missing, found, $2;
            vote.sync.any.pred missing, missing, 0xffffffff;
            @missing bra.uni again;
            fence.proxy.async.global;
            mov.u32 $0, 0;
        }""",
        *("=r,l,r", [(counters + (1 + chunk) * STRIDE).to(gl.int64), tiles], gl.int32),
        is_pure=False,
        pack=1,
    )


@gluon.jit
def forget(counters, chunks):  # noqa: ANN201
    """This program needs no chunk any more; the last one to say so leaves zeros."""
    await_predecessor(True, 1)
    if gl.atomic_add(counters, 1) == gl.num_programs(0) - 1:
        for counter in range(chunks + 1):
            gl.store(counters + counter * STRIDE, 0)
