"""What `warp_specialized` serves, the configs that it offers and those that it refuses. Without a GPU."""

from __future__ import annotations

import itertools

import pytest

from tuner import Config, Problem, registry
from tuner.device import INTERPRETER, KNOWN
from tuner.kernels import warp_specialized_space as spaces

H200 = KNOWN["sm_90"]
SPEC = registry.find("matmul", "warp_specialized")

UNSERVED = [
    (Problem(4096, 4096, 4096, dtype="bf16"), "interpreter", "no interpreter"),
    (Problem(4096, 4096, 4096, dtype="bf16"), "sm_100", "Hopper"),
    (Problem(4096, 4096, 4096, dtype="bf16"), "sm_80", "Hopper"),
    (Problem(4096, 4095, 4096, dtype="bf16"), "sm_90", "not aligned"),
    (Problem(4096, 4096, 4096, dtype="fp32"), "sm_90", "float32"),
    (Problem(4096, 4096, 4096, dtype="fp32", precision="tf32x3"), "sm_90", "tf32x3"),
    (Problem(4096, 4096, 4096, dtype="e4m3", layout="nn"), "sm_90", "along K"),
    (Problem(4096, 4096, 16, dtype="bf16"), "sm_90", "K is 16"),
    (Problem(4096, 4096, 64, dtype="e4m3", layout="nt", scaling="block"), "sm_90", "K is 64"),
    (Problem(4096, 32, 4096, dtype="bf16"), "sm_90", "N is 32"),
]


@pytest.mark.parametrize(("problem", "arch", "reason"), UNSERVED, ids=str)
def test_what_it_cannot_do_is_said_in_a_sentence(problem, arch, reason):
    said = SPEC.supports(problem, INTERPRETER if arch == "interpreter" else KNOWN[arch])
    assert said is not None
    assert reason in said


KINDS = [
    {"dtype": "bf16", "layout": "nt"},
    {"dtype": "fp16", "layout": "nn", "out_dtype": "fp32"},
    {"dtype": "bf16", "layout": "tt"},
    {"dtype": "e4m3", "layout": "nt", "out_dtype": "fp32"},
    {"dtype": "e4m3", "layout": "nt", "scaling": "block"},
    {"dtype": "int8", "layout": "nt", "scaling": "row"},
    {"dtype": "fp32", "layout": "nt", "precision": "tf32"},
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(kind.values()))
def test_its_default_is_a_config_of_its_space_wherever_it_serves(kind):
    served = 0
    for m, n, k in itertools.product((1, 48, 136, 4096), (64, 208, 4096), (16, 64, 96, 4096)):
        problem = Problem(m, n, k, **kind)
        if SPEC.supports(problem, H200) is None:
            served += 1
            space = SPEC.space(problem, H200)
            assert space.rejection(SPEC.default_config(problem, H200)) is None, problem
    assert served > 10


def test_two_widths_are_refused_where_columns_of_one_part_would_belong_to_two_scales():
    blocks = Problem(4096, 4096, 4096, dtype="e4m3", layout="nt", scaling="block")
    rows = Problem(4096, 4096, 4096, dtype="e4m3", layout="nt", scaling="row")
    parameters = {"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_N_REST": 64, "BLOCK_SIZE_K": 128}
    config = Config(SPEC.name, **parameters, GROUP_SIZE_M=1, EPILOGUE_PARTS=1, SWAP_AB=False, num_stages=4, num_warps=8)
    assert "two scales" in SPEC.space(blocks, H200).rejection(config, fatal_only=True)
    assert SPEC.space(rows, H200).rejection(config, fatal_only=True) is None


def test_few_rows_of_a_are_seen_as_few_columns():
    problem = Problem(16, 4096, 4096, dtype="bf16", layout="nt")
    configs = SPEC.space(problem, H200).configs()
    assert configs
    for config in configs:
        inner, shown = spaces.seen(config, problem)
        assert config["SWAP_AB"]
        assert (shown.m, shown.n) == (4096, 16)
        assert inner["BLOCK_SIZE_M"] == config["BLOCK_SIZE_N"] >= 64


def test_two_programs_reside_only_where_both_rings_fit():
    problem = Problem(4096, 4096, 4096, dtype="bf16", layout="nt")
    found = {spaces.resident(config, problem, H200) for config in SPEC.space(problem, H200).configs()}
    assert found <= {1, 2}
    for config in SPEC.space(Problem(512, 4096, 4096, dtype="bf16", layout="nt"), H200).configs():
        if spaces.resident(config, problem, H200) == 2:
            assert 2 * spaces.shared_bytes(config, problem, H200) < H200.shared_bytes
