"""Tiles of any width or height compile as meant, without spills, and read their ring where it lies."""

from __future__ import annotations

import pytest

from tuner.hardware.device import KNOWN, triton_version


@pytest.mark.long
@pytest.mark.skipif(not triton_version().startswith("3.7."), reason="any_width runs under Triton 3.7 alone")
@pytest.mark.parametrize("arch", ["sm_90"])
def test_tiles_of_any_width_compile_as_predicted_with_their_ring_first_in_shared_memory(arch, run_program):
    found = run_program("any_width.py", arch)
    assert len(found) == 56
    for one in found:
        assert one["refused"] is None, one["case"]
        assert one["spill_bytes"] == 0, one["case"]
        assert one["shared_bytes"] <= one["predicted_bytes"] <= KNOWN[arch].shared_bytes, one["case"]
        assert one["widths"] == [one["columns"] // one["wgmmas"]], one["case"]
        assert one["multicasts"] == one["shares"], one["case"]
        assert one["misplaced"] is None, one["case"]
        assert "not first" in one["misplaced_larger"], "what lies within a larger ring is seen"
