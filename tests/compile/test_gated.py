"""gated_linear compiles as its rules predict: shared memory, matrix instructions, descriptors, wide stores."""

from __future__ import annotations

import pytest

from tuner.hardware.device import KNOWN

SAMPLED = {"sm_80": 1, "sm_90": 2, "sm_100": 1, "gfx942": 0}
"""Architecture to the configs of each space that are compiled beside the default."""


@pytest.mark.parametrize("arch", SAMPLED)
@pytest.mark.long
def test_defaults_and_a_sample_compile_within_the_limits_that_the_rules_predict(arch, run_program):
    found = run_program("gated.py", arch, SAMPLED[arch])
    on_hopper = {"gated_warp_specialized"} if arch == "sm_90" else set()
    assert {one["kernel"] for one in found} == {"gated_pointer", "gated_gemv"} | on_hopper
    for one in found:
        assert one["rejected"] is None, one["case"]
        assert one["late"] or arch != "sm_90", one["case"]
        if one["kernel"] == "gated_gemv":
            continue
        assert one["shared_bytes"] <= one["predicted_bytes"] <= KNOWN[arch].shared_bytes, one["case"]
        assert not (one["aligned"] and one["narrow_stores"]), one["case"]
        if one["kernel"] == "gated_warp_specialized":
            assert one["wgmma"], one["case"]
            assert one["loaded_by_tma"], one["case"]
            assert not one["stores"], one["case"]
            assert one["spill_bytes"] == 0, one["case"]
            assert one["predicted_bytes"] - 256 <= one["shared_bytes"], one["case"]
        else:
            assert one["wgmma"] == one["predicted_wgmma"], one["case"]
            assert not one["loaded_by_tma"], one["case"]
