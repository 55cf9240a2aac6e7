"""Tiles of any width: right for ragged shapes, the bits of powers of two, and nothing written beyond the output."""

from __future__ import annotations

import pytest
import torch
from checked import check_configs, check_in_turn, skip_where_refused

from tuner import Config, Problem
from tuner.kernel import registry
from tuner.kernels.base.operands import Operands
from tuner.sweep import verify

SPEC = registry.find("matmul", "any_width")
TILES = {128: (8, (80, *range(144, 256, 16))), 192: (12, range(144, 240, 16)), 256: (8, range(144, 208, 16))}
"""Warps and widths by rows of a tile."""
STAGES = 3
POWERS_OF_TWO = Config(
    "warp_specialized",
    BLOCK_SIZE_M=128,
    BLOCK_SIZE_N=128,
    BLOCK_SIZE_N_REST=0,
    BLOCK_SIZE_K=64,
    EPILOGUE_PARTS=1,
    GROUP_SIZE_M=8,
    SWAP_AB=False,
    launch_pdl=True,
    num_stages=4,
    num_warps=8,
)


def tile(rows: int, columns: int, **options: object) -> Config:
    return Config(
        SPEC.name,
        **{
            "BLOCK_SIZE_M": rows,
            "BLOCK_SIZE_N": columns,
            "BLOCK_SIZE_K": 64,
            "GROUP_SIZE_M": 8,
            "launch_pdl": True,
            "num_stages": STAGES,
            "num_warps": TILES[rows][0],
            **options,
        },
    )


def nt(*shape: int, **options: object) -> Problem:
    return Problem(*shape, **{"dtype": "bf16", "layout": "nt", **options})


PAIR, PAIR_B = {"num_ctas": 2}, {"num_ctas": 2, "SHARE_B": True}
CASES = [
    (nt(2048, 3584, 1024), tile(128, 224, num_stages=4)),
    (nt(1000, 1992, 1000), tile(128, 176, num_stages=5)),
    (nt(256, 5120, 8192), tile(128, 80, num_stages=7, **PAIR_B)),
    (nt(193, 4616, 1000, epilogue="bias+silu", out_dtype="fp32"), tile(128, 80, num_stages=6, **PAIR_B)),
    (nt(129, 144, 32), tile(128, 240)),  # tiles larger than the output, and one step that is half empty
    (nt(130, 5000, 72), tile(256, 144)),  # more rows in a tile than the output has
    (nt(2100, 1608, 4096, epilogue="bias+gelu"), tile(192, 160, num_stages=4)),
    (nt(2100, 1608, 520, epilogue="bias+silu", out_dtype="fp32"), tile(256, 176, num_stages=2)),
    (nt(1500, 4096, 1000, dtype="fp16", epilogue="bias+relu", out_dtype="fp32"), tile(128, 208, num_stages=3)),
    (nt(900, 7168, 512, dtype="fp16", out_dtype="bf16"), tile(192, 144, num_stages=4)),
    (nt(640, 10240, 5120), tile(256, 192)),
    (nt(384, 14336, 4096), tile(192, 224, num_stages=4)),  # stored from registers, as are the next
    (nt(700, 5001, 1000, epilogue="bias+gelu"), tile(192, 224, num_stages=4)),
    (nt(1000, 5004, 328, dtype="fp16", out_dtype="bf16"), tile(192, 208, num_stages=4)),
    (nt(650, 3000, 200, out_dtype="fp32"), tile(256, 176, num_stages=4)),
    (nt(3000, 3000, 3000), tile(256, 160, num_stages=4, **PAIR)),
    (nt(3000, 3000, 3000, epilogue="bias"), tile(192, 176, num_stages=4, **PAIR)),
    (nt(1900, 2504, 1000, dtype="fp16", epilogue="bias+leaky_relu"), tile(128, 240, **PAIR_B)),
    (nt(1900, 2504, 200, out_dtype="fp32"), tile(128, 144, **PAIR_B)),
]


@pytest.mark.parametrize(("problem", "config"), CASES, ids=str)
def test_results_are_right_and_the_same_bits_each_time(problem, config):
    skip_where_refused(SPEC, problem, config)
    check_configs(SPEC, problem, [config], on="cuda", launches=20)


@pytest.mark.parametrize(
    ("rows", "columns"), [(rows, columns) for rows, (_, widths) in TILES.items() for columns in widths]
)
def test_every_width_gives_the_bits_of_a_power_of_two(rows, columns):
    # Neither side is a whole number of tiles, and more than one wave of them goes through the ring.
    problem = nt(2604, 3800, 1000, epilogue="bias")
    config = tile(rows, columns)
    skip_where_refused(SPEC, problem, config)
    inputs, found = SPEC.make_inputs(problem, "cuda", 0), []
    for spec, one in ((SPEC, config), (registry.find("matmul", POWERS_OF_TWO.kernel), POWERS_OF_TWO)):
        verify.poison(inputs)
        spec.launch(inputs, one)
        found.append(inputs.output.clone())
    assert not found[0].isnan().any()
    assert torch.equal(*found)


def operands(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    a, weight = (torch.randn(rows, k, device="cuda").bfloat16() for rows in (m, n))
    return a, weight, torch.randn(n, device="cuda").bfloat16()


FROM_REGISTERS = [tile(192, 224, num_stages=4), tile(256, 176, num_stages=4), tile(192, 208, num_stages=4)]
"""The last one where TMA does not store."""


@pytest.mark.parametrize("config", [*(tile(rows, 176) for rows in TILES), *FROM_REGISTERS], ids=str)
@pytest.mark.parametrize("beside", [0, 8, 1], ids=["whole rows", "by TMA", "by pointers"])
@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
def test_outputs_with_strides_are_right_and_what_lies_beside_them_stays(config, beside, transposed):
    m, n, k = 1096, 1608, 328
    problem = nt(m, n, k, epilogue="bias")
    skip_where_refused(SPEC, problem, config)
    a, weight, bias = operands(m, n, k)
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


@pytest.mark.parametrize("cluster", [PAIR, PAIR_B], ids=str)
@pytest.mark.parametrize("rows", TILES)
@pytest.mark.parametrize("beside", [0, 1], ids=["by TMA", "by pointers"])
def test_pairs_give_the_bits_of_single_blocks(cluster, rows, beside):
    # An odd number of tiles along either side: some blocks of pairs have a tile beyond the output.
    m, n, k = 2100, 1600, 1000
    problem, single = nt(m, n, k, epilogue="bias"), tile(rows, 144)
    skip_where_refused(SPEC, problem, single.replace(**cluster))
    a, weight, bias = operands(m, n, k)
    found = []
    for config in (single, single.replace(**cluster)):
        room = torch.full((m, n + beside), torch.nan, device="cuda", dtype=torch.bfloat16)
        SPEC.launch(Operands(a, weight.t(), room[:, :n], bias, problem, room), config)
        found.append(room[:, :n])
    torch.cuda.synchronize()
    assert not found[0].isnan().any()
    assert torch.equal(*found)


def test_operands_with_strides_are_read_in_place():
    m, n, k = 1000, 1600, 512
    problem, config = nt(m, n, k), tile(128, 208)
    skip_where_refused(SPEC, problem, config)
    a, weight, _ = operands(m, n, k + 64)
    a, weight = a[:, 64:], weight[:, :k]
    out = torch.full((m, n), torch.nan, device="cuda", dtype=torch.bfloat16)
    SPEC.launch(Operands(a, weight.t(), out, None, problem, out), config)
    torch.cuda.synchronize()
    assert verify.error(out, a.double() @ weight.double().t(), k) <= SPEC.tolerance(problem)


def test_launches_that_follow_each_other_do_not_disturb_each_other():
    problem, config = nt(640, 2048, 256), tile(128, 208)
    skip_where_refused(SPEC, problem, config)
    check_in_turn(SPEC, problem, config)
