"""What kernels serve whose warpgroups take turns, their configs, and the source of one run by threads. No GPU."""

from __future__ import annotations

import itertools

import pytest

from tuner import Config, Problem
from tuner.hardware import device as devices
from tuner.hardware.device import INTERPRETER, KNOWN
from tuner.kernel import registry

pytest.importorskip("triton", reason="Triton is not installed: no kernel is registered")
H200 = KNOWN["sm_90"]
SPEC = registry.find("matmul", "ping_pong")
PLAIN = Config(
    SPEC.name,
    BLOCK_SIZE_M=128,
    BLOCK_SIZE_N=128,
    BLOCK_SIZE_N_REST=0,
    BLOCK_SIZE_K=64,
    GROUP_SIZE_M=8,
    launch_pdl=True,
    num_stages=6,
    num_warps=8,
)


def nt(*shape: int, **options: object) -> Problem:
    return Problem(*shape, **{"dtype": "bf16", "layout": "nt", **options})


UNSERVED = [
    (nt(512, 4096, 4096), INTERPRETER, "no interpreter"),
    (nt(512, 4096, 4096), KNOWN["sm_100"], "Hopper"),
    (nt(256, 4096, 4096), H200, "M is 256: it is for 257 rows of A or more"),
    (nt(512, 96, 4096), H200, "N is 96: a tile has 128 columns"),
    (nt(512, 4096, 4096, dtype="e4m3", fast_accum=False), H200, "in the tensor cores alone"),
    (nt(512, 4096, 4096, dtype="e4m3", scaling="block"), H200, "in the tensor cores alone"),
    (nt(512, 4096, 4096, dtype="e4m3", layout="nn"), H200, "along K alone"),
    (nt(512, 4096, 1001), H200, "not aligned"),
]


@pytest.mark.parametrize(("problem", "device", "reason"), UNSERVED, ids=str)
def test_what_it_cannot_do_is_said_in_a_sentence(problem, device, reason):
    assert reason in SPEC.unserved(problem, device)


KINDS = [
    {},
    {"out_dtype": "fp32"},
    {"dtype": "fp16", "layout": "tn"},
    {"dtype": "e4m3", "scaling": "row"},
    {"dtype": "int8"},
    {"dtype": "fp32", "precision": "tf32"},
    {"invariant": True},
]


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_its_space_is_small_and_its_default_is_in_it_wherever_it_serves(options):
    served = 0
    for m, n, k in itertools.product((257, 1000, 4096), (128, 3072, 28672), (64, 1000, 4096)):
        problem = nt(m, n, k, **options)
        if SPEC.unserved(problem, H200) is None:
            configs = SPEC.space(problem, H200).configs()
            assert 0 < len(configs) <= 6
            assert SPEC.default_config(problem, H200) in configs
            assert all(config["num_stages"] >= 3 for config in configs)
            assert all(SPEC.shared_bytes(config, problem, H200) <= H200.shared_bytes for config in configs)
            served += 1
    assert served >= 9


REFUSED = [
    ({"num_warps": 4}, "4 warps: two warpgroups"),
    ({"BLOCK_SIZE_K": 128, "num_stages": 3}, "rows of 128 bytes"),
    ({"num_stages": 1}, "2 stages at least"),
    ({"num_stages": 7}, "shared memory"),
    ({"BLOCK_SIZE_M": 64}, "a tile of 64x128+0: expected one of 128x128+0, 128x128+64, 64x256+0"),
    ({"EPILOGUE_PARTS": 2}, "EPILOGUE_PARTS is no parameter"),
]


@pytest.mark.parametrize(("changed", "reason"), REFUSED, ids=str)
def test_what_cannot_be_is_refused(changed, reason):
    space = SPEC.space(nt(1024, 4096, 4096), H200)
    assert space.rejection(PLAIN) is None
    assert reason in space.rejection(PLAIN.replace(**changed), fatal_only=True)


@pytest.mark.parametrize(
    ("problem", "chosen"),
    [
        (nt(2048, 3584, 18944, dtype="e4m3", scaling="row"), "any_height_ping_pong"),
        (nt(962, 28672, 4096, out_dtype="fp32"), "any_height_ping_pong"),
        (nt(2048, 6144, 4096, dtype="int8"), "warp_specialized"),  # as other layouts: it gained next to nothing
        (nt(8192, 8192, 512, layout="nn"), "any_height_ping_pong"),
        (nt(6144, 4096, 512, layout="tn"), "any_height_ping_pong"),
        (nt(261, 4608, 3584, dtype="e4m3", scaling="row"), "any_height"),  # all tiles run at once
        (nt(2048, 4096, 4120, dtype="fp16"), "warp_specialized"),  # odd rows, of which nothing is known
    ],
    ids=str,
)
def test_they_are_the_default_where_one_tile_is_stored_while_another_is_multiplied(problem, chosen):
    assert registry.default_config(problem, H200).kernel == chosen


@pytest.mark.parametrize("kernel", ["ping_pong", "any_height_ping_pong"])
@pytest.mark.parametrize(
    ("even", "odd"),
    [((2048, 4096, 4096, "nt"), (2048, 4096, 4104, "nt")), ((2048, 4096, 4096, "tn"), (2040, 4096, 4096, "tn"))],
    ids=str,
)
def test_rows_at_odd_multiples_of_16_bytes_take_longer(kernel, even, odd):
    """Measured: 1.46 times as long as was estimated before in the mean (docs/decisions.md, 169)."""
    spec = registry.find("matmul", kernel)
    problems = [Problem(*shape, dtype="bf16", layout=layout) for *shape, layout in (even, odd)]
    config = spec.default_config(problems[1], H200)
    few, more = (spec.estimate_us(config, problem, H200) for problem in problems)
    assert 1.25 < more / few < 1.8


def test_where_rows_of_b_along_n_begin_changes_no_estimate():
    """Its tiles begin at whole chunks of B, whose rows cross lines in all kernels' tiles alike."""
    ragged, whole = (SPEC.estimate_us(PLAIN, nt(1024, n, 4096, layout="nn"), H200) for n in (4128, 4160))
    assert ragged == whole


def test_an_estimate_grows_with_each_round_of_tiles():
    rounds = [SPEC.estimate_us(PLAIN, nt(128 * rows, 128 * 132, 4096), H200) for rows in (3, 4, 5, 6)]
    steps = [after - before for before, after in itertools.pairwise(rounds)]
    assert min(steps) > 0
    assert max(steps) == pytest.approx(min(steps), rel=0.1)


TALL = registry.find("matmul", "any_height_ping_pong")
HEIGHT = Config(
    TALL.name,
    BLOCK_SIZE_M=136,
    BLOCK_SIZE_N=128,
    BLOCK_SIZE_K=64,
    GROUP_SIZE_M=3,
    launch_pdl=True,
    num_stages=5,
    num_warps=8,
)


@pytest.fixture
def _tried_triton(monkeypatch):
    monkeypatch.setattr(devices, "triton_version", lambda: "3.7.1")


@pytest.mark.usefixtures("_tried_triton")
@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (nt(256, 4096, 4096), "M is 256: it is for 257 rows of A or more"),
        (nt(512, 96, 4096), "N is 96: a tile has 128 columns"),
        (nt(512, 4096, 24), "K is 24"),
        (nt(512, 4096, 4096, dtype="e4m3", layout="nn"), "of 8 bits wgmma reads both operands along K"),
        (nt(512, 4096, 4096, dtype="int8"), "int8"),
        (nt(512, 4096, 4096, dtype="e4m3", fast_accum=False), "in the tensor cores alone"),
        (nt(512, 4096, 4096, dtype="e4m3", scaling="block"), "no scaling 'block'"),
    ],
    ids=str,
)
def test_what_tiles_of_any_height_cannot_do_is_said_in_a_sentence(problem, reason):
    assert reason in TALL.unserved(problem, H200)


def test_other_releases_of_triton_than_the_one_that_placed_its_ring_do_not_run_it(monkeypatch):
    monkeypatch.setattr(devices, "triton_version", lambda: "3.6.0")
    assert "Triton 3.6.0" in TALL.unserved(nt(512, 4096, 4096), H200)


@pytest.mark.usefixtures("_tried_triton")
@pytest.mark.parametrize("invariant", [False, True])
def test_of_heights_that_leave_as_much_to_do_the_tallest_loads_least_and_is_the_default_of_invariant_families_too(
    invariant,
):
    problem = nt(8000, 3584, 18944, invariant=invariant)
    tall, low = (HEIGHT.replace(BLOCK_SIZE_M=rows) for rows in (192, 96))
    assert TALL.estimate_us(tall, problem, H200) < TALL.estimate_us(low, problem, H200)
    assert TALL.default_config(problem, H200)["BLOCK_SIZE_M"] == 192


@pytest.mark.usefixtures("_tried_triton")
@pytest.mark.parametrize(
    "options",
    [{}, {"out_dtype": "fp32"}, {"dtype": "e4m3", "scaling": "row"}, {"dtype": "fp16", "invariant": True}],
    ids=str,
)
def test_few_heights_are_tried_and_the_default_is_one_of_them(options):
    for m, n, k in itertools.product((257, 926, 8192), (3072, 28672), (64, 1008, 4096)):
        problem = nt(m, n, k, **options)
        assert TALL.unserved(problem, H200) is None
        configs = TALL.space(problem, H200).configs()
        assert 0 < len(configs) <= 6
        assert len({config["BLOCK_SIZE_M"] for config in configs}) == 3
        assert TALL.default_config(problem, H200) in configs
        assert all(config["num_stages"] >= 3 for config in configs)
        assert all(TALL.shared_bytes(config, problem, H200) <= H200.shared_bytes for config in configs)


@pytest.mark.usefixtures("_tried_triton")
def test_the_height_that_fills_the_waves_comes_first():
    """926 rows are 7 of 136, and 7 times 56 tiles are 392 of the 396 that three waves hold."""
    assert TALL.default_config(nt(926, 7168, 4096), H200)["BLOCK_SIZE_M"] == 136


@pytest.mark.usefixtures("_tried_triton")
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"BLOCK_SIZE_M": 132}, "132"),
        ({"BLOCK_SIZE_M": 216}, "216"),
        ({"BLOCK_SIZE_N": 256, "num_stages": 3}, "256 columns for 8 warps: 128 for 8"),
        ({"BLOCK_SIZE_K": 128, "num_stages": 3}, "128"),
        ({"num_stages": 1}, "2 stages at least"),
        ({"num_stages": 7}, "shared memory"),
        ({"BLOCK_SIZE_M": 120, "num_stages": 7}, "8 warps with 7 stages, which leave no buffers"),
        ({"num_ctas": 2}, "num_ctas is no parameter"),
    ],
    ids=str,
)
def test_what_cannot_be_of_tiles_of_any_height_is_refused(changed, reason):
    space = TALL.space(nt(926, 7168, 4096), H200)
    assert space.rejection(HEIGHT) is None
    assert reason in space.rejection(HEIGHT.replace(**changed), fatal_only=True)


@pytest.fixture(scope="module")
def emulated(emulate) -> list[dict[str, object]]:
    return emulate("emulated_ping_pong.py")


def test_its_source_is_exact_where_threads_run_it(emulated):
    right = [one for one in emulated if one["fault"] is None]
    assert len(right) == 19
    for one in right:
        assert one["difference"] == 0.0, one["case"]


def test_faults_that_are_planted_in_its_source_are_seen(emulated):
    faulty = [one for one in emulated if one["fault"] is not None]
    assert len(faulty) == 21
    for one in faulty:
        assert one["difference"] != 0.0, one["fault"]
