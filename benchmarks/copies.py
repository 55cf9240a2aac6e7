"""The copies that `padded` makes: whole words shifted into place against single elements, and blocks of other sizes.

    python benchmarks/copies.py --out RESULT.json

Paired medians by protocol 1's clock, sources cold, each copy checked. `torch` is its own `copy_` into rows of the same
length. Then whole GEMMs: whether the copy, and the product after it, may start before what precedes them has ended.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import itertools
import math
import multiprocessing
import os

import paired
import record
import torch

from tuner import Config, Problem
from tuner.hardware import device
from tuner.kernels.base.operands import make_operands
from tuner.kernels.gemm.padded import copy as padding
from tuner.kernels.gemm.padded import spec as padded
from tuner.launch.launch import compile_launches, run
from tuner.problem import dtype
from tuner.sweep import cross_target, finals

PROBLEMS = (
    (Problem(1023, 2047, 4093, dtype="bf16", layout="nt"), "ab"),
    (Problem(1024, 2048, 4094, dtype="bf16", layout="nt"), "ab"),
    (Problem(4096, 4096, 4095, dtype="e4m3", layout="nt"), "ab"),
    (Problem(1023, 2047, 2047, dtype="fp32", layout="nt", precision="tf32"), "ab"),
    (Problem(3000, 3000, 3000, dtype="bf16", layout="nt"), "ab"),
    (Problem(3000, 3000, 3000, dtype="bf16", layout="nt"), "b"),
    (Problem(1000, 3000, 2000, dtype="bf16", layout="nt"), "b"),
)
BLOCKS = ((2, 2048, 4), (2, 4096, 8), (4, 1024, 4), (4, 2048, 8), (8, 1024, 8), (16, 1024, 4), (2, 1024, 2))
"""Rows, bytes of each, and warps."""
NOW, ELEMENTS, TORCH = "now", "elements", "torch"
OF_TMA = {"BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1, "INNER": "tma", "PAD": "ab", "launch_pdl": True}
OF_WARPS = Config(
    "padded",
    **{**OF_TMA, "GROUP_SIZE_M": 8, "INNER": "warp_specialized", "BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 128},
    BLOCK_SIZE_N_REST=0,
    EPILOGUE_PARTS=1,
    SWAP_AB=False,
    num_stages=6,
    num_warps=8,
)
PRODUCTS = (
    (PROBLEMS[0][0], Config("padded", **OF_TMA, BLOCK_SIZE_M=128, BLOCK_SIZE_N=128, num_stages=5, num_warps=8)),
    (PROBLEMS[0][0], Config("padded", **OF_TMA, BLOCK_SIZE_M=64, BLOCK_SIZE_N=256, num_stages=4, num_warps=4)),
    (PROBLEMS[0][0], OF_WARPS),
    (Problem(4095, 4095, 4095, dtype="bf16", layout="nt"), None),
)
"""Problems, and configs where they are not the formula's."""
EARLY = {
    "both early": (True, True),
    "copy early": (True, False),
    "product early": (False, True),
    "neither": (False, False),
}
"""Whether the copy, and the product, may start early."""


def variants(problem, launch):
    """The launch as it is, by single elements, and with other blocks."""
    found = {NOW: launch, ELEMENTS: changed(launch, FIRST_SHIFTED=False, SECOND_SHIFTED=False)}
    for rows, nbytes, warps in BLOCKS:
        constants = {"BLOCK_ROWS": rows, "BLOCK_COLUMNS": nbytes // dtype.ITEMSIZE[problem.a_dtype]}
        found[f"{rows}x{nbytes} bytes, {warps} warps"] = changed(launch, warps=warps, **constants)
    return found


def changed(launch, *, warps=None, **constants):
    """A launch with other constants, its grid as they ask."""
    constants = {**launch.constants, **constants}
    rows, columns = constants["BLOCK_ROWS"], constants["BLOCK_COLUMNS"]
    targets = [tensor for tensor in launch.arguments[1:4:2] if tensor is not None]
    grid = (sum(math.ceil(one.shape[0] / rows) * math.ceil(one.shape[1] / columns) for one in targets),)
    options = {**launch.options, "num_warps": warps or launch.options["num_warps"]}
    return dataclasses.replace(launch, grid=grid, constants=constants, options=options)


def into(launch, first):
    """A launch that writes where the first does."""
    arguments = list(launch.arguments)
    arguments[1:4:2] = first.arguments[1:4:2]
    return dataclasses.replace(launch, arguments=tuple(arguments))


def starting(launch, early):
    """A launch that starts early, or when what precedes it has ended."""
    options = {name: value for name, value in launch.options.items() if name != "launch_pdl"}
    options |= {"launch_pdl": True} if early else {}
    return dataclasses.replace(launch, constants={**launch.constants, "PDL": early}, options=options)


def pairs_of(launch):
    """What is copied, and the columns of the copy that hold it."""
    tensors = launch.arguments[:4]
    pairs = zip(tensors[0::2], tensors[1::2], strict=True)
    return [(source, room[:, : source.shape[1]]) for source, room in pairs if source is not None]


def launches_of(operands, config, early):
    """A GEMM's launches, each early or not."""
    return list(map(starting, padded.program(operands, config), early))


def compile_all(arch):
    """Compile every variant into Triton's cache, in processes."""
    tasks = [(*task, name) for task in PROBLEMS for name in variants(task[0], launch_of(*task))]
    tasks += [(problem, config, name) for problem, config in PRODUCTS for name in EARLY]
    with concurrent.futures.ProcessPoolExecutor(
        max_workers=max(1, (os.cpu_count() or 2) - 2), mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        list(pool.map(compile_one, *zip(*tasks, strict=True), itertools.repeat(arch)))


def compile_one(problem, chosen, name, arch):
    """Compile one variant, from tensors without memory."""
    cross_target.activate(arch)
    if name in EARLY:
        config = chosen or padded.default_config(problem, device.KNOWN[arch])
        compile_launches(launches_of(make_operands(problem, "meta", 0), config, EARLY[name]))
    else:
        compile_launches([variants(problem, launch_of(problem, chosen))[name]])


def launch_of(problem, chosen):
    """The copy of a problem's operands, without memory."""
    return padding.pad(make_operands(problem, "meta", 0), chosen, overlapped=True)[1][0]


def contest(bench, problem, chosen):
    """Rows of one problem's copies."""
    _, sets = bench.operands(problem)
    launches = [padding.pad(one, chosen, overlapped=True)[1][0] for one in sets]
    # As a GEMM's scratch, which the allocator hands out again: what is written finds its place in the L2.
    launches = [into(launch, launches[0]) for launch in launches]
    calls, failed = {}, {}
    for name in variants(problem, launches[0]):
        mine = [variants(problem, launch)[name] for launch in launches]
        mine[0].arguments[1].zero_()
        try:
            run([mine[0]])
            bench.timer.synchronize()
        except Exception as e:  # noqa: BLE001  a launch raises anything; it is the row's error
            failed[name] = f"{type(e).__name__}: {e}"[:200]
            continue
        if all(torch.equal(source, room) for source, room in pairs_of(mine[0])):
            calls[name] = lambda index, mine=mine: run([mine[index]])
        else:
            failed[name] = "wrong"
    pairs = [pairs_of(one) for one in launches]

    def torch_copy(index):
        for source, room in pairs[index]:
            room.copy_(source)

    calls[TORCH] = torch_copy
    times = bench.play(calls, len(sets))
    nbytes = sum(source.numel() * source.element_size() for source, _ in pairs[0])
    rows = [
        {
            "name": name,
            "us": round(sorted(figures)[len(figures) // 2], 3),
            "over_now": round(finals.ratio(figures, times[NOW]), 4),
        }
        for name, figures in times.items()
    ]
    shown = sorted(rows, key=lambda row: row["over_now"])
    print(f"{problem} PAD={chosen}: {nbytes / 1e6:.1f} MB")
    print("  " + "; ".join(f"{row['name']} {row['us']:.2f}" for row in shown), *failed.items())
    return {"problem": str(problem), "pad": chosen, "bytes": nbytes, "variants": shown, "failed": failed}


def product(bench, problem, config):
    """Rows of one GEMM, its launches early or not."""
    spec, sets = bench.operands(problem)
    config = config or padded.default_config(problem, bench.device)
    calls = {
        name: lambda index, early=early: run(launches_of(sets[index], config, early)) for name, early in EARLY.items()
    }
    calls[TORCH] = lambda index: spec.vendor(sets[index])
    times = bench.play(calls, len(sets))
    rows = [
        {
            "name": name,
            "us": round(sorted(figures)[len(figures) // 2], 3),
            "torch_over": round(finals.ratio(times[TORCH], figures), 3),
        }
        for name, figures in times.items()
    ]
    print(f"{problem} {config.label}: " + "; ".join(f"{row['name']} {row['us']:.2f}" for row in rows))
    return {"problem": str(problem), "config": str(config), "variants": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    compile_all(device.current(0).arch)
    with paired.gpu() as bench:
        copies = [contest(bench, problem, chosen) for problem, chosen in PROBLEMS]
        record.write(args.out, {"rows": copies, "products": [product(bench, *task) for task in PRODUCTS]})


if __name__ == "__main__":
    main()
