"""vector_add, softmax and rms_norm compile as their rules predict: shared memory, no spills, accesses of 16 bytes."""

from __future__ import annotations

import pytest

from tuner.hardware.device import KNOWN

SAMPLED = {"sm_80": (1, 2), "sm_90": (2, 1), "sm_100": (1, 2), "gfx942": (1, 1), "gfx950": (1, 2)}
"""By architecture, the configs of each space that are compiled beside the default, and every how many-th problem.

Every kernel is there all the same.
"""


@pytest.mark.parametrize("arch", SAMPLED)
@pytest.mark.long
def test_defaults_and_a_sample_compile_within_the_limits_that_the_rules_predict(arch, run_program):
    found = run_program("elementwise.py", arch, *SAMPLED[arch])
    kernels = {"add_block", "softmax_whole", "softmax_online", "softmax_split", "rms_norm_whole"}
    assert {one["kernel"] for one in found} == kernels
    for one in found:
        assert one["rejected"] is None, one["case"]
        assert one["shared_bytes"] <= one["predicted_bytes"] <= KNOWN[arch].shared_bytes, one["case"]
        if one["default"]:
            assert not one["spill_bytes"], one["case"]
            # Ragged lengths too: only a last block is masked. Rows of 12,345 elements begin anywhere.
            assert one["wide"] == one["aligned"], one["case"]
    assert any(one["pipelined"] for one in found) == (not arch.startswith("gfx"))
