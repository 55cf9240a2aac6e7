"""Compile two configs of a kernel of several launches as a child of the pool does; print what tells them apart."""

import json
import sys

from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.problem import Problem
from tuner.sweep import compile_pool, cross_target

DEVICE = KNOWN["sm_90"]
cross_target.activate(DEVICE.arch)
extras = {"groups": 8, "top_k": 2}
problem = Problem(8, 64, 128, dtype="bf16", layout="nt", op="fused_experts", epilogue="silu", extras=extras)
first = registry.find("fused_experts", "experts_pointer").default_config(problem, DEVICE)
other = first.replace(BLOCK_SIZE_K=32)
found = [
    compile_pool.compile_config("fused_experts", "experts_pointer", problem, config) for config in (first, other, first)
]
sys.stdout.write(json.dumps([(each.program, each.resources.shared_bytes) for each in found]))
