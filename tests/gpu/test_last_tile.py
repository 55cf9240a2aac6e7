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
}
COLUMNS, K = 1160, 1024


def ragged(spec: KernelSpec, problem: Problem) -> Config:
    """The best estimated config whose last tile along M and along N would reach beyond C."""
    here = device.current()

    def beyond(config: Config) -> bool:
        rows, columns = config.integer("BLOCK_SIZE_M"), config.integer("BLOCK_SIZE_N")
        by_tma = config.get("LOADS", "tma") == "tma"
        return by_tma and problem.m > rows and problem.m % rows > 0 and problem.n > columns and problem.n % columns > 0

    configs = filter(beyond, spec.space(problem, here).configs())
    return min(configs, key=lambda config: spec.estimate_us(config, problem, here))


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
    rows, columns = (
        -(-extent // config.integer(name)) * config.integer(name)
        for extent, name in ((m, "BLOCK_SIZE_M"), (n, "BLOCK_SIZE_N"))
    )
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
