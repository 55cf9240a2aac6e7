"""Compile default and sampled configs of ops that only move memory for one architecture; print a JSON list of each."""

from __future__ import annotations

import json
import random
import re
import sys
from dataclasses import replace

from tuner import Problem
from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.launch.launch import compile_launches
from tuner.launch.plan import recorded
from tuner.sweep import cross_target
from tuner.sweep.binary_resources import read_resources

ADD = {"op": "vector_add"}
SOFTMAX = {"op": "softmax"}
RMS_NORM = {"op": "rms_norm", "extras": {"eps": 1e-6}}
PROBLEMS = [
    Problem(2**24, 1, 1, dtype="fp16", **ADD),
    Problem(10**6 + 1, 1, 1, dtype="fp32", **ADD),
    Problem(4096, 1024, 1, dtype="bf16", **SOFTMAX),
    Problem(512, 32768, 1, dtype="fp32", **SOFTMAX),
    Problem(777, 12345, 1, dtype="fp16", **SOFTMAX),
    Problem(4, 2**20, 1, dtype="fp32", **SOFTMAX),
    Problem(1024, 512, 1, dtype="bf16", layout="tn", **SOFTMAX),
    Problem(32, 4096, 1, dtype="bf16", **RMS_NORM),
    Problem(8192, 128, 1, dtype="bf16", **RMS_NORM),
    Problem(64, 32768, 1, dtype="fp32", **RMS_NORM),
    Problem(777, 12345, 1, dtype="fp16", **RMS_NORM),
]
WIDE = re.compile(r"v4\.b32|dwordx[24]|b64|b128")


def main(arch: str, sampled: int, step: int) -> None:
    device = KNOWN[arch]
    cross_target.activate(arch)
    draw, found = random.Random(arch), []
    for problem in PROBLEMS[step - 1 :: step]:
        for spec in registry.serving(problem, device):
            space = spec.space(problem, device)
            every = space.configs()
            configs = draw.sample(every, min(sampled, len(every)))
            for config in [spec.default_config(problem, device), *configs]:
                for offset in (0.0, 1.0) if problem.op == "rms_norm" and config not in configs else (0.0,):
                    found.append(compiled(spec, problem, config, device, offset))
                    found[-1]["default"] = config not in configs
                    found[-1]["rejected"] = space.rejection(config)
    json.dump(found, sys.stdout)


def compiled(spec, problem, config, device, offset):
    with recorded() as seen:
        kernel = spec.compile(problem, config)
    if offset:
        launches = [replace(launch, constants={**launch.constants, "OFFSET": offset}) for launch, _ in seen.launches]
        with recorded() as seen:
            kernel = compile_launches(launches)
    *_, (_, last) = seen.launches  # of several it is the one that writes the output
    assembly = last.asm.get("ptx") or last.asm["amdgcn"]
    stores = re.findall(r"(?:st\.global\S*|(?:global|buffer)_store_\S+)", assembly)
    return {
        "case": f"{problem} {config} {offset}",
        "kernel": spec.name,
        "aligned": problem.aligned,
        "shared_bytes": kernel.metadata.shared,
        "predicted_bytes": spec.shared_bytes(config, problem, device) if spec.shared_bytes else 0,
        "spill_bytes": read_resources(kernel, 0.0).spill_bytes,
        "pipelined": bool(re.search(r"cp\.async\.c[ag]", assembly)),
        "wide": any(WIDE.search(store) for store in stores),
    }


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
