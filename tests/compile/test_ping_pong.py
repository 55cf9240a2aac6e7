"""Tiles of kernels whose warpgroups take turns compile as predicted, without spills but one."""

from __future__ import annotations

import pytest

from tuner.hardware.device import KNOWN, triton_version


@pytest.mark.long
@pytest.mark.skipif(not triton_version().startswith("3.7."), reason="any_height_ping_pong runs under Triton 3.7 alone")
@pytest.mark.parametrize("arch", ["sm_90"])
def test_tiles_of_warpgroups_that_take_turns_compile_as_predicted(arch, run_program):
    found = run_program("ping_pong.py", arch)
    assert len(found) == 18
    for one in found:
        known = one["rest"] > 0 and one["biased"]  # 192 sums, scales and a bias: it says so itself
        assert one["spill_bytes"] <= (88 if known else 0), one["case"]
        assert one["shared_bytes"] <= one["predicted_bytes"] <= KNOWN[arch].shared_bytes, one["case"]
        assert one["predicted_bytes"] - one["shared_bytes"] < 256, one["case"]
