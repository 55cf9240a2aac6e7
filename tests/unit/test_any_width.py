"""What `any_width` serves, the configs that it offers and those that it refuses. Without a GPU."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

pytest.importorskip("triton", reason="Triton is not installed: no kernel is registered")

import tuner
from tuner import Config, Problem
from tuner.errors import KernelError
from tuner.hardware import device as devices
from tuner.hardware.device import INTERPRETER, KNOWN
from tuner.kernel import registry
from tuner.kernels.gemm.any_tile import any_width_space
from tuner.launch import launch as launching

H200 = KNOWN["sm_90"]
H100 = next(device for device in devices.MODELS if device.name == "NVIDIA H100 80GB HBM3")
SPEC = registry.find("matmul", "any_width")
PLAIN = Config(
    SPEC.name,
    BLOCK_SIZE_M=128,
    BLOCK_SIZE_N=224,
    BLOCK_SIZE_K=64,
    GROUP_SIZE_M=16,
    launch_pdl=True,
    num_stages=4,
    num_warps=8,
)


@pytest.fixture(autouse=True)
def _tried_triton(monkeypatch):
    monkeypatch.setattr(devices, "triton_version", lambda: "3.7.1")


def bf16(*shape: int, **options: object) -> Problem:
    return Problem(*shape, dtype="bf16", layout="nt", **options)


UNSERVED = [
    (bf16(4096, 4096, 4096), "interpreter", "no interpreter"),
    (bf16(4096, 4096, 4096), "sm_100", "Hopper"),
    (Problem(4096, 4096, 4096, dtype="bf16"), "sm_90", "along K"),
    (Problem(4096, 4096, 4096, dtype="e4m3", layout="nt"), "sm_90", "dtype, bfloat16, float16"),
    (Problem(4096, 4096, 4096, dtype="fp32", layout="nt", precision="tf32"), "sm_90", "dtype, bfloat16, float16"),
    (bf16(4096, 4096, 4096, aligned=False), "sm_90", "not aligned"),
    (bf16(128, 4096, 4096), "sm_90", "M is 128"),
    (bf16(4096, 136, 4096), "sm_90", "N is 136"),
    (bf16(4096, 4096, 24), "sm_90", "K is 24"),
    (bf16(4096, 1024, 4096, invariant=True), "sm_90", "in parts of 1024"),
]


@pytest.mark.parametrize(("problem", "arch", "reason"), UNSERVED, ids=str)
def test_what_it_cannot_do_is_said_in_a_sentence(problem, arch, reason):
    assert reason in SPEC.unserved(problem, INTERPRETER if arch == "interpreter" else KNOWN[arch])


@pytest.mark.parametrize(("running", "served"), [("3.6.0", False), ("3.7.0", True), ("3.9.0", False), ("", False)])
def test_only_the_triton_that_placed_its_ring_runs_it(running, served, monkeypatch):
    monkeypatch.setattr(devices, "triton_version", lambda: running)
    reason = SPEC.unserved(bf16(4096, 4096, 4096), H200)
    assert reason is None if served else f"Triton {running}" in reason


@pytest.mark.parametrize("out_dtype", ["bf16", "fp16", "fp32"])
def test_its_space_is_small_and_its_default_is_in_it_wherever_it_serves(out_dtype):
    served = 0
    for m, n, k in itertools.product((129, 384, 1000, 8192), (144, 1600, 14336), (32, 1000, 4096)):
        problem = bf16(m, n, k, out_dtype=out_dtype)
        assert SPEC.unserved(problem, H200) is None
        space = SPEC.space(problem, H200)
        configs = space.configs()
        assert 0 < len(configs) < 70
        assert SPEC.default_config(problem, H200) in configs
        served += 1
        for config in configs:
            assert config["BLOCK_SIZE_N"] % 16 == 0
            assert config["BLOCK_SIZE_N"] & (config["BLOCK_SIZE_N"] - 1), "powers of two are warp_specialized's"
            assert config["num_stages"] >= 3
    assert served == 36


BEST = {
    (384, 14336, 4096): (192, 224),
    (384, 18944, 3584): (192, 144),
    (512, 10240, 8192): (256, 160),
    (640, 10240, 5120): (128, 208),
    (768, 7168, 8192): (192, 224),
    (960, 10240, 5120): (192, 208),
    (1024, 7168, 5120): (128, 224),
    (1024, 7680, 5120): (128, 240),
    (1024, 5120, 17920): (256, 160),
    (1280, 5120, 5120): (128, 208),
    (1536, 5120, 4096): (192, 160),
    (2048, 3584, 18944): (128, 224),
    (2048, 2560, 9728): (256, 160),
}
"""The tiles that were fastest of all kernels' on an H200, or took at most 1.01 times as long: suites/last-wave.csv."""


@pytest.mark.parametrize("shape", BEST, ids=str)
def test_where_it_was_fastest_its_fastest_tile_is_the_default(shape):
    config = registry.default_config(bf16(*shape), H200)
    assert (config.kernel, config["BLOCK_SIZE_M"], config["BLOCK_SIZE_N"]) == (SPEC.name, *BEST[shape])
    assert "num_ctas" not in config


@pytest.mark.parametrize("shape", [(256, 5120, 8192), (235, 5120, 8192), (244, 5120, 17920), (224, 5120, 25600)])
def test_two_tiles_of_rows_whose_narrow_tiles_fill_one_wave_get_pairs_of_these_and_a_search_tries_both(shape):
    config = registry.default_config(bf16(*shape), H200)
    assert (config.kernel, config["BLOCK_SIZE_M"], config["BLOCK_SIZE_N"]) == (SPEC.name, 128, 80)
    configs = SPEC.space(bf16(*shape), H200).configs()
    narrow = [one for one in configs if one["BLOCK_SIZE_N"] == 80]
    assert {one.get("SHARE_B") for one in narrow} == {None, True}
    assert config["SHARE_B"], "in the 24 problems of cluster-tiles pairs took 0.91 to 1.01 of its time"


@pytest.mark.parametrize(
    ("shape", "columns"),
    [((256, 6144, 4096), 96), ((232, 6144, 16384), 96), ((256, 5632, 4096), 96), ((256, 7168, 8192), 112)],
)
def test_wider_layers_get_pairs_of_the_narrowest_tiles_that_fill_one_wave(shape, columns):
    config = registry.default_config(bf16(*shape), H200)
    assert (config.kernel, config["BLOCK_SIZE_N"], config.get("SHARE_B")) == (SPEC.name, columns, True)
    fewer_rows = bf16(208, *shape[1:])
    widths = {one["BLOCK_SIZE_N"] for one in SPEC.space(fewer_rows, H200).configs()}
    assert min(widths) > 128, "a fifth would be padding"


def test_on_an_h100_whose_memory_is_slower_only_the_narrowest_tile_is_tried():
    for device, narrow in ((H200, {96}), (H100, set())):
        widths = {one["BLOCK_SIZE_N"] for one in SPEC.space(bf16(256, 6144, 4096), device).configs()}
        assert widths & {80, 96, 112} == narrow
    assert 80 in {one["BLOCK_SIZE_N"] for one in SPEC.space(bf16(256, 5120, 4096), H100).configs()}


def test_of_few_stages_one_more_replaces_a_buffer_but_not_where_warpgroups_take_turns():
    config, problem = PLAIN.replace(BLOCK_SIZE_N=192), bf16(256, 12288, 4096)
    depths = [any_width_space.deepest(config, problem, H200, enough=enough) for enough in (0, 99)]
    assert depths == [4, 5]
    assert any_width_space.deepest(config, problem, H200) == 5
    assert [any_width_space.turns(config.replace(num_stages=depth), problem, H200) for depth in depths] == [2, 1]
    shallow = config.replace(BLOCK_SIZE_N=144, num_stages=5)
    assert any_width_space.deepest(shallow, problem, H200) == 5
    assert any_width_space.turns(shallow, problem, H200) == 2
    in_turns = registry.find("matmul", "any_height_ping_pong").space(bf16(777, 8192, 4096), H200)
    tall = [one for one in in_turns.configs() if one.integer("BLOCK_SIZE_M") >= 176]
    assert tall
    assert {one["num_stages"] for one in tall} == {4}


@pytest.mark.parametrize("shape", [(144, 5120, 8192), (257, 5120, 8192), (256, 5376, 8192), (256, 4096, 14336)])
def test_narrow_tiles_are_no_default_elsewhere(shape):
    """Fewer rows fill a wave in tiles of 64; more rows, or columns, do not fit one in narrow tiles."""
    config = registry.default_config(bf16(*shape), H200)
    assert config["BLOCK_SIZE_N"] != 80


@pytest.mark.parametrize("shape", [(257, 5120, 8192), (256, 5376, 8192), (1024, 2560, 4096)])
def test_narrow_tiles_are_tried_where_they_fill_one_wave_alone(shape):
    assert all(config["BLOCK_SIZE_N"] != 80 for config in SPEC.space(bf16(*shape), H200).configs())


@pytest.mark.parametrize("shape", [(1792, 3584, 14336), (2048, 4096, 4096), (4096, 4096, 4096)])
def test_where_powers_of_two_fill_the_waves_they_stay_the_default(shape):
    default = registry.default_config(bf16(*shape), H200)
    assert default.kernel in ("warp_specialized", "ping_pong", "any_height_ping_pong")


@pytest.mark.parametrize(("size", "odd"), [(5000, True), (3000, True), (5120, False), (3008, False)])
def test_odd_rows_alone_are_tried_in_pairs_that_share_the_larger_side(size, odd):
    configs = SPEC.space(bf16(size, size, size), H200).configs()
    pairs = [config for config in configs if "num_ctas" in config]
    assert bool(pairs) == odd
    assert len(pairs) == (len(configs) / 2 if odd else 0)
    for config in pairs:
        assert config["num_ctas"] == 2
        assert config.get("SHARE_B", False) == (config["BLOCK_SIZE_N"] > config["BLOCK_SIZE_M"])
    assert ("num_ctas" in SPEC.default_config(bf16(size, size, size), H200)) == odd


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"BLOCK_SIZE_N": 136}, "136, no power of two"),
        ({"BLOCK_SIZE_N": 512, "num_stages": 2}, "one wgmma"),
        ({"BLOCK_SIZE_N": 8}, "one wgmma"),
        ({"BLOCK_SIZE_M": 192}, "192 rows for 8 warps"),
        ({"BLOCK_SIZE_M": 64}, "64 rows for 8 warps"),
        ({"num_warps": 12}, "128 rows for 12 warps"),
        ({"BLOCK_SIZE_K": 128, "num_stages": 2}, "BLOCK_SIZE_K is 128"),
        ({"BLOCK_SIZE_M": 256, "num_stages": 3}, "224 sums, 192 fit"),
        ({"BLOCK_SIZE_M": 192, "BLOCK_SIZE_N": 240, "num_warps": 12, "num_stages": 3}, "120 sums, 112 fit"),
        ({"num_ctas": 4}, "only pairs"),
        ({"SHARE_B": True}, "without num_ctas"),
        ({"num_stages": 1}, "2 stages"),
        ({"num_stages": 6}, "shared memory"),
        ({"EPILOGUE_PARTS": 2}, "EPILOGUE_PARTS is no parameter"),
    ],
    ids=str,
)
def test_what_no_tile_can_be_is_refused(values, reason):
    space = SPEC.space(bf16(4096, 4096, 4096), H200)
    assert space.rejection(PLAIN, fatal_only=True) is None
    assert reason in space.rejection(PLAIN.replace(**values), fatal_only=True)


def test_a_ring_that_triton_would_not_place_first_is_refused():
    narrow = PLAIN.replace(BLOCK_SIZE_N=16, num_stages=2)
    space = SPEC.space(bf16(4096, 4096, 4096, out_dtype="fp32"), H200)
    assert "must be the most" in space.rejection(narrow, fatal_only=True)
    assert space.rejection(narrow.replace(num_stages=6), fatal_only=True) is None


def test_powers_of_two_can_run_and_are_not_tried():
    space = SPEC.space(bf16(2048, 3584, 18944), H200)
    assert space.rejection(PLAIN) is None
    for columns in (64, 128, 256):
        wide = PLAIN.replace(BLOCK_SIZE_N=columns)
        assert "are tried" in space.rejection(wide)
        assert space.rejection(wide, fatal_only=True) is None


def test_tiles_of_which_a_multiprocessor_computes_more_are_not_tried():
    space = SPEC.space(bf16(2048, 3584, 18944), H200)
    assert "sums of a multiprocessor" in space.rejection(PLAIN.replace(BLOCK_SIZE_N=240))
    assert space.rejection(PLAIN.replace(BLOCK_SIZE_N=240), fatal_only=True) is None


def test_three_warpgroups_store_no_wide_output():
    three = PLAIN.replace(BLOCK_SIZE_M=192, BLOCK_SIZE_N=144, num_warps=12, num_stages=3)
    narrow, wide = (SPEC.space(bf16(900, 7168, 5120, out_dtype=out), H200) for out in ("fp16", "fp32"))
    assert narrow.rejection(three) is None
    assert "three warpgroups" in wide.rejection(three, fatal_only=True)


def test_every_block_of_a_pair_has_a_tile():
    pair = PLAIN.replace(num_ctas=2)
    assert "one tile of 224 covers 200" in SPEC.space(bf16(4096, 200, 4096), H200).rejection(pair)
    assert "one tile of 128 covers" not in (
        SPEC.space(bf16(136, 200, 4096), H200).rejection(pair.replace(SHARE_B=True)) or ""
    )


STORED_BEHIND = "gep(@global_smem, i32 180224) gep(@global_smem, i32 213136) gep(@global_smem, i32 %stage)"


@pytest.mark.parametrize(
    ("llir", "reason"),
    [
        (STORED_BEHIND, None),
        (STORED_BEHIND.replace("i32", "i64"), None),
        ("gep(@global_smem, i32 0) gep(@global_smem, i32 180224)", "not first"),
        ("gep(@global_smem, i32 16384) gep(@global_smem, i32 213136)", "not first"),
        ("gep(@global_smem, i32 180223)", "not first"),
        ("gep(@global_smem, i32 400000)", "not first"),
        ("gep(@shared, i32 180224)", "nothing is known"),
    ],
)
def test_a_ring_that_does_not_come_first_in_shared_memory_does_not_compile(llir, reason, monkeypatch):
    compiled = SimpleNamespace(asm={"llir": llir})
    monkeypatch.setattr(launching, "compile_launches", lambda _launches: compiled)
    if reason is None:
        assert SPEC.compile(bf16(2048, 3584, 18944), PLAIN) is compiled
    else:
        with pytest.raises(KernelError, match=reason):
            SPEC.compile(bf16(2048, 3584, 18944), PLAIN)


@pytest.mark.parametrize(
    ("op", "kernel", "problem"),
    [
        ("matmul", "any_height", bf16(900, 7168, 5120)),
        ("matmul", "any_height_ping_pong", Problem(904, 7168, 5120, dtype="bf16", layout="tn")),
        ("matmul", "any_height_split", bf16(306, 1024, 14336)),
        ("gated_linear", "gated_any_height", bf16(300, 4096, 4096, op="gated_linear", epilogue="silu")),
    ],
)
def test_so_it_is_of_all_kernels_with_such_a_ring(op, kernel, problem, monkeypatch):
    spec = registry.find(op, kernel)
    config = spec.default_config(problem, H200)
    compiled = SimpleNamespace(asm={"llir": "@global_smem, i32 1"})
    monkeypatch.setattr(launching, "compile_launches", lambda _launches: compiled)
    with pytest.raises(KernelError, match=f"{kernel}: the ring of .* is not first"):
        spec.compile(problem, config)


@pytest.mark.usefixtures("no_tables")
def test_a_table_serves_a_width_that_is_no_power_of_two(make_row, make_table, tmp_path):
    row = make_row(2000, 3584, 4096, config=PLAIN, version=SPEC.version, dtype="bf16", layout="nt")
    tuner.use(make_table(row).write(tmp_path))
    found = tuner.lookup(row.problem, H200)
    assert (found.rule, found.config) == ("exact", PLAIN)


@pytest.mark.parametrize("shape", [(151, 28896, 3592), (151, 28896, 4096)])
def test_where_tiles_of_any_height_leave_less_than_its_best_the_next_best_is_tried(shape):
    space = SPEC.space(bf16(*shape), H200)
    assert {(one["BLOCK_SIZE_M"], one["BLOCK_SIZE_N"]) for one in space.configs()} == {(192, 144)}
    assert space.rejection(SPEC.default_config(bf16(*shape), H200)) is None
