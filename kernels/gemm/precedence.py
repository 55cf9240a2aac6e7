"""Which kernel of `matmul` gives the default config: one table, highest precedence first.

docs/kernels.md ("Which kernel does what") shows the same table.
"""

from __future__ import annotations

from tuner.hardware.device import Device
from tuner.kernels.base.operands import exchanged
from tuner.kernels.cost import calibration
from tuner.kernels.gemm import splitting
from tuner.kernels.gemm.any_tile import any_height_space, any_width_space
from tuner.kernels.gemm.block_scaled import hopper_model
from tuner.kernels.gemm.k_major import problem as k_major
from tuner.kernels.gemm.padded.problem import copied_operands
from tuner.kernels.space import odd_rows, tile_resources
from tuner.kernels.space.precedence import Line, always, on_hardware
from tuner.problem import Problem, dtype

_SWAPPED_ROWS = 256
"""Rows of A up to which `warp_specialized` computes the transposed output."""
CLUSTER_ROWS = 256
"""Rows of A up to which `cluster_k` is compared with the other kernels: all that it serves.

Source: benchmarks/results/defaults-without-cluster-k.json and defaults.json. Of 129 to 256 rows on an H200, defaults
without it take 1.032 times as long as the fastest trial, at most 2.55 times, and with it 1.006 times, at most 1.15, in
trials that the calibration was fitted on.
"""
_LONG_K = 4096
_FEW_ROWS = 16
_LARGE = 512
"""The size from which a copy is assumed to pay where nobody compared the estimates: with `tf32x3`."""
_SPLIT_K = 512
"""K from which sums of unaligned operands are split; of shorter ones `split_k` knows no split."""
_FEW_SUMMED = 64
_FEW_PLAIN_ROWS = 8
_NARROW = 64
"""Columns of B up to which tiles of 128 columns, and what counts them, say nothing."""
_NARROWER, _SPLIT_ROWS = 32, 640
"""With so few columns `any_height_split`, whose tiles have 64, is left out beyond so many rows of A."""
_HALF_A_STAGE = 32
"""K of 16-bit operands from which the kernels in Gluon serve."""
_ONE_STEP, _FEW_STEPS = 64, 256
"""K up to which `pointer` is compared with the others: of any output, and of a narrow one."""


def _two_rows(problem: Problem, device: Device) -> bool:
    """Match up to two rows of A, or four without tensor cores, unless estimates tell better which kernel is fastest.

    With more, the sums of `gemv` fill the registers: at 4x11008x4096 in benchmarks/results/ops-h200.json its default
    took 1.9 times as long as the best config, and that of `swap_ab` 1.3 times. On an H200 it is the fastest for one to
    four rows of float32, and hardly ever for 8-bit operands or B stored [K, N]: there its best config took 1.3 to 2.2
    times as long as the fastest (benchmarks/data/scattered-fp8-h200.db.xz, scattered-others-h200.db.xz).
    """
    with_tensor_cores = tile_resources.uses_tensor_cores(problem)
    most = 2 if with_tensor_cores else 4
    if problem.m > most or _few_plain_rows(problem, device) or calibration.applies_to_streams(problem, device):
        return False
    is_told = calibration.applies(problem, device) and _swapped(problem, device)
    return not is_told and not (with_tensor_cores and _by_all_loads(problem, device))


def _one_calibrated_row(problem: Problem, device: Device) -> bool:
    return problem.m == 1 and calibration.applies_to_streams(problem, device)


def _by_all_loads(problem: Problem, device: Device) -> bool:
    """Match operands that wgmma does not read in shared memory, on Hopper: few rows, or sizes whose copies may pay.

    The cost model knows what it takes to copy operands, to store them along K and to load them into registers, so that
    all kernels are compared. Source: benchmarks/results/few-rows-h200.json, k-major-h200.json, tf32-layouts-h200.json.
    """
    unsuited = tile_resources.uses_tensor_cores(problem) and not tile_resources.suits_wgmma(problem)
    few = device.features.wgmma and problem.m <= _SWAPPED_ROWS and unsuited
    return few or k_major.refused(problem, device) is None


def _without_tensor_cores(problem: Problem, device: Device) -> bool:  # noqa: ARG001
    return not tile_resources.uses_tensor_cores(problem)


def _few_plain_rows(problem: Problem, device: Device) -> bool:
    """Match up to 8 rows of float32 with B stored [K, N], as many as `swap_ab` computes in any case.

    It was the fastest of all for 1 to 5 rows on an H200, but for two products with a K of 1,280, where it took 1.16
    times as long. Source: benchmarks/results/few-rows-float32-h200.json, benchmarks/data/scattered-float32-h200.db.xz.
    """
    few = problem.m <= _FEW_PLAIN_ROWS and problem.layout[1] == "n"
    return few and _without_tensor_cores(problem, device) and not device.is_interpreter


def _are_compared(problem: Problem, device: Device) -> bool:
    """Match operands whose kernels for few rows are all compared: 16-bit ones, others where the calibration speaks."""
    wide = dtype.ITEMSIZE[problem.a_dtype] == 2
    return wide or (problem.scaling != "block" and calibration.applies(problem, device))


def _few_rows_compared(problem: Problem, device: Device) -> bool:
    return problem.m <= _SWAPPED_ROWS and _are_compared(problem, device)


def _splits_pay(problem: Problem, device: Device) -> bool:
    """Match scales of blocks if tiles of 128x128, never split, fill less than half the device, or rows of A are few.

    In other trials of benchmarks/data `block_scaled_warp_specialized` is faster, and in all that its model knows. Which
    of few rows are others the calibration tells.
    """
    if problem.scaling != "block" or hopper_model.knows(problem):
        return False
    idle = 2 * _tiles(problem) < device.sm_count
    return idle or (problem.m <= _FEW_ROWS and calibration.applies(problem, device))


def _scaled_in_clusters(problem: Problem, device: Device) -> bool:
    """Match scales of blocks where the calibration or `hopper_model` speaks: estimates tell tiles of any height apart.

    Source: benchmarks/results/drawn-blocks-h200.json, drawn-blocks-again-h200.json, drawn-blocks-many-h200.json.
    """
    known = hopper_model.knows(problem) or calibration.applies(problem, device)
    return problem.scaling == "block" and known


def _specialized_rows(problem: Problem, device: Device) -> bool:
    """Match more than 128 rows, more than 256 of operands that `_are_compared`; none `_by_all_loads` or with blocks.

    With such scales `block_scaled_warp_specialized` serves whatever `warp_specialized` does.
    """
    compared = _few_rows_compared(problem, device) or _by_all_loads(problem, device)
    return problem.scaling != "block" and problem.m > 128 and not compared


def _filled_by_any_width(problem: Problem, device: Device) -> bool:
    """Match where `any_width`, which shares that line with `warp_specialized`, has a tile that is worth trying."""
    known = calibration.applies(problem, device) or any_width_space.fills_waves(problem, device)
    return _specialized_rows(problem, device) and known


def _filled_by_any_height(problem: Problem, device: Device) -> bool:
    """Match many rows of A where tiles of `any_height` leave less to compute than others, or all run at once.

    Source: benchmarks/results/any-height-many-rows-h200.json and cluster-tiles-h200.json. Without the calibration the
    estimates were compared for fp8 alone, e4m3 on an H200: cluster-tiles-fp8*-h200.json.
    """
    compared = dtype.is_fp8(problem.a_dtype) or calibration.applies(problem, device)
    if not (_specialized_rows(problem, device) and compared):
        return False
    return bool(any_height_space.tiles_at_once(problem, device)) or any_height_space.fills_waves(problem, device)


def _few_rows_of_fp8(problem: Problem, device: Device) -> bool:
    """Match few rows of fp8 whose tiles of `any_height` all run at once; source: the same results."""
    few = problem.m <= _SWAPPED_ROWS and dtype.is_fp8(problem.a_dtype)
    return few and bool(any_height_space.tiles_at_once(problem, device))


def _many_rows(problem: Problem, device: Device) -> bool:
    """Match more than 256 rows of A without scales of blocks, where warpgroups get a second tile to overlap.

    Of what gained by it alone: 16-bit operands, and fp8 with a 16-bit output, no odd rows. Source:
    benchmarks/results/ping-pong-h200.json, where a default took up to 1.17 times as long as others where all tiles ran
    at once, ping-pong-others-h200.json, and for layouts other than nt layouts-h200.json.
    """
    stored, wide = dtype.ITEMSIZE[problem.out_dtype], dtype.ITEMSIZE[problem.a_dtype] == 2
    known = (wide and stored in (2, 4)) or (dtype.is_fp8(problem.a_dtype) and stored == 2)
    played = known and (wide or problem.layout == "nt") and not any(odd_rows.odd(problem))
    many = played and _specialized_rows(problem, device) and problem.m > _SWAPPED_ROWS
    return many and _second_tiles(problem, device)


def one_wave(problem: Problem, device: Device) -> bool:
    """Match more than 256 rows of 16-bit operands whose tiles of 128x128 all run at once, or that have few columns.

    Source: benchmarks/results/calibration.json, "without tma and split_k"; of `any_height_split` few-tiles-h200.json.
    """
    at_once = calibration.applies(problem, device) and _tiles(problem) <= device.sm_count
    return narrow(problem, device) or (at_once and _many_rows_of_16_bits(problem, device))


def narrow(problem: Problem, device: Device) -> bool:
    """Match those of few columns, but for batch-invariant families, as nobody compared those.

    Sums of others `split_sum` and `any_height_split` split as fast or faster than `split_k` (docs/decisions.md, 179).
    """
    few = problem.n <= _NARROW and not problem.invariant
    return few and _many_rows_of_16_bits(problem, device)


def _split_in_one_launch(problem: Problem, device: Device) -> bool:
    """Match narrow outputs, and batch-invariant families whose tiles leave half of the device idle.

    `split_sum` and `any_height_split` keep to no one order of sums.
    """
    return narrow(problem, device) or (
        problem.invariant and one_wave(problem, device) and _leaves_half_idle(problem, device)
    )


def _leaves_half_idle(problem: Problem, device: Device) -> bool:
    return 2 * _tiles(problem) <= device.sm_count


def _many_rows_of_16_bits(problem: Problem, device: Device) -> bool:
    return _aligned_16_bits(problem, device) and _specialized_rows(problem, device)


def _aligned_16_bits(problem: Problem, device: Device) -> bool:
    wide = dtype.ITEMSIZE[problem.a_dtype] == 2
    return wide and problem.aligned and device.arch == calibration.MEASURED_ON


def _summed_apart(problem: Problem, device: Device) -> bool:
    """Match narrow outputs, and aligned operands of `_specialized_rows` whose tiles leave half of the device idle.

    Without the calibration estimates tell them apart well enough: unsplit sums took up to 5 times as long. Source:
    benchmarks/results/few-tiles-long-h200.json, few-tiles-long-others-h200.json, few-tiles-others-h200.json.
    """
    idle = problem.aligned and device.arch == calibration.MEASURED_ON and _leaves_half_idle(problem, device)
    return narrow(problem, device) or (idle and _specialized_rows(problem, device))


def _split_in_clusters(problem: Problem, device: Device) -> bool:
    """Match what `one_wave` and `_summed_apart` do; `any_height_split` serves the 16-bit ones.

    But for narrow outputs of many rows, where `any_height_split` took up to 1.8 times as long.
    """
    many = problem.m > _SPLIT_ROWS and problem.n <= _NARROWER
    return (one_wave(problem, device) or _summed_apart(problem, device)) and not many


def _few_rows_of_few_tiles(problem: Problem, device: Device) -> bool:
    """Match the rows up to 256 of which sums that a second launch adds were timed (docs/decisions.md, 177)."""
    return _FEW_SUMMED < problem.m <= _SWAPPED_ROWS and _aligned_16_bits(problem, device)


def _few_steps(problem: Problem, device: Device) -> bool:
    """Match many rows whose K is so short that what a program does before its first load counts.

    Source: benchmarks/results/edges-h200.json.
    """
    return _many_rows_of_16_bits(problem, device) and _short(problem)


def _few_steps_of_few_rows(problem: Problem, device: Device) -> bool:
    return problem.m <= _SWAPPED_ROWS and _aligned_16_bits(problem, device) and _short(problem)


def _short(problem: Problem) -> bool:
    return problem.k <= (_FEW_STEPS if problem.n <= _NARROW else _ONE_STEP)


def _shorter_than_a_stage(problem: Problem, device: Device) -> bool:
    """Match 16-bit operands of which one step of `pointer` takes all of K, and more than half a stage would be empty.

    Source: benchmarks/results/edges-h200.json, where `persistent_tma` took up to 5 times as long.
    """
    short = dtype.ITEMSIZE[problem.a_dtype] == 2 and problem.k < _HALF_A_STAGE
    return short and not device.is_interpreter


def _tiles(problem: Problem) -> int:
    return -(-problem.m // 128) * -(-problem.n // 128)


def _few_rows_filled_by_any_width(problem: Problem, device: Device) -> bool:
    """The same for up to 256 rows.

    Source: benchmarks/results/any-m-h200.json, where the defaults of the others at 195 to 254 rows of 28672x4096 lose
    6 to 14%: its estimate is less there, and nowhere where they lose nothing.
    """
    return _few_rows_compared(problem, device) and any_width_space.fills_waves(problem, device)


def _swapped(problem: Problem, device: Device) -> bool:
    """Match up to 128 rows if wgmma or tcgen05 takes operands loaded by TMA; on Hopper any that `_are_compared`."""
    by_tma = "tma" in splitting.loads(problem, device) and not device.is_interpreter
    few = problem.m <= 128 or (device.features.wgmma and _are_compared(problem, device))
    return by_tma and few and tile_resources.reads_shared(64, 16, 4, exchanged(problem), device)


def _few_rows_of_16_bits(problem: Problem, device: Device) -> bool:  # noqa: ARG001
    return problem.m <= _SWAPPED_ROWS and dtype.ITEMSIZE[problem.a_dtype] == 2


def _few_rows_of_clusters(problem: Problem, device: Device) -> bool:
    return problem.m <= CLUSTER_ROWS and _are_compared(problem, device)


def _few_tiles(problem: Problem, device: Device) -> bool:
    """Match if unsplit tiles would use at most 1/8 of the device, and K is long enough to pay for the reduction."""
    tiles = -(-problem.m // 64) * -(-problem.n // 64)
    return 8 * tiles <= device.sm_count and problem.k >= _LONG_K and not device.is_interpreter


def _second_tiles(problem: Problem, device: Device) -> bool:
    """Match if programs of `persistent_tma` would get a second tile of 128x128."""
    return _tiles(problem) > device.sm_count and not device.is_interpreter


def _unaligned(problem: Problem, device: Device) -> bool:
    """Match what TMA cannot read: estimates tell whether loads of single elements or copies take longer.

    Source: benchmarks/results/edges-h200.json, edges-again-h200.json, of bfloat16 and TF32.
    """
    compared = tile_resources.uses_tensor_cores(problem) and problem.precision != "tf32x3"
    return compared and not (problem.aligned or device.is_interpreter)


def _unaligned_long_sums(problem: Problem, device: Device) -> bool:
    """Match sums long enough to be split, unless `swap_ab` splits those of few rows."""
    others = problem.m > _FEW_ROWS or problem.n < _NARROW or _few_tiles(problem, device)
    return _unaligned(problem, device) and problem.k >= _SPLIT_K and others


def _copied(problem: Problem, device: Device) -> bool:
    """Match the same where a copy may pay: not of few rows of A or columns of B, whose loads of elements are few.

    Of an A that alone is unaligned they are only fewer than what a copy takes up to 16 rows: on an H200 fp16 tn at 6
    rows took 1.2 to 1.9 times as long with one. `k_major` copies what `_by_all_loads` matches.
    """
    if problem.aligned or device.is_interpreter or _by_all_loads(problem, device):
        return False
    copied = copied_operands(problem, "none")
    if problem.precision == "tf32x3":
        return min(problem.shape if copied != "a" else (problem.n, problem.k)) >= _LARGE
    if copied == "a" and problem.n > _NARROW:
        return problem.m > _FEW_ROWS
    return copied == "none" or min(problem.shape[:2]) > _NARROW


TABLE = (
    Line(5, "gemv", _two_rows),
    Line(5, "swap_ab", _few_plain_rows),
    Line(5, "warp_specialized", _specialized_rows),
    Line(5, "any_width", _filled_by_any_width),
    Line(5, "any_height", _filled_by_any_height),
    Line(5, "any_height_split", _split_in_clusters),
    Line(5, "any_height_ping_pong", _many_rows),
    Line(5, "ping_pong", _many_rows),
    Line(5, "tma", one_wave),
    Line(5, "split_k", _split_in_one_launch),
    Line(5, "split_sum", _summed_apart),
    Line(5, "pointer", _few_steps),
    Line(5, "pointer", _shorter_than_a_stage),
    Line(5, "block_scaled_warp_specialized", always),
    Line(5, "block_scaled", _splits_pay),
    Line(5, "any_height_split", _scaled_in_clusters),
    Line(4, "warp_specialized", _few_rows_compared),
    Line(4, "warp_specialized", _by_all_loads),
    Line(4, "any_width", _few_rows_filled_by_any_width),
    Line(4, "any_height", _few_rows_of_16_bits),
    Line(4, "any_height", _few_rows_of_fp8),
    Line(4, "any_height_split", _few_rows_of_16_bits),
    Line(4, "split_sum", _few_rows_of_few_tiles),
    Line(4, "swap_ab", _swapped),
    Line(4, "cluster_k", _few_rows_of_clusters),
    Line(4, "cluster_k", _by_all_loads),
    Line(4, "swap_ab", _by_all_loads),
    Line(4, "split_k", _by_all_loads),
    Line(4, "pointer", _by_all_loads),
    Line(4, "tma", _by_all_loads),
    Line(4, "persistent_tma", _by_all_loads),
    Line(4, "k_major", _by_all_loads),
    Line(4, "pointer", _few_steps_of_few_rows),
    Line(4, "pointer", _unaligned),
    Line(4, "split_k", _unaligned_long_sums),
    Line(4, "swap_ab", _unaligned),
    Line(4, "padded", _copied),
    Line(4, "simt", _without_tensor_cores),
    Line(4, "gemv", _one_calibrated_row),
    Line(3, "split_k", _few_tiles),
    Line(2, "persistent_tma", _second_tiles),
    Line(1, "tma", on_hardware),
    Line(0, "tma", always),
    Line(0, "pointer", always),
    Line(0, "block_scaled", always),
)
