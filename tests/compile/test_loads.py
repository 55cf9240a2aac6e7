"""Loads by TMA are one instruction each, in clusters too: docs/decisions.md, 151."""

from __future__ import annotations

import pytest

from tuner.hardware.device import triton_version


@pytest.mark.skipif(not triton_version().startswith("3.7."), reason="clusters are compiled under Triton 3.7 alone")
def test_no_load_by_tma_loops_over_threads(run_program):
    found = run_program("loads.py", "sm_90")
    assert len(found) == 9
    for one in found:
        assert one["loads"] > 0, one["case"]
        assert one["loops"] == 0, one["case"]
