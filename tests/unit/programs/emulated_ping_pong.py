"""Run the source of `ping_pong` with threads and numpy instead of Triton; print the differences from float64.

Usage: emulated_ping_pong.py; the JSON is a list of {case, fault, difference}.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from emulated_gluon import BF16, F8, Descriptor, Fault, Pointer, failure_of, report

HOPPER = "tuner.kernels.gemm.hopper"
KERNEL = f"{HOPPER}.ping_pong_jit"


class Case(NamedTuple):
    """What to compute, and how.

    Attributes:
        shape: M, N, K.
        tile: BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_N_REST.
        stages: of the ring, to compare with the steps along K: of 64 elements, or 128 with scales.
        programs: which share the tiles.
        scaled: operands of 8 bits, with a scale for each row of A and column of B.
        biased: whether there is a bias.
        transposed: names of the matrices whose columns are contiguous.
        by_pointer: whether C is stored without a descriptor.
        group: GROUP_SIZE_M.
    """

    shape: tuple[int, int, int]
    tile: tuple[int, int, int]
    stages: int
    programs: int
    scaled: bool = False
    biased: bool = False
    transposed: str = "B"
    by_pointer: bool = False
    group: int = 2


MANY_TILES = Case((512, 768, 192), (128, 128, 0), 2, 2)
WIDE_TILES = Case((512, 768, 448), (128, 128, 64), 2, 2)
FINISHED = Case((300, 400, 528), (128, 128, 64), 4, 2, scaled=True, biased=True)
CASES = [
    MANY_TILES,  # 12 tiles a program; 3 steps
    WIDE_TILES,  # 8 tiles a program; 7 steps
    Case((260, 296, 392), (128, 128, 0), 3, 2, biased=True),  # 5 tiles and 4, 7 steps; all ragged
    Case((300, 392, 264), (128, 128, 64), 5, 2),  # 5 and 4; 5 steps, as many as stages
    Case((257, 520, 72), (64, 256, 0), 6, 2, group=4),  # 8 and 7; 2 steps
    Case((264, 304, 64), (128, 128, 0), 3, 1),  # 9; 1 step
    FINISHED,  # 5 and 4; 5 steps
    Case((260, 520, 256), (64, 256, 0), 4, 3, scaled=True),  # 5 each; 2 steps
    Case((384, 264, 384), (128, 128, 0), 3, 1, scaled=True, biased=True),  # 9; 3 steps, as many as stages
    Case((270, 152, 320), (128, 128, 0), 4, 6, biased=True),  # 1 each: the second warpgroup has none
    Case((384, 136, 192), (64, 256, 0), 5, 3),  # 2 each: one for each warpgroup
    Case((384, 128, 640), (128, 128, 0), 6, 2),  # 2 and 1
    Case((264, 136, 320), (128, 128, 64), 3, 2, biased=True),  # 2 and 1: both widths end with the columns, and overlap
    Case((263, 135, 320), (128, 128, 64), 3, 2, by_pointer=True),
    Case((264, 296, 320), (128, 128, 64), 3, 1, biased=True, transposed="A"),  # 6
    Case((264, 296, 320), (128, 128, 0), 2, 1, transposed="BC"),  # 9
    Case((272, 296, 320), (64, 256, 0), 2, 2, biased=True, transposed="AC"),  # 5 each
    Case((263, 299, 192), (128, 128, 64), 4, 2, biased=True, by_pointer=True),  # 3 each
    Case((263, 299, 256), (128, 128, 0), 3, 2, scaled=True, transposed="BC", by_pointer=True),  # 5 and 4
]
FAULTS = {
    "nobody waits for a turn": Fault(KERNEL, "        mbarrier.wait(order.index(TEAM), turn)\n", "", MANY_TILES),
    "the turn handed over before the products were started": Fault(
        KERNEL,
        "        sums, rest, stage, phase = start_products(buffers, (ready, free), stage, phase, steps, 0, FIXED)\n"
        "        mbarrier.arrive(order.index(1 - TEAM), count=1)\n",
        "        mbarrier.arrive(order.index(1 - TEAM), count=1)\n"
        "        sums, rest, stage, phase = start_products(buffers, (ready, free), stage, phase, steps, 0, FIXED)\n",
        MANY_TILES,
    ),
    "the turn kept": Fault(KERNEL, "arrive(order.index(1 - TEAM)", "arrive(order.index(TEAM)", MANY_TILES),
    "the other warpgroup's turn first": Fault(KERNEL, "turn = 1 - TEAM", "turn = TEAM", MANY_TILES),
    "the same phase of turns": Fault(KERNEL, "        turn ^= 1\n", "", MANY_TILES),
    "the other's stages not passed over": Fault(
        f"{HOPPER}.tile", "return after - rounds * STAGES, phase ^ (rounds & 1)", "return stage, phase", MANY_TILES
    ),
    "the other's stages passed over once": Fault(
        KERNEL, "        stage, phase = passed(stage, phase, steps, FIXED.STAGES)\n", "", MANY_TILES
    ),
    "the phase of the ring's first round": Fault(f"{HOPPER}.tile", "phase ^ (rounds & 1)", "phase", MANY_TILES),
    "the other's tile": Fault(KERNEL, "gl.program_id(0) + TEAM * programs", "gl.program_id(0)", MANY_TILES),
    "the other's buffer": Fault(KERNEL, "out_buffers.index(TEAM)", "out_buffers.index(0)", MANY_TILES),
    "a buffer written while it is stored": Fault(KERNEL, "strides, 0, FIXED", "strides, 1, FIXED", MANY_TILES),
    "the last part not stored": Fault(KERNEL, "    tma.store_wait(0)\n", "", MANY_TILES),
    "the first columns stored again": Fault(KERNEL, "parts + (rest,)", "parts + (parts[0],)", WIDE_TILES),
    "a stage released before its operands were read": Fault(
        f"{HOPPER}.tile",
        "            sums = warpgroup_mma_wait(1,",
        "            sums = warpgroup_mma_wait(2,",
        MANY_TILES,
    ),
    "a stage released before its last operand was read": Fault(
        f"{HOPPER}.tile",
        "warpgroup_mma_wait(2, deps=(sums, rest))",
        "warpgroup_mma_wait(3, deps=(sums, rest))",
        WIDE_TILES,
    ),
    "a stage released that was not read": Fault(
        f"{HOPPER}.tile", "FIXED.CTAS, pred=step > 0)\n        stage", "FIXED.CTAS)\n        stage", MANY_TILES
    ),
    "sums stored before they were there": Fault(
        f"{HOPPER}.tile",
        "        sums = warpgroup_mma_wait(0, deps=(sums,))\n",
        "        sums = warpgroup_mma_wait(1, deps=(sums,))\n",
        MANY_TILES,
    ),
    "a stage filled before it was released": Fault(
        f"{HOPPER}.loader",
        "            await_free(free, stage, phase, FIXED.CTAS)\n            mb",
        "            mb",
        MANY_TILES,
    ),
    "too few bytes expected": Fault(
        f"{HOPPER}.loader", "+ WIDTH) * FIXED", "+ FIXED.BLOCK_SIZE_N) * FIXED", WIDE_TILES
    ),
    "another row's scale": Fault(f"{HOPPER}.output", "offs_m = start_m + gl", "offs_m = gl", FINISHED),
    "another column's scale and bias": Fault(f"{HOPPER}.output", "offs_n = start_n + gl", "offs_n = gl", FINISHED),
}


def stored_as(matrix, transposed):
    """The same matrix in memory, its columns contiguous if transposed."""
    return np.ascontiguousarray(matrix.T if transposed else matrix)


def difference(kernel, case):
    """The largest difference from float64, 0 if all is right; or what failed."""
    (m, n, k), (rows, columns, rest) = case.shape, case.tile
    length, dtype = (128, F8) if case.scaled else (64, BF16)
    a_transposed, b_transposed, c_transposed = (name in case.transposed for name in "ABC")
    draw = np.random.default_rng(0)
    a, b = (draw.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    a_scale, b_scale, bias = (draw.integers(1, 9, extent).astype(np.float32) / 8 for extent in (m, n, n))

    def described(matrix, block, transposed, dtype):
        return Descriptor(stored_as(matrix, transposed), block[::-1] if transposed else block, dtype)

    operands = (
        described(a, (rows, length), a_transposed, dtype),
        described(b, (length, columns), b_transposed, dtype),
        described(b, (length, rest), b_transposed, dtype) if rest else None,
    )
    out = stored_as(np.full((m, n), np.nan, np.float32), c_transposed)
    c, strides = Descriptor(out, (64, rows) if c_transposed else (rows, 64), BF16), (None, None)
    if case.by_pointer:
        c, strides = Pointer(out.reshape(-1), 0, BF16), (1, m) if c_transposed else (n, 1)
    vectors = (bias if case.biased else None, *((a_scale, b_scale) if case.scaled else (None, None)))
    pointers = tuple(None if vector is None else Pointer(vector) for vector in vectors)
    constants = (rows, columns, rest, length, case.stages, 40, 232, a_transposed, b_transposed, c_transposed)
    scaling = "row" if case.scaled else "none"

    def program():
        kernel.ping_pong_kernel(
            *(*operands, c, *pointers, m, n, k, *strides, case.group),
            *(*constants, scaling, "none", False),
        )

    if (failure := failure_of(program, case.programs)) is not None:
        return failure
    expected = a.astype(np.float64) @ b.astype(np.float64)
    if case.scaled:
        expected = expected * a_scale[:, None] * b_scale
    if case.biased:
        expected = expected + bias
    return float(np.abs((out.T if c_transposed else out) - expected).max())


if __name__ == "__main__":
    report(KERNEL, CASES, FAULTS, difference)
