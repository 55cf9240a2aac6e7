"""Where a kernel's programs lie, and how long they run, by when the kernel before lets them start.

    python benchmarks/placement.py --out RESULT.json

The kernel of few rows of A (`tma_kernel`, operands exchanged) with stamps: each program writes its multiprocessor and
the device's clock when it starts, when it may read, and when it has stored. Launches follow each other in a graph. Two
multiprocessors with neighbouring numbers, from an even one on, are taken for one TPC.
"""

from __future__ import annotations

import argparse
import statistics

import record
import torch
import triton
import triton.language as tl

from tuner.kernels.base.blocks import await_predecessor, count_blocks, release_last
from tuner.kernels.gemm.tma.spec import descriptor
from tuner.kernels.gemm.tma.tile import sum_products

SHAPES = ((48, 5120, 2048, 7), (16, 6144, 4096, 5))
"""M, N, K and stages; tiles are of 64 columns."""
TRIGGERS = (0, 6, 8)
LAUNCHES, COUNTED = 24, range(8, 20)
SETS = 12
BLOCK, STEP = 64, 128


@triton.jit
def clock(of):
    """Nanoseconds of the device's clock."""
    return tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l,r", [of], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit
def multiprocessor(of):
    """The number of the multiprocessor."""
    return tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r,r", [of], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit(do_not_specialize=["K"])
def stamped_kernel(w_desc, x_desc, out_desc, stamps, K, TRIGGER: tl.constexpr, ROWS: tl.constexpr):
    """A tile of 64 columns of the product, and when it was made."""
    tile = tl.program_id(0)
    started = clock(tile)
    await_predecessor(True, TRIGGER)
    released = clock(tile)
    steps = count_blocks(K, 128)
    sums = sum_products(
        w_desc, x_desc, tile * 64, 0, 0, steps, 64, ROWS, 128, False, True, "ieee", 0, False, PDL=True, TRIGGER=TRIGGER
    )
    release_last(True, TRIGGER)
    out_desc.store([0, tile * 64], sums.to(tl.bfloat16).T)
    at = stamps + tile * 4
    tl.store(at + 2, clock(tile))
    tl.store(at, started)
    tl.store(at + 1, released)
    tl.store(at + 3, multiprocessor(tile).to(tl.int64))


def stamps_of(m, n, k, stages, trigger):
    """Stamps [launches, programs, 4] of one replay."""
    block = triton.next_power_of_2(m)
    sets = [[torch.randn(rows, k, device="cuda").bfloat16() for rows in (m, n)] for _ in range(SETS)]
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    stamps = torch.zeros(LAUNCHES, n // BLOCK, 4, dtype=torch.int64, device="cuda")

    def launch_all():
        for index in range(LAUNCHES):
            x, w = sets[index % SETS]
            descriptors = descriptor(w, BLOCK, STEP), descriptor(x.t(), STEP, block), descriptor(out, block, BLOCK)
            stamped_kernel[(n // BLOCK,)](
                *descriptors, stamps[index], k, trigger, block, num_warps=4, num_stages=stages, launch_pdl=True
            )

    launch_all()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch_all()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    x, w = sets[(LAUNCHES - 1) % SETS]
    torch.testing.assert_close(out, x @ w.t(), rtol=3e-2, atol=1)
    return stamps.tolist()


def seen(launches):
    """Medians over launches: TPCs with programs, starts and releases after the launch before, how long programs ran."""
    found = []
    for index in COUNTED:
        before = max(stored for _, _, stored, _ in launches[index - 1])
        ran = [(stored - released) / 1e3 for _, released, stored, _ in launches[index]]
        found.append(
            {
                "tpcs": len({number // 2 for *_, number in launches[index]}),
                "started_us": statistics.median((started - before) / 1e3 for started, *_ in launches[index]),
                "released_us": statistics.median((released - before) / 1e3 for _, released, *_ in launches[index]),
                "ran_us": statistics.median(ran),
                "longest_us": max(ran),
                "launch_us": (max(stored for _, _, stored, _ in launches[index]) - before) / 1e3,
            }
        )
    return {name: round(statistics.median(one[name] for one in found), 2) for name in found[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    rows = []
    for m, n, k, stages in SHAPES:
        for trigger in TRIGGERS:
            rows.append(
                {
                    "problem": f"{m}x{n}x{k}",
                    "programs": n // BLOCK,
                    "PDL_TRIGGER": trigger,
                    **seen(stamps_of(m, n, k, stages, trigger)),
                }
            )
            print(rows[-1])
            record.write(args.out, {"rows": rows})


if __name__ == "__main__":
    main()
