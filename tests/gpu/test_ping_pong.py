"""Warpgroups in turn: right for any shape and layout, the bits of `warp_specialized`, and nothing written elsewhere."""

from __future__ import annotations

import pytest
import torch
from checked import check_configs, check_in_turn, skip_where_refused

from tuner import Config, Problem
from tuner.hardware import device
from tuner.kernel import KernelSpec, registry
from tuner.kernels.base.operands import Operands
from tuner.problem import dtype
from tuner.sweep import verify

SPEC = registry.find("matmul", "ping_pong")
SQUARE, WIDE, FLAT = (128, 128, 0), (128, 128, 64), (64, 256, 0)
"""Tiles of `ping_pong`; those of `any_height_ping_pong` are given by their height."""
HEIGHTS = (96, 104, 136, 152, 168, 176, 192, 200, 208)


def spec_of(config: Config) -> KernelSpec:
    return registry.find("matmul", config.kernel)


def tile(problem: Problem, sides: tuple[int, int, int] | int = SQUARE, stages: int = 4, group: int = 4) -> Config:
    by_height = isinstance(sides, int)
    rows, columns, rest = (sides, 128, 0) if by_height else sides
    return Config(
        "any_height_ping_pong" if by_height else "ping_pong",
        **({} if by_height else {"BLOCK_SIZE_N_REST": rest}),
        BLOCK_SIZE_M=rows,
        BLOCK_SIZE_N=columns,
        BLOCK_SIZE_K=128 // dtype.ITEMSIZE[problem.a_dtype],
        GROUP_SIZE_M=group,
        launch_pdl=True,
        num_stages=stages,
        num_warps=8,
    )


def nt(*shape: int, **options: object) -> Problem:
    return Problem(*shape, **{"dtype": "bf16", "layout": "nt", **options})


CASES = [
    (problem, tile(problem, *others))
    for problem, *others in (
        (nt(1000, 5000, 1000),),  # neither side is a whole number of tiles, nor K of steps
        (nt(4096, 4096, 4096), SQUARE, 6, 16),
        (nt(2048, 3000, 64, epilogue="bias+gelu"), SQUARE, 6),  # one step: a tile's turn begins with its last
        (nt(2048, 3000, 200, epilogue="bias"), WIDE),  # as many steps as stages
        (nt(900, 5000, 5000, epilogue="bias+silu", out_dtype="fp32"), WIDE, 3),
        (nt(300, 640, 4096), SQUARE, 2),  # fewer tiles than multiprocessors: one warpgroup has none
        (nt(777, 28672, 1000, dtype="fp16", epilogue="bias+relu"), FLAT, 5),
        (nt(520, 4104, 320, dtype="fp16", out_dtype="bf16"), FLAT),
        (nt(1000, 5000, 1000, layout="nn"),),
        (nt(1000, 5000, 1000, layout="tn"), WIDE),
        (nt(1000, 5000, 1000, layout="tt", epilogue="bias"), FLAT),
        (nt(1000, 5120, 1024, dtype="e4m3", scaling="row"), WIDE),
        (nt(4096, 6144, 1536, dtype="e4m3", scaling="row"), SQUARE, 6, 16),
        (nt(1000, 5120, 1024, dtype="e4m3", scaling="scalar", out_dtype="fp16", fast_accum=True), FLAT),
        (nt(1000, 5120, 1024, dtype="e5m2", fast_accum=True), SQUARE),
        (nt(1000, 5120, 1024, dtype="int8"), FLAT),
        (nt(1000, 5120, 1024, dtype="int8", scaling="row", out_dtype="bf16"), WIDE),
        (nt(1000, 3000, 1000, dtype="fp32", precision="tf32"), SQUARE, 3),
        (nt(926, 12288, 4096), 136, 5, 6),
        (nt(1000, 5000, 1000, epilogue="bias+gelu"), 200),
        (nt(2048, 3000, 64, epilogue="bias"), 104, 6),
        (nt(2048, 3000, 200, dtype="fp16", epilogue="bias"), 208),
        (nt(300, 640, 4096), 96, 2),
        (nt(900, 5000, 5000, epilogue="bias+silu", out_dtype="fp32"), 176, 3),
        (nt(777, 4104, 1000, dtype="fp16"), 152),
        (nt(700, 5008, 1000), 168),
        (nt(1000, 5120, 1024, dtype="e4m3", scaling="row"), 152),
        (nt(4096, 6144, 1536, dtype="e4m3", scaling="row", epilogue="bias"), 208, 4, 16),
        (nt(1000, 5120, 1040, dtype="e4m3", scaling="scalar", out_dtype="fp16", fast_accum=True), 184),
        (nt(1000, 5120, 1024, dtype="e5m2", fast_accum=True), 120, 5),
        (nt(1000, 5120, 1024, dtype="e4m3", out_dtype="fp32", fast_accum=True), 192, 3),
        (nt(1000, 5000, 1000, layout="nn", epilogue="bias+gelu"), 200),
        (nt(777, 4104, 1000, layout="nn", dtype="fp16", out_dtype="fp32"), 104, 5),
        (nt(1000, 5000, 1000, layout="tn", epilogue="bias"), 192),
        (nt(2048, 3000, 200, layout="tn", dtype="fp16"), 128, 6),
        (nt(1000, 5000, 1000, layout="tt"), 128, 6),
    )
]


@pytest.mark.parametrize(("problem", "config"), CASES, ids=str)
def test_results_are_right_and_the_same_bits_each_time(problem, config):
    skip_where_refused(spec_of(config), problem, config)
    check_configs(spec_of(config), problem, [config], on="cuda", launches=20)


@pytest.mark.parametrize("sides", [SQUARE, WIDE, FLAT], ids=str)
def test_tiles_of_8_bit_operands_give_the_bits_of_warp_specialized(sides):
    """Exchanged operands do not: a sum is multiplied by the other scale first."""
    check_bits(nt(2049, 6000, 1008, dtype="e4m3", scaling="row"), sides)


@pytest.mark.parametrize("sides", [SQUARE, WIDE, FLAT, *HEIGHTS], ids=str)
def test_every_tile_gives_the_bits_of_warp_specialized(sides):
    check_bits(nt(2049, 6000, 1008), sides)


@pytest.mark.parametrize(
    ("layout", "rows"), [("nn", 104), ("nn", 136), ("nn", 200), ("tn", 128), ("tn", 136), ("tn", 192), ("tn", 208)]
)
def test_operands_that_do_not_run_along_k_give_the_same_bits(layout, rows):
    check_bits(nt(2048, 6000, 1008, layout=layout), rows)


def check_bits(problem, sides):
    config, other = tile(problem, sides), registry.find("matmul", "warp_specialized")
    skip_where_refused(spec_of(config), problem, config)
    inputs, found = other.make_inputs(problem, "cuda", 0), []
    for spec, one in ((spec_of(config), config), (other, other.default_config(problem, device.current()))):
        verify.poison(inputs)
        spec.launch(inputs, one)
        found.append(inputs.output.clone())
    assert not found[0].isnan().any()
    assert torch.equal(*found)


@pytest.mark.parametrize("sides", [SQUARE, WIDE, FLAT, 96, 136, 200], ids=str)
@pytest.mark.parametrize("beside", [0, 8, 1], ids=["whole rows", "by TMA", "by pointers"])
@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
def test_outputs_with_strides_are_right_and_what_lies_beside_them_stays(sides, beside, transposed):
    m, n, k = 1160, 4104, 328
    problem = nt(m, n, k, epilogue="bias")
    config = tile(problem, sides)
    skip_where_refused(spec_of(config), problem, config)
    a, weight = (torch.randn(rows, k, device="cuda").bfloat16() for rows in (m, n))
    bias = torch.randn(n, device="cuda").bfloat16()
    expected = a.double() @ weight.double().t() + bias.double()
    shape = (n, m) if transposed else (m, n)
    room = torch.full((shape[0] + 2, shape[1] + beside), torch.nan, device="cuda", dtype=torch.bfloat16)
    inside = room[1:-1, : shape[1]] if beside != 1 else room[1:-1, beside:]
    out = inside.t() if transposed else inside
    spec_of(config).launch(Operands(a, weight.t(), out, bias, problem, room), config)
    torch.cuda.synchronize()
    assert verify.error(out.contiguous(), expected, k) <= SPEC.tolerance(problem)
    assert room[[0, -1]].isnan().all()
    assert int(room.isnan().sum()) == room.numel() - m * n


@pytest.mark.parametrize("sides", [SQUARE, 152], ids=str)
def test_launches_that_follow_each_other_do_not_disturb_each_other(sides):
    problem = nt(1024, 7168, 256)
    config = tile(problem, sides, 5)
    skip_where_refused(spec_of(config), problem, config)
    check_in_turn(spec_of(config), problem, config)
