"""Run the source of `block_scaled_warp_specialized` with threads and numpy instead of Triton; print the differences.

Usage: emulated_ring.py; the JSON is a list of {case, fault, difference}.
"""

from __future__ import annotations

import numpy as np
from emulated_gluon import BF16, F8, FLOAT32, Descriptor, Fault, Pointer, failure_of, report

KERNEL = "tuner.kernels.gemm.block_scaled.hopper_jit"
CASES = [
    # M, N, K; BLOCK_SIZE_M and N; EPILOGUE_PARTS, STAGES, GROUP_SIZE_M; whether TMA can read the scales.
    ((260, 296, 1536), (128, 128), (2, 3, 2), True),
    ((260, 296, 1536), (128, 128), (4, 5, 16), True),
    ((131, 200, 896), (128, 128), (2, 3, 1), False),
    ((131, 200, 896), (128, 64), (1, 4, 4), False),
    ((61, 264, 1152), (64, 128), (4, 3, 1), False),
    ((64, 200, 2048), (64, 64), (1, 12, 1), True),
    ((5, 136, 2048), (8, 64), (1, 2, 1), False),
    ((13, 136, 512), (16, 128), (2, 3, 1), True),
    ((1, 72, 72), (8, 64), (1, 4, 1), False),
]
FAULTS = {
    "a stage released before its operands were read": (
        "            second, first = warpgroup_mma_wait(1, deps=(second, first))\n"
        "            mbarrier.arrive(free.index(before), count=1)\n",
        "            mbarrier.arrive(free.index(before), count=1)\n"
        "            second, first = warpgroup_mma_wait(1, deps=(second, first))\n",
    ),
    "another stage released": (
        "            mbarrier.arrive(free.index(before), count=1)\n            sums",
        "            mbarrier.arrive(free.index(stage), count=1)\n            sums",
    ),
    "products added before they were there": ("warpgroup_mma_wait(1, deps", "warpgroup_mma_wait(2, deps"),
    "the scale of another step": ("== step % VECTOR", "== step % 2"),
    "another row's scale": ("of_rows.slice(FIRST,", "of_rows.slice(64 - FIRST,"),
    "one arrival too few": ("else 33)", "else 32)"),
}


def difference(kernel, case):
    """The largest difference from float64, 0 if all is right; or what failed."""
    (m, n, k), (rows, columns), (parts, stages, group), by_tma = case
    draw, blocks, programs = np.random.default_rng(0), -(-k // 128), 2
    a, weight = (draw.integers(-3, 4, (extent, k)).astype(np.float32) for extent in (m, n))
    fine = draw.integers(1, 9, (blocks, m)).astype(np.float32) / 8
    coarse = draw.integers(1, 9, (-(-n // 128), blocks)).astype(np.float32) / 8
    out = np.full((m, n), np.nan, np.float32)
    scales = (Pointer(fine.ravel()), Pointer(coarse.ravel()), 1, m, 1, blocks)
    if by_tma:
        of_rows = Descriptor(fine, (1, max(64, rows)), FLOAT32)
        scales = (of_rows, Descriptor(coarse, (1, 32), FLOAT32), None, None, None, None)
    operands = (Descriptor(a, (rows, 128), F8), Descriptor(weight, (columns, 128), F8))
    stored = Descriptor(out, (64, columns // parts), BF16)
    tail = (m, n, k, *scales[2:], None, None, group, rows, columns, parts, max(1, rows // 64), stages, blocks % 4)
    kernel.kept = lambda sums: sums

    def program():
        kernel.block_scaled_kernel(*operands, *scales[:2], stored, None, *tail, 40, 232, False, "none", False)

    if (failure := failure_of(program, programs)) is not None:
        return failure
    scaled, weights = a * np.repeat(fine.T, 128, 1)[:, :k], np.repeat(np.repeat(coarse, 128, 0)[:n], 128, 1)[:, :k]
    return float(np.abs(out - scaled.astype(np.float64) @ (weight * weights).astype(np.float64).T).max())


if __name__ == "__main__":
    planted = {
        said: Fault(KERNEL, old, new, CASES[2] if "arrival" in said else CASES[0])
        for said, (old, new) in FAULTS.items()
    }
    report(KERNEL, CASES, planted, difference)
