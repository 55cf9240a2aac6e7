"""Compile default and sampled configs of merged_linear for one architecture; print a JSON list of what came."""

from __future__ import annotations

import json
import random
import re
import sys

from tuner import Problem
from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.sweep import cross_target
from tuner.sweep.binary_resources import read_resources

LLAMA, QWEN, TWO = ({"parts": parts} for parts in ("4096+1024+1024", "3584+512+512", "1536+576"))
NT = {"layout": "nt", "op": "merged_linear"}
PROBLEMS = [
    Problem(1, 6144, 4096, dtype="bf16", **NT, extras=LLAMA),
    Problem(2, 4608, 3584, dtype="bf16", **NT, epilogue="bias", extras=QWEN),
    Problem(1, 2112, 7168, dtype="fp16", **NT, extras=TWO),
    Problem(2, 2112, 7168, dtype="bf16", **NT, aligned=False, extras=TWO),
    Problem(1, 96, 333, dtype="fp32", **NT, epilogue="bias", extras={"parts": "32+33+31"}),
    Problem(2, 6144, 4096, dtype="fp32", precision="tf32", **NT, extras=LLAMA),
    Problem(1, 6144, 4096, dtype="fp16", **NT, aligned=False, epilogue="bias", extras=LLAMA),
]


def main(arch: str, sampled: int) -> None:
    device, spec = KNOWN[arch], registry.find("merged_linear", "merged_gemv")
    cross_target.activate(arch)
    draw = random.Random(arch)
    found = []
    for problem in PROBLEMS:
        every = spec.space(problem, device).configs()
        for config in (spec.default_config(problem, device), *draw.sample(every, sampled)):
            found.append(compiled(spec, problem, config, device))
    json.dump(found, sys.stdout)


def compiled(spec, problem, config, device):
    kernel = spec.compile(problem, config)
    assembly = kernel.asm.get("ptx", "")
    start = assembly.find("griddepcontrol.launch_dependents")
    return {
        "case": f"{problem} {config}",
        "spill_bytes": read_resources(kernel, 0.0).spill_bytes,
        "late": start > assembly.rfind("ld.global") > assembly.find("griddepcontrol.wait") > 0,
        "narrow_loads": re.findall(r"ld\.global\.L1::evict_first\.L2::cache_hint\.b\d+", assembly),  # of weights
        "aligned": problem.aligned,
        "rejected": spec.space(problem, device).rejection(config),
    }


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
