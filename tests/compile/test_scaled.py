"""Scaled and int8 problems compile by every kernel that says it serves them, within the shared memory it predicts."""

from __future__ import annotations

import pytest

from tuner.hardware.device import KNOWN

SERVING = {
    "sm_80": {"gemv", "pointer", "split_k", "swap_ab"},
    "sm_90": {
        *("any_height_ping_pong", "block_scaled", "block_scaled_warp_specialized", "gemv", "k_major"),
        *("persistent_tma", "ping_pong", "pointer", "split_k", "swap_ab", "tma", "warp_specialized"),
    },
    "sm_100": {
        *("block_scaled", "gemv", "persistent_tma"),
        *("pointer", "split_k", "swap_ab", "tma"),
    },
    "gfx942": {"gemv", "pointer", "split_k", "swap_ab"},
}


@pytest.mark.long
@pytest.mark.parametrize("arch", list(SERVING))
def test_scaled_and_int8_problems_compile_by_every_kernel(arch, run_program):
    found = run_program("scaled.py", arch)
    assert {one["kernel"] for one in found} == SERVING[arch]
    for one in found:
        assert one["shared_bytes"] <= min(one["predicted_bytes"], KNOWN[arch].shared_bytes), one["case"]


@pytest.mark.long
@pytest.mark.parametrize("arch", ["sm_90"])
def test_scales_in_the_ring_cost_no_spill_and_no_product_waits_for_another(arch, run_program):
    found = run_program("block_scaled.py", arch)
    assert len(found) == 10
    assert {one["rows"] for one in found} == {8, 16, 32, 64, 128}
    for one in found:
        assert one["shared_bytes"] <= min(one["predicted_bytes"], KNOWN[arch].shared_bytes), one["case"]
        assert one["spill_bytes"] == 0, one["case"]
        assert one["serialized"] == [], one["case"]
        assert one["wgmma"], one["case"]
    # The operands, and their scales if TMA can read them; otherwise threads copy these.
    assert {(one["loads"], one["copies"] > 0) for one in found} == {(2, True), (4, False)}
