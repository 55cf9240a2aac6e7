"""What a calibrated formula looks at is all that the cost model has near its least, found without asking it of all."""

from __future__ import annotations

import pytest

from tuner.device import KNOWN
from tuner.kernels import likely, swap_ab, warp_specialized
from tuner.problem import Problem

H200 = KNOWN["sm_90"]


@pytest.mark.parametrize(
    "shape", [(1, 21376, 5184), (16, 4096, 14336), (64, 256, 7168), (100, 9600, 4480), (256, 1024, 512)]
)
@pytest.mark.parametrize("kernel", [swap_ab, warp_specialized])
def test_a_formula_looks_at_all_that_the_cost_model_has_near_its_least(shape, kernel, monkeypatch):
    problem = Problem(*shape, dtype="bf16", layout="nt")
    looked = {}
    estimate = kernel.estimate_us
    monkeypatch.setattr(kernel, "estimate_us", lambda config, *of: looked.setdefault(config, estimate(config, *of)))
    chosen = kernel.default_config(problem, H200)
    tried = kernel.space(problem, H200)
    if kernel is swap_ab:
        tried = tried.narrowed(BLOCK_SIZE_K=(64, 128, 256))
    costs = {
        config: kernel.model_us(config, problem, H200)
        for config in tried._programs()
        if kernel is swap_ab or warp_specialized.is_usual(config, problem)
    }
    near = {config for config, us in costs.items() if us <= likely.TIMES * min(costs.values())}
    assert looked.keys() == near
    assert 1 < len(near) < len(costs)
    allowed = [config for config in near if tried.rejection(config) is None]
    assert looked[chosen] == min(looked[config] for config in allowed)
