"""What `any_height_split` serves, the configs that it offers and those that it refuses. Without a GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="Triton is not installed: no kernel is registered")

from tuner import Config, Problem
from tuner.hardware import device as devices
from tuner.hardware.device import INTERPRETER, KNOWN
from tuner.kernel import registry
from tuner.kernels.gemm.any_tile import any_height_split_space
from tuner.kernels.gemm.any_tile.any_height_split_model import Tile
from tuner.kernels.gemm.hopper import chunks, cluster_sizes

H200 = KNOWN["sm_90"]
SPEC = registry.find("matmul", "any_height_split")
PLAIN = Config(
    SPEC.name,
    BLOCK_SIZE_M=104,
    BLOCK_SIZE_N=128,
    BLOCK_SIZE_K=64,
    SPLIT_K=4,
    launch_pdl=True,
    num_ctas=8,
    num_stages=7,
    num_warps=8,
)


@pytest.fixture(autouse=True)
def _tried_triton(monkeypatch):
    monkeypatch.setattr(devices, "triton_version", lambda: "3.7.1")


def bf16(*shape: int, **options: object) -> Problem:
    return Problem(*shape, **{"dtype": "bf16", "layout": "nt", **options})


def blocks(*shape: int, **options: object) -> Problem:
    return bf16(*shape, dtype="e4m3", scaling="block", **options)


FEW_TILES = bf16(306, 1024, 14336)
UNSERVED = [
    (FEW_TILES, INTERPRETER, "no interpreter"),
    (FEW_TILES, KNOWN["sm_100"], "Hopper"),
    (
        bf16(306, 1024, 14336, dtype="e4m3"),
        H200,
        "float8_e4m3fn: it is for operands of 16 bits, or with block scales",
    ),
    (
        bf16(80, 1024, 14336, dtype="e4m3", scaling="row"),
        H200,
        "it is for operands of 16 bits, or with block scales",
    ),
    (bf16(80, 12288, 4104, dtype="e4m3", scaling="block"), H200, "not aligned: TMA takes addresses"),
    (bf16(80, 65536, 4096, dtype="e4m3", scaling="block"), H200, "80x65536 sums: its tiles, in clusters that split"),
    (bf16(64, 1024, 14336), H200, "M is 64: it is for 65 rows of A or more"),
    (bf16(306, 1024, 1000), H200, "K is 1000: it splits sums of 1024 and more"),
    (bf16(4096, 4096, 4096), H200, "4096x4096 sums: its tiles, in clusters that split their sums, do not all run at"),
    (bf16(70, 40, 4096), H200, "70x40 sums: its tiles, in clusters that split their sums, do not all run at once, or"),
    (bf16(306, 1024, 14336, invariant=True), H200, "it keeps to no one order of sums"),
]


@pytest.mark.parametrize(("problem", "device", "reason"), UNSERVED, ids=str)
def test_what_it_cannot_do_is_said_in_a_sentence(problem, device, reason):
    assert reason in SPEC.unserved(problem, device)


SERVED = [
    FEW_TILES,
    bf16(65, 4096, 1024),
    bf16(1477, 144, 17728),
    bf16(616, 368, 16384, dtype="fp16", layout="nn", out_dtype="fp32", epilogue="bias+gelu"),
    bf16(896, 544, 14080, layout="tn"),
    bf16(512, 512, 4096, layout="tt"),
    blocks(1, 5120, 2048),
    blocks(80, 12288, 4096),
    blocks(33, 7168, 16384, out_dtype="fp32", epilogue="bias"),
    blocks(2058, 1088, 8320),
]


@pytest.mark.parametrize("problem", SERVED, ids=str)
def test_all_clusters_of_what_it_offers_run_at_once_and_hold_their_sums(problem):
    space = SPEC.space(problem, H200)
    configs = space.configs()
    assert 0 < len(configs) <= any_height_split_space.BEST
    assert SPEC.default_config(problem, H200) in configs
    for config in configs:
        assert space.tries(config)
        splits, ctas = config["SPLIT_K"], config.get("num_ctas", 1)
        down, across = -(-problem.m // config["BLOCK_SIZE_M"]), -(-problem.n // config["BLOCK_SIZE_N"])
        tiles = ctas // splits
        clusters = -(-down // tiles) * across if config.get("SHARE_B") else down * -(-across // tiles)
        assert clusters * ctas <= cluster_sizes.room(ctas, H200)
        assert SPEC.shared_bytes(config, problem, H200) <= H200.shared_bytes
        rows = chunks.loaded(config["BLOCK_SIZE_M"], problem.exchanged()) + config["BLOCK_SIZE_N"]
        rows += 8 if problem.scaling == "block" else 0
        assert any_height_split_space.parts_bytes(Tile.of(config)) <= config["num_stages"] * rows * 128


REFUSED = [
    ({"num_warps": 4}, "128 columns for 4 warps"),
    ({"BLOCK_SIZE_K": 128}, "BLOCK_SIZE_K is 128"),
    ({"SPLIT_K": 16, "num_ctas": 16}, "num_ctas is 16"),
    ({"SPLIT_K": 1, "num_ctas": 1}, "num_ctas is 1"),
    ({"SPLIT_K": 8, "num_ctas": 4}, "clusters of 4 for SPLIT_K 8"),
    ({"BLOCK_SIZE_M": 256, "BLOCK_SIZE_N": 192, "num_warps": 12, "num_stages": 3}, "a thread would hold 128 sums"),
    ({"BLOCK_SIZE_M": 176, "BLOCK_SIZE_N": 256, "num_stages": 3}, "185856 B of sums in a ring of 165888 B"),
    ({"num_stages": 8}, "shared memory"),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSED, ids=str)
def test_what_would_not_work_is_refused_everywhere(changes, reason):
    assert SPEC.space(FEW_TILES, H200).rejection(PLAIN, fatal_only=True) is None
    assert reason in str(SPEC.space(FEW_TILES, H200).rejection(PLAIN.replace(**changes), fatal_only=True))


def test_a_cluster_alone_is_no_option():
    config = Config(SPEC.name, **{name: value for name, value in PLAIN.pairs if name != "num_ctas"})
    config = config.replace(BLOCK_SIZE_M=96)
    assert "clusters of 1 for SPLIT_K 4" in str(SPEC.space(FEW_TILES, H200).rejection(config, fatal_only=True))


def test_rows_of_operands_that_are_stored_along_m_lie_in_chunks_of_64():
    along_k, along_m = (SPEC.shared_bytes(PLAIN, bf16(896, 544, 14080, layout=layout), H200) for layout in ("nn", "tn"))
    assert along_m - along_k == PLAIN["num_stages"] * (128 - PLAIN["BLOCK_SIZE_M"]) * 128


def test_neighbours_that_load_the_same_and_more_splits_of_a_long_sum_cost_less():
    alone = PLAIN.replace(num_ctas=4)
    shared, split = PLAIN, PLAIN.replace(SPLIT_K=8)
    assert SPEC.estimate_us(shared, FEW_TILES, H200) < SPEC.estimate_us(alone, FEW_TILES, H200)
    fewer_tiles = bf16(208, 896, 14336)  # all 14 clusters of eight run at once
    assert SPEC.estimate_us(split, fewer_tiles, H200) < SPEC.estimate_us(alone, fewer_tiles, H200)


def test_clusters_that_wait_for_others_take_another_wave():
    """Of 14 clusters at once: measured 23.6 us for 384 rows and 44.0 us for 416; 19.6 and 130.7 us of flat tiles."""
    config = PLAIN.replace(BLOCK_SIZE_M=96, BLOCK_SIZE_N=192, SHARE_B=True, num_stages=6, num_warps=12)
    few, more = (SPEC.estimate_us(config, bf16(m, 1088, 12672), H200) for m in (384, 416))
    assert 1.7 < more / few < 2
    flat = config.replace(BLOCK_SIZE_M=72)
    one, seven = (SPEC.estimate_us(flat, bf16(m, 1088, 12672), H200) for m in (257, 2048))
    assert 5.5 < seven / one < 7


@pytest.mark.parametrize("shape", [(548, 128, 2688), (616, 64, 2304), (304, 432, 6912)], ids=str)
def test_few_tiles_with_a_long_k_are_split_by_default(shape):
    """It took 0.79 to 0.9 of the time of the default before (benchmarks/results/few-tiles-first, -second-h200.json)."""
    assert registry.default_config(bf16(*shape), H200).kernel == SPEC.name


@pytest.mark.parametrize("shape", [(136, 3584, 8128), (92, 768, 10560), (168, 3008, 7488), (160, 960, 6336)], ids=str)
def test_few_rows_are_split_by_default_where_that_was_fastest(shape):
    """Defaults of before took 1.15 to 1.19 times as long (benchmarks/results/split-few-rows-h200.json)."""
    assert registry.default_config(bf16(*shape), H200).kernel == SPEC.name


OTHERS = ((232, 192, 6144), (256, 6144, 4096), (4096, 4096, 4096), (1170, 2048, 8320))


@pytest.mark.parametrize("shape", OTHERS, ids=str)
def test_narrow_products_and_many_tiles_keep_other_defaults(shape):
    assert registry.default_config(bf16(*shape), H200).kernel != SPEC.name


SCALED = blocks(80, 12288, 4096)
BY_BLOCKS = Config(
    SPEC.name,
    BLOCK_SIZE_M=80,
    BLOCK_SIZE_N=128,
    BLOCK_SIZE_K=128,
    SPLIT_K=1,
    launch_pdl=True,
    num_stages=8,
    num_warps=8,
)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"BLOCK_SIZE_M": 256, "num_stages": 4},
            "a tile of 256x128 with block scales: up to 128 rows, 192 columns",
        ),
        ({"BLOCK_SIZE_N": 256, "num_stages": 4}, "a tile of 80x256 with block scales"),
        ({"BLOCK_SIZE_M": 88, "num_stages": 7}, "88 rows without a cluster: a block stores 16 at a time"),
        ({"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 192, "num_warps": 12, "num_stages": 4}, "a thread would hold 64 sums"),
        ({"num_stages": 9}, "shared memory"),
    ],
    ids=str,
)
def test_what_does_not_fit_beside_products_and_scales_is_refused(changes, reason):
    assert SPEC.space(SCALED, H200).rejection(BY_BLOCKS, fatal_only=True) is None
    assert reason in str(SPEC.space(SCALED, H200).rejection(BY_BLOCKS.replace(**changes), fatal_only=True))


def test_only_with_scales_of_blocks_a_block_sums_a_tile_alone():
    alone = Config(SPEC.name, **{name: value for name, value in PLAIN.pairs if name != "num_ctas"})
    alone = alone.replace(BLOCK_SIZE_M=96, SPLIT_K=1)
    assert "clusters of 1 for SPLIT_K 1" in str(SPEC.space(FEW_TILES, H200).rejection(alone, fatal_only=True))


def test_the_model_is_near_what_was_measured_with_scales_of_blocks():
    """Paired medians on an H200, by hand: of one block, of two that split a sum, and of a pair that shares B."""
    measured = [
        (blocks(80, 11328, 27008), BY_BLOCKS, 87.7),
        (blocks(100, 7168, 16384), BY_BLOCKS.replace(BLOCK_SIZE_M=104, SPLIT_K=2, num_ctas=2, num_stages=7), 35.3),
        (blocks(32, 1920, 4992), BY_BLOCKS.replace(BLOCK_SIZE_M=32, SPLIT_K=4, num_ctas=4, num_stages=10), 5.6),
    ]
    for problem, config, us in measured:
        assert 0.85 < SPEC.estimate_us(config, problem, H200) / us < 1.15, problem
