"""Configs that spaces offer really compile, and take the shared memory that their rules say."""

from __future__ import annotations

import pytest

from tuner import Problem
from tuner.hardware.device import KNOWN, triton_version
from tuner.kernel import registry

SAMPLES = {"sm_80": 1, "sm_89": 1, "sm_90": 2, "sm_100": 2, "sm_120": 1, "gfx942": 2, "gfx950": 1}
EVERYWHERE = {"pointer", "split_k", "swap_ab", "gemv", "bmm_pointer", "grouped_pointer", "experts_pointer"}
BY_TMA = {"tma", "persistent_tma", "split_sum", "padded", "bmm_tma"}
ANY_WIDTH = {"any_width", "any_height_ping_pong"} if triton_version().startswith("3.7.") else set()
IN_CLUSTERS = {"cluster_k", "any_height_split"} if triton_version().startswith("3.7.") else set()
ON_HOPPER = {"warp_specialized", "ping_pong", "k_major", "bmm_warp_specialized", "block_scaled_warp_specialized"}
ON_HOPPER |= ANY_WIDTH | IN_CLUSTERS
CLUSTERED = {("warp_specialized", option) for option in ("num_ctas", "SHARE_B")}
SHARED_LOADS = CLUSTERED if triton_version().startswith("3.7.") else set()
OVERLAP = ("PDL_TRIGGER", "PREFETCH_KIB")
FEW_ROWS = {(kernel, option) for kernel in ("gemv", "split_k", "swap_ab") for option in OVERLAP}
ON_HOPPER_ALONE = {(kernel, option) for kernel in IN_CLUSTERS & {"cluster_k"} for option in OVERLAP}
OPTIONS = {
    "sm_90": SHARED_LOADS | FEW_ROWS | ON_HOPPER_ALONE,
    "sm_100": FEW_ROWS,
    "sm_120": FEW_ROWS,
}
"""Kernels and options that problems have refinements with, by arch."""
SLACK_BYTES = 1024
"""What operands may take besides that are converted, or transposed, on their way through registers."""


@pytest.mark.parametrize("arch", list(SAMPLES))
@pytest.mark.long
def test_a_sample_of_every_kernel_compiles_within_the_limits_that_the_rules_predict(arch, run_program):
    compiled = run_program("sample_space.py", arch, SAMPLES[arch])
    found = compiled["sample"]
    kernels = [one["kernel"] for one in found]
    expected = (
        EVERYWHERE
        | (set() if arch.startswith("gfx") else {"simt"})
        | (BY_TMA if KNOWN[arch].features.reads_shared else set())
        | (ON_HOPPER if arch == "sm_90" else set())
    )
    assert expected <= set(kernels)
    assert all(kernels.count(kernel) == SAMPLES[arch] for kernel in kernels)
    for one in found:
        assert one["shared_bytes"] <= KNOWN[arch].shared_bytes, one["case"]
        assert one["wgmma"] == one["predicted_wgmma"], one["case"]
        assert not one["prefetches"], one["case"]
        assert one["in_cluster"] == (one["kernel"] in IN_CLUSTERS), one["case"]
        if one["predicted_bytes"] is None:
            continue
        if one["exact"] and not arch.startswith("gfx"):
            assert one["shared_bytes"] == one["predicted_bytes"], one["case"]
        else:
            assert one["shared_bytes"] <= one["predicted_bytes"] + SLACK_BYTES, one["case"]
    assert [one["kernel"] for one in compiled["three"]] == 2 * (["warp_specialized"] if arch == "sm_90" else [])
    for one in compiled["three"]:
        assert one["threads"] == 4 * 128, f"three warpgroups, and one that loads: {one['case']}"
        assert one["shared_bytes"] <= one["predicted_bytes"] <= KNOWN[arch].shared_bytes, one["case"]
    options = {(one["kernel"], one["option"]) for one in compiled["options"]}
    assert options == OPTIONS.get(arch, set())
    for one in compiled["options"]:
        assert one["seen"], f"{one['option']} changed nothing: {one['case']}"
        assert one["predicted_bytes"] is None or one["shared_bytes"] <= one["predicted_bytes"], one["case"]


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "gfx942", "gfx950"])
def test_hardware_without_tma_never_sees_a_kernel_or_a_config_that_needs_it(arch):
    device = KNOWN[arch]
    for problem in (
        Problem(4096, 4096, 4096, dtype="bf16", layout="nt"),
        Problem(64, 256, 7168, dtype="bf16", layout="nt"),
        Problem(1023, 2047, 4093, dtype="bf16", layout="nt"),
        Problem(512, 512, 512, dtype="bf16", layout="nt", op="bmm", extras={"batch": 16}),
    ):
        specs = registry.serving(problem, device)
        assert not {spec.name for spec in specs} & BY_TMA
        for spec in specs:
            configs = spec.space(problem, device).configs()
            assert "tma" not in {config.get("LOADS") for config in [*configs, spec.default_config(problem, device)]}
