"""k_major: what it is for, what its configs are, and when it is the default."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from tuner import Problem
from tuner.hardware.device import INTERPRETER, KNOWN
from tuner.kernel import registry
from tuner.kernels.gemm.k_major.problem import computed, is_copied

H200 = KNOWN["sm_90"]
SPEC = registry.find("matmul", "k_major")
TF32 = {"dtype": "fp32", "precision": "tf32"}
E4M3 = {"dtype": "e4m3"}


@pytest.mark.parametrize(
    ("problem", "device", "reason"),
    [
        (Problem(512, 512, 512, layout="tn", **TF32), KNOWN["sm_80"], "wgmma"),
        (Problem(512, 512, 512, layout="tn", **TF32), KNOWN["sm_100"], "wgmma"),
        (Problem(512, 512, 512, layout="tn", **TF32), INTERPRETER, "wgmma"),
        (
            Problem(4096, 4096, 4096, layout="nn", **TF32),
            H200,
            "`warp_specialized` reads the other one as it is stored",
        ),
        (Problem(512, 512, 1024, layout="tt", **TF32), H200, "no sum need be split"),
        (Problem(512, 512, 512, layout="nt", **TF32), H200, "do not run along K"),
        (Problem(512, 512, 512, layout="nn", dtype="bf16"), H200, "do not run along K"),
        (Problem(512, 512, 512, layout="nn", dtype="fp32", precision="ieee"), H200, "do not run along K"),
        (Problem(512, 512, 512, layout="nn", dtype="fp32", precision="tf32x3"), H200, "tf32x3"),
        (Problem(512, 512, 512, layout="nn", scaling="block", **E4M3), H200, "block scales"),
        (Problem(64, 512, 512, layout="nn", **TF32), H200, "copies pay from"),
        (Problem(512, 63, 512, layout="nn", **TF32), H200, "copies pay from"),
        (Problem(512, 512, 63, layout="nn", **TF32), H200, "copies pay from"),
        (Problem(65, 2**31 - 1, 64, layout="nn", dtype="int8"), H200, "padded sizes would exceed"),
        (Problem(65, 512, 512, layout="tt", dtype="int8", aligned=True), H200, "a multiple of 16 bytes"),
    ],
    ids=str,
)
def test_it_says_what_it_is_not_for(problem, device, reason):
    assert reason in (SPEC.supports(problem, device) or "")


@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
@pytest.mark.parametrize("operands", [TF32, E4M3, {"dtype": "int8"}, {**E4M3, "scaling": "row"}], ids=str)
@pytest.mark.parametrize("shape", [(65, 64, 64), (300, 1000, 4096), (1023, 4097, 4095), (8192, 8192, 8192)], ids=str)
def test_its_default_obeys_its_rules_and_its_space_has_the_inner_kernels_configs(operands, layout, shape):
    problem = Problem(*shape, layout=layout, **operands)
    if SPEC.supports(problem, H200):
        assert (operands, layout) in ((TF32, "nn"), (TF32, "tt"))
        return
    space, config = SPEC.space(problem, H200), SPEC.default_config(problem, H200)
    assert space.rejection(config, fatal_only=True) is None
    configs = space.configs()
    assert 0 < len(configs) <= 700
    names = {one["INNER"] for one in configs}
    for name in names:
        assert registry.find("matmul", name).unserved(computed(name, problem), H200) is None
    whole = operands == TF32 and layout != "tn" and problem.aligned
    assert names == {"split_k"} if whole else "warp_specialized" in names
    assert all(one.get("LOADS", "tma") == "tma" for one in configs)
    assert SPEC.estimate_us(config, problem, H200) > 0


@pytest.mark.parametrize(
    ("problem", "first"),
    [
        (Problem(4096, 4096, 4096, layout="nn", **TF32), False),
        (Problem(4096, 4095, 4096, layout="nn", **TF32), True),
        (Problem(4096, 4096, 4096, layout="tn", **TF32), True),
        (Problem(768, 768, 8192, layout="tn", **TF32), True),
        (Problem(1023, 2047, 4093, layout="tn", **E4M3), True),
        (Problem(8192, 64, 8192, layout="tn", **TF32), True),  # the smaller operand is copied
        (Problem(65536, 64, 4093, layout="nn", **TF32), False),  # that of A, which runs along K but is not aligned
    ],
    ids=str,
)
def test_it_is_the_default_where_copies_cost_less_than_they_bring(problem, first):
    assert (registry.default_config(problem, H200).kernel == "k_major") == first


@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_one_operand_of_32_bits_is_copied_for_sums_that_must_be_split_alone(layout):
    """Tiles of 128x128 that leave half of the device idle, and a K of 2,048 or more."""
    served = {
        (384, 2816, 2048): True,
        (384, 2880, 2048): False,
        (384, 2816, 2040): False,
    }
    for shape, is_served in served.items():
        problem = Problem(*shape, layout=layout, **TF32)
        said = SPEC.supports(problem, H200)
        assert (said is None) == is_served, shape
        if is_served:
            assert {one["INNER"] for one in SPEC.space(problem, H200).configs()} == {"split_k"}
            assert is_copied("split_k", problem) == ((True, False) if layout == "tt" else (False, True))
        else:
            assert "no sum need be split" in said


def test_an_estimate_counts_the_operands_that_are_copied():
    one, both = (Problem(4096, 4096, 4096, layout=layout, **E4M3) for layout in ("nn", "tn"))
    config = SPEC.default_config(one, H200)
    assert SPEC.estimate_us(config, both, H200) > SPEC.estimate_us(config, one, H200) + 5


def test_it_changes_no_default_of_operands_that_it_does_not_serve():
    x3 = {"dtype": "fp32", "precision": "tf32x3"}
    kernels = {
        Problem(4096, 4096, 4096, layout="nn", **x3): "persistent_tma",
        Problem(1023, 2047, 4093, layout="nn", **x3): "padded",
        Problem(4096, 4096, 48, layout="nn", dtype="int8"): "persistent_tma",
    }
    assert {problem: registry.default_config(problem, H200).kernel for problem in kernels} == kernels


@pytest.mark.parametrize("operands", [TF32, {"dtype": "int8"}], ids=str)
def test_it_serves_from_the_first_m_of_a_range_of_the_formula_on(operands):
    """Ranges end at 64; docs/lookup.md, Untuned problems."""
    served = [
        m for m in range(48, 84, 4) if SPEC.supports(Problem(m, 4096, 4096, layout="tn", **operands), H200) is None
    ]
    assert served == list(range(68, 84, 4))


def test_configs_of_no_inner_kernel_and_loads_by_pointers_are_refused():
    problem = Problem(2048, 2048, 2048, layout="tn", **E4M3)
    space, config = SPEC.space(problem, H200), SPEC.default_config(problem, H200)
    assert "expected one of" in (space.rejection(config.replace(INNER="tma")) or "")
    split = next(
        one for one in SPEC.space(Problem(768, 768, 8192, layout="tn", **E4M3), H200).configs() if "LOADS" in one
    )
    assert "loaded by TMA" in (space.rejection(split.replace(LOADS="pointer")) or "")
