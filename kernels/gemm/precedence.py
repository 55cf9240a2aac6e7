"""Which kernel of `matmul` gives the config where nobody tuned: one table, the highest precedence first.

docs/kernels.md ("Which kernel does what") shows the same table.
"""

from __future__ import annotations

from tuner.hardware.device import Device
from tuner.kernels.base.operands import exchanged
from tuner.kernels.cost import calibration
from tuner.kernels.gemm import splitting
from tuner.kernels.gemm.padded.problem import copied_operands
from tuner.kernels.space import tile_resources
from tuner.kernels.space.precedence import Line, always, on_hardware
from tuner.problem import Problem, dtype

_SWAPPED_ROWS = 256
"""Rows of A up to which `warp_specialized` computes the transposed output."""
CLUSTER_ROWS = 128
"""Rows of A up to which `cluster_k` is weighed with the others."""
_LONG_K = 4096
_LARGE = 512
"""A size from which on copies should cost less than loads of single elements: a guess, which tuning replaces."""


def _is_calibrated_stream(problem: Problem, device: Device) -> bool:
    """Whether trials say how the estimates of `gemv` err: for B stored [N, K] alone."""
    return problem.layout[1] == "t" and calibration.applies(problem, device)


def _two_rows(problem: Problem, device: Device) -> bool:
    """One or two rows of A. With more, the sums of `gemv` fill the registers: at 4 its default took 1.9 times the best.

    Source: 4x11008x4096 in benchmarks/results/ops-h200.json, where the default of `swap_ab` took 1.3 times.
    """
    return problem.m <= 2 and not _is_calibrated_stream(problem, device)


def _one_calibrated_row(problem: Problem, device: Device) -> bool:
    return problem.m == 1 and _is_calibrated_stream(problem, device)


def _is_few_wide_rows(problem: Problem) -> bool:
    return problem.m <= _SWAPPED_ROWS and dtype.ITEMSIZE[problem.a_dtype] == 2


def _fills(problem: Problem, device: Device) -> bool:
    """Scales of blocks need 128x128 tiles that fill half the device, for no sum is split.

    Source: benchmarks/results/warp-specialized-h200.json; benchmarks/suites/unseen-tuned.csv.
    """
    return problem.scaling != "block" or 2 * -(-problem.m // 128) * -(-problem.n // 128) >= device.sm_count


def _specialized_rows(problem: Problem, device: Device) -> bool:
    return _fills(problem, device) and problem.m > 128 and not _is_few_wide_rows(problem)


def _specialized_few_rows(problem: Problem, device: Device) -> bool:
    return _fills(problem, device) and _is_few_wide_rows(problem)


def _swapped(problem: Problem, device: Device) -> bool:
    """Up to 128 rows where wgmma or tcgen05 takes operands by TMA; 16-bit operands on Hopper: all that it serves."""
    by_tma = "tma" in splitting.loads(problem, device) and not device.is_interpreter
    few = problem.m <= 128 or (device.features.wgmma and dtype.ITEMSIZE[problem.a_dtype] == 2)
    return by_tma and few and tile_resources.reads_shared(64, 16, 4, exchanged(problem), device)


def _few_rows_of_16_bits(problem: Problem, device: Device) -> bool:  # noqa: ARG001
    return problem.m <= CLUSTER_ROWS and dtype.ITEMSIZE[problem.a_dtype] == 2


def _few_tiles(problem: Problem, device: Device) -> bool:
    """Unsplit, an eighth of the device would be busy, and K is long enough to make up for the reduction."""
    tiles = -(-problem.m // 64) * -(-problem.n // 64)
    return 8 * tiles <= device.sm_count and problem.k >= _LONG_K and not device.is_interpreter


def _second_tiles(problem: Problem, device: Device) -> bool:
    """A program of `persistent_tma` has a second tile of 128x128 to take."""
    tiles = -(-problem.m // 128) * -(-problem.n // 128)
    return tiles > device.sm_count and not device.is_interpreter


def _large_unaligned(problem: Problem, device: Device) -> bool:
    """Loads of single elements would be the limit; for small problems the copy's launch is."""
    if problem.aligned or device.is_interpreter:
        return False
    kept = problem.shape if copied_operands(problem, "none") != "a" else (problem.n, problem.k)
    return min(kept) >= _LARGE


TABLE = (
    Line(5, "gemv", _two_rows),
    Line(5, "warp_specialized", _specialized_rows),
    Line(4, "warp_specialized", _specialized_few_rows),
    Line(4, "swap_ab", _swapped),
    Line(4, "cluster_k", _few_rows_of_16_bits),
    Line(4, "gemv", _one_calibrated_row),
    Line(3, "split_k", _few_tiles),
    Line(2, "persistent_tma", _second_tiles),
    Line(1, "tma", on_hardware),
    Line(1, "padded", _large_unaligned),
    Line(0, "tma", always),
    Line(0, "pointer", always),
    Line(0, "block_scaled", always),
)
