"""Blocks that share loads of A or B by multicast compute what blocks on their own do, bit for bit."""

from __future__ import annotations

import pytest
import torch

from tuner import Config, Problem
from tuner.hardware import device
from tuner.kernel import registry
from tuner.kernels.base.operands import Operands

TILE = {"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_N_REST": 0, "BLOCK_SIZE_K": 64, "EPILOGUE_PARTS": 2}
PLAIN = Config("warp_specialized", **TILE, GROUP_SIZE_M=4, SWAP_AB=False, launch_pdl=True, num_stages=4, num_warps=8)
THREE = PLAIN.replace(BLOCK_SIZE_M=192, BLOCK_SIZE_N_REST=64, num_warps=12)
CONFIGS = [PLAIN, PLAIN.replace(BLOCK_SIZE_M=64, num_warps=4), PLAIN.replace(BLOCK_SIZE_N_REST=64, num_stages=3), THREE]

CLUSTERS = [{"num_ctas": 2}, {"num_ctas": 4}, {"num_ctas": 8}, {"num_ctas": 2, "SHARE_B": True}]
CLUSTERS += [{"num_ctas": 4, "SHARE_B": True}]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.label)
@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
@pytest.mark.parametrize("beside", [0, 1], ids=["by TMA", "by pointers"])
def test_clusters_give_the_bits_of_single_blocks(config, cluster, beside):
    # 13 columns of tiles are no whole number of clusters; 17 rows of them, in all, are more than one wave.
    problem = Problem(2100, 1600, 1000, dtype="bf16", layout="nt")
    spec = registry.find("matmul", config.kernel)
    clustered = config.replace(**cluster)
    refused = spec.supports(problem, device.current()) or spec.space(problem, device.current()).rejection(
        clustered, fatal_only=True
    )
    if refused:
        pytest.skip(refused)
    a = torch.randn(2100, 1000, device="cuda").bfloat16()
    weight = torch.randn(1600, 1000, device="cuda").bfloat16()
    found = []
    for one, behind in ((config, 0), (clustered, beside)):
        room = torch.full((2100, 1600 + behind), torch.nan, device="cuda", dtype=torch.bfloat16)
        spec.launch(Operands(a, weight.t(), room[:, :1600], None, problem, room), one)
        found.append(room[:, :1600])
    torch.cuda.synchronize()
    assert torch.equal(*found)


@pytest.mark.parametrize("beside", [0, 1], ids=["by TMA", "by pointers"])
def test_three_warpgroups_and_parts_that_share_a_buffer_give_the_bits_of_two(beside):
    problem = Problem(2100, 1600, 1000, dtype="bf16", layout="nt")
    spec = registry.find("matmul", THREE.kernel)
    if refused := spec.supports(problem, device.current()):
        pytest.skip(refused)
    a = torch.randn(2100, 1000, device="cuda").bfloat16()
    weight = torch.randn(1600, 1000, device="cuda").bfloat16()
    two = THREE.replace(BLOCK_SIZE_M=128, num_warps=8)
    found = []
    for config in (two.replace(EPILOGUE_PARTS=1), two, two.replace(num_stages=5), THREE):
        room = torch.full((2100, 1600 + beside), torch.nan, device="cuda", dtype=torch.bfloat16)
        spec.launch(Operands(a, weight.t(), room[:, :1600], None, problem, room), config)
        found.append(room[:, :1600])
    torch.cuda.synchronize()
    for other in found[1:]:
        assert torch.equal(found[0], other)


@pytest.mark.parametrize("m", [1, 63, 65, 128, 129, 161, 191, 192, 193, 200, 320])
@pytest.mark.parametrize("scaling", ["none", "row"])
def test_a_second_width_that_is_moved_back_to_end_with_the_rows_gives_the_bits_of_one_width(m, scaling):
    """Of fewer rows than the tile has, both widths compute those that they share."""
    dtype, n, k = torch.bfloat16 if scaling == "none" else torch.float8_e4m3fn, 1152, 1024
    options = {} if scaling == "none" else {"out_dtype": "bfloat16", "scaling": scaling}
    problem = Problem(m, n, k, dtype=dtype, layout="nt", **options)
    length = 128 // dtype.itemsize
    one = PLAIN.replace(
        BLOCK_SIZE_K=length, BLOCK_SIZE_M=64, BLOCK_SIZE_N=64, SWAP_AB=True, EPILOGUE_PARTS=1, num_warps=4
    )
    two = one.replace(BLOCK_SIZE_M=128, BLOCK_SIZE_N=128, BLOCK_SIZE_N_REST=64, num_stages=3, num_warps=8)
    spec = registry.find("matmul", one.kernel)
    if refused := spec.supports(problem, device.current()):
        pytest.skip(refused)
    a, weight = torch.randn(m, k, device="cuda").to(dtype), torch.randn(n, k, device="cuda").to(dtype)
    scales: dict[str, tuple[torch.Tensor | None, ...]] = {
        "none": (None, None),
        "row": (torch.rand(m, 1, device="cuda"), torch.rand(1, n, device="cuda")),
    }
    bias, found = torch.randn(n, device="cuda").bfloat16(), []
    for config in (one, two):
        room = torch.full((m + 1, n), torch.nan, device="cuda", dtype=torch.bfloat16)
        out = room[:m]
        spec.launch(Operands(a, weight.t(), out, bias, problem, out, *scales[scaling]), config)
        assert room[m].isnan().all()
        found.append(out)
    torch.cuda.synchronize()
    assert not found[0].isnan().any()
    assert torch.equal(*found)
