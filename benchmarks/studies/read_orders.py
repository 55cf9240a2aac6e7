"""How fast weights stream in, by the order in which blocks read them: microseconds and TB/s.

    python benchmarks/studies/read_orders.py --out read-orders.json

Kernels that do little but read a bfloat16 weight [N, K]: `ldg` adds up rows by plain loads; `tma` and `ptr` multiply
tiles of rows x columns by a constant, one block for all of K; `chunk` gives each block a part of K, blocks of one tile
being neighbours (k) or blocks of one part (n); `stream-k` gives persistent blocks equal runs of steps. Two weights are
read in turn, so that the L2 holds nothing of the one to come; ways take turns in each round, in an order drawn anew.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

SHAPES = ((14336, 4096), (28672, 4096), (128256, 4096))
ROWS = ((1, 2048, 4, "evict_first"), (1, 2048, 4, ""), (1, 1024, 4, "evict_first"), (4, 1024, 4, "evict_first"))
"""Rows and columns of a block's loads, warps, eviction."""
TILES = ((64, 128, 5), (64, 256, 4), (64, 512, 3), (128, 128, 4), (128, 256, 3), (64, 64, 12))
"""Rows, columns and stages."""
CHUNKS = ((64, 128, 2, 12), (64, 128, 4, 6), (64, 128, 8, 4), (64, 256, 4, 4), (64, 256, 8, 2), (128, 128, 8, 3))
"""Rows, columns, parts of K and stages."""
RUNS = ((64, 128, 12, 132), (64, 256, 6, 132), (64, 128, 5, 264), (128, 128, 6, 132))
"""Rows, columns, stages and blocks."""
WARPS, ROUNDS = 4, 12


@triton.jit
def rows_kernel(b, out, N, K, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EVICTION: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    at = b + row[:, None].to(tl.int64) * K + column[None, :]
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for k in range(0, K, COLUMNS):
        inside = (column[None, :] < K - k) & (row[:, None] < N)
        sums += tl.load(at, mask=inside, other=0.0, eviction_policy=EVICTION).to(tl.float32)
        at += COLUMNS
    tl.store(out + tl.program_id(0), tl.sum(sums))


@triton.jit
def tile_kernel(b, out, N, K, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr):  # noqa: ARG001
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = b + row[:, None].to(tl.int64) * K + tl.arange(0, COLUMNS)[None, :]
    ones = tl.full((COLUMNS, 16), 1.0, tl.bfloat16)
    sums = tl.zeros((ROWS, 16), tl.float32)
    for _ in tl.range(0, K, COLUMNS, num_stages=STAGES):
        sums = tl.dot(tl.load(at), ones, sums)
        at += COLUMNS
    tl.store(out + tl.program_id(0), tl.sum(sums))


@triton.jit
def chunk_kernel(
    desc,
    out,
    N,
    K,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    STAGES: tl.constexpr,
    BY_TILE: tl.constexpr,
):
    block = tl.program_id(0)
    if BY_TILE:
        tile, part = block // PARTS, block % PARTS
    else:
        tile, part = block % (N // ROWS), block // (N // ROWS)
    ones = tl.full((COLUMNS, 16), 1.0, tl.bfloat16)
    sums = tl.zeros((ROWS, 16), tl.float32)
    first = part * (K // PARTS)
    for k in tl.range(0, K // PARTS, COLUMNS, num_stages=STAGES):
        sums = tl.dot(desc.load([tile * ROWS, first + k]), ones, sums)
    tl.store(out + block, tl.sum(sums))


@triton.jit
def run_kernel(desc, out, N, K, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr):
    steps = K // COLUMNS
    total = N // ROWS * steps
    ones = tl.full((COLUMNS, 16), 1.0, tl.bfloat16)
    sums = tl.zeros((ROWS, 16), tl.float32)
    first = total * tl.program_id(0) // tl.num_programs(0)
    beyond = total * (tl.program_id(0) + 1) // tl.num_programs(0)
    for step in tl.range(first, beyond, num_stages=STAGES):
        sums = tl.dot(desc.load([step // steps * ROWS, step % steps * COLUMNS]), ones, sums)
    tl.store(out + tl.program_id(0), tl.sum(sums))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, type=Path, metavar="RESULT.json")
    args = parser.parse_args()
    rows = []
    for n, k in SHAPES:
        for way, us in sorted(timed(n, k).items(), key=lambda found: found[1]):
            rows.append({"n": n, "k": k, "way": way, "us": round(us, 2), "tb_per_s": round(2e-6 * n * k / us, 3)})
            print(f"{n}x{k} {way:32} {us:8.2f} us {rows[-1]['tb_per_s']:.3f} TB/s", flush=True)
    record.write(args.out, {"rows": rows})


def timed(n: int, k: int) -> dict[str, float]:
    """Microseconds of each way to read a weight, the median of all rounds."""
    every = [ways(torch.randn(n, k, device="cuda", dtype=torch.bfloat16)) for _ in range(2)]
    samples: dict[str, list[float]] = {way: [] for way in every[0]}
    times = 8 if n < 60_000 else 3
    for _ in range(ROUNDS):
        for way in random.sample([*samples], len(samples)):
            samples[way].append(sample([each[way] for each in every], times))
    return {way: statistics.median(them) for way, them in samples.items()}


def ways(b: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """What reads a weight, by the name of the way; each was launched once."""
    n, k = b.shape
    out = torch.empty(1 << 20, device="cuda")
    made: dict[str, Callable[[], Any]] = {}

    def add(name: str, kernel: Any, blocks: int, given: Any, *constants: Any, warps: int = WARPS) -> None:
        def launch() -> None:
            kernel[blocks,](given, out, n, k, *constants, num_warps=warps)

        launch()
        made[name] = launch

    for rows, columns, warps, eviction in ROWS:
        name = f"ldg {rows}x{columns} w{warps} {eviction}".strip()
        add(name, rows_kernel, -(-n // rows), b, rows, columns, eviction, warps=warps)
    for rows, columns, stages in TILES:
        desc = TensorDescriptor.from_tensor(b, [rows, columns])
        add(f"tma {rows}x{columns} s{stages}", chunk_kernel, n // rows, desc, rows, columns, 1, stages, True)
        if columns <= 128:
            add(f"ptr {rows}x{columns} s{stages}", tile_kernel, n // rows, b, rows, columns, stages)
    for rows, columns, parts, stages in CHUNKS:
        desc = TensorDescriptor.from_tensor(b, [rows, columns])
        for by_tile in (True, False):
            name = f"chunk {rows}x{columns} split{parts} s{stages} {'k' if by_tile else 'n'}"
            add(name, chunk_kernel, n // rows * parts, desc, rows, columns, parts, stages, by_tile)
    for rows, columns, stages, blocks in RUNS:
        desc = TensorDescriptor.from_tensor(b, [rows, columns])
        add(f"stream-k {rows}x{columns} s{stages} p{blocks}", run_kernel, blocks, desc, rows, columns, stages)
    torch.cuda.synchronize()
    return made


def sample(launches: list[Callable[[], Any]], times: int) -> float:
    """Microseconds of one launch, of several that follow each other."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(200_000)
    start.record()
    for _ in range(times):
        for launch in launches:
            launch()
    end.record()
    end.synchronize()
    return 1e3 * start.elapsed_time(end) / (times * len(launches))


if __name__ == "__main__":
    main()
