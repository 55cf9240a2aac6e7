"""Few rows of A: when a program lets the next kernel start, and what it moves to the L2 while it waits.

    python benchmarks/few_rows.py --out RESULT.json [--kernel gemv]

Configs of `swap_ab`, `split_k` and `gemv` with each PDL_TRIGGER and PREFETCH_KIB, paired in one process with
torch.matmul, in graphs of many launches over rotated weights (protocol 1). Every variant is checked against float64
first.
"""

from __future__ import annotations

import argparse
import itertools
import time

import paired
import record
import torch
from variants import compile_all, playing

from tuner import Config, Problem
from tuner.hardware import device
from tuner.sweep import finals

TORCH = "torch"
TRIGGERS, AMOUNTS = (None, 3, 6, 8), (None, 32)
MUCH = 128
ROW_TRIGGERS, ROW_AMOUNTS = (None, 4, 6), (None, 2, 4, 8)
"""Of `gemv`; KiB of each of its rows."""


def config(kernel, tile, stages, loads, splits=1, warps=4):
    named = dict(zip(("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"), tile, strict=True))
    named |= {"num_stages": stages, "LOADS": loads, "SPLIT_K": splits, "num_warps": warps}
    return Config(kernel, **named, launch_pdl=True)


def stream(block_n, block_k, warps):
    tile = {"BLOCK_SIZE_N": block_n, "BLOCK_SIZE_K": block_k}
    return Config("gemv", **tile, SPLIT_K=1, num_warps=warps, launch_pdl=True)


STREAMS = [stream(1, 1024, 4), stream(1, 1024, 1), stream(1, 2048, 4), stream(2, 2048, 4)]
BESIDE = config("swap_ab", (16, 64, 128), 5, "pointer").replace(PDL_TRIGGER=6, PREFETCH_KIB=32)
CONFIGS = {
    (1, 6144, 4096): STREAMS,
    (1, 4096, 14336): STREAMS,
    (1, 4096, 4096): STREAMS,
    (2, 6144, 4096): [*STREAMS[:3], stream(2, 1024, 4), BESIDE],
    (4, 6144, 4096): [*STREAMS[:3:2], stream(2, 1024, 4), stream(1, 1024, 2), BESIDE],
    (16, 6144, 4096): [
        config("swap_ab", (16, 64, 128), 5, "pointer"),
        config("swap_ab", (16, 64, 128), 8, "tma"),
    ],
    (8, 28672, 4096): [config("swap_ab", (16, 64, 128), 5, "tma")],
    (64, 4096, 14336): [config("swap_ab", (64, 64, 128), 7, "tma")],
    (32, 1280, 8192): [config("swap_ab", (32, 64, 64), 9, "pointer", 5)],
    (16, 8192, 1024): [
        config("swap_ab", (16, 64, 128), 5, "pointer"),
        config("swap_ab", (16, 64, 128), 4, "tma"),
    ],
    (64, 256, 7168): [config("split_k", (64, 16, 256), 5, "tma", 6)],
    (128, 2112, 7168): [config("swap_ab", (64, 64, 128), 7, "tma")],
    (32, 32, 16384): [config("split_k", (16, 16, 256), 4, "pointer", 16, warps=1)],
    (48, 5120, 2048): [
        config("swap_ab", (64, 64, 128), 7, "tma"),
        config("swap_ab", (64, 64, 128), 7, "pointer"),
    ],
    (96, 4096, 14336): [
        config("swap_ab", (64, 64, 128), 7, "tma"),
        config("swap_ab", (128, 128, 128), 3, "pointer", 4),
    ],
}
"""By M, N and K: winners of benchmarks/results/warp-specialized-h200.json, and what competes with them."""


def variants(plain):
    """A config with every trigger and amount, and of tiles with much more, early and alone."""
    if plain == BESIDE:
        yield plain
        return
    pairs = (*itertools.product(TRIGGERS, AMOUNTS), (2, 64), (None, MUCH))
    if plain.kernel == "gemv":
        amounts = [each and each * plain["BLOCK_SIZE_N"] for each in ROW_AMOUNTS]
        pairs = itertools.product(ROW_TRIGGERS, amounts)
    for trigger, amount in pairs:
        options = {"PDL_TRIGGER": trigger, "PREFETCH_KIB": amount}
        yield plain.replace(**{name: value for name, value in options.items() if value is not None})


def contest(bench, problem, configs):
    """Rows of a problem's configs: time over the first one's, torch's over each."""
    calls, spec, sets, failed = playing(bench, problem, {one.label: one for one in configs})
    calls[TORCH] = lambda index: spec.vendor(sets[index])
    times = bench.play(calls, len(sets))
    rows = [
        {
            "config": name,
            "us": round(sorted(figures)[len(figures) // 2], 3),
            "over_first": round(finals.ratio(figures, times[configs[0].label]), 4),
            "torch_over_this": round(finals.ratio(times[TORCH], figures), 4),
        }
        for name, figures in times.items()
    ]
    return {"problem": str(problem), "rows": sorted(rows, key=lambda row: row["over_first"]), "failed": failed}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--kernel", help="the rows alone whose configs are of this kernel first")
    args = parser.parse_args()
    begun = time.monotonic()
    here = device.current(0)
    tasks = {
        Problem(*shape, dtype="bf16", layout="nt"): [one for plain in configs for one in variants(plain)]
        for shape, configs in CONFIGS.items()
        if args.kernel in (None, configs[0].kernel)
    }
    pairs = [(problem, one) for problem, configs in tasks.items() for one in configs]
    said = compile_all(pairs, here.arch)
    print(f"{len(pairs)} variants compiled in {time.monotonic() - begun:.0f} s")
    rows = []
    with paired.gpu() as bench:
        for problem, configs in tasks.items():
            row = contest(bench, problem, [one for one in configs if not said[problem, one]])
            row["failed"] |= {one.label: said[problem, one] for one in configs if said[problem, one]}
            rows.append(row)
            first = next(each for each in row["rows"] if each["over_first"] == 1)
            best = row["rows"][0]
            print(f"{problem}: {first['us']} us, best {best['us']} {best['torch_over_this']} {best['config']}")
            torch.cuda.empty_cache()
            record.write(args.out, {"seconds": round(time.monotonic() - begun), "rows": rows})


if __name__ == "__main__":
    main()
