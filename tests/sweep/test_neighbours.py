"""Winners of nearby problems: nearest first, never of another class."""

import math

import pytest

from tuner.hardware.device import KNOWN, Environment
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.store.records import Winner
from tuner.sweep.neighbours import distance, errors_nearby, fitted, model_errors, nearest

DEVICE = KNOWN["sm_90"]


def winner(problem, block):
    config = Config("pointer", BLOCK_SIZE_M=block)
    environment = Environment("3.7.1", "2.13.0", "cuda", "", "3.11")
    return Winner(DEVICE, environment, problem, config, 1, 1, "0.1.0", "2026-01-01T00:00:00Z", 1.0, 1.0, 1.0, 1)


def of(m, n=4096, k=4096, **kind):
    return Problem(m, n, k, **{"dtype": "bfloat16", "layout": "nt", **kind})


def test_the_models_error_at_the_nearest_rung_counts_by_how_near_it_is():
    spec = registry.find("matmul", "pointer")
    config = spec.default_config(of(64), DEVICE)
    took = {m: factor * spec.estimate_us(config, of(m), DEVICE) for m, factor in ((64, 1.1), (32, 1.3), (8, 2.0))}
    errors = {of(m): model_errors(of(m), DEVICE, {config: us, Config("no_such"): us}) for m, us in took.items()}
    errors |= {of(64, n=512): errors[of(8)], of(1024): errors[of(8)]}  # of another family, and too far away
    assert errors_nearby(of(128), errors) == {config: (pytest.approx(math.log(1.1)), 0.5)}
    assert errors_nearby(of(32), errors) == {config: (pytest.approx(math.log(1.1)), 0.5)}
    assert errors_nearby(of(16), {of(8): errors[of(8)]}) == {config: (pytest.approx(math.log(2)), 0.5)}
    assert not errors_nearby(of(512), {of(64): errors[of(64)]})


def test_nearest_first_each_config_once():
    winners = [winner(of(4096), 1), winner(of(64), 2), winner(of(32), 3), winner(of(16), 2)]
    found = nearest(of(48), winners, DEVICE.sm_count)
    assert [config["BLOCK_SIZE_M"] for config in found] == [2, 3, 1]


def test_never_across_layout_alignment_dtype_epilogue_or_op():
    others = [
        of(64, layout="nn"),
        of(64, dtype="float16"),
        of(64, k=4095),
        of(64, epilogue="bias"),
        of(64, op="bmm", extras={"batch": 2}),
    ]
    assert nearest(of(48), [winner(problem, 1) for problem in others], DEVICE.sm_count) == []


def test_a_problem_is_not_its_own_neighbour():
    assert nearest(of(48), [winner(of(48), 1)], DEVICE.sm_count) == []


def test_a_problem_with_twice_the_tiles_is_further_than_one_with_twice_k():
    # Twice N is twice the tiles: further than twice K.
    assert distance(of(4096), of(4096, n=8192), 132) > distance(of(4096), of(4096, k=8192), 132)


def spaces(problem):
    pytest.importorskip("triton")
    return {spec.name: spec.space(problem, DEVICE) for spec in registry.serving(problem, DEVICE)}


def test_a_winner_with_an_option_comes_without_it():
    here = of(2048)
    plain = registry.find("matmul", "tma").default_config(here, DEVICE)
    assert list(fitted([plain.replace(maxnreg=168), plain], spaces(here))) == [plain]


def test_a_winners_tile_comes_with_the_stages_splits_and_order_that_this_problem_allows():
    there, here = of(768), of(1000, 3584)
    tile = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_N_REST": 64, "BLOCK_SIZE_K": 64}
    rest = {"EPILOGUE_PARTS": 1, "SWAP_AB": False, "num_stages": 6, "num_warps": 4, "launch_pdl": True}
    # All 12 rows of tiles there; here orders are of 1, 4 and 16.
    won = Config("warp_specialized", **tile, **rest, GROUP_SIZE_M=12)
    assert won in spaces(there)["warp_specialized"].configs()
    (found,) = fitted([won], spaces(here))
    assert found == won.replace(GROUP_SIZE_M=16)
    assert found in spaces(here)["warp_specialized"].configs()


def test_winners_of_kernels_that_do_not_serve_here_are_left_out():
    few = of(16)
    gemv = registry.find("matmul", "gemv").default_config(of(1), DEVICE)
    assert list(fitted([gemv], spaces(few))) == []
