"""The `pointer` kernel's config where nobody tuned: a formula of the problem and the device."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernels.cost.terms import terms_of
from tuner.kernels.cost.tile import Loop, Sides, tile_of
from tuner.kernels.gemm.pointer.space import NAME, STAGES, canonical, space
from tuner.kernels.space import tile_resources, tile_rules
from tuner.problem import Problem, dtype

_SAME = 0.02
"""Estimates that differ by less, in log time, are equal: without it tiles of a few sums win by a hair, with more worse
ones do (on recorded landscapes)."""
_MOST_LOADS_OF_ONE_STEP = 4096
"""32 for each thread of four warps."""
MOST_STAGES = 6
"""Of a pipeline, unless a caller asks for fewer."""
_SHORT = 16
"""BLOCK_SIZE_K of float32 beside which a thread has registers for 128 sums."""


class _Candidate(NamedTuple):
    """A tile, and num_stages."""

    sides: Sides
    stages: int


def default_config(
    problem: Problem, device: Device, *, whole_k: bool = False, most_stages: int = MOST_STAGES
) -> Config:
    """The candidate with the least estimated time that the search space would try.

    whole_k: whether that may be a step that takes all of a K up to 256. Nobody measured it of products in a batch or a
    group, and of those that experts compute one after the other, the second has another K.
    most_stages: the deepest pipeline.

    Ties go to the larger tile; of two as large to the wider, but to the taller for wgmma and tcgen05 with B stored
    [N, K] and more than one step along K. That is measured, not understood: on an H200 256x128 was the faster there,
    with bfloat16.
    """
    if device.is_interpreter:
        return _config(_interpreted(problem), problem, device)

    def rank(one: _Candidate) -> tuple[int, int, int, int]:
        tile, sides = tile_of(one.sides, Loop(by_tma=False), problem, device), one.sides
        us = terms_of(tile, 1, one.stages, group=_group(sides, problem, device)).us
        tall = tile.asynchronous and problem.layout[1] == "t" and tile.steps > 1
        oblong = sides.rows if tall else sides.columns
        return round(math.log(us) / _SAME), -sides.rows * sides.columns, -oblong, sides.length

    tried = space(problem, device)
    ranked = sorted(_candidates(problem, device, whole_k, most_stages), key=rank)
    configs = (_config(one, problem, device) for one in ranked)
    # A lookup must never raise: the smallest config runs wherever any does.
    smallest = _config(_candidate(16, 16, tile_resources.shortest_k(problem), 1, 1), problem, device)
    return next((config for config in configs if tried.rejection(config) is None), smallest)


def _candidate(m: int, n: int, k: int, stages: int, warps: int) -> _Candidate:
    return _Candidate(Sides(m, n, 0, k, warps, 1, share_b=False), stages)


def _interpreted(problem: Problem) -> _Candidate:
    m, n, k = (min(64, tile_resources.next_power_of_two(max(16, size))) for size in problem.shape)
    return _candidate(m, n, max(k, tile_resources.shortest_k(problem)), 1, 4)


def _candidates(problem: Problem, device: Device, whole_k: bool, most_stages: int) -> Iterator[_Candidate]:
    """Every tile, at a few lengths along K, with a pipeline as deep as fits and one as deep as fits twice."""
    size = dtype.ITEMSIZE[problem.a_dtype]
    deepest = 2 if device.vendor == "amd" or not tile_resources.stages_differ(problem, device) else most_stages
    for m, n, k, warps in _tiles(problem, device, whole_k):
        steps, reads_shared = -(-problem.k // k), tile_resources.reads_shared(m, n, warps, problem, device)
        # tcgen05 keeps 16 bytes of barriers, the driver 1 KiB a block (CUDA C++ Programming Guide).
        alone, twice = (
            _depth(min(deepest, steps, limit // (k * (m + n) * size) + (not reads_shared)))
            for limit in (device.shared_bytes - 16, (device.shared_bytes - 1024) // 2 - 16)
        )
        yield _candidate(m, n, k, alone, warps)
        if 3 <= twice < alone:
            yield _candidate(m, n, k, twice, warps)


def _tiles(problem: Problem, device: Device, whole_k: bool) -> Iterator[tuple[int, int, int, int]]:
    """BLOCK_SIZE_M, N and K and num_warps."""
    rows, columns = (
        [block for block in (16, 32, 64, 128, 256) if block < 2 * max(16, extent)] for extent in (problem.m, problem.n)
    )
    a_vector, b_vector = tile_resources.vectors(problem)
    in_one_step = device.features.wgmma and tile_resources.uses_tensor_cores(problem)
    for m, n, k in itertools.product(rows, columns, _lengths(problem, whole_k)):
        loads = k * (m / a_vector + n / b_vector)
        most, most_warps = _most_of_one_step(loads, problem) if k >= problem.k and in_one_step else (128 * 256, 8)
        for warps in _warps(m * n, problem, device, most=most_warps) if m * n <= most else ():
            # Twice as many sums fit beside operands in shared memory, on CDNA, and of eight warps beside short rows
            # that no tensor core multiplies; else 128x256x64 spilled (sm_80, sm_90), and fewer warps took longer.
            short = k <= _SHORT and warps == 8 and not tile_resources.uses_tensor_cores(problem)
            beside = short or device.vendor == "amd" or tile_resources.reads_shared(m, n, warps, problem, device)
            if m * n <= (128 if beside else 64) * device.warp_size * warps:
                yield m, n, k, warps


def _most_of_one_step(loads: float, problem: Problem) -> tuple[int, int]:
    """The most sums and warps of a tile whose one step takes all of K.

    Only its stores take long, and twice as many programs of four warps as of eight reside: they took 0.82 to 0.96 of
    the time on an H200, but for one of six pairs (not kept). With more loads of single elements than a thread has
    registers for, 128x128 took 2.2 times as long with four (benchmarks/results/edges-h200.json, 1078x6118x17), half
    such a tile 0.8 times as long (edges-again-h200.json, 5192x3815x19).
    """
    if loads <= _MOST_LOADS_OF_ONE_STEP:
        return 128 * 128, 4
    return (64 * 128, 4) if tile_resources.asynchronous_copies(problem) < 2 else (128 * 256, 8)


def _warps(sums: int, problem: Problem, device: Device, *, most: int) -> tuple[int, ...]:
    """Warps of a tile: for 64 sums a thread, 8 at least, and four warps wherever they have work; `most` at most.

    Without tensor cores, and with B stored [N, K], fewer are often faster: a warp takes its operands from shared memory
    element by element (decision 160).
    """
    if device.vendor == "nvidia" and not tile_resources.uses_tensor_cores(problem) and problem.layout[1] == "t":
        return tuple(warps for warps in (1, 2, 4, 8) if sums >= 8 * device.warp_size * warps)
    return (min(most, max(1, min(4, sums // 256), sums // (64 * device.warp_size))),)


def _depth(most: int) -> int:
    """The deepest pipeline that a search tries, of at most so many stages."""
    return max((depth for depth in STAGES if depth <= most), default=1)


def _lengths(problem: Problem, whole_k: bool) -> set[int]:
    """BLOCK_SIZE_K: rows of one swizzle of shared memory (128 bytes), of two and four where K has four such steps.

    With `whole_k` also what covers a K up to 256.

    Operands that pass through registers, element by element or for want of a matrix instruction, get short rows.
    """
    size = dtype.ITEMSIZE[problem.a_dtype]
    longest = tile_resources.next_power_of_two(max(tile_resources.shortest_k(problem), problem.k))
    rows: tuple[int, ...] = (64, 128)
    if tile_resources.asynchronous_copies(problem) == 2 and tile_resources.uses_tensor_cores(problem):
        rows = (128, *(row for row in (256, 512) if 4 * row <= problem.k * size))
    lengths = {min(256, longest, row // size) for row in rows}
    return lengths | {longest} if whole_k and longest <= 256 else lengths


def _group(sides: Sides, problem: Problem, device: Device) -> int:
    tiles = -(-problem.m // sides.rows) * -(-problem.n // sides.columns)
    return 8 if tiles > device.sm_count and not device.is_interpreter else 1


def _config(one: _Candidate, problem: Problem, device: Device) -> Config:
    sides, group = one.sides, _group(one.sides, problem, device)
    sizes = {"BLOCK_SIZE_M": sides.rows, "BLOCK_SIZE_N": sides.columns, "BLOCK_SIZE_K": sides.length}
    amd: dict[str, Value] = {}
    if device.vendor == "amd":
        kpack = 2 if device.features.kpack and dtype.ITEMSIZE[problem.a_dtype] == 2 else 1
        amd = {"matrix_instr_nonkdim": 16, "waves_per_eu": 0, "kpack": kpack}
    own = {name: values[0] for name, values in tile_rules.overlap(device).items()} | amd
    config = Config(NAME, **sizes, GROUP_SIZE_M=group, num_stages=one.stages, num_warps=sides.warps, **own)
    return canonical(config, problem, device)
