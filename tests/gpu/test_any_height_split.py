"""Tiles of any height whose sums a cluster splits: right for ragged shapes, the same bits each time, nothing beside."""

from __future__ import annotations

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


def tile(rows: int, columns: int, splits: int, stages: int, ctas: int | None = None, **options: object) -> Config:
    return Config(
        SPEC.name,
        BLOCK_SIZE_M=rows,
        BLOCK_SIZE_N=columns,
        BLOCK_SIZE_K=64,
        SPLIT_K=splits,
        num_ctas=ctas or splits,
        num_stages=stages,
        num_warps=WARPS[columns],
        launch_pdl=True,
        **options,
    )


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
]


@pytest.mark.parametrize(("problem", "config"), CASES, ids=str)
def test_results_are_right_and_the_same_bits_each_time(problem, config):
    skip_where_refused(SPEC, problem, config)
    check_configs(SPEC, problem, [config], on="cuda", launches=20)


def test_launches_that_follow_each_other_keep_their_sums_apart():
    problem, config = nt(320, 1280, 8192), tile(80, 128, 2, 8, 4)
    skip_where_refused(SPEC, problem, config)
    check_in_turn(SPEC, problem, config)


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
