"""Counters through which a copy signals, chunk by chunk, its progress to the product that runs concurrently with it.

The copy starts, as usual, when everything before it in the stream has ended. The first thing its programs do is to let
the product start, and the device starts the product once each of them has done so or has ended (CUDA C++ Programming
Guide, programmatic dependent launch). A product that waits for a chunk therefore waits for programs that are already
resident, wait for nothing themselves, and end. No deadlock is possible, whatever else runs on the device. A product
that starts late finds every chunk complete.

The product may overwrite what kernels before the copy read, since they have ended. Before it ends, it waits for the end
of the copy, so that a kernel after the product runs after the copy too. The product's last program resets the counters
for the stream's next launch. Before TMA reads what other threads stored, the reader issues a proxy fence (PTX ISA,
memory consistency model, causality order).
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
"""Distance between two counters, so that each lies in its own cache line: many programs poll one at a time."""
MOST_CHUNKS = MOST_TILES // STRIDE.value - 1
"""The most chunks that can be counted. One more counter is for programs."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What a product needs to know about the copy that runs concurrently.

    Attributes:
        counters: int32 zeros on the operands' device. The first counts the product's programs that have finished; the
            others count the tiles of each chunk that are copied.
        tiles: number of tiles in a chunk.
        chunk: elements of a chunk along K.
    """

    counters: torch.Tensor
    tiles: int
    chunk: int


def arrivals(tiles: int, chunk: int, device: torch.device) -> Arrivals:
    """Arrivals for a launch on the current stream, with no chunk copied yet."""
    _, counters = workspace(1, torch.float32, device)
    return Arrivals(counters, tiles, chunk)


@triton.jit
def arrive(counters, chunk):  # noqa: ANN201  jit bodies take no such annotation
    """Count a tile of a chunk that this program has stored."""
    # The barrier orders every thread's stores before the release by one thread, as in `blocks.publish`.
    tl.debug_barrier()
    tl.atomic_add(counters + (1 + chunk) * STRIDE, 1, sem="release", scope="gpu")


@gluon.jit
def await_chunk(counters, chunk, tiles):  # noqa: ANN201
    """Wait, as a whole warp, until all tiles of a chunk are copied and TMA may read them."""
    # All lanes continue together, because a diverged warp would issue TMA instructions more than once.
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
    """Count this program as done with all chunks; the last program to do so resets the counters."""
    await_predecessor(True, 1)
    if gl.atomic_add(counters, 1) == gl.num_programs(0) - 1:
        for counter in range(chunks + 1):
            gl.store(counters + counter * STRIDE, 0)
