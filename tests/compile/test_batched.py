"""bmm, grouped_mm and fused_experts compile as their rules predict: shared memory, matrix instructions, wide loads."""

from __future__ import annotations

import pytest

from tuner.hardware.device import KNOWN

SAMPLED = {"sm_80": 0, "sm_90": 1, "sm_100": 0, "gfx942": 0}
"""Architecture to the configs of each space that are compiled beside the default."""


@pytest.mark.parametrize("arch", SAMPLED)
@pytest.mark.long
def test_defaults_and_a_sample_compile_within_the_limits_that_the_rules_predict(arch, run_program):
    found = run_program("batched.py", arch, SAMPLED[arch])
    by_descriptor = {"bmm_tma", "grouped_tma"} if arch in ("sm_90", "sm_100") else set()
    by_descriptor |= {"bmm_warp_specialized"} if arch == "sm_90" else set()
    assert {one["kernel"] for one in found} == {"bmm_pointer", "grouped_pointer"} | by_descriptor
    for one in found:
        assert one["rejected"] is None, one["case"]
        assert one["shared_bytes"] <= one["predicted_bytes"] <= KNOWN[arch].shared_bytes, one["case"]
        assert one["tma"] == (one["kernel"] in by_descriptor), one["case"]
        assert set(one["copies"]) <= {"10"}, one["case"]  # hexadecimal: what is copied is copied 16 bytes at a time
        if arch == "sm_90":
            exact = one["kernel"] != "bmm_warp_specialized"
            assert one["shared_bytes"] == one["predicted_bytes"] or not exact, one["case"]
            assert one["wgmma"], one["case"]


EXPERTS = {"sm_80": 2, "sm_90": 2, "sm_100": 2, "gfx942": 0, "gfx950": 0}
LAUNCHES = ["route_kernel", "gate_up_kernel", "down_kernel", "combine_kernel"]


@pytest.mark.parametrize("arch", EXPERTS)
@pytest.mark.long
def test_no_launch_of_fused_experts_takes_more_shared_memory_than_predicted(arch, run_program):
    found = run_program("batched.py", arch, EXPERTS[arch], "experts")
    by_descriptor = {"experts_tma"} if arch in ("sm_90", "sm_100") else set()
    assert {one["kernel"] for one in found} == {"experts_pointer"} | by_descriptor
    assert len(found) >= 5 * (EXPERTS[arch] + 1)
    for one in found:
        assert list(one["launches"]) == LAUNCHES
        assert one["rejected"] is None, one["case"]
        assert max(one["launches"].values()) <= one["predicted_bytes"], one["case"]
        assert one["predicted_bytes"] <= KNOWN[arch].shared_bytes, one["case"]
        assert one["wgmma"] == (LAUNCHES[1:3] if one["predicted_wgmma"] else []), one["case"]
        assert one["tma"] == (LAUNCHES[1:3] if one["kernel"] == "experts_tma" else []), one["case"]
        assert not (one["aligned"] and one["narrow_stores"]), one["case"]
        if arch == "sm_90" and one["pipelined"] and one["predicted_wgmma"]:
            assert one["launches"]["gate_up_kernel"] == one["predicted_bytes"], one["case"]


@pytest.mark.long
def test_every_tile_of_bmm_warp_specialized_compiles_without_spills_and_stores_by_tma(run_program):
    found = run_program("batched_specialized.py")
    assert {one["layout"] for one in found} == {"nn", "nt", "tn", "tt"}
    assert [one["tried"] for one in found].count(False) == 4
    for one in found:
        assert one["refused"] is None, one["case"]
        assert one["spill_bytes"] == 0, one["case"]
        assert one["predicted_bytes"] - 256 <= one["shared_bytes"] <= one["predicted_bytes"], one["case"]
        assert one["predicted_bytes"] <= KNOWN["sm_90"].shared_bytes, one["case"]
        assert one["loaded_by_tma"], one["case"]
        assert one["stored_by_tma"], one["case"]
        assert one["wgmma"], one["case"]
