"""split_sum: what it is for, which splits it tries, and when it is the default."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("triton", reason="its launches")

from tuner import Problem
from tuner.hardware import device as devices
from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.kernels.gemm.small_m import split_sum

H200 = KNOWN["sm_90"]
SPEC = registry.find("matmul", "split_sum")


def bf16(*shape: int, **options: object) -> Problem:
    return Problem(*shape, **{"dtype": "bf16", "layout": "tn", **options})


@pytest.mark.parametrize(
    ("problem", "arch", "reason"),
    [
        (bf16(384, 768, 32768), "sm_80", "TMA"),
        (bf16(384, 768, 32768), "gfx942", "TMA"),
        (bf16(384, 768, 32768, aligned=False), "sm_90", "not aligned"),
        (bf16(2048, 1024, 32768), "sm_90", "fill more than half"),
        (bf16(384, 768, 2040), "sm_90", "K is 2040"),
        (bf16(384, 32, 32768), "sm_90", "N is 32"),
        (bf16(32, 768, 32768), "sm_90", "M is 32"),
    ],
    ids=str,
)
def test_what_it_is_not_for_is_said_in_a_sentence(problem, arch, reason):
    assert reason in (SPEC.supports(problem, KNOWN[arch]) or "")


def test_no_batch_invariant_problem_is_served():
    assert "no one order" in (SPEC.unserved(bf16(384, 768, 32768, layout="nt", invariant=True), H200) or "")


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_every_space_has_configs_whose_parts_have_steps_and_whose_programs_fill_the_device(layout):
    for m, n, k in itertools.product((40, 64, 136, 768, 1760), (40, 272, 704), (2048, 7168, 12608, 65536)):
        problem = bf16(m, n, k, layout=layout)
        if SPEC.supports(problem, H200):
            continue
        configs = SPEC.space(problem, H200).configs()
        assert 1 <= len(configs) <= 600, problem
        for config in configs:
            splits, steps = config.integer("SPLIT_K"), -(-k // config.integer("BLOCK_SIZE_K"))
            assert splits >= 2
            assert (splits - 1) * -(-steps // splits) < steps, f"a part without steps: {problem} {config}"
            assert -(-steps // splits) >= 2, f"no load overlaps the sums: {problem} {config}"
            tiles = -(-m // config.integer("BLOCK_SIZE_M")) * -(-n // config.integer("BLOCK_SIZE_N"))
            assert tiles * splits <= 2 * H200.sm_count, f"{problem} {config}"


@pytest.mark.parametrize(
    ("shape", "layout"),
    [((384, 768, 32768), "tn"), ((768, 768, 50432), "tn"), ((640, 640, 32768), "nt"), ((253, 1840, 32768), "nt")],
    ids=str,
)
def test_it_is_the_default_of_few_tiles_with_a_long_k(shape, layout):
    assert registry.default_config(bf16(*shape, layout=layout), H200).kernel == SPEC.name


@pytest.mark.parametrize("shape", [(256, 512, 4096), (512, 768, 4096), (48, 768, 32768), (4096, 4096, 4096)], ids=str)
def test_shorter_sums_few_rows_and_many_tiles_keep_their_kernels(shape):
    assert registry.default_config(bf16(*shape, layout="nt"), H200).kernel != SPEC.name


@pytest.mark.parametrize(
    ("problem", "kernels"),
    [
        (bf16(424, 232, 32800), ("split_sum", "any_height_split")),
        (bf16(360, 184, 64768), ("split_sum", "any_height_split")),
        (bf16(512, 512, 32768, out_dtype="fp32"), ("split_sum", "any_height_split")),
        (Problem(512, 512, 16384, dtype="e4m3", layout="nt"), ("split_sum",)),
        (Problem(512, 512, 16384, dtype="int8", layout="nt"), ("split_sum",)),
        (Problem(512, 512, 16384, dtype="fp32", precision="tf32", layout="nt"), ("split_sum",)),
    ],
    ids=str,
)
def test_few_tiles_that_the_calibration_does_not_know_are_split_too(problem, kernels):
    assert registry.default_config(problem, H200).kernel in kernels


@pytest.mark.parametrize("shape", [(512, 256, 32768), (384, 256, 65536)], ids=str)
def test_its_binaries_are_those_that_are_compiled_where_no_device_is(shape):
    problem = bf16(*shape)
    config, operands = SPEC.default_config(problem, H200), SPEC.make_inputs(problem, "meta", 0)
    compiled = [launch.constants for launch in split_sum.program(operands, config)]
    with devices.expected(H200):
        assert [launch.constants for launch in split_sum.program(operands, config)] == compiled
