"""TF32 with one operand that does not run along K, which registers feed: every tile is right, each time."""

from __future__ import annotations

import pytest
import torch
from checked import check_configs

from tuner import Config, Problem
from tuner.hardware import device
from tuner.kernel import KernelSpec, registry
from tuner.kernels.base.operands import Operands
from tuner.sweep import verify

SPEC = registry.find("matmul", "warp_specialized")
SIDES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_N_REST", "BLOCK_SIZE_K", "SPLIT_K", "num_warps")


def tf32(*shape: int, layout: str = "nn", **options: str) -> Problem:
    return Problem(*shape, dtype="fp32", precision="tf32", layout=layout, **options)


def tiles(problem: Problem, spec: KernelSpec = SPEC) -> list[Config]:
    """A config of each tile, with the shallowest and the deepest ring in turn."""
    if refused := spec.unserved(problem, device.current()):
        pytest.skip(refused)
    configs = sorted(spec.space(problem, device.current()).configs(), key=lambda one: one.integer("num_stages"))
    found = {tuple(one.get(side) for side in SIDES): one for one in configs}
    found.update({tuple(one.get(side) for side in SIDES): one for one in configs[::-1][::2]})
    return list(found.values())


@pytest.mark.parametrize(
    "problem",
    [
        tf32(300, 1000, 1040),  # neither side is a whole number of tiles; 33 steps of 32 elements
        tf32(77, 4096, 96),  # fewer steps than stages, an odd number of them
        tf32(16, 520, 4100, epilogue="bias+gelu"),
        tf32(8200, 4100, 64, epilogue="bias"),  # many tiles, whose last steps load ahead of the next one's first
        tf32(300, 1000, 1040, layout="tt", epilogue="bias"),
        tf32(2048, 4096, 132, layout="tt"),
        tf32(64, 520, 2056, layout="tt"),
    ],
    ids=str,
)
def test_every_tile_is_right_and_writes_the_same_bits_each_time(problem):
    check_configs(SPEC, problem, tiles(problem), on="cuda", launches=4)


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("shape", [(77, 520, 4100), (5, 1000, 1028), (200, 64, 8192), (128, 328, 516)], ids=str)
def test_clusters_that_split_k_are_right_and_write_the_same_bits_each_time(shape, layout):
    spec, problem = registry.find("matmul", "cluster_k"), tf32(*shape, layout=layout, epilogue="bias+gelu")
    check_configs(spec, problem, tiles(problem, spec), on="cuda", launches=4)


@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("beside", [0, 4, 1], ids=["whole rows", "by TMA", "by pointers"])
def test_outputs_with_strides_are_right_and_what_lies_beside_them_stays(beside, transposed):
    m, n, k = 580, 1032, 328
    problem = tf32(m, n, k)
    a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
    shape = (n, m) if transposed else (m, n)
    room = torch.full((shape[0] + 2, shape[1] + beside), torch.nan, device="cuda")
    inside = room[1:-1, : shape[1]] if beside != 1 else room[1:-1, beside:]
    out = inside.t() if transposed else inside
    for config in tiles(problem)[::5]:
        room.fill_(torch.nan)
        SPEC.launch(Operands(a, b, out, None, problem, room), config)
        torch.cuda.synchronize()
        assert verify.error(out.contiguous(), a.double() @ b.double(), k) <= SPEC.tolerance(problem)
        inside.fill_(torch.nan)
        assert room.isnan().all()
