"""gated_linear compiles as its rules predict: shared memory, matrix instructions, descriptors, wide stores."""

from __future__ import annotations

import pytest

from tuner.hardware.device import KNOWN, triton_version

SAMPLED = {"sm_80": 1, "sm_90": 2, "sm_100": 1, "gfx942": 0}
"""Architecture to the configs of each space that are compiled beside the default."""
SPILLS = {("gated_warp_specialized", "BLOCK_SIZE_K=128, BLOCK_SIZE_M=128, BLOCK_SIZE_N=128", 4): 24}
"""The only tile of 56 with so many sums that spills: by kernel, sides and warps, the bytes of a thread."""


@pytest.mark.parametrize("arch", SAMPLED)
@pytest.mark.long
def test_defaults_and_a_sample_compile_within_the_limits_that_the_rules_predict(arch, run_program):
    found = run_program("gated.py", arch, SAMPLED[arch])
    by_tma = {"gated_warp_specialized"} if arch == "sm_90" else set()
    if by_tma and triton_version().startswith("3.7."):
        by_tma |= {"gated_any_height"}
    assert {one["kernel"] for one in found} == {"gated_pointer", "gated_gemv"} | by_tma
    for one in found:
        assert one["rejected"] is None, one["case"]
        assert one["late"] or arch != "sm_90", one["case"]
        if one["kernel"] == "gated_gemv":
            continue
        assert one["shared_bytes"] <= one["predicted_bytes"] <= KNOWN[arch].shared_bytes, one["case"]
        assert not (one["aligned"] and one["narrow_stores"]), one["case"]
        if one["kernel"] in by_tma:
            assert one["wgmma"], one["case"]
            assert one["loaded_by_tma"], one["case"]
            assert not one["stores"], one["case"]
            assert one["spill_bytes"] == SPILLS.get((one["kernel"], one["sides"], one["warps"]), 0), one["case"]
            reserved = 1024 if one["clusters"] else 0
            assert one["predicted_bytes"] - 256 - reserved <= one["shared_bytes"], one["case"]
        else:
            assert one["wgmma"] == one["predicted_wgmma"], one["case"]
            assert not one["loaded_by_tma"], one["case"]
