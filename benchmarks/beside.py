"""Products beside the copy of their operands (CHUNK_SIZE_K of `padded`), and after it, over unaligned shapes.

    python benchmarks/beside.py --out RESULT.json

Paired medians by protocol 1's clock, torch.matmul among them. Tiles of 128x128, and the formula's.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import multiprocessing
import os

import paired
import record

from tuner import Config, Problem
from tuner.hardware import device
from tuner.kernels.base.operands import make_operands
from tuner.kernels.gemm.padded import spec as padded
from tuner.launch.launch import compile_launches
from tuner.sweep import cross_target, finals

SHAPES = (
    *((1023, 2047, 4093), (1024, 2048, 4094), (511, 4095, 4093), (2047, 1023, 4093), (1000, 2000, 3001)),
    *((767, 2049, 2047), (1023, 1023, 8191), (1023, 2047, 1021), (1023, 2047, 2047), (1023, 2047, 16381)),
    *((640, 3201, 4095), (300, 3001, 5001), (127, 4095, 4093), (512, 512, 4095), (1023, 4095, 4093)),
)
TORCH = "torch"


def configs_of(problem):
    """After the copy by two multiplying warpgroups and by one; beside it, the ring as deep as it leaves room for.

    The formula's config, too, and what it would be without chunks: of other tiles.
    """
    after = Config(
        "padded",
        BLOCK_SIZE_M=128,
        BLOCK_SIZE_N=128,
        BLOCK_SIZE_N_REST=0,
        BLOCK_SIZE_K=64,
        GROUP_SIZE_M=8,
        EPILOGUE_PARTS=1,
        SWAP_AB=False,
        num_stages=6,
        num_warps=8,
        launch_pdl=True,
        INNER="warp_specialized",
        PAD="ab",
    )
    one = after.replace(num_warps=4)
    room = one.replace(num_stages=6 if problem.n % 8 else 5)
    beside = {f"beside, chunks of {chunk}": room.replace(CHUNK_SIZE_K=chunk) for chunk in (256, 512)}
    formula = padded.default_config(problem, device.KNOWN["sm_90"])
    apart = Config(formula.kernel, **{name: value for name, value in formula.pairs if name != "CHUNK_SIZE_K"})
    return {"after": after, "after, one warpgroup": one, **beside, "formula": formula, "formula, after": apart}


def problem_of(shape):
    """A problem whose operands are copied."""
    return Problem(*shape, dtype="bf16", layout="nt")


def compile_one(shape, name, arch):
    """Compile one config into Triton's cache, from tensors without memory."""
    cross_target.activate(arch)
    problem = problem_of(shape)
    compile_launches(padded.program(make_operands(problem, "meta", 0), configs_of(problem)[name]))


def compile_all(arch):
    """Every binary once: shapes of one alignment share them."""
    tasks = {}
    for shape in SHAPES:
        for name, config in configs_of(problem_of(shape)).items():
            tasks.setdefault((shape[1] % 8, shape[2] % 8, config), (shape, name))
    with concurrent.futures.ProcessPoolExecutor(
        max_workers=max(1, (os.cpu_count() or 2) - 2), mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        list(pool.map(compile_one, *zip(*tasks.values(), strict=True), itertools.repeat(arch)))


def contest(bench, shape):
    """Rows of one shape."""
    problem = problem_of(shape)
    spec, sets = bench.operands(problem)
    calls = {name: bench.launcher(problem, config, sets) for name, config in configs_of(problem).items()}
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
    print(f"{'x'.join(map(str, shape))}: " + "; ".join(f"{row['us']:.2f} ({row['torch_over']:.2f})" for row in rows))
    return {"problem": str(problem), "variants": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    compile_all(device.current(0).arch)
    with paired.gpu() as bench:
        record.write(args.out, {"rows": [contest(bench, shape) for shape in SHAPES]})


if __name__ == "__main__":
    main()
