"""Compile through the spec, then launch on real tensors in a process of no GPU; print both cache hashes."""

from __future__ import annotations

import contextlib
import json
import sys

import torch

from tuner import Config, Problem
from tuner.kernels.pointer import SPEC
from tuner.kernels.pointer_kernel import matmul_kernel
from tuner.sweep import target

CONFIG = Config("pointer", BLOCK_SIZE_M=16, BLOCK_SIZE_N=16, BLOCK_SIZE_K=32, GROUP_SIZE_M=4, num_stages=2, num_warps=1)
AMD = CONFIG.replace(matrix_instr_nonkdim=16, kpack=1, waves_per_eu=0)
CASES = [
    ("sm_90", Problem(64, 64, 64), CONFIG),
    ("sm_90", Problem(33, 50, 70, dtype="bf16", layout="nt", epilogue="bias+gelu"), CONFIG),
    ("sm_90", Problem(64, 64, 64, dtype="bf16", aligned=False), CONFIG),
    ("sm_90", Problem(1, 64, 96, dtype="e4m3", layout="tt"), CONFIG),
    ("gfx942", Problem(64, 64, 64, layout="tn"), AMD),
]


def main() -> None:
    rows = []
    for arch, problem, config in CASES:
        target.activate(arch)
        matmul_kernel.device_caches.clear()
        compiled = SPEC.compile(problem, config).hash
        matmul_kernel.device_caches.clear()
        launched = _launched(problem, config)
        rows.append({"case": f"{arch} {problem}", "compiled": compiled, "launched": launched})
    sys.stdout.write(json.dumps(rows))


def _launched(problem: Problem, config: Config) -> list[str]:
    inputs = SPEC.make_inputs(problem, "cpu", 0)
    assert isinstance(inputs.a, torch.Tensor)
    # The target-only driver has no launcher; all that comes before one has run.
    with contextlib.suppress(AttributeError, NotImplementedError, RuntimeError):
        SPEC.launch(inputs, config)
    (caches,) = matmul_kernel.device_caches.values()
    return [kernel.hash for kernel in caches[0].values()]


if __name__ == "__main__":
    main()
