"""Cycles of one step's multiply-adds, and of what tensor cores need or leave to be done beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner.hardware.device import Device
from tuner.kernels.space import tile_resources
from tuner.problem import Problem, dtype

if TYPE_CHECKING:
    from tuner.kernels.cost.tile import Sides

WARPGROUP_ROWS = 64
"""Rows that a warpgroup multiplies (PTX ISA, wgmma.mma_async)."""
_OPERAND_CYCLES = 20.0
"""wgmma reads 64 rows of A from shared memory for every instruction, 16 cycles at 128 B, beside width / 4 for B's."""
_REGISTER_CYCLES = 36.0
"""The same of a warpgroup that loads its rows of A into registers, which takes two banks' turns; fitted."""
_EXPOSED_CYCLES = {True: 120.0, False: 100.0}
"""Cycles of one step in which a warpgroup multiplies nothing, by whether it loads such rows ahead; fitted."""
_FMA_CYCLES, _FMA_SUM_CYCLES = 12.0, 0.8
"""Cycles of a warp for each element along K without tensor cores, and for each of a thread's sums; fitted."""
_FMA_SHARES = {"nt": 1.0, "nn": 0.35, "tt": 0.7, "tn": 0.25}
"""What is left of these by layout: operands that do not run along K are read side by side; fitted, but for tn."""
_FMA_TALL = 0.9
"""What is left of these of a tile with more rows than columns; measured."""
_SIMT_SUM_CYCLES = 1.26
"""Cycles of a warp of the kernel `simt` for each of a thread's sums and element along K; fitted."""
_SIMT_COPY_CYCLES = 20.0
"""Cycles of such a warp for each copy of a thread to shared memory. A fit gives 38, which ranks trials no better.

Source of both: benchmarks/results/simt-fit.json.
"""
_SIMT_ALONE = 1.25
"""How many times as long these take of fewer warps than hide each other's reads; fitted."""
_HIDING_WARPS = 8
_TRANSPOSED_BYTES = {(1, True): 6.5, (1, False): 5.2, (4, True): 11.0, (4, False): 8.5}
"""Bytes a cycle of a multiprocessor at which operands are stored along K for wgmma, by the size of an element and
whether descriptors load, of up to 64 rows or columns; fitted."""
_TRANSPOSED_POWER = 0.4
"""The power by which wider tiles slow that; fitted."""
_TRANSPOSED_MMA_BYTES, _TRANSPOSED_MMA_WIDTH = 40.0, 0.4
"""The same of 8-bit operands for mma.sync: the most bytes a cycle, and those for each row or column; fitted."""
_SUM_CYCLES, _SUM_COLUMN_CYCLES = 310.0, 1.9
"""Cycles of a warpgroup that waits for the products of its 64 rows and 128 elements along K, and adds them to its sums,
and those for each column; fitted."""


def cycles(
    sides: Sides, problem: Problem, device: Device, *, by_tma: bool, asynchronous: bool, from_registers: bool = False
) -> float:
    """One program's multiply-adds of one step along K, with operands stored as tensor cores take them.

    from_registers: whether registers feed one that is not, as it is stored (`tile_resources.through_registers`).
    """
    width = sides.width
    macs = sides.rows * width * sides.length
    if not tile_resources.uses_tensor_cores(problem):
        return _without_tensor_cores(sides, problem) if device.vendor == "nvidia" else macs / 128
    size, has = dtype.ITEMSIZE[problem.a_dtype], device.features
    rate = has.macs * 2 / size
    if asynchronous:
        instructions = sides.rows / 64 * (sides.length * size / 32)
        operand = _REGISTER_CYCLES if from_registers else _OPERAND_CYCLES
        multiplied = max(macs / rate, instructions * (operand + width / 4))
    else:
        # Hopper's mma.sync has no 8-bit floats: they are multiplied as 16-bit ones.
        multiplied = macs / (rate * has.mma_sync_share * (0.5 if size == 1 and has.wgmma else 1.0))
    if not has.wgmma or from_registers:
        return multiplied
    return multiplied + _transposed(sides, problem, by_tma=by_tma, asynchronous=asynchronous)


def loads_ahead(sides: Sides) -> bool:
    """Whether registers that feed A are loaded while the step before is multiplied (`register_operand.loads_ahead`)."""
    return sides.warps == 4 and sides.rows == WARPGROUP_ROWS and sides.width <= 256


def exposed_cycles(sides: Sides) -> float:
    """Cycles of one step in which a warpgroup waits for such registers, or for its last products."""
    return _EXPOSED_CYCLES[loads_ahead(sides)]


def cycles_of_simt(sides: Sides, problem: Problem) -> float:
    """The same of the kernel `simt`: four schedulers issue multiply-adds and copies of a quarter of the warps each."""
    threads = 32 * sides.warps
    sums, copies = sides.rows * sides.width / threads, sides.loads(problem) / threads
    return sides.warps / 4 * (sides.length * _SIMT_SUM_CYCLES * sums + _SIMT_COPY_CYCLES * copies)


def simt_alone(sides: Sides) -> float:
    """How many times as long multiply-adds of `simt` take of a program by itself."""
    return _SIMT_ALONE if sides.warps < _HIDING_WARPS else 1.0


def cycles_of_sums(sides: Sides, problem: Problem) -> float:
    """Cycles of one step of a program by itself where wgmma's products are added in float32, 128 of them at a time.

    The kernels that scale blocks add them so by themselves, whatever the output is: see `terms.SCALING_CYCLES`.
    """
    if problem.fast_accum or problem.scaling == "block" or not dtype.is_fp8(problem.a_dtype):
        return 0.0
    blocks = sides.rows / (WARPGROUP_ROWS * sides.warps / 4)
    return sides.length / 128 * blocks * (_SUM_CYCLES + _SUM_COLUMN_CYCLES * sides.width)


def _without_tensor_cores(sides: Sides, problem: Problem) -> float:
    """Mostly loads of operands from shared memory."""
    sums = sides.rows * sides.width / (32 * sides.warps)
    share = _FMA_SHARES[problem.layout] * (_FMA_TALL if sides.rows > sides.width else 1.0)
    return share * sides.length * sides.warps * (_FMA_CYCLES + _FMA_SUM_CYCLES * sums)


def _transposed(sides: Sides, problem: Problem, *, by_tma: bool, asynchronous: bool) -> float:
    """Cycles in which operands of one step are stored along K, as tensor cores take all but 16-bit ones."""
    size, found = dtype.ITEMSIZE[problem.a_dtype], 0.0
    if size == 2 or (size == 4 and not asynchronous):
        return found
    for extent, along_k in ((sides.rows, problem.layout[0] == "n"), (sides.width, problem.layout[1] == "t")):
        if asynchronous:
            bytes_per_cycle = _TRANSPOSED_BYTES[size, by_tma] * min(1.0, 64 / extent) ** _TRANSPOSED_POWER
        else:
            bytes_per_cycle = min(_TRANSPOSED_MMA_BYTES, _TRANSPOSED_MMA_WIDTH * extent)
        found += 0.0 if along_k else extent * sides.length * size / bytes_per_cycle
    return found
