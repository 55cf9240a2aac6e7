"""Compile a config as a child of the pool does; print how many kernels of the cache are found without Triton's key."""

import json
import sys
from pathlib import Path

from triton import knobs

from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.launch import compile_cache
from tuner.problem import Problem
from tuner.sweep import compile_pool, cross_target

DEVICE = KNOWN["sm_90"]
cross_target.activate(DEVICE.arch)
problem = Problem(64, 64, 64, dtype="float16")
config = registry.find("matmul", "pointer").default_config(problem, DEVICE)
result = compile_pool.compile_config("matmul", "pointer", problem, config)
files = [*Path(knobs.cache.dir).glob(f"*/{compile_cache.FILE}")]
told = {"compiled": isinstance(result, compile_pool.Compiled), "found": len(files)}
sys.stdout.write(json.dumps(told))
