"""A last tile that is moved back to end with C gives the bits of a whole one, and stores nothing beside C."""

from __future__ import annotations

import pytest
import torch

from tuner import Config, Problem
from tuner.hardware import device
from tuner.kernel import KernelSpec, registry
from tuner.kernels.base.operands import Operands

ROWS = {
    "tma": 840,
    "persistent_tma": 1480,
    "warp_specialized": 840,
    "ping_pong": 840,
    "any_width": 840,
    "any_height": 840,
    "any_height_ping_pong": 840,
    "any_height_split": 840,
    "cluster_k": 200,
    "swap_ab": 200,
    "split_k": 200,
}
COLUMNS, K = 1160, 1024


def ragged(spec: KernelSpec, problem: Problem) -> Config:
    """The best estimated config whose last tile along M and along N would reach beyond C."""
    here = device.current()

    def beyond(config: Config) -> bool:
        rows, columns = sides(config)
        by_tma = config.get("LOADS", "tma") == "tma"
        return by_tma and problem.m > rows and problem.m % rows > 0 and problem.n > columns and problem.n % columns > 0

    configs = filter(beyond, spec.space(problem, here).configs())
    return min(configs, key=lambda config: spec.estimate_us(config, problem, here))


def sides(config: Config) -> tuple[int, int]:
    """Rows and columns of a tile, those of its second width included."""
    rest = config.integer("BLOCK_SIZE_N_REST")
    rest_m, rest_n = (rest, 0) if config.get("SWAP_AB", False) else (0, rest)
    return config.integer("BLOCK_SIZE_M") + rest_m, config.integer("BLOCK_SIZE_N") + rest_n


def stored(rows: int, columns: int, *, transposed: bool) -> torch.Tensor:
    """A random matrix of a layout, [rows, columns]."""
    shape = (columns, rows) if transposed else (rows, columns)
    matrix = torch.randn(shape, device="cuda").bfloat16()
    return matrix.t() if transposed else matrix


@pytest.mark.parametrize("odd", [0, 1], ids=["whole 16 bytes", "odd"])
@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize("kernel", ROWS)
def test_a_tile_moved_back_gives_the_bits_of_a_whole_one(kernel, layout, odd):
    """Operands are parts of larger ones. So odd extents have aligned rows, as those that `padded` copies."""
    m, n = ROWS[kernel] + odd, COLUMNS + odd
    spec, aligned = registry.find("matmul", kernel), Problem(ROWS[kernel], COLUMNS, K, dtype="bf16", layout=layout)
    if refused := spec.unserved(aligned, device.current()):
        pytest.skip(refused)
    config, problem = ragged(spec, aligned), Problem(m, n, K, dtype="bf16", layout=layout)
    rows, columns = (-(-extent // side) * side for extent, side in zip((m, n), sides(config), strict=True))
    a = stored(rows, K, transposed=layout[0] == "t")
    b = stored(K, columns, transposed=layout[1] == "t")
    bias = torch.randn(columns, device="cuda").bfloat16()
    whole = torch.empty(rows, columns, device="cuda", dtype=torch.bfloat16)
    of_whole = Problem(rows, columns, K, dtype="bf16", layout=layout)
    spec.launch(Operands(a, b, whole, bias, of_whole, whole), config)
    room = torch.full((rows + 1, columns + 8), torch.nan, device="cuda", dtype=torch.bfloat16)
    out = room[:m, :n]
    spec.launch(Operands(a[:m], b[:, :n], out, bias[:n], problem, room), config)
    torch.cuda.synchronize()
    assert torch.equal(out, whole[:m, :n])
    out.fill_(torch.nan)
    assert room.isnan().all()


@pytest.mark.parametrize("n", [136, 1160])
def test_a_second_width_of_ping_pong_gives_the_bits_of_one_width(n):
    """Of fewer columns than the tile has, both widths compute those that they share."""
    problem, spec = Problem(840, n, K, dtype="bf16", layout="nt"), registry.find("matmul", "ping_pong")
    if refused := spec.unserved(problem, device.current()):
        pytest.skip(refused)
    one, two = (
        Config(
            spec.name,
            BLOCK_SIZE_M=128,
            BLOCK_SIZE_N=128,
            BLOCK_SIZE_N_REST=rest,
            BLOCK_SIZE_K=64,
            GROUP_SIZE_M=8,
            launch_pdl=True,
            num_stages=4,
            num_warps=8,
        )
        for rest in (0, 64)
    )
    a, weight = stored(840, K, transposed=False), stored(K, n, transposed=True)
    found = []
    for config in (one, two):
        out = torch.full((840, n), torch.nan, device="cuda", dtype=torch.bfloat16)
        spec.launch(Operands(a, weight, out, None, problem, out), config)
        found.append(out)
    torch.cuda.synchronize()
    assert not found[0].isnan().any()
    assert torch.equal(*found)
