"""Options and variants of configs, each over its plain config by paired medians: which of them win here.

    python benchmarks/axes.py --out RESULT.json [--study gemm --study clusters ...]

Studies: `gemm` crosses configs with num_ctas, maxnreg and warp specialization, as far as rules allow them; `clusters`
tries the tiles of `warp_specialized` in clusters of two and four blocks, beside torch; `cluster_k` all of that kernel's
space beside the best of the others' formulas and torch, and what its model says of each; `padding` crosses clusters
with copies of operands whose rows are no multiple of 128 bytes; `three` tries tiles of 192x192 beside the best of two
warpgroups; `softmax` and `vector_add` cross the kernels' own axes with RECOMPUTED. All is compiled first, in parallel;
every variant is checked against float64; what does not compile or launch is a row with its error.
"""

from __future__ import annotations

import argparse
import itertools
import time

import bandwidth
import paired
import record
import torch
from variants import compile_all, playing

from tuner import Problem
from tuner.hardware import device
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.problem import dtype as dtypes
from tuner.sweep import finals

PLAIN, TORCH, COPY = "plain", "torch", "copy"
NUM_CTAS, MAXNREG, SPECIALIZED = (None, 2), (None, 128, 168, 232), (None, True)
GEMMS = (
    Problem(4096, 4096, 4096, dtype="bf16", layout="nt"),
    Problem(512, 10240, 8192, dtype="bf16", layout="nt"),
    Problem(128, 7168, 8192, dtype="bf16", layout="nt"),
)
BEHIND = (
    Problem(128, 7168, 8192, dtype="bf16", layout="nt"),
    Problem(4096, 4096, 7168, dtype="e4m3", layout="nt", scaling="block"),
    Problem(384, 12288, 1536, dtype="bf16", layout="nt"),
    Problem(4096, 7168, 2048, dtype="e4m3", layout="nt", scaling="block"),
    Problem(768, 3072, 3072, dtype="fp16"),
    Problem(3000, 3000, 3000, dtype="bf16", layout="nt"),
    Problem(1000, 3000, 2000, dtype="bf16", layout="nt"),
    Problem(256, 7168, 8192, dtype="bf16", layout="nt"),
    Problem(64, 7168, 8192, dtype="bf16", layout="nt"),
    Problem(4096, 4096, 4096, dtype="bf16", layout="nt"),
)
"""Where torch's library, whose blocks share loads, was ahead; more and fewer rows; a square."""
UNALIGNED = (
    Problem(3000, 3000, 3000, dtype="bf16", layout="nt"),
    Problem(1023, 2047, 4093, dtype="bf16", layout="nt"),
    Problem(4095, 4095, 4095, dtype="bf16", layout="nt"),
    Problem(1000, 3000, 2000, dtype="bf16", layout="nt"),
)
"""Rows that are no multiple of 128 bytes."""
SQUARE = (
    Problem(3000, 3000, 3000, dtype="bf16", layout="nt"),
    Problem(1000, 3000, 2000, dtype="bf16", layout="nt"),
    Problem(3072, 3072, 3072, dtype="bf16", layout="nt"),
    Problem(2944, 3072, 8192, dtype="bf16", layout="nt"),
    Problem(3072, 3072, 3072, dtype="fp16"),
    Problem(3072, 3072, 3072, dtype="e4m3", layout="nt"),
    Problem(3072, 3072, 3072, dtype="fp32", layout="nt", precision="tf32"),
    Problem(5000, 5000, 5000, dtype="bf16", layout="nt"),
)
"""What tiles of 192x192 cover in whole waves, with rows of whole lines and others; and a wave of smaller ones."""
WIDE = {
    "BLOCK_SIZE_M": (128,),
    "BLOCK_SIZE_N": (128, 256),
    "BLOCK_SIZE_K": (64,),
    "EPILOGUE_PARTS": (2, 4),
    "GROUP_SIZE_M": (4, 8, 16),
    "num_warps": (8,),
}
FEW_TILES = tuple(
    Problem(*shape, dtype="bf16", layout="nt")
    for shape in (
        *((32, 1280, 8192), (64, 256, 7168), (32, 32, 16384), (64, 4096, 14336), (128, 2112, 7168)),
        *((32, 4096, 4096), (64, 2048, 7168), (16, 2560, 8192), (16, 1024, 8192), (128, 1280, 8192), (8, 512, 2048)),
        *((80, 4096, 14336), (96, 3072, 8192), (48, 2048, 7168), (24, 1280, 8192), (256, 1280, 8192), (1, 4096, 14336)),
    )
)
"""Rows of group decode whose tiles fill less than half a device, and others like them; rows that no tile fits."""
ORDER = ("EPILOGUE_PARTS", "num_stages", "GROUP_SIZE_M")
"""Of configs that differ in these alone the last is tried."""
SOFTMAX = tuple(Problem(2**27 // n, n, 1, dtype="bf16", op="softmax") for n in (32768, 16384, 8192))
SUMS = tuple(
    Problem(2**power, 1, 1, dtype=dtype, op="vector_add")
    for dtype, powers in (("bf16", (20, 22, 24, 27)), ("fp32", (20, 25)))
    for power in powers
)


def gemm(problem, here):
    """Each kernel's default config, and the largest that Hopper's compiler specializes, with every option."""
    chosen = []
    for spec in registry.serving(problem, here):
        if spec.name in ("tma", "persistent_tma", "pointer"):
            chosen.append(spec.default_config(problem, here))
    narrow = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64, "num_stages": 4, "num_warps": 4}
    chosen += [config.replace(**narrow) for config in chosen if config.kernel == "tma"]
    return {config: [*_with_options(config)] for config in chosen}


def _with_options(config):
    for ctas, registers, specialized in itertools.product(NUM_CTAS, MAXNREG, SPECIALIZED):
        options = {"num_ctas": ctas, "maxnreg": registers, "warp_specialize": specialized}
        yield config.replace(**{name: value for name, value in options.items() if value is not None})


def clusters(problem, here):
    """The default config, and tiles with rows of 128 bytes, their rings as deep as they can be, in clusters."""
    widths = (64, 128) if problem.m <= 256 else (128, 256)
    rows = (128 // dtypes.ITEMSIZE[problem.a_dtype],)
    tiles = {
        "SWAP_AB": (False,),
        "BLOCK_SIZE_N": widths,
        "BLOCK_SIZE_K": rows,
        "num_warps": (4 if problem.m <= 64 else 8,),
    }
    sizes = (2, 4, 8) if problem.m <= 256 else (2, 4)
    best = {}
    for spec in registry.serving(problem, here):
        if spec.name not in ("warp_specialized", "padded"):
            continue
        space = spec.space(problem, here)
        plain = [
            one
            for one in space.narrowed(**tiles, INNER=("warp_specialized",), PAD=("ab",)).configs()
            if _is_of(one, tiles)
        ]
        for config in sorted(plain, key=lambda one: [one.integer(name) for name in ORDER]):
            for ctas in sizes:
                clustered = config.replace(num_ctas=ctas)
                if space.rejection(clustered, fatal_only=True) is not None:
                    clustered = clustered.replace(num_stages=config.integer("num_stages") - 1)
                best[clustered.replace(**dict.fromkeys(ORDER, 1))] = clustered
    return {registry.find("matmul", "warp_specialized").default_config(problem, here): [*best.values()]}


def padding(problem, here):
    """Tiles of `warp_specialized` with each choice of operands to pad, in clusters of either kind; other kernels."""
    tried = []
    for kernel in ("warp_specialized", "padded"):
        spec = registry.find("matmul", kernel)
        space = spec.space(problem, here)
        configs = space.configs() if spec.supports(problem, here) is None else []
        plain = [one for one in configs if one.get("INNER", kernel) == "warp_specialized" and _is_of(one, WIDE)]
        for config in plain:
            if (config["BLOCK_SIZE_N"], config["BLOCK_SIZE_N_REST"]) != (256, 0) and "num_ctas" not in config:
                tried += [config, *space.refinements(config)]
        for inner in ("tma",) if kernel == "padded" else ():
            others = [one for one in configs if one["INNER"] == inner]
            tried += sorted(others, key=lambda one: spec.estimate_us(one, problem, here))[:3]
    return {registry.default_config(problem, here): tried}


def three(problem, here):
    """The best config of two warpgroups, by the model, others near it, and all of three."""
    spec = registry.find("matmul", "warp_specialized")
    space = spec.space(problem, here)
    ranked = sorted(space.configs(), key=lambda one: spec.estimate_us(one, problem, here))
    lines = [one for one in ranked if one["BLOCK_SIZE_K"] * dtypes.ITEMSIZE[problem.a_dtype] == 128]
    of_two, of_three = ([one for one in lines if one["num_warps"] == warps] for warps in (8, 12))
    return {of_two[0]: [*of_two[1:12], *of_three]}


def cluster_k(problem, here):
    """The best of the other kernels' formulas, by the model, and all configs of `cluster_k`."""
    others = [spec for spec in registry.serving(problem, here) if spec.estimate_us and spec.name != "cluster_k"]
    formulas = [
        (spec.estimate_us(config, problem, here), config)
        for spec in others
        for config in [spec.default_config(problem, here)]
    ]
    plain = min(formulas)[1]
    return {plain: registry.find("matmul", "cluster_k").space(problem, here).configs()}


def _is_of(config, values):
    return all(config.get(name) in values[name] for name in values)


def softmax(problem, here):
    """The default config with other loops and warps, x packed or not, and blocks that are read twice."""
    spec, online = (registry.find("softmax", name) for name in ("softmax_whole", "softmax_online"))
    config = spec.default_config(problem, here)
    tried = spec.space(problem, here).narrowed(BLOCK_SIZE_M=(1,), PROGRAMS_PER_SM=(0, 1, 2))
    whole = [one for one in tried.configs() if one.integer("num_warps") >= 8]
    blocks = {"BLOCK_SIZE_M": (1,), "BLOCK_SIZE_N": (4096, 8192), "num_stages": (1, 2), "num_warps": (8, 16)}
    twice = online.space(problem, here).narrowed(**blocks).configs()
    return {config: [*whole, *twice]}


def vector_add(problem, here):
    """The default config with other blocks and warps."""
    spec = registry.find("vector_add", "add_block")
    config = spec.default_config(problem, here)
    blocks = {"BLOCK_SIZE": (512, 1024, 2048, 4096), "PROGRAMS_PER_SM": (0,), "num_warps": (1, 2, 4, 8)}
    return {config: spec.space(problem, here).narrowed(**blocks).configs()}


STUDIES = {
    "gemm": (gemm, GEMMS),
    "clusters": (clusters, BEHIND),
    "padding": (padding, UNALIGNED),
    "three": (three, SQUARE),
    "cluster_k": (cluster_k, FEW_TILES),
    "softmax": (softmax, SOFTMAX),
    "vector_add": (vector_add, SUMS),
}


def contest(bench, problem, plain, variants):
    """Rows of a config's variants: time over the plain one's, and whether it is right."""
    named = {PLAIN: plain, **{str(one): one for one in variants if one != plain}}
    calls, spec, sets, errors = playing(bench, problem, named)
    if PLAIN not in calls:
        print(f"  failed: {PLAIN}: {errors[PLAIN]}")
        return {"problem": str(problem), "plain": str(plain), "variants": [], "failed": errors}
    calls[TORCH] = lambda index: spec.vendor(sets[index])
    if problem.op != "matmul":
        copies = [bandwidth.copy_of(spec.bytes_moved(problem), sets[0].output.dtype) for _ in sets]
        calls[COPY] = lambda index: copies[index][0].copy_(copies[index][1])
    times = bench.play(calls, len(sets))
    rows = [_row(name, figures, times) for name, figures in times.items()]
    for row in rows:
        if row["name"] in named and spec.op == "matmul":
            config = named[row["name"]]
            row["estimated_us"] = round(
                registry.find(problem.op, config.kernel).estimate_us(config, problem, bench.device), 3
            )
    shown = sorted(rows, key=lambda row: row["over_plain"])
    for row in shown:
        print(f"  {row['over_plain']:.4f} {row['us']:10.2f} us  {row['name']}")
    for name, error in errors.items():
        print(f"  failed: {name}: {error}")
    return {"problem": str(problem), "plain": str(plain), "variants": shown, "failed": errors}


def _row(name, figures, times):
    row = {
        "name": name,
        "us": round(sorted(figures)[len(figures) // 2], 3),
        "over_plain": round(finals.ratio(figures, times[PLAIN]), 4),
    }
    if COPY in times:
        row["share_of_copy"] = round(finals.ratio(times[COPY], figures), 4)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--study", action="append", choices=list(STUDIES), help="all of them unless given")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    begun = time.monotonic()
    here = device.current(0)
    tasks = []
    for name in args.study or STUDIES:
        variants_of, problems = STUDIES[name]
        for problem in problems:
            for plain, variants in variants_of(problem, here).items():
                tasks.append((name, problem, plain, _able(problem, here, [plain, *variants])))
    pairs = list(dict.fromkeys((problem, config) for _, problem, _, configs in tasks for config in configs))
    said = compile_all(pairs, here.arch)
    print(f"{len(pairs)} variants compiled in {time.monotonic() - begun:.0f} s")
    rows = []
    with paired.gpu() as bench:
        for name, problem, plain, configs in tasks:
            print(f"{name}: {problem}, over {plain}")
            ready = [config for config in configs if not said[problem, config]]
            row = contest(bench, problem, plain, ready)
            row["failed"] |= {str(config): said[problem, config] for config in configs if config not in ready}
            rows.append({"study": name, **row})
            torch.cuda.empty_cache()
            # A launch that breaks the context must not take the rows before it along.
            record.write(args.out, {"seconds": round(time.monotonic() - begun), "rows": rows})


def _able(problem: Problem, here, configs: list[Config]) -> list[Config]:
    """Those that no fatal rule rejects, each once."""
    spaces = {spec.name: spec.space(problem, here) for spec in registry.serving(problem, here)}
    return [one for one in dict.fromkeys(configs) if spaces[one.kernel].rejection(one, fatal_only=True) is None]


if __name__ == "__main__":
    main()
