"""Tiles of any height whose sums a cluster splits: right for ragged shapes, the same bits each time, nothing beside."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from checked import check_configs, check_in_turn, skip_where_refused

from tuner import Config, Problem
from tuner.kernel import registry
from tuner.kernels.base.operands import Operands
from tuner.kernels.gemm.any_tile.any_height_tile import WARPS
from tuner.sweep import verify

SPEC = registry.find("matmul", "any_height_split")


def nt(*shape: int, **options: object) -> Problem:
    return Problem(*shape, **{"dtype": "bf16", "layout": "nt", **options})


def scaled(*shape: int, **options: object) -> Problem:
    return nt(*shape, **{"dtype": "e4m3", "scaling": "block", **options})


def tile(rows: int, columns: int, splits: int, stages: int, ctas: int | None = None, **options: object) -> Config:
    return Config(
        SPEC.name,
        BLOCK_SIZE_M=rows,
        BLOCK_SIZE_N=columns,
        SPLIT_K=splits,
        num_ctas=ctas or splits,
        num_stages=stages,
        num_warps=WARPS[columns],
        launch_pdl=True,
        **{"BLOCK_SIZE_K": 64, **options},
    )


def scaled_tile(
    rows: int, columns: int, splits: int, stages: int, ctas: int | None = None, **options: object
) -> Config:
    config = tile(rows, columns, splits, stages, ctas, BLOCK_SIZE_K=128, **options)
    alone = (ctas or splits) == 1
    return Config(SPEC.name, **{name: value for name, value in config.pairs if not (alone and name == "num_ctas")})


DOWN = {"SHARE_B": True}
CASES = [
    (nt(300, 1000, 4096), tile(104, 128, 4, 7)),  # neither side is a whole number of tiles
    (nt(300, 1000, 4096, epilogue="bias+gelu"), tile(152, 64, 2, 8, 4)),
    (nt(1000, 200, 8200, dtype="fp16", epilogue="bias"), tile(72, 64, 4, 12, 8, **DOWN)),  # K is no number of steps
    (nt(257, 520, 1040, out_dtype="fp32"), tile(88, 192, 8, 6)),  # 17 steps for eight blocks
    (nt(700, 320, 1024), tile(40, 256, 8, 5)),  # two steps each; columns that no block owns
    (nt(530, 1160, 2048, epilogue="bias+silu"), tile(184, 256, 4, 4, 8)),
    (nt(530, 1160, 2048), tile(176, 256, 2, 4, 8, **DOWN)),
    (nt(513, 96, 6144), tile(56, 128, 2, 9, 8)),  # fewer tiles along N than a cluster has
    (nt(300, 64, 16384), tile(40, 64, 8, 12)),
    (nt(90, 2000, 3000), tile(96, 192, 4, 6, 8)),
    (nt(616, 368, 4096, layout="nn", epilogue="bias"), tile(104, 192, 4, 6, 8)),
    (nt(1000, 328, 3000, layout="nn", dtype="fp16", out_dtype="fp32"), tile(136, 128, 2, 6, 4, **DOWN)),
    (nt(896, 544, 4104, layout="tn"), tile(64, 192, 2, 7, 4)),
    (nt(320, 1024, 2048, layout="tn", epilogue="bias"), tile(192, 128, 4, 5, 8)),
    (nt(304, 1024, 4104, layout="tn", epilogue="bias+gelu"), tile(152, 128, 4, 5, 8)),
    (nt(296, 2000, 2048, layout="tn", dtype="fp16"), tile(40, 256, 2, 5, 4, **DOWN)),
    (nt(520, 256, 2048, layout="tt", dtype="fp16"), tile(128, 64, 2, 9, 4, **DOWN)),
    (scaled(80, 12288, 4096), scaled_tile(80, 128, 1, 8)),
    (scaled(81, 9216, 8192), scaled_tile(88, 192, 2, 6)),  # tiles of 192 columns begin within a block
    (scaled(63, 9000, 2048, epilogue="bias+gelu"), scaled_tile(64, 192, 1, 6)),
    (scaled(1, 5120, 2048), scaled_tile(16, 64, 1, 12, 4)),
    (scaled(33, 5136, 2000, out_dtype="fp32", epilogue="bias"), scaled_tile(40, 128, 2, 9, 4)),
    (scaled(199, 5120, 25600, epilogue="bias+gelu"), scaled_tile(104, 192, 2, 5, 4, **DOWN)),
    (scaled(256, 1000, 7168, dtype="e5m2", out_dtype="fp16"), scaled_tile(128, 128, 8, 6)),
    (scaled(300, 264, 16384, epilogue="silu"), scaled_tile(104, 64, 4, 8, 8)),
    (scaled(147, 200, 1152), scaled_tile(80, 128, 8, 8, **DOWN)),  # nine steps for eight blocks
]


@pytest.mark.parametrize(("problem", "config"), CASES, ids=str)
def test_results_are_right_and_the_same_bits_each_time(problem, config):
    skip_where_refused(SPEC, problem, config)
    check_configs(SPEC, problem, [config], on="cuda", launches=20)


def test_launches_that_follow_each_other_keep_their_sums_apart():
    problem, config = nt(320, 1280, 8192), tile(80, 128, 2, 8, 4)
    skip_where_refused(SPEC, problem, config)
    check_in_turn(SPEC, problem, config)


@pytest.mark.parametrize("strides", [(16, 1), (1, 77), (1, 80), (3, 231)], ids=["rows", "columns", "padded", "spread"])
def test_scales_of_blocks_may_have_any_strides(strides):
    problem, config = scaled(77, 2112, 2048), scaled_tile(40, 128, 2, 8)
    skip_where_refused(SPEC, problem, config)
    inputs = SPEC.make_inputs(problem, "cuda", 0)
    memory = torch.full((77 * strides[0] + 16 * strides[1],), torch.nan, device="cuda")
    scale_a = memory.as_strided((77, 16), strides).copy_(inputs.scale_a)
    scale_b = torch.full((17, 20), torch.nan, device="cuda")[:, :16].t().copy_(inputs.scale_b)
    verify.poison(inputs)
    SPEC.launch(dataclasses.replace(inputs, scale_a=scale_a, scale_b=scale_b), config)
    torch.cuda.synchronize()
    assert verify.check(inputs, SPEC.reference(inputs), problem.k, SPEC.tolerance(problem)).failure is None


@pytest.mark.parametrize("config", [scaled_tile(80, 128, 1, 8), scaled_tile(40, 128, 2, 8)], ids=["alone", "split"])
@pytest.mark.parametrize("strides", [(1, 80), (2120, 2), (1057, 1)], ids=["transposed", "every other", "odd rows"])
def test_outputs_of_scaled_products_may_have_any_strides(strides, config):
    m, n = 77, 1056
    problem = scaled(m, n, 2048, epilogue="bias+relu")
    skip_where_refused(SPEC, problem, config)
    inputs = SPEC.make_inputs(problem, "cuda", 0)
    room = torch.full(((m - 1) * strides[0] + (n - 1) * strides[1] + 1,), 7.0, device="cuda").bfloat16()
    out = room.as_strided((m, n), strides)
    SPEC.launch(dataclasses.replace(inputs, out=out, buffer=room), config)
    torch.cuda.synchronize()
    assert verify.error(out, SPEC.reference(inputs), problem.k) <= SPEC.tolerance(problem)
    out.fill_(7.0)
    assert (room == 7.0).all(), "memory beside the output was written"


@pytest.mark.parametrize("beside", [0, 8, 1], ids=["whole rows", "by 16 bytes", "by elements"])
@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
def test_outputs_with_strides_are_right_and_what_lies_beside_them_stays(beside, transposed):
    m, n, k = 296, 1032, 2056
    problem, config = nt(m, n, k, epilogue="bias"), tile(104, 128, 4, 7)
    skip_where_refused(SPEC, problem, config)
    a, weight = (torch.randn(rows, k, device="cuda").bfloat16() for rows in (m, n))
    bias = torch.randn(n, device="cuda").bfloat16()
    expected = a.double() @ weight.double().t() + bias.double()
    shape = (n, m) if transposed else (m, n)
    room = torch.full((shape[0] + 2, shape[1] + beside), torch.nan, device="cuda", dtype=torch.bfloat16)
    inside = room[1:-1, : shape[1]] if beside != 1 else room[1:-1, beside:]
    out = inside.t() if transposed else inside
    SPEC.launch(Operands(a, weight.t(), out, bias, problem, room), config)
    torch.cuda.synchronize()
    assert verify.error(out.contiguous(), expected, k) <= SPEC.tolerance(problem)
    out.fill_(torch.nan)
    assert room.isnan().all()
