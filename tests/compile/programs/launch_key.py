"""Compile through the spec, then launch on real tensors in a process of no GPU; print both cache hashes."""

from __future__ import annotations

import contextlib
import json
import sys

import torch
import triton

from tuner import Config, Problem
from tuner.kernel import registry
from tuner.kernels.gemm.pointer import jit as pointer_kernel
from tuner.kernels.gemm.small_m import gemv_jit
from tuner.kernels.gemm.tma import jit as tma_kernel
from tuner.sweep import cross_target

TILE = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 16, "BLOCK_SIZE_K": 32}
CONFIG = Config("pointer", **TILE, GROUP_SIZE_M=4, num_stages=2, num_warps=1)
AMD = {"matrix_instr_nonkdim": 16, "kpack": 1}
SPLIT = Config("split_k", **TILE, LOADS="pointer", SPLIT_K=2, num_stages=1, num_warps=1)
SWAPPED = Config("swap_ab", **{**TILE, "BLOCK_SIZE_N": 64}, LOADS="tma", SPLIT_K=2, num_stages=1, num_warps=4)
TMA = Config("tma", **{**TILE, "BLOCK_SIZE_M": 64}, GROUP_SIZE_M=1, num_stages=2, num_warps=4)
PERSISTENT = Config("persistent_tma", **{**dict(TMA), "BLOCK_SIZE_N": 32}, EPILOGUE_PARTS=1)
GEMV = Config("gemv", BLOCK_SIZE_N=16, BLOCK_SIZE_K=64, SPLIT_K=2, num_warps=1)
CASES = [
    ("sm_90", Problem(64, 64, 64), CONFIG),
    ("sm_90", Problem(33, 50, 70, dtype="bf16", layout="nt", epilogue="bias+gelu"), CONFIG),
    ("sm_90", Problem(64, 64, 64, dtype="bf16", aligned=False), CONFIG),
    ("sm_90", Problem(1, 64, 96, dtype="e4m3", layout="tt"), CONFIG),
    ("sm_90", Problem(64, 64, 256, dtype="bf16", layout="nt"), SPLIT),
    ("sm_90", Problem(64, 64, 256, dtype="bf16", layout="nt", epilogue="bias"), SPLIT.replace(LOADS="tma")),
    ("sm_90", Problem(8, 64, 256, dtype="bf16", layout="nt", epilogue="bias+relu"), SWAPPED),
    ("sm_90", Problem(9, 72, 256, dtype="bf16", layout="nt"), SWAPPED.replace(LOADS="pointer")),
    ("sm_90", Problem(72, 72, 72, layout="tn"), TMA),
    ("sm_90", Problem(128, 64, 64, dtype="bf16", out_dtype="fp32", epilogue="silu"), PERSISTENT),
    ("sm_90", Problem(1, 64, 256, layout="nt"), GEMV),
    ("sm_90", Problem(3, 65, 257, dtype="bf16"), GEMV.replace(SPLIT_K=1)),
    ("gfx942", Problem(64, 64, 64, layout="tn"), CONFIG.replace(**AMD, waves_per_eu=0)),
    ("gfx942", Problem(64, 64, 256, layout="nt"), SPLIT.replace(**AMD)),
]


def main() -> None:
    functions = [f for m in (pointer_kernel, tma_kernel, gemv_jit) for f in vars(m).values()]
    kernels = [function for function in functions if isinstance(function, triton.JITFunction)]
    rows = []
    for arch, problem, config in CASES:
        cross_target.activate(arch)
        _forget(kernels)
        compiled = registry.find("matmul", config.kernel).compile(problem, config).hash
        _forget(kernels)
        launched = _launched(problem, config, kernels)
        rows.append({"case": f"{arch} {problem} {config}", "compiled": compiled, "launched": launched})
    sys.stdout.write(json.dumps(rows))


def _forget(kernels) -> None:
    for kernel in kernels:
        kernel.device_caches.clear()


def _launched(problem, config, kernels) -> list[str]:
    spec = registry.find("matmul", config.kernel)
    inputs = spec.make_inputs(problem, "cpu", 0)
    assert isinstance(inputs.a, torch.Tensor)
    # The target-only driver has no launcher; all that comes before one has run.
    with contextlib.suppress(AttributeError, NotImplementedError, RuntimeError):
        spec.launch(inputs, config)
    return [
        found.hash for kernel in kernels for caches in kernel.device_caches.values() for found in caches[0].values()
    ]


if __name__ == "__main__":
    main()
