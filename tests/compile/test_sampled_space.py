"""Configs that a space offers really compile, and take the shared memory that its rule says."""

from __future__ import annotations

import pytest

from tuner.device import KNOWN

SAMPLES = {"sm_80": 4, "sm_89": 4, "sm_90": 8, "sm_100": 5, "gfx942": 4, "gfx950": 4}


@pytest.mark.parametrize("arch", list(SAMPLES))
def test_a_sample_compiles_within_the_limits_that_the_rules_predict(arch, run_program):
    found = run_program("sample_space.py", arch, SAMPLES[arch])
    assert len(found) == SAMPLES[arch]
    for one in found:
        assert one["shared_bytes"] <= KNOWN[arch].shared_bytes, one["case"]
        if arch.startswith("gfx"):
            # Unpipelined operands may pass through registers instead.
            assert one["shared_bytes"] <= one["predicted_bytes"], one["case"]
        else:
            assert one["shared_bytes"] == one["predicted_bytes"], one["case"]
            assert one["wgmma"] == one["predicted_wgmma"], one["case"]
