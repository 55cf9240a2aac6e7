"""Our winners, torch.matmul, and a plain tiled kernel under triton.autotune with the tutorial's config list.

    python benchmarks/against_autotune.py --db TUNED.db --out RESULT.json

The seconds are those of autotune's first call for each shape, compiles and measurements, from an empty Triton cache.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time

os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="autotune-")

import paired
import record
import torch
import triton
import triton.language as tl

from tuner.store.store import Store

# The list of Triton's matrix multiplication tutorial for CUDA: BLOCK_SIZE_M, N, K, num_stages, num_warps; GROUP 8.
TUTORIAL = (
    (128, 256, 64, 3, 8), (64, 256, 32, 4, 4), (128, 128, 32, 4, 4), (128, 64, 32, 4, 4), (64, 128, 32, 4, 4),
    (128, 32, 32, 4, 4), (64, 32, 32, 5, 2), (32, 64, 32, 5, 2), (128, 256, 128, 3, 8), (256, 128, 128, 3, 8),
    (256, 64, 128, 4, 4), (64, 256, 128, 4, 4), (128, 128, 128, 4, 4), (128, 64, 64, 4, 4), (64, 128, 64, 4, 4),
    (128, 32, 64, 4, 4),
)  # fmt: skip


@triton.autotune(
    [
        triton.Config({"BM": m, "BN": n, "BK": k, "GROUP": 8}, num_stages=stages, num_warps=warps)
        for m, n, k, stages, warps in TUTORIAL
    ],
    key=["M", "N", "K"],
)
@triton.jit
def tiled(
    a_ptr, b_ptr, c_ptr, M, N, K, sam, sak, sbk, sbn, scm, scn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Grouped tiles, rows wrapped by modulo, K masked: what a user writes who follows the tutorial."""
    pid = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    band = pid // (GROUP * tiles_n)
    height = min(tiles_m - band * GROUP, GROUP)
    pid_m = band * GROUP + (pid % (GROUP * tiles_n)) % height
    pid_n = (pid % (GROUP * tiles_n)) // height
    rows = (pid_m * BM + tl.arange(0, BM)) % M
    columns = (pid_n * BN + tl.arange(0, BN)) % N
    depth = tl.arange(0, BK)
    a_ptrs = a_ptr + rows[:, None] * sam + depth[None, :] * sak
    b_ptrs = b_ptr + depth[:, None] * sbk + columns[None, :] * sbn
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(tl.cdiv(K, BK)):
        left = K - start * BK
        a = tl.load(a_ptrs, mask=depth[None, :] < left, other=0.0)
        b = tl.load(b_ptrs, mask=depth[:, None] < left, other=0.0)
        total = tl.dot(a, b, total)
        a_ptrs += BK * sak
        b_ptrs += BK * sbk
    out_rows = pid_m * BM + tl.arange(0, BM)
    out_columns = pid_n * BN + tl.arange(0, BN)
    inside = (out_rows[:, None] < M) & (out_columns[None, :] < N)
    tl.store(c_ptr + out_rows[:, None] * scm + out_columns[None, :] * scn, total.to(c_ptr.dtype.element_ty), inside)


def autotuned(inputs):
    a, b, c = inputs.a, inputs.b, inputs.output
    m, k = a.shape
    n = b.shape[1]
    tiled[lambda meta: (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]),)](
        a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride()
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--db", required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    with Store.open(args.db, read_only=True) as store:
        winners = {winner.problem: winner.config for winner in store.winners()}
    rows = []
    with paired.gpu() as bench:
        for problem, config in sorted(winners.items(), key=lambda item: item[0]):
            spec, sets = bench.operands(problem)
            start = time.perf_counter()
            autotuned(sets[0])
            torch.cuda.synchronize()
            tune_s = time.perf_counter() - start
            calls = {
                "winner": bench.launcher(problem, config, sets),
                "torch": lambda index, spec=spec, sets=sets: spec.vendor(sets[index]),
                "autotune": lambda index, sets=sets: autotuned(sets[index]),
            }
            ratios = paired.over(bench.play(calls, len(sets)), "winner")
            rows.append(
                {
                    "problem": str(problem),
                    "winner_vs_torch": round(ratios["torch"], 4),
                    "winner_vs_autotune": round(ratios["autotune"], 4),
                    "autotune_s": round(tune_s, 2),
                }
            )
            print(rows[-1], flush=True)
    summary = {
        "problems": len(rows),
        "geomean_winner_vs_torch": round(record.geomean([row["winner_vs_torch"] for row in rows]), 4),
        "geomean_winner_vs_autotune": round(record.geomean([row["winner_vs_autotune"] for row in rows]), 4),
        "autotune_s": round(sum(row["autotune_s"] for row in rows), 1),
    }
    print(summary)
    record.write(args.out, {"summary": summary, "rows": rows})


if __name__ == "__main__":
    main()
