"""Sums that a second launch adds: right for ragged shapes, the same bits each time, on streams, in graphs, by plans."""

from __future__ import annotations

import pytest
import torch
from checked import check_configs, check_in_turn, skip_where_refused

from tuner import Config, Problem
from tuner.kernel import registry
from tuner.kernels.base.operands import Operands
from tuner.sweep import verify

SPEC = registry.find("matmul", "split_sum")


def bf16(*shape: int, **options: object) -> Problem:
    return Problem(*shape, **{"dtype": "bf16", "layout": "nt", **options})


def tile(rows: int, columns: int, splits: int, stages: int = 4, warps: int = 8, length: int = 64) -> Config:
    return Config(
        SPEC.name,
        BLOCK_SIZE_M=rows,
        BLOCK_SIZE_N=columns,
        BLOCK_SIZE_K=length,
        SPLIT_K=splits,
        num_stages=stages,
        num_warps=warps,
        launch_pdl=True,
    )


CASES = [
    (bf16(384, 768, 32768, layout="tn"), tile(128, 256, 14)),
    (bf16(300, 1000, 4096), tile(128, 128, 5)),  # neither side is a whole number of tiles
    (bf16(300, 1000, 4097, layout="tn", epilogue="bias+gelu"), tile(128, 256, 7, 3)),  # K is no number of steps
    (bf16(136, 264, 8192, layout="nn", dtype="fp16", epilogue="bias"), tile(64, 64, 11, 6, 4)),
    (bf16(72, 520, 2056, out_dtype="fp32"), tile(64, 128, 2, 6, 4)),
    (bf16(256, 256, 2048, layout="tt", dtype="fp16"), tile(64, 256, 31, 4, 4)),  # a step or two of each part
    (Problem(256, 512, 8192, dtype="fp32", layout="nt", precision="tf32"), tile(128, 128, 9, 4, 8, 32)),
    (Problem(128, 512, 4096, dtype="int8", layout="nt", out_dtype="int32"), tile(64, 128, 5, 4, 4, 128)),
    (Problem(256, 512, 8192, dtype="e4m3", layout="nt", scaling="row", epilogue="bias"), tile(128, 128, 9, 4, 8, 128)),
]


@pytest.mark.parametrize(("problem", "config"), CASES, ids=str)
def test_results_are_right_and_the_same_bits_each_time(problem, config):
    skip_where_refused(SPEC, problem, config)
    check_configs(SPEC, problem, [config], on="cuda", launches=20)


def test_launches_that_follow_each_other_keep_their_parts_apart():
    problem, config = bf16(320, 1280, 8192), tile(128, 128, 4)
    skip_where_refused(SPEC, problem, config)
    check_in_turn(SPEC, problem, config)


@pytest.mark.parametrize("beside", [0, 8, 1], ids=["whole rows", "by 16 bytes", "by elements"])
@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
def test_outputs_with_strides_are_right_and_what_lies_beside_them_stays(beside, transposed):
    m, n, k = 296, 1032, 2056
    problem, config = bf16(m, n, k, epilogue="bias"), tile(128, 256, 8)
    skip_where_refused(SPEC, problem, config)
    a, weight = (torch.randn(rows, k, device="cuda").bfloat16() for rows in (m, n))
    bias = torch.randn(n, device="cuda").bfloat16()
    expected = a.double() @ weight.double().t() + bias.double()
    shape = (n, m) if transposed else (m, n)
    room = torch.full((shape[0], shape[1] + beside), 7.0, dtype=torch.bfloat16, device="cuda")
    out = room[:, : shape[1]].t() if transposed else room[:, : shape[1]]
    SPEC.launch(Operands(a, weight.t(), out, bias, problem, room), config)
    assert verify.error(out, expected, k) <= SPEC.tolerance(problem)
    assert (room[:, shape[1] :] == 7).all()


def test_a_graph_replays_with_the_operands_of_the_day():
    problem, config = bf16(256, 512, 8192), tile(128, 128, 16)
    skip_where_refused(SPEC, problem, config)
    sets = [SPEC.make_inputs(problem, "cuda", seed) for seed in (0, 1)]
    inputs = sets[0]
    SPEC.launch(inputs, config)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        SPEC.launch(inputs, config)
    inputs.a.copy_(sets[1].a)
    inputs.b.copy_(sets[1].b)
    inputs.out.fill_(float("nan"))
    graph.replay()
    SPEC.launch(sets[1], config)
    torch.cuda.synchronize()
    assert torch.equal(inputs.out, sets[1].out)
