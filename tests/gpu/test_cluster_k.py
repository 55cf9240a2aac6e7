"""Sums split over a cluster are right for ragged shapes, and the same bits whoever comes first."""

from __future__ import annotations

import pytest
from checked import check_configs, check_in_turn, skip_where_refused

from tuner import Config, Problem
from tuner.kernel import registry

SPEC = registry.find("matmul", "cluster_k")
PLAIN = Config(
    SPEC.name,
    BLOCK_SIZE_M=32,
    BLOCK_SIZE_N=64,
    BLOCK_SIZE_K=64,
    SPLIT_K=4,
    num_stages=4,
    num_warps=4,
    launch_pdl=True,
    PDL_TRIGGER=6,
)
AHEAD = PLAIN.replace(PREFETCH_KIB=32)
CASES = [
    (Problem(24, 1280, 8192, dtype="bf16", layout="nt"), AHEAD),
    (Problem(33, 200, 4096, dtype="fp16", layout="nt", epilogue="bias+gelu"), AHEAD.replace(SPLIT_K=8)),
    (Problem(7, 32, 16384, dtype="bf16", layout="nt"), AHEAD.replace(BLOCK_SIZE_M=8, SPLIT_K=16)),
    (Problem(100, 328, 1000, dtype="bf16", layout="nn", out_dtype="fp32"), PLAIN.replace(BLOCK_SIZE_M=64, SPLIT_K=2)),
    (
        Problem(128, 256, 7168, dtype="fp16", layout="tn"),
        PLAIN.replace(BLOCK_SIZE_M=128, BLOCK_SIZE_K=128, num_stages=2),
    ),
    (Problem(40, 64, 520, dtype="bf16", layout="tt", epilogue="silu"), PLAIN.replace(SPLIT_K=16)),  # 9 steps
    (
        Problem(16, 208, 4096, dtype="e4m3", layout="nt", scaling="row", out_dtype="fp32"),
        AHEAD.replace(BLOCK_SIZE_M=16, BLOCK_SIZE_K=128),
    ),
]


@pytest.mark.parametrize(("problem", "config"), CASES, ids=str)
def test_results_are_right_and_the_same_bits_each_time(problem, config):
    skip_where_refused(SPEC, problem, config)
    check_configs(SPEC, problem, [config], on="cuda", launches=20)


def test_launches_that_follow_each_other_keep_their_sums_apart():
    problem = Problem(32, 1280, 8192, dtype="bf16", layout="nt")
    skip_where_refused(SPEC, problem, AHEAD)
    check_in_turn(SPEC, problem, AHEAD)
