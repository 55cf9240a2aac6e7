"""What `any_height` serves, the configs that it offers and those that it refuses. Without a GPU."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

pytest.importorskip("triton", reason="Triton is not installed: no kernel is registered")

import tuner
from tuner import Config, Problem
from tuner.hardware import device as devices
from tuner.hardware.device import INTERPRETER, KNOWN
from tuner.kernel import registry
from tuner.kernels.gemm.any_tile import any_width_jit
from tuner.kernels.gemm.any_tile.any_height_space import tiles_at_once
from tuner.kernels.gemm.hopper import chunks, ping_pong_model
from tuner.kernels.gemm.hopper.resources import tiles

H200 = KNOWN["sm_90"]
SPEC = registry.find("matmul", "any_height")
PLAIN = Config(
    SPEC.name,
    BLOCK_SIZE_M=144,
    BLOCK_SIZE_N=64,
    BLOCK_SIZE_K=64,
    GROUP_SIZE_M=1,
    launch_pdl=True,
    num_stages=7,
    num_warps=4,
)


@pytest.fixture(autouse=True)
def _tried_triton(monkeypatch):
    monkeypatch.setattr(devices, "triton_version", lambda: "3.7.1")


def bf16(*shape: int, **options: object) -> Problem:
    return Problem(*shape, dtype="bf16", layout="nt", **options)


UNSERVED = [
    (bf16(129, 4096, 4096), "interpreter", "no interpreter"),
    (bf16(129, 4096, 4096), "sm_100", "Hopper"),
    (Problem(129, 4096, 4096, dtype="e4m3"), "sm_90", "of 8 bits wgmma reads both operands along K"),
    (Problem(129, 4096, 4096, dtype="int8", layout="nt"), "sm_90", "int8: it multiplies"),
    (Problem(129, 4096, 4096, dtype="e4m3", layout="nt", fast_accum=False), "sm_90", "in the tensor cores alone"),
    (Problem(560, 28672, 4096, dtype="e4m3", layout="nt"), "sm_90", "560 rows of float8_e4m3fn: of more than 256"),
    (Problem(129, 4096, 48, dtype="e4m3", layout="nt"), "sm_90", "K is 48"),
    (bf16(64, 4096, 4096), "sm_90", "M is 64"),
    (bf16(257, 120, 4096), "sm_90", "N is 120: a tile has 128 columns"),
    (bf16(200, 1000, 4096), "sm_90", "N is 1000: its 16 smallest tiles"),
    (bf16(129, 4096, 24), "sm_90", "K is 24"),
]


@pytest.mark.parametrize(("problem", "arch", "reason"), UNSERVED, ids=str)
def test_what_it_cannot_do_is_said_in_a_sentence(problem, arch, reason):
    assert reason in SPEC.unserved(problem, INTERPRETER if arch == "interpreter" else KNOWN[arch])


def test_other_releases_of_triton_than_the_one_that_placed_its_ring_do_not_run_it(monkeypatch):
    monkeypatch.setattr(devices, "triton_version", lambda: "3.6.0")
    assert "Triton 3.6.0" in SPEC.unserved(bf16(129, 4096, 4096), H200)


@pytest.mark.parametrize("out_dtype", ["bf16", "fp16", "fp32"])
def test_its_space_is_small_and_its_default_is_in_it_wherever_it_serves(out_dtype):
    served = 0
    for m, n, k in itertools.product((65, 96, 129, 193, 256), (2880, 7168, 28672), (32, 1000, 4096)):
        problem = bf16(m, n, k, out_dtype=out_dtype)
        assert SPEC.unserved(problem, H200) is None
        configs = SPEC.space(problem, H200).configs()
        assert 0 < len(configs) <= 14
        assert SPEC.default_config(problem, H200) in configs
        served += 1
        for config in configs:
            rows = config["BLOCK_SIZE_M"]
            assert rows % 8 == 0
            assert -(-m // rows) * rows - m < 32, "padding"
            assert config["num_stages"] >= 3
    assert served == 45


BEST = {
    (72, 7168, 8192): (72, 64, 4),
    (96, 12288, 4096): (96, 128, 4),
    (129, 7168, 8192): (136, 64, 4),
    (160, 7168, 8192): (160, 64, 4),
    (193, 7168, 8192): (200, 64, 4),
    (129, 12288, 4096): (72, 192, 2),
    (160, 12288, 4096): (80, 192, 2),
    (224, 12288, 4096): (112, 192, 2),
    (129, 6144, 4096): (136, 64, 4),
    (160, 6144, 4096): (160, 64, 4),
    (193, 6144, 4096): (200, 64, 4),
    (129, 16032, 8192): (136, 128, 1),
    (193, 16032, 8192): (200, 128, 1),
    (129, 4096, 14336): (72, 64, 2),
    (160, 4096, 14336): (80, 64, 2),
    (129, 18944, 3584): (136, 192, 4),
}
"""The tiles that were fastest on an H200 (benchmarks/results/any-height-again-h200.json): rows, columns, blocks.

Of 160x2880x4096 too, but with sums split over two blocks it takes 11.4 us for 12.6."""


@pytest.mark.parametrize("shape", BEST, ids=str)
def test_where_it_was_fastest_its_fastest_tile_is_the_default(shape):
    config = registry.default_config(bf16(*shape), H200)
    assert config.kernel == SPEC.name
    assert (config["BLOCK_SIZE_M"], config["BLOCK_SIZE_N"], config.get("num_ctas", 1)) == BEST[shape]
    assert config.get("SHARE_B", False) == (BEST[shape][2] == 2)


AT_ONCE = {
    (266, 3584, 3584): (136, 64, 4),
    (330, 4096, 4096): (168, 64, 2),
    (503, 2560, 9728): (168, 64, 4),
    (604, 1024, 8192): (88, 64, 4),
}
"""Tiles that all run at once and took 8 to 21% less than the best other (results/cluster-tiles-h200.json, -again)."""


@pytest.mark.parametrize("shape", AT_ONCE, ids=str)
def test_a_few_tiles_of_a_long_k_all_run_at_once_in_clusters(shape):
    config = registry.default_config(bf16(*shape), H200)
    assert config.kernel == SPEC.name
    assert (config["BLOCK_SIZE_M"], config["BLOCK_SIZE_N"], config["num_ctas"]) == AT_ONCE[shape]


@pytest.mark.parametrize(
    ("weight", "ms"),
    [
        ((1280, 8192), (257, 400, 640)),  # 257 in five of 64 rows, 100 tiles
        ((3584, 3584), (130, 257, 400, 640)),
        ((5120, 13824), (257, 400, 640)),
        ((12288, 4096), (66, 130, 257, 400)),
    ],
    ids=str,
)
def test_tiles_that_run_at_once_keep_most_of_the_device_busy_and_pad_little(weight, ms):
    found = {m: tiles_at_once(bf16(m, *weight), H200) for m in (66, 130, 257, 400, 640)}
    assert tuple(m for m, configs in found.items() if configs) == ms
    for m, config in ((m, config) for m, configs in found.items() for config in configs):
        problem = bf16(m, *weight)
        count = tiles(config, problem)
        assert 0.7 * 132 <= count <= 132
        rows = -(-m // config["BLOCK_SIZE_M"])
        assert rows * config["BLOCK_SIZE_M"] - m < (64 if m > 256 and config["BLOCK_SIZE_M"] == 64 else 8 * rows)
        assert config in SPEC.space(problem, H200).configs()
        if config.get("num_ctas") == 4:
            assert rows * -(-count // rows // 4) <= 30


def test_more_rows_have_no_tiles_that_run_at_once_beside_those_that_fill_waves():
    assert tiles_at_once(bf16(640, 1024, 8192), H200)
    assert not tiles_at_once(bf16(641, 1024, 8192), H200)


EIGHT_BITS = {
    (102, 6144, 4096): (104, 64, 4),
    (159, 4096, 14336): (80, 64, 2),
    (202, 24576, 1536): (208, 192, 1),
    (276, 3584, 18944): (144, 64, 4),
    (400, 2560, 9728): (136, 64, 4),
}
"""The same of fp8: tiles that took 12 to 19% less than others (results/cluster-tiles-fp8-h200.json, -again)."""


@pytest.mark.parametrize("shape", EIGHT_BITS, ids=str)
def test_tiles_of_fp8_all_run_at_once(shape):
    problem = Problem(*shape, dtype="e4m3", layout="nt")
    config = registry.default_config(problem, H200)
    assert config.kernel == SPEC.name
    tile = config["BLOCK_SIZE_M"], config["BLOCK_SIZE_N"], config.get("num_ctas", 1)
    assert (tile, config["BLOCK_SIZE_K"]) == (EIGHT_BITS[shape], 128)


def test_rows_of_fp8_whose_bits_must_not_depend_on_m_are_not_exchanged():
    problem = Problem(276, 6144, 4096, dtype="e4m3", layout="nt", invariant=True)
    assert "exchanged" in SPEC.unserved(problem, H200)
    assert SPEC.unserved(bf16(276, 6144, 4096, invariant=True), H200) is None


@pytest.mark.parametrize("scaling", ["none", "row", "scalar"])
def test_of_fp8_the_space_of_more_than_256_rows_has_tiles_that_run_at_once_alone(scaling):
    found = dict[int, int]()
    for m in (65, 128, 256, 257, 400, 640):
        problem = Problem(m, 4096, 4096, dtype="e4m3", layout="nt", scaling=scaling)
        configs = [] if SPEC.unserved(problem, H200) else SPEC.space(problem, H200).configs()
        assert m <= 256 or {*configs} == {*tiles_at_once(problem, H200)}
        assert all(config["BLOCK_SIZE_K"] == 128 for config in configs)
        assert not configs or SPEC.default_config(problem, H200) in configs
        found[m] = len(configs)
    assert 0 < min(found.values()) <= max(found.values()) <= 14


BEST_OF_MANY = {
    (526, 5120, 5120): (176, 128),
    (530, 6144, 4096): (136, 192),
    (543, 4096, 4096): (136, 128),
    (573, 4096, 14336): (144, 128),
    (654, 12288, 4096): (168, 192),
    (1061, 8192, 3584): (136, 256),
    (1104, 2560, 9728): (88, 256),
    (1155, 10240, 5120): (168, 192),
    (1200, 5120, 14336): (96, 256),
    (1411, 1280, 8192): (112, 128),
    (1443, 7168, 2048): (208, 128),
    (1738, 5120, 13824): (136, 256),
}
"""The same for more rows, of the first draw of decision 146, which was not kept: rows and columns."""


@pytest.mark.parametrize("shape", BEST_OF_MANY, ids=str)
def test_of_many_rows_a_tile_has_as_many_as_fill_the_waves_best(shape):
    """Without the kernels whose warpgroups take turns, which are newer."""
    problem = bf16(*shape)
    newer = [registry.find("matmul", name) for name in ("ping_pong", "any_height_ping_pong")]
    left_out = {spec.default_config(problem, H200): "newer" for spec in newer}
    config = registry.default_config(problem, H200, left_out)
    assert (config.kernel, config["BLOCK_SIZE_M"], config["BLOCK_SIZE_N"]) == (SPEC.name, *BEST_OF_MANY[shape])
    assert config in SPEC.space(bf16(*shape), H200).configs()


@pytest.mark.parametrize("shape", [(1024, 4096, 4096), (2048, 3584, 18944), (1024, 7168, 5120)], ids=str)
def test_of_many_rows_one_config_is_tried_where_other_tiles_fill_the_waves_as_well(shape):
    assert len(SPEC.space(bf16(*shape), H200).configs()) == 1
    assert registry.default_config(bf16(*shape), H200).kernel != SPEC.name


def test_a_wide_output_of_many_rows_is_stored_by_two_warpgroups():
    problem = bf16(1155, 10240, 5120, out_dtype="fp32")
    configs = SPEC.space(problem, H200).configs()
    assert configs
    assert {config["num_warps"] for config in configs} == {8}
    assert {config["num_warps"] for config in SPEC.space(bf16(1155, 10240, 5120), H200).configs()} == {8, 12}


@pytest.mark.parametrize("shape", [(129, 4608, 3584), (160, 5120, 12800), (96, 5120, 12800)], ids=str)
def test_where_others_were_faster_they_stay_the_default(shape):
    assert registry.default_config(bf16(*shape), H200).kernel != SPEC.name


@pytest.mark.parametrize(
    ("n", "clustered"), [(7168, True), (28672, True), (7216, True), (8000, False), (16032, False), (4224, False)]
)
def test_clusters_are_tried_where_they_take_no_wave_more(n, clustered):
    # 112, 4 x 112, 113, 125, 251 and 66 tiles of 64 columns; 30 clusters of four blocks run at once.
    configs = [one for one in SPEC.space(bf16(129, n, 4096), H200).configs() if one["BLOCK_SIZE_N"] == 64]
    assert {one.get("num_ctas", 1) for one in configs if one["BLOCK_SIZE_M"] == 144} == ({1, 4} if clustered else {1})
    assert {one.get("num_ctas", 1) for one in configs if one["BLOCK_SIZE_M"] == 80} == {1}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"BLOCK_SIZE_M": 140}, "140, no power of two"),
        ({"BLOCK_SIZE_M": 200, "BLOCK_SIZE_N": 192, "num_warps": 12, "num_stages": 3}, "two wgmmas share them"),
        ({"BLOCK_SIZE_M": 512, "num_stages": 2}, "one wgmma"),
        ({"BLOCK_SIZE_M": 8}, "one wgmma"),
        ({"BLOCK_SIZE_N": 192, "num_stages": 3}, "192 columns for 4 warps"),
        ({"num_warps": 8}, "64 columns for 8 warps"),
        ({"BLOCK_SIZE_K": 128, "num_stages": 2}, "BLOCK_SIZE_K is 128"),
        ({"BLOCK_SIZE_M": 240, "BLOCK_SIZE_N": 192, "num_warps": 12, "num_stages": 3}, "120 sums, 104 fit"),
        (
            {"BLOCK_SIZE_N": 192, "num_warps": 12, "num_stages": 5, "num_ctas": 4},
            "no buffers to store through",
        ),
        ({"BLOCK_SIZE_M": 136, "BLOCK_SIZE_N": 192, "num_warps": 12, "num_stages": 5}, "136 are no multiple"),
        ({"num_ctas": 2}, "only 4 along N, or 2 along M"),
        ({"num_ctas": 8}, "only 4 along N, or 2 along M"),
        ({"num_ctas": 4, "SHARE_B": True}, "only 4 along N, or 2 along M"),
        ({"SHARE_B": True}, "without num_ctas"),
        ({"num_stages": 1}, "2 stages"),
        ({"num_stages": 9}, "shared memory"),
    ],
    ids=str,
)
def test_what_no_tile_can_be_is_refused(values, reason):
    space = SPEC.space(bf16(129, 7168, 8192), H200)
    assert space.rejection(PLAIN, fatal_only=True) is None
    assert reason in space.rejection(PLAIN.replace(**values), fatal_only=True)


def test_clusters_that_no_gpc_may_have_room_for_are_refused():
    few = dataclasses.replace(H200, sm_count=24)
    problem, clustered = bf16(129, 7168, 8192), PLAIN.replace(num_ctas=4)
    assert SPEC.space(problem, H200).rejection(clustered, fatal_only=True) is None
    assert "24 multiprocessors" in SPEC.space(problem, few).rejection(clustered, fatal_only=True)


def test_other_heights_can_run_and_are_not_tried():
    space = SPEC.space(bf16(129, 7168, 8192), H200)
    taller = PLAIN.replace(BLOCK_SIZE_M=160)
    assert "80 or 136 or 144 are tried" in space.rejection(taller)
    assert space.rejection(taller, fatal_only=True) is None


@pytest.mark.parametrize("shape", [(476, 2560, 9728), (257, 4608, 3584), (640, 8192, 3584), (300, 6144, 4096)], ids=str)
def test_up_to_640_rows_tiles_that_all_run_at_once_go_in_no_groups(shape):
    problem = bf16(*shape)
    groups = {(tiles(one, problem) <= 132, one["GROUP_SIZE_M"]) for one in SPEC.space(problem, H200).configs()}
    assert {group for at_once, group in groups if at_once} == {1}
    assert 1 not in {group for at_once, group in groups if not at_once}


def test_beyond_640_rows_tiles_that_all_run_at_once_go_in_groups_too():
    problem = bf16(927, 4096, 4096)
    at_once = [one for one in SPEC.space(problem, H200).configs() if tiles(one, problem) <= 132]
    assert {one["GROUP_SIZE_M"] for one in at_once} == {3, 6, 12}


@pytest.mark.parametrize("shape", [(334, 1024, 8192), (322, 1280, 8192)], ids=str)
def test_tiles_that_all_run_at_once_may_have_the_least_height(shape):
    default = SPEC.default_config(bf16(*shape), H200)
    assert (default["BLOCK_SIZE_M"], default["BLOCK_SIZE_N"], default["num_ctas"]) == (64, 64, 4)


@pytest.mark.usefixtures("no_tables")
def test_a_table_serves_a_height_that_is_no_power_of_two(make_row, make_table, tmp_path):
    row = make_row(140, 7168, 8192, config=PLAIN, version=SPEC.version, dtype="bf16", layout="nt")
    tuner.use(make_table(row).write(tmp_path))
    found = tuner.lookup(row.problem, H200)
    assert (found.rule, found.config) == ("exact", PLAIN)


@pytest.mark.parametrize("shape", [(900, 7168, 5120), (543, 4096, 4096), (129, 7168, 8192)], ids=str)
def test_a_config_keeps_its_model_on_both_sides_of_256_rows(shape):
    """A ladder compares what a config takes for two Ms, one of which may have few rows and the other many."""
    config = SPEC.default_config(bf16(*shape), H200)
    below, beyond = (SPEC.estimate_us(config, bf16(m, *shape[1:]), H200) for m in (256, 257))
    counts = [-(-m // config["BLOCK_SIZE_M"]) for m in (256, 257)]
    assert counts[0] == counts[1]
    assert below == pytest.approx(beyond, rel=0.01)


@pytest.mark.parametrize(
    ("problem", "tile"),
    [
        (Problem(2287, 1024, 8192, dtype="bf16", layout="nn"), (144, 128)),
        (Problem(1066, 4096, 4096, dtype="bf16", layout="nn"), (136, 256)),
        (Problem(342, 5120, 27648, dtype="bf16", layout="nn"), (120, 128)),
        (Problem(3072, 1024, 8192, dtype="bf16", layout="tn"), (192, 128)),
    ],
    ids=str,
)
def test_operands_that_do_not_run_along_k_have_its_tiles_too_which_were_fastest(problem, tile):
    """Torch was up to 1.28 times as fast as the best other tile of these (results/training-before-h200.json)."""
    assert tile in {(one["BLOCK_SIZE_M"], one["BLOCK_SIZE_N"]) for one in SPEC.space(problem, H200).configs()}


@pytest.mark.parametrize(("layout", "rows", "held"), [("nn", 136, 136), ("tn", 136, 192), ("tn", 192, 192)])
def test_a_stage_holds_whole_chunks_of_an_a_along_m(layout, rows, held):
    problem = Problem(1152, 4096, 4096, dtype="bf16", layout=layout)
    one, two = (SPEC.shared_bytes(PLAIN.replace(BLOCK_SIZE_M=rows, num_stages=n), problem, H200) for n in (2, 3))
    assert two - one == (held + PLAIN["BLOCK_SIZE_N"]) * 128 + 16


@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_the_models_count_the_columns_that_the_kernel_loads(layout):
    computed = Problem(1152, 4096, 4096, dtype="bf16", layout=layout).exchanged()
    for rows in range(8, 264, 8):
        loaded = any_width_jit.loaded_columns(rows, computed.layout[1] == "t")
        assert loaded == chunks.loaded(rows, computed) <= chunks.requested(rows, computed)


@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_loads_that_cross_lines_cost_more_the_less_there_is_to_multiply(layout):
    """Measured: tiles of 144x192 took 1.07 times as long as estimated without it, of 112x128 1.25 times."""
    problem = Problem(1152, 4096, 4096, dtype="bf16", layout=layout)
    shapes = ((128, 128), (144, 192), (112, 128), (104, 128))
    slowed = [ping_pong_model.slowed(columns, rows, problem.exchanged()) for rows, columns in shapes]
    if layout == "nt":
        assert slowed == [1, 1, 1, 1]
    else:
        assert slowed == sorted(slowed)
        assert slowed[0] == 1 < slowed[1] < 1.1 < slowed[2] < slowed[3]


def test_rows_of_chunks_cost_least_that_begin_at_a_line():
    """Of an A of 1,168 rows each row of a chunk begins 32 bytes further in its line than the one before."""
    whole, ragged, odd = (Problem(m, 4096, 4096, dtype="bf16", layout="tn").exchanged() for m in (1152, 1168, 1160))
    assert chunks.requested(128, whole) == 128
    assert 128 < chunks.requested(128, ragged) < chunks.requested(128, odd)
    assert chunks.requested(112, whole) > chunks.requested(128, ragged)
    assert chunks.requested(120, whole) > chunks.requested(112, whole)


def test_odd_rows_are_slowed_by_the_models_that_count_them_alone():
    odd, even = (Problem(m, 4096, 4096, dtype="bf16", layout="tn").exchanged() for m in (1160, 1152))
    assert ping_pong_model.slowed(128, 112, odd) == 1 < ping_pong_model.slowed(128, 112, even)


def test_two_wgmmas_share_whole_chunks_of_an_a_along_m():
    config = PLAIN.replace(BLOCK_SIZE_M=208, BLOCK_SIZE_N=192, num_warps=12, num_stages=3)
    refused = {
        layout: SPEC.space(Problem(416, 4096, 4096, dtype="bf16", layout=layout), H200).rejection(
            config, fatal_only=True
        )
        for layout in ("nn", "tn")
    }
    assert refused["nn"] is None
    assert "a multiple of 128" in refused["tn"]
