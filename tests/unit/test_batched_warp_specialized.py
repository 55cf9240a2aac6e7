"""What `bmm_warp_specialized` serves, the configs that it offers and those that it refuses. Without a GPU."""

from __future__ import annotations

import itertools

import pytest
import torch

from tuner import Config, Problem
from tuner.hardware.device import INTERPRETER, KNOWN
from tuner.kernel import registry
from tuner.kernels.base.operands import Operands
from tuner.kernels.batched.warp_specialized import program
from tuner.kernels.batched.warp_specialized_space import as_computed, computed, copied
from tuner.kernels.gemm.hopper import resources

H200 = KNOWN["sm_90"]
SPEC = registry.find("bmm", "bmm_warp_specialized")


def bmm(m: int, n: int, k: int, batch: int = 64, **kind: object) -> Problem:
    return Problem(m, n, k, op="bmm", extras={"batch": batch}, **{"dtype": "bf16", "layout": "nt", **kind})


UNSERVED = [
    (bmm(512, 512, 64), "interpreter", "no interpreter"),
    (bmm(512, 512, 64), "sm_100", "Hopper"),
    (bmm(512, 512, 64), "sm_80", "Hopper"),
    (bmm(512, 512, 64, aligned=False), "sm_90", "not aligned"),
    (bmm(577, 577, 64), "sm_90", "not aligned"),
    (bmm(512, 512, 64, dtype="fp32"), "sm_90", "float32"),
    (bmm(512, 512, 64, dtype="fp32", precision="tf32x3"), "sm_90", "float32 tf32x3"),
    (bmm(512, 512, 64, dtype="e4m3"), "sm_90", "16 bits"),
    (bmm(32, 512, 64), "sm_90", "M is 32"),
    (bmm(512, 32, 64), "sm_90", "N is 32"),
    (Problem(512, 512, 64, dtype="bf16", op="bmm"), "sm_90", "batch"),
]


@pytest.mark.parametrize(("problem", "arch", "reason"), UNSERVED, ids=str)
def test_what_it_cannot_do_is_said_in_a_sentence(problem, arch, reason):
    said = SPEC.supports(problem, INTERPRETER if arch == "interpreter" else KNOWN[arch])
    assert said is not None
    assert reason in said


@pytest.mark.parametrize("out_dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_its_space_holds_its_default_and_configs_that_fit_wherever_it_serves(layout, out_dtype):
    for m, n, k, batch in itertools.product((40, 128, 1504), (40, 64, 1504), (8, 64, 136), (1, 1000)):
        problem = bmm(m, n, k, batch, layout=layout, out_dtype=out_dtype)
        assert SPEC.supports(problem, H200) is None, problem
        space = SPEC.space(problem, H200)
        configs = space.configs()
        assert 1 <= len(configs) <= 12, problem
        default = SPEC.default_config(problem, H200)
        assert default in configs
        for config in configs:
            assert space.canonicalize(config) == config
            assert space.odd_parameters(config) == set()
            residents = resources.resident(config, problem, H200)
            assert residents == (2 if config["num_warps"] == 4 else 1), config
            assert residents * (SPEC.shared_bytes(config, problem, H200) + 1024) <= H200.shared_bytes + 1024, config


TF32 = {"dtype": "fp32", "precision": "tf32"}


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_tf32_has_the_same_tiles_and_registers_feed_what_does_not_run_along_k(layout):
    for m, n, k, batch in itertools.product((40, 128, 1504), (40, 64, 1504), (8, 64, 136), (1, 1000)):
        problem = bmm(m, n, k, batch, layout=layout, **TF32)
        space = SPEC.space(problem, H200)
        configs = space.configs()
        assert 1 <= len(configs) <= 20, problem
        assert SPEC.default_config(problem, H200) in configs
        for config in configs:
            inner, computed = as_computed(config, problem)
            assert computed.layout[1] == "t"
            assert inner["BLOCK_SIZE_M"] % (16 * inner["num_warps"]) == 0
            residents = 2 if config["num_warps"] == 4 else 1
            assert residents * (SPEC.shared_bytes(config, problem, H200) + 1024) <= H200.shared_bytes + 1024, config


def test_values_in_tf32_are_computed_as_transposed_outputs_with_the_bias_along_their_rows():
    problem = bmm(512, 128, 256, layout="nn", epilogue="bias", **TF32)
    a, b, out = (torch.empty(64, *sides, device="meta") for sides in ((512, 256), (256, 128), (512, 128)))
    config = next(one for one in SPEC.space(problem, H200).configs() if one["BLOCK_SIZE_M"] == 256)
    (launch,) = program(Operands(a, b, out, torch.empty(128, device="meta"), problem, out), config)
    b_desc, a_desc, c_desc = launch.arguments[:3]
    assert (b_desc.block_shape, a_desc.block_shape) == ([1, 32, 128], [1, 256, 32])
    assert (c_desc.shape, c_desc.block_shape) == ([64, 512, 128], [1, 256 // launch.constants["EPILOGUE_PARTS"], 64])
    assert launch.arguments[4:7] == (128, 512, 256)
    assert launch.constants["C_TRANSPOSED"]
    assert launch.constants["BIAS_ALONG_M"]


def gradient(m: int, n: int, k: int, batch: int = 4, *, shared: bool = False) -> Operands:
    """Operands in TF32 of which neither runs along K; `shared`: all products have one A."""
    problem = bmm(m, n, k, batch, layout="tn", **TF32)
    a = torch.empty(1 if shared else batch, k, m, device="meta").mT.expand(batch, m, k)
    b, out = torch.empty(batch, k, n, device="meta"), torch.empty(batch, m, n, device="meta")
    return Operands(a, b, out, None, problem, out)


@pytest.mark.parametrize(("m", "n", "layout"), [(64, 512, "nn"), (512, 64, "tt"), (128, 128, "tt")])
def test_of_two_operands_in_tf32_across_k_the_smaller_one_is_copied_before_the_product(m, n, layout):
    operands = gradient(m, n, 200)
    assert computed(operands.problem).layout == layout
    config = SPEC.default_config(operands.problem, H200)
    copy, product = program(operands, config)
    source, target, *sizes = copy.arguments
    smaller = min(m, n)
    assert (source.shape, target.shape) == ((4, 200, smaller), (4, smaller, 224))
    assert (sizes, copy.constants["VECTOR"]) == ([200, smaller, 200 * smaller, smaller, 224], 4)
    assert copy.grid == (4 * -(-200 // 64) * -(-smaller // 64),)
    extents = (n, m) if layout == "nn" else (m, n)
    assert product.arguments[4:7] == (*extents, 200)
    # The ring holds the larger operand as it is stored, and the copy along K.
    assert (product.constants["A_TRANSPOSED"], product.constants["B_TRANSPOSED"]) == (True, True)


def test_a_matrix_that_all_products_share_is_copied_once():
    copy, product = program(
        gradient(64, 512, 128, shared=True), SPEC.default_config(gradient(64, 512, 128).problem, H200)
    )
    assert copy.arguments[0].shape == (1, 128, 64)
    assert product.arguments[8:10] == (1, 0)


def test_an_estimate_counts_the_copy():
    """The product of 128 columns is that of layout tt, whose operands lie as the copied ones do."""
    across, along = (bmm(512, 128, 512, layout=layout, **TF32) for layout in ("tn", "tt"))
    config = SPEC.default_config(along, H200)
    copied_us = 1.0 + 2 * 64 * 128 * 512 * 4 / (0.85 * 0.9375 * H200.peak_bytes_per_us)
    difference = SPEC.estimate_us(config, across, H200) - SPEC.estimate_us(config, along, H200)
    assert difference == pytest.approx(copied_us)


def test_a_row_of_a_range_of_m_serves_above_n_and_below_it_where_the_other_operand_is_copied():
    tall, wide = (bmm(m, 256, 512, layout="tn", **TF32) for m in (512, 128))
    assert copied(tall) != copied(wide)
    for made_for, used_for in ((tall, wide), (wide, tall)):
        refused = [
            SPEC.space(used_for, H200).rejection(config, fatal_only=True)
            for config in SPEC.space(made_for, H200).configs()
        ]
        assert set(refused) == {None}


def test_tf32_that_registers_feed_is_its_default_however_few_tiles_there_are():
    others = [(layout, "bmm_warp_specialized") for layout in ("nn", "tn", "tt")]
    for layout, first in (*others, ("nt", "bmm_tma")):
        assert registry.serving(bmm(192, 192, 192, 8, layout=layout, **TF32), H200)[0].name == first


SPACE = SPEC.space(bmm(512, 512, 128), H200)
TILE = Config(
    "bmm_warp_specialized",
    BLOCK_SIZE_M=128,
    BLOCK_SIZE_N=128,
    BLOCK_SIZE_K=64,
    EPILOGUE_PARTS=2,
    GROUP_SIZE_M=1,
    launch_pdl=True,
    num_stages=6,
    num_warps=8,
)


@pytest.mark.parametrize(
    ("change", "rule", "fatal"),
    [
        ({"num_stages": 1}, "shape", True),
        ({"num_stages": 7}, "shared memory", True),
        ({"BLOCK_SIZE_N": 512, "EPILOGUE_PARTS": 4, "num_stages": 2}, "shape", True),
        ({"BLOCK_SIZE_K": 16}, "shape", True),
        ({"EPILOGUE_PARTS": 8}, "shape", True),
        ({"num_warps": 2}, "shape", True),
        ({"BLOCK_SIZE_M": 64}, "rows", True),
        ({"num_warps": 4, "BLOCK_SIZE_N": 256, "EPILOGUE_PARTS": 4, "num_stages": 2}, "registers", True),
        ({"BLOCK_SIZE_M": 256, "BLOCK_SIZE_N": 256, "EPILOGUE_PARTS": 4, "num_stages": 2}, "registers", True),
        ({"SPLIT_K": 2}, "parameters", True),
        ({"num_warps": 4, "num_stages": 3}, "tile", False),
    ],
    ids=str,
)
def test_a_rule_says_what_cannot_run_and_what_won_nowhere(change, rule, fatal):
    assert SPACE.rejection(TILE) is None
    refused = TILE.replace(**change)
    assert SPACE.rejection(refused, fatal_only=fatal).startswith(f"{rule}: ")
    if not fatal:
        assert SPACE.rejection(refused, fatal_only=True) is None


def test_every_rule_has_a_source_and_small_sizes_get_no_larger_tiles():
    assert all(rule.source for rule in SPACE.rules)
    tiles = {config["BLOCK_SIZE_M"] for config in SPEC.space(bmm(128, 512, 64), H200).configs()}
    assert tiles == {64, 128}


def test_its_formula_answers_where_programs_get_a_second_tile_and_bmm_tmas_elsewhere():
    many, few = bmm(512, 512, 64), bmm(512, 512, 64, batch=8)
    assert registry.serving(many, H200)[0].name == "bmm_warp_specialized"
    assert registry.serving(few, H200)[0].name == "bmm_tma"


def test_programs_take_tiles_of_all_products_and_a_shared_matrix_has_no_index():
    problem = bmm(512, 512, 64)
    a = torch.empty(64, 512, 64, dtype=torch.bfloat16, device="meta")
    b = torch.empty(1, 64, 512, dtype=torch.bfloat16, device="meta").expand(64, 64, 512)
    out = torch.empty(64, 512, 512, dtype=torch.bfloat16, device="meta")
    (launch,) = program(Operands(a, b, out, None, problem, out), TILE)
    a_desc, b_desc, c_desc = launch.arguments[:3]
    assert (a_desc.shape, b_desc.shape, c_desc.shape) == ([64, 512, 64], [1, 64, 512], [64, 512, 512])
    assert (a_desc.block_shape, b_desc.block_shape, c_desc.block_shape) == ([1, 128, 64], [1, 64, 128], [1, 64, 64])
    assert launch.arguments[4:] == (512, 512, 64, 64, 1, 0, 1)
    assert launch.options["num_warps"] == 4
    assert launch.options["maxnreg"] * 3 * 128 <= H200.features.registers


def test_every_batch_and_every_m_have_one_binary():
    config = SPEC.default_config(bmm(512, 512, 64), H200)
    classes = {SPEC.compile_class(bmm(m, 512, 64, batch), config) for m in (40, 512, 4000) for batch in (1, 7, 64)}
    assert len(classes) == 1
