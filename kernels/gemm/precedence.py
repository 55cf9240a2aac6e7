"""Which kernel of `matmul` gives the default config: one table, highest precedence first.

A line of the table names a kernel and a predicate over (problem, device). The lines whose predicates hold and whose
precedence is the highest are compared: of their kernels' default configs the one with the least estimated time wins.
So a predicate is true where its kernel was found to win sometimes and its estimate can be compared with the others'.

M, N and K are the problem's: M rows of A, N columns of B. Figures are an H200's unless another GPU is named.
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
"""The largest M for which `warp_specialized` computes the transposed output."""
CLUSTER_ROWS = 256
"""The largest M for which `cluster_k` is compared with other kernels, which is the largest that it serves.

For M from 129 to 256, defaults without it take 1.032 times as long as the fastest trial (worst 2.55), and with it 1.006
times (worst 1.15), in the trials that the calibration was fitted to.
Source: benchmarks/results/defaults-without-cluster-k.json and defaults.json.
"""
_LONG_K = 4096
_FEW_ROWS = 16
_LARGE = 512
"""The least M, N and K for which copying unaligned operands is assumed to pay with `tf32x3`, whose estimates nobody
checked."""
_SPLIT_K = 512
"""The least K for which the sums of unaligned operands are split; `split_k` has no config for less."""
_FEW_SUMMED = 64
"""`split_sum` is compared for more rows than this, up to `_SWAPPED_ROWS`."""
_FEW_PLAIN_ROWS = 8
_FEW_PLAIN_SUMS = 2048
"""The most elements of a float32 output for which `split_k` is compared: its estimates of larger ones are too low."""
_NARROW = 64
"""An output of at most so many columns is narrow: the count of 128x128 tiles says nothing about how to compute it."""
_NARROWER, _SPLIT_ROWS = 32, 640
"""`any_height_split`, whose tiles have 64 columns, is left out if N is at most the first and M above the second."""
_HALF_A_STAGE = 32
"""The least K of 16-bit operands for the kernels in Gluon: half of a pipeline stage."""
_ONE_STEP, _FEW_STEPS = 64, 256
"""The largest K for which `pointer` is compared with the others: for any output, and for a narrow one."""


def _two_rows(problem: Problem, device: Device) -> bool:
    """Match M up to 2, or 4 without tensor cores, unless calibrated estimates choose among more kernels.

    For a larger M the accumulators of `gemv` fill the registers: at 4x11008x4096 its default took 1.9 times as long as
    the best config, that of `swap_ab` 1.3 times (benchmarks/results/ops-h200.json). It is the fastest for float32 and M
    from 1 to 4. For 8-bit operands, or B stored [K, N], its best config took 1.3 to 2.2 times as long as the fastest
    (benchmarks/data/scattered-fp8-h200.db.xz, scattered-others-h200.db.xz).
    """
    with_tensor_cores = tile_resources.uses_tensor_cores(problem)
    most = 2 if with_tensor_cores else 4
    if problem.m > most or _few_plain_rows(problem, device):
        return False
    if not with_tensor_cores:
        return True
    is_told = calibration.applies(problem, device) and _swapped(problem, device)
    return not (is_told or calibration.applies_to_streams(problem, device) or _by_all_loads(problem, device))


def _one_calibrated_row(problem: Problem, device: Device) -> bool:
    one = problem.m == 1 and tile_resources.uses_tensor_cores(problem)
    return one and calibration.applies_to_streams(problem, device)


def _by_all_loads(problem: Problem, device: Device) -> bool:
    """Match layouts that wgmma cannot read from shared memory, on Hopper, if M is small or a transposing copy may pay.

    The cost model covers all ways to get such operands to the tensor cores (copying, transposing, loading into
    registers), so all kernels are compared.
    Source: benchmarks/results/few-rows-h200.json, k-major-h200.json, tf32-layouts-h200.json.
    """
    unsuited = tile_resources.uses_tensor_cores(problem) and not tile_resources.suits_wgmma(problem)
    few = device.features.wgmma and problem.m <= _SWAPPED_ROWS and unsuited
    return few or k_major.refused(problem, device) is None


def _without_tensor_cores(problem: Problem, device: Device) -> bool:  # noqa: ARG001
    return not tile_resources.uses_tensor_cores(problem)


def _few_plain_sums(problem: Problem, device: Device) -> bool:
    """Match float32 with so small an output that `split_k` may sum it faster than `simt` (docs/decisions.md, 186)."""
    few = problem.m * problem.n <= _FEW_PLAIN_SUMS and not problem.invariant
    return few and device.arch == calibration.MEASURED_ON and _without_tensor_cores(problem, device)


def _few_plain_rows(problem: Problem, device: Device) -> bool:
    """Match float32 with M up to 8, the rows of a `swap_ab` tile, and B stored [K, N].

    `swap_ab` was the fastest kernel for M from 1 to 5, except at two problems with K = 1,280 (1.16 times as long).
    Source: benchmarks/results/few-rows-float32-h200.json, benchmarks/data/scattered-float32-h200.db.xz.
    """
    few = problem.m <= _FEW_PLAIN_ROWS and problem.layout[1] == "n"
    return few and _without_tensor_cores(problem, device) and not device.is_interpreter


def _are_compared(problem: Problem, device: Device) -> bool:
    """Match operands for which all kernels for a small M are compared: 16-bit ones, and others that are calibrated."""
    wide = dtype.ITEMSIZE[problem.a_dtype] == 2
    return wide or (problem.scaling != "block" and calibration.applies(problem, device))


def _few_rows_compared(problem: Problem, device: Device) -> bool:
    return problem.m <= _SWAPPED_ROWS and _are_compared(problem, device)


def _splits_pay(problem: Problem, device: Device) -> bool:
    """Match block scales if unsplit tiles of 128x128 leave over half of the device idle, or M is small and calibrated.

    Elsewhere `block_scaled_warp_specialized` was faster, in all trials that `hopper_model` covers among others.
    """
    if problem.scaling != "block" or hopper_model.knows(problem):
        return False
    idle = 2 * _tiles(problem) < device.sm_count
    return idle or (problem.m <= _FEW_ROWS and calibration.applies(problem, device))


def _scaled_in_clusters(problem: Problem, device: Device) -> bool:
    """Match block scales if the calibration or `hopper_model` covers the problem, so that estimates can be compared.

    Source: benchmarks/results/drawn-blocks-h200.json, drawn-blocks-again-h200.json, drawn-blocks-many-h200.json.
    """
    known = hopper_model.knows(problem) or calibration.applies(problem, device)
    return problem.scaling == "block" and known


def _specialized_rows(problem: Problem, device: Device) -> bool:
    """Match M above 128 without block scales, unless another line compares `warp_specialized` with more kernels.

    With block scales `block_scaled_warp_specialized` serves whatever `warp_specialized` does.
    """
    compared = _few_rows_compared(problem, device) or _by_all_loads(problem, device)
    return problem.scaling != "block" and problem.m > 128 and not compared


def _filled_by_any_width(problem: Problem, device: Device) -> bool:
    """Match what `_specialized_rows` does, if `any_width` is calibrated or has a tile that fills its last wave."""
    known = calibration.applies(problem, device) or any_width_space.fills_waves(problem, device)
    return _specialized_rows(problem, device) and known


def _filled_by_any_height(problem: Problem, device: Device) -> bool:
    """Match what `_specialized_rows` does, if tiles of `any_height` fit one wave or fill their last wave better.

    Source: benchmarks/results/any-height-many-rows-h200.json and cluster-tiles-h200.json. Where nothing is calibrated,
    its estimates were checked for e4m3 only: cluster-tiles-fp8*-h200.json.
    """
    compared = dtype.is_fp8(problem.a_dtype) or calibration.applies(problem, device)
    if not (_specialized_rows(problem, device) and compared):
        return False
    return bool(any_height_space.tiles_at_once(problem, device)) or any_height_space.fills_waves(problem, device)


def _few_rows_of_fp8(problem: Problem, device: Device) -> bool:
    """Match fp8 with M up to 256 if tiles of `any_height` fit one wave. Source: the same results."""
    few = problem.m <= _SWAPPED_ROWS and dtype.is_fp8(problem.a_dtype)
    return few and bool(any_height_space.tiles_at_once(problem, device))


def _many_rows(problem: Problem, device: Device) -> bool:
    """Match M above 256 if there are more 128x128 tiles than multiprocessors: ping-pong overlaps two tiles of a block.

    Only for operands that were measured to gain: 16-bit ones, and fp8 (nt) with a 16-bit output, without odd rows. With
    one wave of tiles the default took up to 1.17 times as long as others.
    Source: benchmarks/results/ping-pong-h200.json, ping-pong-others-h200.json, and layouts-h200.json for other layouts.
    """
    stored, wide = dtype.ITEMSIZE[problem.out_dtype], dtype.ITEMSIZE[problem.a_dtype] == 2
    known = (wide and stored in (2, 4)) or (dtype.is_fp8(problem.a_dtype) and stored == 2)
    measured = known and (wide or problem.layout == "nt") and not any(odd_rows.odd(problem))
    many = measured and _specialized_rows(problem, device) and problem.m > _SWAPPED_ROWS
    return many and _second_tiles(problem, device)


def one_wave(problem: Problem, device: Device) -> bool:
    """Match 16-bit operands with M above 256 whose 128x128 tiles fit one wave, or whose output is narrow.

    Source: benchmarks/results/calibration.json, "without tma and split_k"; for `any_height_split` few-tiles-h200.json.
    """
    at_once = calibration.applies(problem, device) and _tiles(problem) <= device.sm_count
    return narrow(problem, device) or (at_once and _many_rows_of_16_bits(problem, device))


def narrow(problem: Problem, device: Device) -> bool:
    """Match 16-bit operands with M above 256 and a narrow output, except in batch-invariant families (not measured).

    Of wider outputs `split_sum` and `any_height_split` split the sums at least as fast as `split_k`
    (docs/decisions.md, 179).
    """
    few = problem.n <= _NARROW and not problem.invariant
    return few and _many_rows_of_16_bits(problem, device)


def _split_in_one_launch(problem: Problem, device: Device) -> bool:
    """Match narrow outputs, and batch-invariant families whose tiles leave half of the device idle.

    The order in which `split_sum` and `any_height_split` add up is not the same for every M of a family.
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

    Estimates without calibration are good enough here: sums that were not split took up to 5 times as long. Source:
    benchmarks/results/few-tiles-long-h200.json, few-tiles-long-others-h200.json, few-tiles-others-h200.json.
    """
    idle = problem.aligned and device.arch == calibration.MEASURED_ON and _leaves_half_idle(problem, device)
    return narrow(problem, device) or (idle and _specialized_rows(problem, device))


def _split_in_clusters(problem: Problem, device: Device) -> bool:
    """Match what `one_wave` or `_summed_apart` does; `any_height_split` supports only the 16-bit operands of these.

    Except N up to 32 with a large M, where `any_height_split` took up to 1.8 times as long as the fastest.
    """
    many = problem.m > _SPLIT_ROWS and problem.n <= _NARROWER
    return (one_wave(problem, device) or _summed_apart(problem, device)) and not many


def _few_rows_of_few_tiles(problem: Problem, device: Device) -> bool:
    """Match M from 65 to 256, for which sums that a second launch adds up were measured (docs/decisions.md, 177)."""
    return _FEW_SUMMED < problem.m <= _SWAPPED_ROWS and _aligned_16_bits(problem, device)


def _few_steps(problem: Problem, device: Device) -> bool:
    """Match M above 256 with a K so short that the work before a program's first load counts.

    Source: benchmarks/results/edges-h200.json.
    """
    return _many_rows_of_16_bits(problem, device) and _short(problem)


def _few_steps_of_few_rows(problem: Problem, device: Device) -> bool:
    return problem.m <= _SWAPPED_ROWS and _aligned_16_bits(problem, device) and _short(problem)


def _short(problem: Problem) -> bool:
    return problem.k <= (_FEW_STEPS if problem.n <= _NARROW else _ONE_STEP)


def _shorter_than_a_stage(problem: Problem, device: Device) -> bool:
    """Match 16-bit operands whose K fills less than half of a pipeline stage, and fits one step of `pointer`.

    Source: benchmarks/results/edges-h200.json, where `persistent_tma` took up to 5 times as long.
    """
    short = dtype.ITEMSIZE[problem.a_dtype] == 2 and problem.k < _HALF_A_STAGE
    return short and not device.is_interpreter


def _tiles(problem: Problem) -> int:
    return -(-problem.m // 128) * -(-problem.n // 128)


def _few_rows_filled_by_any_width(problem: Problem, device: Device) -> bool:
    """Match M up to 256 if `any_width` has a tile that fills its last wave.

    At M from 195 to 254 of 28672x4096 the other kernels' defaults lose 6 to 14%. The estimate of `any_width` is the
    least there, and nowhere that the others lose nothing. Source: benchmarks/results/any-m-h200.json.
    """
    return _few_rows_compared(problem, device) and any_width_space.fills_waves(problem, device)


def _swapped(problem: Problem, device: Device) -> bool:
    """Match what TMA loads and wgmma or tcgen05 reads, with M up to 128, or on Hopper if all kernels are compared."""
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
    """Match what TMA cannot load: estimates decide between copies and loads of single elements.

    Source: benchmarks/results/edges-h200.json, edges-again-h200.json, of bfloat16 and TF32.
    """
    compared = tile_resources.uses_tensor_cores(problem) and problem.precision != "tf32x3"
    return compared and not (problem.aligned or device.is_interpreter)


def _unaligned_long_sums(problem: Problem, device: Device) -> bool:
    """Match sums long enough to be split, unless `swap_ab` splits those of few rows."""
    others = problem.m > _FEW_ROWS or problem.n < _NARROW or _few_tiles(problem, device)
    return _unaligned(problem, device) and problem.k >= _SPLIT_K and others


def _copied(problem: Problem, device: Device) -> bool:
    """Match unaligned operands whose copy may pay: not with a small M or N, whose loads of single elements are few.

    If A alone is unaligned, a copy pays from M = 17 on: fp16 tn at M = 6 took 1.2 to 1.9 times as long with one.
    `k_major` makes the copies of what `_by_all_loads` matches.
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
    Line(4, "split_k", _few_plain_sums),
    Line(4, "gemv", _one_calibrated_row),
    Line(3, "split_k", _few_tiles),
    Line(2, "persistent_tma", _second_tiles),
    Line(1, "tma", on_hardware),
    Line(0, "tma", always),
    Line(0, "pointer", always),
    Line(0, "block_scaled", always),
)
