"""Tiles whose A comes from registers: no product waits for the one before, and none reads what is loaded already."""

from __future__ import annotations

import pytest

from tuner.hardware.device import triton_version


@pytest.mark.skipif(not triton_version().startswith("3.7."), reason="cluster_k runs under Triton 3.7 alone")
@pytest.mark.parametrize("share", [12, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("arch", ["sm_90"])
def test_registers_of_products_under_way_are_left_alone_and_ptxas_serializes_none(arch, share, run_program):
    found = run_program("from_registers.py", arch, share)
    assert len(found) >= 90 // share
    for one in found:
        assert one["products"], one["case"]
        assert not one["overwritten"], one["case"]
        assert not one["serialized"], one["case"]
        assert one["spill_bytes"] == 0, one["case"]
