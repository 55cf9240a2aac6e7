"""A calibrated formula looks at all that the cost model has near its least, found without estimating all of it."""

from __future__ import annotations

import pytest

from tuner.hardware.device import KNOWN, MODELS
from tuner.kernel.config import Config
from tuner.kernels.base.operands import exchanged
from tuner.kernels.cost import model as cost
from tuner.kernels.cost.terms import least_us
from tuner.kernels.cost.tile import Loop, Sides, tile_of
from tuner.kernels.gemm import calibrated
from tuner.kernels.gemm.hopper import warp_specialized
from tuner.kernels.gemm.hopper.rules import FEW_ROWS
from tuner.kernels.gemm.small_m import split_k, swap_ab
from tuner.problem import Problem

H200 = KNOWN["sm_90"]
(H100,) = (model for model in MODELS if model.name == "NVIDIA H100 80GB HBM3")
SHAPES = [(1, 21376, 5184), (16, 4096, 14336), (64, 256, 7168), (100, 9600, 4480), (256, 1024, 512), (608, 176, 3584)]


def is_usual(config, problem):
    few = config.integer("num_ctas", 1) <= (2 if problem.m <= FEW_ROWS else 1)
    return few and warp_specialized.is_usual(config.integer("GROUP_SIZE_M", 1), config, problem, H200)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kernel", [swap_ab, warp_specialized], ids=lambda kernel: kernel.NAME)
def test_a_formula_looks_at_all_that_the_cost_model_has_near_its_least(shape, kernel):
    problem = Problem(*shape, dtype="bf16", layout="nt")
    tried = kernel.space(problem, H200)
    if kernel is swap_ab:
        tried = tried.narrowed(BLOCK_SIZE_K=(64, 128, 256))
    costs = {
        config: kernel.terms(config, problem, H200)
        for config in tried.programs()
        if kernel is swap_ab or is_usual(config, problem)
    }
    least = min(one.us for one in costs.values())
    near = {config: one for config, one in costs.items() if one.us <= cost.TIMES * least}
    assert kernel._shortlist(tried, problem, H200) == near
    assert len(near) > 1

    def estimate(config):
        return kernel.estimate_us(config, problem, H200)

    best = next(config for config in sorted(near, key=estimate) if tried.rejection(config) is None)
    chosen = kernel.default_config(problem, H200)
    assert estimate(chosen) == pytest.approx(estimate(tried.refined(best, estimate)))


@pytest.mark.parametrize(("shape", "device"), [((368, 240, 5568), H100), ((320, 576, 7168), H200)])
def test_a_default_that_splits_sums_of_more_than_256_rows_takes_the_options_that_are_estimated_to_gain(shape, device):
    problem = Problem(*shape, dtype="bf16", layout="nt")
    tried, chosen = split_k.space(problem, device), split_k.default_config(problem, device)
    plain = Config(chosen.kernel, **{k: v for k, v in dict(chosen).items() if k not in ("PDL_TRIGGER", "PREFETCH_KIB")})
    others = [plain, *tried.refinements(plain)]
    assert chosen in others[1:]
    assert chosen == min(others, key=lambda config: calibrated.estimate_us(config, problem, device))


def test_a_bound_of_a_tile_is_below_all_its_pipelines():
    problem = Problem(100, 9600, 4480, dtype="bf16", layout="nt")
    tried = swap_ab.space(problem, H200)
    for point in tried.points():
        inner = swap_ab.exchanged_tile(point)
        by_tma = inner["LOADS"] == "tma"
        tile = tile_of(Sides.of(inner), Loop(by_tma), exchanged(problem), H200)
        for config in map(tried.canonicalize, tried.expand(point, problem, H200)):
            assert least_us(tile, config.integer("SPLIT_K")) <= swap_ab.terms(config, problem, H200).us * (1 + 1e-12)
