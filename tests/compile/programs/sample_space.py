"""Compile a sample of every kernel's search space for one architecture; print as JSON what came of each config.

Usage: sample_space.py ARCH COUNT, COUNT configs a kernel: drawn from spaces, the second a default.
"""

from __future__ import annotations

import json
import random
import re
import sys

from tuner import Problem
from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.kernels.gemm.small_m import swap_ab
from tuner.kernels.space import tile_resources
from tuner.sweep import cross_target
from tuner.sweep.binary_resources import shared_bytes

PROBLEMS = [
    Problem(4096, 4096, 4096, dtype="bf16", layout="nt"),
    Problem(512, 1024, 2048, dtype="fp16", layout="nn", epilogue="bias+gelu"),
    Problem(64, 256, 7168, dtype="bf16", layout="nt"),
    Problem(2048, 2048, 2048, dtype="e4m3", layout="nt", out_dtype="fp32"),
    Problem(2, 6144, 4096, dtype="bf16", layout="nt", epilogue="bias+silu"),
    Problem(512, 2048, 2048, dtype="bf16", layout="tn", out_dtype="fp32"),
    Problem(1024, 1024, 1024, dtype="fp32", layout="nt", precision="tf32"),
    Problem(3, 1000, 1001, dtype="fp16", layout="tn", out_dtype="fp32"),
    Problem(128, 2112, 7168, a_dtype="e4m3", b_dtype="e5m2", layout="nt", epilogue="relu"),
    Problem(1024, 512, 256, dtype="fp32"),
    Problem(1024, 1024, 1024, dtype="bf16", layout="nt", aligned=False),
    Problem(64, 4096, 1024, dtype="int8", layout="nt", scaling="row"),
    Problem(16, 7168, 2048, dtype="e4m3", layout="nt", scaling="block"),
    Problem(512, 2048, 1024, dtype="e4m3", layout="nt", scaling="block"),
    Problem(512, 512, 512, dtype="bf16", layout="nt", op="bmm", extras={"batch": 16}),
    Problem(4096, 2048, 1024, dtype="bf16", layout="nt", op="grouped_mm", extras={"groups": 8}),
    Problem(
        *(64, 768, 2048),
        dtype="bf16",
        layout="nt",
        epilogue="silu",
        op="fused_experts",
        extras={"groups": 128, "top_k": 8},
    ),
    Problem(1000, 512, 2048, dtype="fp32", layout="tn", precision="tf32"),
]

WAVES = [
    Problem(3072, 3072, 3072, dtype="bf16", layout="nt"),
    Problem(3072, 3072, 3072, dtype="e4m3", layout="nt", scaling="row", epilogue="bias+silu"),
]
FEW_ROWS, OF_FEW_ROWS = (PROBLEMS[2], PROBLEMS[4]), ("PDL_TRIGGER", "PREFETCH_KIB")
"""Sums that are split, and two rows of A: swap_ab, which serves both, is asked once."""
PREFETCHES = re.compile(r"cp\.async\.bulk\.prefetch\.L2|prefetch\.global\.L2")


def main(arch: str, count: int) -> None:
    device = KNOWN[arch]
    cross_target.activate(arch)
    found = []
    for (op, name), spec in sorted(registry.specs().items()):
        draw = random.Random(arch + name)
        problems = [p for p in PROBLEMS if p.op == op and spec.supports(p, device) is None]
        for index in range(count if problems else 0):
            problem = problems[index % len(problems)]
            config = (
                draw.choice(spec.space(problem, device).configs()) if index else spec.default_config(problem, device)
            )
            found.append(_compiled(spec, problem, config, device))
    told = {"sample": found, "options": [*_with_options(device)], "three": [*_of_three_warpgroups(device)]}
    sys.stdout.write(json.dumps(told))


def _of_three_warpgroups(device):
    """What became of a tile of 192x192, of operands of two bytes and of one."""
    spec = registry.find("matmul", "warp_specialized")
    for problem in WAVES:
        if spec.supports(problem, device) is None:
            config = next(one for one in spec.space(problem, device).configs() if one["num_warps"] == 12)
            threads = re.search(r"\.reqntid (\d+)", spec.compile(problem, config).asm["ptx"])[1]
            yield {**_compiled(spec, problem, config, device), "threads": int(threads)}


def _with_options(device):
    """What became of one config with each option, of the kernels that have it."""
    of_few_rows = set()
    for problem in (PROBLEMS[0], PROBLEMS[14], *FEW_ROWS):
        for spec in registry.serving(problem, device):
            space = spec.space(problem, device)
            if problem in FEW_ROWS and ("PREFETCH_KIB" not in space.options or spec.name in of_few_rows):
                continue
            of_few_rows |= {spec.name} if problem in FEW_ROWS else set()
            refined = [one for config in space.configs()[::7] for one in space.refinements(config)]
            for option in OF_FEW_ROWS if problem in FEW_ROWS else space.options:
                config = next((one for one in reversed(refined) if option in one), None)
                if config is not None:
                    yield {**_compiled(spec, problem, config, device), **_seen_of(option, spec, problem, config)}


def _seen_of(option, spec, problem, config):
    asm = spec.compile(problem, config).asm
    seen = {
        "num_ctas": lambda: (
            f".reqnctapercluster {config['num_ctas']}" in asm["ptx"] and ".multicast::cluster" in asm["ptx"]
        ),
        "SHARE_B": lambda: ".multicast::cluster" in asm["ptx"],
        "PDL_TRIGGER": lambda: "@reached griddepcontrol.launch_dependents" in asm["ptx"],
        "PREFETCH_KIB": lambda: 0 < _first(PREFETCHES, asm["ptx"]) < asm["ptx"].find("griddepcontrol.wait"),
    }
    return {"option": option, "seen": seen[option]()}


def _first(pattern, text):
    found = pattern.search(text)
    return found.start() if found else -1


def _compiled(spec, problem, config, device):
    compiled = spec.compile(problem, config)
    assembly = compiled.asm.get("ptx", "")
    seen = (swap_ab.exchanged_tile(config), problem.exchanged()) if spec.name == "swap_ab" else (config, problem)
    told = spec.name in ("pointer", "tma", "persistent_tma", "split_k", "swap_ab")
    # Triton 3.9 alone multiplies tiles of 8 columns by wgmma.
    certain = told and seen[0].integer("BLOCK_SIZE_N") != 8
    return {
        "case": f"{problem} {config}",
        "kernel": spec.name,
        "shared_bytes": shared_bytes(compiled),
        "predicted_bytes": spec.shared_bytes(config, problem, device) if spec.shared_bytes else None,
        "exact": spec.name == "cluster_k" or (told and _exactly(*seen)),
        "prefetches": "PREFETCH_KIB" not in config and PREFETCHES.search(assembly) is not None,
        "in_cluster": f".reqnctapercluster {config.get('num_ctas', config.get('SPLIT_K'))}" in assembly
        and "st.async" in assembly,
        "wgmma": "wgmma" in assembly if assembly and certain else None,
        "predicted_wgmma": tile_resources.uses_wgmma(*seen, device) if assembly and certain else None,
    }


def _exactly(config, problem):
    """Whether the prediction is meant to be exact: 16-bit operands, none of which passes through registers."""
    if config.integer("BLOCK_SIZE_N") < 16:
        return False  # see rules.buffers
    pipelined = problem.a_dtype in ("float16", "bfloat16") and tile_resources.asynchronous_copies(problem) == 2
    return pipelined and config.integer("num_stages") > 1


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
