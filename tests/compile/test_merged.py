"""merged_linear compiles without spills, loads 16 bytes at a time, and starts the next kernel late."""

from __future__ import annotations

import pytest

SAMPLED = {"sm_80": 1, "sm_90": 2, "sm_100": 1, "gfx942": 0}
"""Architecture to the configs of each space that are compiled beside the default."""


@pytest.mark.parametrize("arch", SAMPLED)
@pytest.mark.long
def test_defaults_and_a_sample_compile_to_wide_loads_without_spills(arch, run_program):
    found = run_program("merged.py", arch, SAMPLED[arch])
    assert len(found) >= 6
    for one in found:
        assert one["rejected"] is None, one["case"]
        assert one["spill_bytes"] == 0, one["case"]
        assert one["late"] or arch != "sm_90", one["case"]
        assert not (one["aligned"] and arch == "sm_90" and one["narrow_loads"]), one["case"]
