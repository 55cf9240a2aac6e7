"""A gate and up in tiles of any height: right for ragged shapes, and the bits of powers of two."""

from __future__ import annotations

import pytest
import torch
from checked import check_configs, check_in_turn, skip_where_refused

from tuner import Config, Problem
from tuner.kernel import registry

SPEC = registry.find("gated_linear", "gated_any_height")
FOUR, PAIR = {"num_ctas": 4}, {"num_ctas": 2, "SHARE_B": True}


def gated(*shape: int, **options: object) -> Problem:
    return Problem(*shape, op="gated_linear", **{"dtype": "bf16", "layout": "nt", "epilogue": "silu", **options})


def tile(rows: int, columns: int, warps: int, **options: object) -> Config:
    sides = {"BLOCK_SIZE_M": rows, "BLOCK_SIZE_N": columns, "num_warps": warps}
    others = {"BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 2, "launch_pdl": True, "num_stages": 3}
    return Config(SPEC.name, **{**sides, **others, **options})


CASES = [
    (gated(129, 7168, 8192), tile(136, 128, 4, num_stages=6, **FOUR)),
    (gated(65, 1000, 72, epilogue="gelu"), tile(72, 128, 4)),  # columns beyond the end, a step that is half empty
    (gated(200, 14336, 4096), tile(104, 128, 4, **PAIR)),
    (gated(190, 2888, 1000, dtype="fp16", epilogue="relu"), tile(64, 128, 4, **PAIR)),  # the fourth tile is none
    (gated(146, 13824, 5120), tile(152, 256, 8, num_stages=4, **FOUR)),
    (gated(250, 4104, 1000, epilogue="none"), tile(88, 256, 8, num_stages=4)),  # the last tiles are moved back
    (gated(101, 120, 2048), tile(104, 256, 8)),  # a tile of more columns than the weights have
    (gated(100, 64, 2048), tile(208, 128, 4)),  # one tile, of more rows than x has
    (gated(130, 264, 520, epilogue="leaky_relu"), tile(72, 256, 8, **PAIR)),
    (gated(1200, 5120, 1000, epilogue="gelu"), tile(200, 128, 8, GROUP_SIZE_M=12)),
    (gated(777, 4104, 1032, dtype="fp16"), tile(208, 128, 8, num_stages=4)),
    (gated(300, 128, 4096), tile(152, 128, 8)),  # fewer tiles than warpgroups
    (gated(4096, 3072, 40), tile(184, 128, 8)),  # one step
    (gated(2500, 1792, 4096), tile(96, 128, 8, num_stages=6)),
    (gated(600, 3584, 8192), tile(88, 128, 8, num_stages=2)),
]


@pytest.mark.parametrize(("problem", "config"), CASES, ids=str)
def test_results_are_right_and_the_same_bits_each_time(problem, config):
    skip_where_refused(SPEC, problem, config)
    check_configs(SPEC, problem, [config], on="cuda", launches=20)


@pytest.mark.parametrize(
    ("columns", "warps", "cluster"),
    [(128, 4, {}), (128, 4, FOUR), (128, 4, PAIR), (256, 8, {}), (256, 8, FOUR), (256, 8, PAIR), (128, 8, {})],
    ids=str,
)
@pytest.mark.parametrize("rows", [64, 72, 80, 96, 104, 128, 136, 152, 176, 184, 200, 208])
def test_every_height_gives_the_bits_of_a_power_of_two(rows, columns, warps, cluster):
    problem = gated(3 * rows - 40, 1096, 1000)
    config = tile(rows, columns, warps, **cluster)
    skip_where_refused(SPEC, problem, config)
    plain = Config(
        "gated_warp_specialized",
        BLOCK_SIZE_M=64,
        BLOCK_SIZE_N=128,
        BLOCK_SIZE_K=64,
        EPILOGUE_PARTS=1,
        GROUP_SIZE_M=1,
        SWAP_AB=False,
        launch_pdl=True,
        num_stages=4,
        num_warps=4,
    )
    inputs = SPEC.make_inputs(problem, "cuda", 0)
    registry.find("gated_linear", plain.kernel).launch(inputs, plain)
    right = inputs.out.clone()
    inputs.buffer.fill_(float("nan"))
    SPEC.launch(inputs, config)
    assert torch.equal(inputs.out, right)


@pytest.mark.parametrize(
    ("problem", "config"),
    [
        (gated(129, 2048, 512), tile(136, 128, 4, **FOUR)),
        (gated(200, 2048, 512), tile(104, 256, 8, **PAIR)),
        (gated(600, 2048, 512), tile(152, 128, 8)),
    ],
    ids=str,
)
def test_launches_in_turn_do_not_disturb_each_other(problem, config):
    skip_where_refused(SPEC, problem, config)
    check_in_turn(SPEC, problem, config)


def test_the_rows_of_a_wider_matrix_and_the_halves_of_one_weight():
    wide = torch.randn(400, 704, device="cuda").bfloat16()
    joined = torch.randn(2 * 512, 256, device="cuda").mul_(1 / 16).bfloat16()
    gate, up = joined.chunk(2)
    problem, config = gated(400, 512, 256), tile(136, 128, 8)
    skip_where_refused(SPEC, problem, config)
    inputs = SPEC.make_inputs(problem, "cuda", 0)
    out = torch.full((400, 640), float("nan"), device="cuda", dtype=torch.bfloat16)
    for x in (wide[:, :256], wide[:, 8:264]):
        given = type(inputs)(x, gate, up, out[:, :512], problem, out)
        SPEC.launch(given, config)
        inputs.a.copy_(x)
        inputs.b.copy_(gate)
        inputs.up.copy_(up)
        SPEC.launch(inputs, config)
        assert torch.equal(given.out, inputs.out)
        assert out[:, 512:].isnan().all()
