"""Products that run beside the copy of their operands: which find room, and what the launches of one are."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tuner.hardware.device import KNOWN
from tuner.kernel.config import Config
from tuner.kernels.base.operands import make_operands
from tuner.kernels.gemm.hopper.arrivals import MOST_CHUNKS
from tuner.kernels.gemm.padded import copy_ahead
from tuner.kernels.gemm.padded import spec as padded
from tuner.kernels.gemm.padded.copy_ahead import CHUNK_SIZE_K
from tuner.problem import Problem

H200 = KNOWN["sm_90"]
ODD = Problem(1023, 2047, 4093, dtype="bf16", layout="nt")
TILE = {"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_N_REST": 0, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 8}
LAUNCHED = {"EPILOGUE_PARTS": 1, "SWAP_AB": False, "launch_pdl": True, "num_stages": 6, "num_warps": 4}
BESIDE = Config("padded", INNER="warp_specialized", PAD="ab", CHUNK_SIZE_K=256, **TILE, **LAUNCHED)


def launches(problem: Problem, config: Config):
    """The jit functions that a config launches on operands without memory."""
    return [launch.function.__name__ for launch in padded.program(make_operands(problem, "meta", 0), config)]


def test_a_product_of_one_wave_starts_beside_its_copy():
    assert launches(ODD, BESIDE) == ["copy_ahead_kernel", "warp_specialized_kernel"]
    assert padded.space(ODD, H200).tries(BESIDE)


def test_a_ring_is_as_deep_as_the_copy_leaves_room_for():
    even = Problem(1023, 2048, 4093, dtype="bf16", layout="nt")
    assert padded.space(even, H200).rejection(BESIDE.replace(num_stages=5), fatal_only=True) is None
    refusal = padded.space(even, H200).rejection(BESIDE, fatal_only=True)
    assert "229728 bytes of shared memory, 228352 the copy leaves" in refusal


@pytest.mark.parametrize(
    "problem",
    [
        Problem(4095, 4095, 4095, dtype="bf16", layout="nt"),
        Problem(1023, 2047, 509, dtype="bf16", layout="nt"),
        Problem(1023, 2047, 4093, dtype="bf16", layout="nn"),
    ],
    ids=str,
)
def test_many_waves_a_short_k_and_operands_across_k_wait_for_whole_copies(problem):
    assert CHUNK_SIZE_K not in padded.default_config(problem, H200)
    assert not [config for config in padded.space(problem, H200).configs() if CHUNK_SIZE_K in config]


def test_small_tiles_wait_for_whole_copies():
    small = BESIDE.replace(BLOCK_SIZE_M=64, BLOCK_SIZE_N=64)
    assert "smaller tile" in padded.space(Problem(512, 512, 4095, dtype="bf16", layout="nt"), H200).rejection(small)


def test_one_operand_that_is_padded_already_leaves_the_other_to_copy_beside():
    problem = Problem(1023, 2047, 4093, dtype="bf16", layout="nt", b_padded=True)
    (copy, product) = padded.program(make_operands(problem, "meta", 0), BESIDE)
    assert copy.arguments[2:4] == (None, None)
    assert copy.concurrent
    assert not product.concurrent


def test_nothing_to_copy_and_operands_across_k_or_with_gaps_launch_as_without_chunks():
    aligned = Problem(1024, 2048, 4096, dtype="bf16", layout="nt")
    assert launches(aligned, BESIDE) == ["warp_specialized_kernel"]
    across = Problem(1023, 2047, 4093, dtype="bf16", layout="tn")
    assert launches(across, BESIDE) == ["copy_kernel", "warp_specialized_kernel"]
    operands = make_operands(ODD, "meta", 0)
    gaps = dataclasses.replace(operands, a=torch.empty(1023, 2 * 4093, dtype=torch.bfloat16, device="meta")[:, ::2])
    assert next(launch.function.__name__ for launch in padded.program(gaps, BESIDE)) == "copy_kernel"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({CHUNK_SIZE_K: 384}, "384: expected 256, or none"),
        ({CHUNK_SIZE_K: "256"}, "'256': expected 256, or none"),
        ({"num_warps": 8}, "the product leaves no registers"),
        ({"launch_pdl": False}, "it takes launch_pdl and single blocks"),
    ],
)
def test_a_config_that_finds_no_room_is_refused_with_the_reason(changes, reason):
    assert reason in padded.space(ODD, H200).rejection(BESIDE.replace(**changes), fatal_only=True)


def test_no_kernel_but_the_one_that_waits_for_chunks_takes_them():
    tma = Config("tma", BLOCK_SIZE_M=128, BLOCK_SIZE_N=128, BLOCK_SIZE_K=64, num_stages=4, num_warps=8)
    assert "tma waits for whole copies" in copy_ahead.rejection(256, tma, ODD, H200, by_pointers=True)


def test_chunks_are_counted_up_to_a_limit():
    long = Problem(1023, 2047, 256 * MOST_CHUNKS + 1, dtype="bf16", layout="nt")
    assert f"{MOST_CHUNKS + 1} chunks, {MOST_CHUNKS} are counted" in padded.space(long, H200).rejection(BESIDE)
    assert CHUNK_SIZE_K not in padded.default_config(long, H200)
