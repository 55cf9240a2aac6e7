"""Tiles of any height: right for ragged shapes, the bits of powers of two, and nothing written beyond the output."""

from __future__ import annotations

import pytest
import torch
from checked import check_configs, check_in_turn, skip_where_refused

from tuner import Config, Problem
from tuner.kernel import registry
from tuner.kernels.base.operands import Operands
from tuner.sweep import verify

SPEC = registry.find("matmul", "any_height")
WARPS = {64: 4, 128: 8, 192: 12, 256: 8}
"""Warps by columns of a tile."""
HEIGHTS = {64: range(80, 272, 16), 128: range(80, 272, 16), 192: range(80, 224, 16), 256: (80, 144, 192, 208)}
EIGHTS = {64: (88, 136), 128: (88, 104, 136, 184, 248), 192: (104, 152, 184), 256: (88, 136, 184, 200)}
"""Heights by columns: multiples of 16, and others of 8."""
CLUSTER, PAIR = {"num_ctas": 4}, {"num_ctas": 2, "SHARE_B": True}
EXCHANGED = Config(
    "warp_specialized",
    BLOCK_SIZE_M=128,
    BLOCK_SIZE_N=64,
    BLOCK_SIZE_N_REST=0,
    BLOCK_SIZE_K=64,
    EPILOGUE_PARTS=1,
    GROUP_SIZE_M=1,
    SWAP_AB=True,
    launch_pdl=True,
    num_stages=4,
    num_warps=4,
)


def tile(rows: int, columns: int, **options: object) -> Config:
    return Config(
        SPEC.name,
        **{
            "BLOCK_SIZE_M": rows,
            "BLOCK_SIZE_N": columns,
            "BLOCK_SIZE_K": 64,
            "GROUP_SIZE_M": 1,
            "launch_pdl": True,
            "num_stages": 3,
            "num_warps": WARPS[columns],
            **options,
        },
    )


def tile_of_8_bits(rows: int, columns: int, **options: object) -> Config:
    return tile(rows, columns, BLOCK_SIZE_K=128, **options)


def nt(*shape: int, **options: object) -> Problem:
    return Problem(*shape, **{"dtype": "bf16", "layout": "nt", **options})


CASES = [
    (nt(129, 7168, 8192), tile(144, 64, num_stages=8, **CLUSTER)),
    (nt(129, 7168, 8192), tile(80, 128)),
    (nt(70, 7168, 8192, epilogue="bias"), tile(80, 64, num_stages=10, **CLUSTER)),
    (nt(100, 3000, 72, epilogue="bias+gelu"), tile(112, 64)),  # columns beyond the end, a step that is half empty
    (nt(190, 2888, 4096, epilogue="bias+silu", out_dtype="fp32"), tile(192, 128, **CLUSTER)),  # 3 clusters of 4 tiles
    (nt(256, 28672, 1000, dtype="fp16", epilogue="bias+relu", out_dtype="fp32"), tile(256, 128)),
    (nt(193, 16032, 512, dtype="fp16", out_dtype="bf16"), tile(208, 128, num_stages=4)),
    (nt(250, 12288, 4096), tile(128, 192, num_stages=4)),
    (nt(208, 22016, 4096, epilogue="bias"), tile(208, 192, num_stages=4)),
    (nt(207, 5001, 1000, dtype="fp16"), tile(208, 192, num_stages=4)),  # stored from registers, as the next one
    (nt(144, 24576, 1000, epilogue="bias+silu"), tile(144, 192, num_stages=5)),
    (nt(70, 28672, 4096), tile(80, 128, **CLUSTER)),  # two waves of clusters
    (nt(70, 2880, 4096), tile(256, 64)),  # a tile of more rows than A has
    (nt(255, 7168, 2048), tile(80, 64)),  # four tiles along M, the last moved back
    (nt(900, 7168, 5120), tile(136, 128, num_stages=5, GROUP_SIZE_M=3)),
    (nt(1200, 5120, 1000, epilogue="bias+gelu"), tile(200, 256, GROUP_SIZE_M=6)),
    (nt(777, 4104, 1000, dtype="fp16", epilogue="bias"), tile(208, 256, GROUP_SIZE_M=12)),
    (nt(530, 5000, 1000), tile(152, 192, num_stages=4)),
    (nt(300, 640, 4096, out_dtype="fp32"), tile(136, 128, num_stages=4, GROUP_SIZE_M=3)),
    (nt(130, 4096, 14336), tile(72, 64, num_stages=12, **PAIR)),
    (nt(515, 5120, 1000, epilogue="bias+gelu"), tile(136, 128, num_stages=5, **PAIR)),
    (
        nt(204, 3000, 1000, dtype="fp16", epilogue="bias"),
        tile(72, 128, num_stages=5, **PAIR),
    ),  # the fourth tile is none
    (nt(300, 1000, 4096, out_dtype="fp32"), tile(64, 256, **PAIR)),  # the last tile along M is moved back
    (nt(604, 1024, 8192, epilogue="bias"), tile(88, 64, num_stages=11, **CLUSTER)),
    (nt(257, 4608, 3584), tile(88, 128, num_stages=7, **CLUSTER)),
    (nt(420, 1240, 1000), tile(72, 192, num_stages=5, **CLUSTER)),
    (nt(200, 7168, 8192, dtype="e4m3", epilogue="bias+gelu"), tile_of_8_bits(200, 64, num_stages=6, **CLUSTER)),
    (nt(286, 3584, 1040, dtype="e4m3"), tile_of_8_bits(96, 192, num_stages=4, **PAIR)),
    (nt(500, 4096, 2000, dtype="e4m3", scaling="row", epilogue="bias"), tile_of_8_bits(168, 128, num_stages=5)),
    (nt(202, 24576, 1536, dtype="e4m3", scaling="row"), tile_of_8_bits(208, 192, num_stages=4)),
    (nt(250, 5120, 1024, dtype="e5m2", scaling="scalar", out_dtype="fp16", fast_accum=True), tile_of_8_bits(104, 256)),
    (nt(90, 3000, 1024, dtype="e4m3", out_dtype="fp32", fast_accum=True), tile_of_8_bits(96, 64, **CLUSTER)),
    # B along N: columns in chunks of 64, the last of which is not full
    (nt(129, 7168, 8192, layout="nn"), tile(144, 64, num_stages=8, **CLUSTER)),
    (nt(190, 2888, 1000, layout="nn", epilogue="bias+silu", out_dtype="fp32"), tile(192, 128, **CLUSTER)),
    (nt(516, 5000, 1000, layout="nn", epilogue="bias+gelu"), tile(136, 128, num_stages=5, **PAIR)),
    (nt(777, 4104, 1000, layout="nn", dtype="fp16", epilogue="bias"), tile(208, 256, GROUP_SIZE_M=12)),
    (nt(530, 5000, 1000, layout="nn"), tile(152, 192, num_stages=4)),
    (nt(207, 5000, 1000, layout="nn", dtype="fp16"), tile(208, 192, num_stages=4)),  # two wgmmas for its columns
    # both along the output's sides
    (nt(3072, 1024, 4000, layout="tn"), tile(192, 128, num_stages=4, GROUP_SIZE_M=8)),
    (nt(200, 7168, 1000, layout="tn", epilogue="bias"), tile(256, 64, num_stages=5)),
    (nt(520, 5000, 1032, layout="tn", epilogue="bias+gelu"), tile(128, 192, num_stages=4, **PAIR)),
    (nt(1000, 2888, 72, layout="tn", dtype="fp16", out_dtype="fp32"), tile(128, 256, **CLUSTER)),
    (nt(904, 5000, 1000, layout="tn"), tile(192, 192, num_stages=4)),
    # rows that are no whole chunks of 64
    (nt(136, 7168, 8192, layout="tn"), tile(136, 64, num_stages=6, **CLUSTER)),
    (nt(288, 5000, 1000, layout="tn", epilogue="bias+gelu"), tile(144, 128, num_stages=5, **PAIR)),
    (nt(744, 2888, 72, layout="tn", dtype="fp16", out_dtype="fp32"), tile(200, 256)),
    (nt(904, 5000, 1032, layout="tn", epilogue="bias"), tile(184, 192, num_stages=3, GROUP_SIZE_M=3)),
    (nt(72, 3000, 4096, layout="tn"), tile(72, 64, num_stages=8)),
    # A along M alone
    (nt(904, 5000, 1000, layout="tt", epilogue="bias"), tile(192, 128, num_stages=4, GROUP_SIZE_M=3)),
]


@pytest.mark.parametrize(("problem", "config"), CASES, ids=str)
def test_results_are_right_and_the_same_bits_each_time(problem, config):
    skip_where_refused(SPEC, problem, config)
    check_configs(SPEC, problem, [config], on="cuda", launches=20)


@pytest.mark.parametrize("cluster", [{}, CLUSTER, PAIR], ids=["alone", "four share A", "two share B"])
@pytest.mark.parametrize(
    ("rows", "columns"), [(rows, columns) for columns, heights in HEIGHTS.items() for rows in heights]
)
def test_every_height_gives_the_bits_of_a_power_of_two(rows, columns, cluster):
    check_bits(rows, columns, cluster)


@pytest.mark.parametrize(
    ("rows", "columns"), [(rows, columns) for columns, heights in EIGHTS.items() for rows in heights]
)
def test_heights_between_the_multiples_of_16_give_the_same_bits(rows, columns):
    check_bits(rows, columns, {"GROUP_SIZE_M": 3})


@pytest.mark.parametrize(
    ("layout", "rows", "columns"),
    [
        *(("nn", rows, columns) for rows, columns in ((72, 128), (136, 64), (152, 192), (208, 192), (200, 256))),
        *(
            ("tn", rows, columns)
            for rows, columns in ((128, 64), (136, 64), (192, 128), (104, 128), (184, 192), (200, 256))
        ),
        ("tt", 192, 128),
    ],
)
def test_operands_that_do_not_run_along_k_give_the_same_bits(layout, rows, columns):
    check_bits(rows, columns, {}, layout)


def check_bits(rows, columns, options, layout="nt"):
    # Neither side is a whole number of tiles, and more than one wave of them goes through the ring.
    problem = nt(249 if layout[0] == "n" else 248, 17000, 1000, layout=layout, epilogue="bias")
    config = tile(rows, columns, **options)
    skip_where_refused(SPEC, problem, config)
    inputs, found = SPEC.make_inputs(problem, "cuda", 0), []
    for spec, one in ((SPEC, config), (registry.find("matmul", EXCHANGED.kernel), EXCHANGED)):
        verify.poison(inputs)
        spec.launch(inputs, one)
        found.append(inputs.output.clone())
    assert not found[0].isnan().any()
    assert torch.equal(*found)


@pytest.mark.parametrize(
    "config",
    [tile(144, columns, **cluster) for columns in (64, 128, 192) for cluster in ({}, CLUSTER)]
    + [tile(208, 192, num_stages=4), tile(144, 192, num_stages=5), tile(136, 128), tile(88, 192), tile(200, 256)],
    ids=str,
)
@pytest.mark.parametrize("beside", [0, 8, 1], ids=["whole rows", "by TMA", "by pointers"])
@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
def test_outputs_with_strides_are_right_and_what_lies_beside_them_stays(config, beside, transposed):
    m, n, k = 136, 4104, 328
    problem = nt(m, n, k, epilogue="bias")
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
    assert room[[0, -1]].isnan().all()
    assert int(room.isnan().sum()) == room.numel() - m * n


def test_launches_that_follow_each_other_do_not_disturb_each_other():
    problem, config = nt(129, 7168, 256), tile(144, 64, num_stages=8, **CLUSTER)
    skip_where_refused(SPEC, problem, config)
    check_in_turn(SPEC, problem, config)
