"""What `simt` serves, the configs that it offers and those that it refuses. Without a GPU."""

from __future__ import annotations

import itertools

import pytest

from tuner import Config, Problem
from tuner.hardware.device import INTERPRETER, KNOWN
from tuner.kernel import registry
from tuner.kernels.gemm.simt import space as spaces

H200 = KNOWN["sm_90"]
SPEC = registry.find("matmul", "simt")
PLAIN = Config(
    SPEC.name,
    BLOCK_SIZE_M=64,
    BLOCK_SIZE_N=64,
    BLOCK_SIZE_K=32,
    GROUP_SIZE_M=1,
    SPLIT_K=1,
    num_stages=3,
    num_warps=4,
    launch_pdl=True,
)


def plain(m, n, k, **kind):
    return Problem(m, n, k, **({"dtype": "fp32", "layout": "nt"} | kind))


@pytest.mark.parametrize(
    ("problem", "device", "reason"),
    [
        (plain(64, 64, 64), INTERPRETER, "no interpreter"),
        (plain(64, 64, 64), KNOWN["gfx942"], "NVIDIA"),
        (plain(64, 64, 64, precision="tf32"), H200, "tensor cores"),
        (plain(64, 64, 64, dtype="bf16"), H200, "tensor cores"),
    ],
)
def test_what_it_cannot_do_is_said_in_a_sentence(problem, device, reason):
    assert reason in SPEC.supports(problem, device)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
def test_there_is_a_config_for_every_shape_and_the_default_is_one_of_those_that_the_rules_let_pass(arch, layout):
    device = KNOWN[arch]
    for m, n, k in itertools.product((1, 17, 1000), (1, 40, 1003), (1, 16, 100, 4096)):
        problem = plain(m, n, k, layout=layout)
        assert SPEC.supports(problem, device) is None
        space, default = SPEC.space(problem, device), SPEC.default_config(problem, device)
        assert space.rejection(default) is None, problem
        assert space.configs(), problem


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, None),
        ({"BLOCK_SIZE_K": 8}, "registers hold 16"),
        ({"num_stages": 1}, "one is read"),
        ({"num_stages": 16}, "a block has"),
        ({"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 256}, "256 sums, 128 fit"),
        ({"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "num_warps": 2}, "128 sums, 64 fit"),
        ({"BLOCK_SIZE_M": 32, "BLOCK_SIZE_N": 32, "num_warps": 8}, "8 and more"),
        ({"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 32, "num_warps": 1}, "copy 24 times"),
        ({"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "num_warps": 2}, "16x16 of 16x32"),
        ({"num_ctas": 2}, "no parameter"),
    ],
)
def test_a_config_that_cannot_run_or_spills_is_refused_with_the_reason(changed, reason):
    said = SPEC.space(plain(1024, 1024, 1024), H200).rejection(PLAIN.replace(**changed))
    assert said is None if reason is None else reason in said


@pytest.mark.parametrize(
    ("tile", "along_m"), [((128, 128, 8), 4), ((128, 256, 8), 2), ((64, 64, 4), 2), ((16, 64, 2), 1)]
)
def test_a_warp_s_part_of_a_tile_is_square_or_wider_than_high(tile, along_m):
    rows, columns, warps = tile
    assert spaces.warps_along_m(rows, columns, warps) == along_m
    assert rows // along_m <= columns * along_m // warps


@pytest.mark.parametrize(
    ("splits", "stages", "early"),
    [(24, 2, True), (24, 3, False), (24, 4, False), (8, 3, True)],
    ids=["room for all", "for 3 of 4", "for 1 of 4", "one each"],
)
def test_the_next_launch_starts_early_unless_some_of_its_programs_would_find_room(splits, stages, early):
    # 22 tiles; a block of three stages takes 30 KiB.
    problem = plain(10, 1408, 22656, layout="nn")
    config = PLAIN.replace(BLOCK_SIZE_M=16, SPLIT_K=splits, num_stages=stages, num_warps=2)
    assert spaces.overlaps(config, problem, H200) is early
    assert config.replace(launch_pdl=early) in SPEC.space(problem, H200).configs()


@pytest.mark.parametrize(
    ("shape", "fewer", "more", "times"),
    [((13, 336, 8256), 24, 43, 1.16), ((5, 400, 3344), 14, 35, 1.26), ((16, 96, 12672), 24, 57, 1.14)],
    ids=str,
)
def test_more_splits_than_pay_are_not_estimated_to(shape, fewer, more, times):
    """Pairs on an H200 (benchmarks/results/even-splits-first-h200.json)."""
    config = PLAIN.replace(BLOCK_SIZE_M=16, BLOCK_SIZE_N=32, num_warps=1)
    few, many = (SPEC.estimate_us(config.replace(SPLIT_K=splits), plain(*shape), H200) for splits in (fewer, more))
    assert many / few == pytest.approx(times, rel=0.15)


def test_defaults_without_tensor_cores_are_its_own_but_for_few_rows():
    chosen = {
        (m, layout, arch): registry.default_config(plain(m, 4096, 4096, layout=layout), KNOWN[arch]).kernel
        for m, layout, arch in itertools.product((1, 4, 5, 8, 9, 300), ("nt", "nn"), ("sm_80", "sm_90"))
    }
    for (m, layout, _), kernel in chosen.items():
        few = "gemv" if layout == "nt" and m <= 4 else "swap_ab" if layout == "nn" and m <= 8 else SPEC.name
        assert kernel == few, (m, layout)
