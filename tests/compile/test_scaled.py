"""Scaled and int8 problems compile by every kernel that says it serves them, within the shared memory it predicts."""

from __future__ import annotations

import pytest

from tuner.hardware.device import KNOWN

SERVING = {
    "sm_80": {"gemv", "pointer", "split_k", "swap_ab"},
    "sm_90": {
        *("block_scaled", "gemv", "persistent_tma"),
        *("pointer", "split_k", "swap_ab", "tma", "warp_specialized"),
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
