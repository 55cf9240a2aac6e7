"""Products whose operands are copied along K first: right for ragged shapes, on streams, in graphs and by plans."""

from __future__ import annotations

import pytest
import torch
from checked import check_configs, check_in_turn, check_streams

from tuner import Problem
from tuner.hardware import device
from tuner.kernel import registry
from tuner.kernels import matmul

SPEC = registry.find("matmul", "k_major")
TF32 = {"dtype": "fp32", "precision": "tf32"}
OPERANDS = [
    TF32,
    {"dtype": "int8", "out_dtype": "int32"},
    {"dtype": "e4m3", "scaling": "row", "epilogue": "bias"},
    {"dtype": "e5m2", "out_dtype": "fp32"},
]


def served(problem: Problem) -> Problem:
    if refused := SPEC.unserved(problem, device.current()):
        pytest.skip(refused)
    return problem


@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
@pytest.mark.parametrize("operands", OPERANDS, ids=str)
@pytest.mark.parametrize("shape", [(300, 1000, 2080), (257, 515, 1027), (2048, 192, 8192)], ids=str)
def test_every_inner_kernels_best_configs_are_right(shape, operands, layout):
    problem, here = served(Problem(*shape, layout=layout, **operands)), device.current()
    estimated = sorted(SPEC.space(problem, here).configs(), key=lambda one: SPEC.estimate_us(one, problem, here))
    best = {one["INNER"]: one for one in reversed(estimated)}
    check_configs(SPEC, problem, best.values(), on="cuda")


def test_launches_that_follow_each_other_keep_their_copies_apart():
    problem = served(Problem(512, 768, 1024, layout="tn", **TF32))
    check_in_turn(SPEC, problem, SPEC.default_config(problem, device.current()))


def test_streams_graphs_and_plans_read_the_operands_of_their_call():
    problem = served(Problem(384, 640, 1024, layout="tn", **TF32))
    assert registry.default_config(problem, device.current()).kernel == SPEC.name
    sets = [(torch.randn(1024, 384, device="cuda").t(), torch.randn(1024, 640, device="cuda")) for _ in range(2)]
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        check_streams(matmul, sets)
        for a, b in sets:
            torch.testing.assert_close(matmul(a, b), (a.double() @ b.double()).float(), atol=0.5, rtol=0.01)
        a, b = (each.clone() for each in sets[0])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = matmul(a, b)
        for each, values in zip((a, b), sets[1], strict=True):
            each.copy_(values)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, matmul(*sets[1]))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
