"""What `block_scaled_warp_specialized` serves, its configs and its launches, and its source run by threads: no GPU."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

pytest.importorskip("triton", reason="the kernel needs Triton")

from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tuner import Config, Problem
from tuner.hardware.device import INTERPRETER, KNOWN
from tuner.kernel import registry
from tuner.kernels.base.operands import make_operands
from tuner.kernels.gemm.block_scaled import hopper

H200 = KNOWN["sm_90"]
SPEC = registry.find("matmul", "block_scaled_warp_specialized")
FEW = Config(
    SPEC.name,
    BLOCK_SIZE_M=8,
    BLOCK_SIZE_N=64,
    BLOCK_SIZE_K=128,
    GROUP_SIZE_M=1,
    EPILOGUE_PARTS=1,
    num_stages=12,
    num_warps=4,
    launch_pdl=True,
)
MANY = FEW.replace(BLOCK_SIZE_M=128, BLOCK_SIZE_N=128, EPILOGUE_PARTS=2, num_stages=5, num_warps=8)


def scaled(m: int = 64, n: int = 7168, k: int = 2048, **parts: object) -> Problem:
    return Problem(m, n, k, **{"dtype": "e4m3", "layout": "nt", "scaling": "block", **parts})


UNSERVED = [
    (scaled(), INTERPRETER, "no interpreter"),
    (scaled(), KNOWN["sm_100"], "Hopper"),
    (scaled(scaling="row"), H200, "scaling is 'row'"),
    (scaled(layout="nn"), H200, "along K"),
    (scaled(k=64), H200, "K is 64"),
    (scaled(n=32), H200, "N is 32"),
    (scaled(k=1001), H200, "not aligned"),
    (scaled(invariant=True), H200, "every M"),
]


@pytest.mark.parametrize(("problem", "device", "reason"), UNSERVED, ids=str)
def test_what_it_cannot_do_is_said_in_a_sentence(problem, device, reason):
    said = SPEC.supports(problem, device)
    if problem.invariant:
        assert SPEC.name not in {spec.name for spec in registry.serving(problem, device)}
    else:
        assert said is not None
        assert reason in said


def test_it_serves_what_warp_specialized_serves_with_scales_of_blocks():
    other, served = registry.find("matmul", "warp_specialized"), 0
    for m, n, k, arch in itertools.product(
        (1, 100, 4096), (32, 64, 1000), (64, 80, 128, 1001, 7168), ("sm_90", "gfx942")
    ):
        problem = scaled(m, n, k)
        assert (SPEC.supports(problem, KNOWN[arch]) is None) == (other.supports(problem, KNOWN[arch]) is None), problem
        served += SPEC.supports(problem, KNOWN[arch]) is None
    assert served == 18


@pytest.mark.parametrize("k", [80, 128, 1536, 2176, 7168])
@pytest.mark.parametrize("n", [64, 208, 7168, 24576])
def test_its_default_is_a_config_of_its_space_for_any_m(n, k):
    for m in (1, 2, 7, 8, 9, 33, 64, 65, 129, 500, 4096):
        problem = scaled(m, n, k)
        space = SPEC.space(problem, H200)
        default = SPEC.default_config(problem, H200)
        assert space.rejection(default) is None, problem
        assert default in space.configs()


REFUSED = [
    (FEW, 9, "a tile of fewer than 64 has all of them"),
    (FEW.replace(BLOCK_SIZE_M=64, num_warps=8, num_stages=4), 64, "8 multiply 128 rows"),
    (FEW.replace(BLOCK_SIZE_N=256), 8, "a tile of 8x256"),
    (FEW.replace(BLOCK_SIZE_K=64), 8, "a scale is for 128"),
    (FEW.replace(num_stages=1), 8, "2 stages at least"),
    (FEW.replace(EPILOGUE_PARTS=8), 8, "8 parts"),
    (MANY.replace(num_stages=7), 4096, "a block has 232448"),
]


@pytest.mark.parametrize(("config", "m", "reason"), REFUSED, ids=str)
def test_a_config_that_cannot_run_is_refused(config, m, reason):
    said = SPEC.space(scaled(m), H200).rejection(config, fatal_only=True)
    assert said is not None
    assert reason in str(said)


def test_a_tile_of_64_rows_or_more_serves_every_m():
    for config, m in itertools.product((FEW.replace(BLOCK_SIZE_M=64), MANY), (1, 3, 64, 65, 255, 4096)):
        assert SPEC.space(scaled(m), H200).rejection(config, fatal_only=True) is None


def test_short_steps_along_k_get_the_deepest_ring_that_fits():
    stages = {config["EPILOGUE_PARTS"]: config["num_stages"] for config in SPEC.space(scaled(4096), H200).configs()}
    assert stages == {2: 5, 4: 6}


def launched(config: Config, problem: Problem, a_strides: tuple[int, int] | None = None, b_rows: int = 0):
    """A launch on operands without memory, whose scales have such strides."""
    inputs = make_operands(problem, "meta", 0)
    if a_strides:
        inputs = dataclasses.replace(inputs, scale_a=inputs.scale_a.as_strided(inputs.scale_a.shape, a_strides))
    if b_rows:
        inputs = dataclasses.replace(inputs, scale_b=inputs.scale_b.as_strided(inputs.scale_b.shape, (1, b_rows)))
    (launch,) = hopper.program(inputs, config)
    names = [name for name in launch.function.arg_names if name not in launch.constants]
    return launch, dict(zip(names, launch.arguments, strict=True))


LAYOUTS = [
    # M, K, strides of A's scales, the leading dimension of B's; whether TMA can read them.
    (64, 2048, None, 0, True),
    (6, 2048, None, 0, False),  # columns of 24 bytes
    (6, 2048, (1, 8), 0, True),  # padded to 16 bytes, as DeepGEMM has them
    (1, 2048, (16, 1), 0, False),  # one row, contiguous
    (1, 2048, (1, 4), 0, True),
    (64, 2048, (16, 1), 0, False),  # row by row, as Triton's kernels of vLLM have them
    (64, 2304, None, 0, False),  # 18 scales of the weight in a row of 72 bytes
    (64, 2304, None, 20, True),
    (64, 2048, (0, 0), 0, False),
    (1, 128, None, 0, False),
]


@pytest.mark.parametrize(("m", "k", "a_strides", "b_rows", "by_tma"), LAYOUTS)
def test_scales_of_any_strides_are_loaded_by_tma_or_copied_by_threads(m, k, a_strides, b_rows, by_tma):
    problem = scaled(m, 7168, k)
    launch, arguments = launched(FEW.replace(BLOCK_SIZE_M=64), problem, a_strides, b_rows)
    strides = [arguments[name] for name in ("stride_asm", "stride_ask", "stride_bsk", "stride_bsn")]
    descriptors = [isinstance(arguments[name], TensorDescriptor) for name in ("a_scales", "b_scales")]
    assert descriptors == [by_tma] * 2
    assert (strides == [None] * 4) == by_tma
    assert launch.constants["REST"] == -(-k // 128) % 4
    if by_tma:
        assert arguments["a_scales"].block_shape == [1, 64]
        assert arguments["a_scales"].shape == [k // 128, m]


def test_every_m_runs_one_of_two_binaries():
    classes = {SPEC.compile_class(scaled(m), FEW.replace(BLOCK_SIZE_M=64)): m % 4 for m in range(1, 257)}
    assert len(classes) == 2


def test_a_launch_has_a_program_for_each_tile_or_multiprocessor(monkeypatch):
    monkeypatch.setattr(hopper, "multiprocessors", lambda _device: 20)
    few, _ = launched(FEW, scaled(5, 1000, 512))
    assert few.grid == (16,)
    many, arguments = launched(MANY, scaled(300, 1000, 512))
    assert many.grid == (20,)
    assert arguments["GROUP_SIZE_M"] == 1


MEASURED = [
    ((1929, 4512, 2304), (128, 128), 16, 39.2),
    ((424, 16384, 3712), (128, 128), 4, 51.7),
    ((560, 512, 512), (64, 64), 4, 2.70),
    ((328, 2656, 15616), (64, 128), 6, 30.4),
    ((3264, 832, 4224), (128, 64), 1, 26.4),
    ((653, 160, 5888), (64, 64), 4, 8.61),
    ((480, 112, 640), (64, 64), 4, 2.71),
    ((12404, 192, 3456), (128, 64), 1, 24.4),
]


@pytest.mark.parametrize(("shape", "tile", "group", "us"), MEASURED, ids=str)
def test_beyond_256_rows_its_own_model_is_near_what_was_measured(shape, tile, group, us):
    """Trials on an H200, the fastest of each problem (benchmarks/data, near- and narrow-blocks-h200.db.xz)."""
    rows, columns = tile
    config = MANY.replace(BLOCK_SIZE_M=rows, BLOCK_SIZE_N=columns, GROUP_SIZE_M=group, num_warps=rows // 16)
    assert SPEC.estimate_us(config, scaled(*shape), H200) == pytest.approx(us, rel=0.12)


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        # On an H200 64 columns took 1.4, 1.34 and 1.29 times as long (benchmarks/results/ceilings-h200.json and
        # block-scales-defaults-h200.json, drawn-blocks-third-h200.json, drawn-blocks-many-h200.json).
        ((1000, 5120, 5120), (128, 128, 8)),
        ((1544, 2640, 10752), (128, 128, 13)),
        ((2332, 1792, 6656), (128, 128, 1)),
    ],
)
def test_beyond_256_rows_its_default_is_the_tile_that_was_fastest(shape, tile):
    config = SPEC.default_config(scaled(*shape), H200)
    assert tuple(config[name] for name in ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "GROUP_SIZE_M")) == tile


@pytest.mark.parametrize(
    ("problem", "columns", "faster"),
    [(scaled(4096, 1024), 128, 1), (scaled(1024, 4096), 128, 8), (scaled(2048, 3072), 64, 1), (scaled(2048), 64, 8)],
    ids=str,
)
def test_tiles_side_by_side_load_the_larger_operand_together(problem, columns, faster):
    config = MANY.replace(BLOCK_SIZE_N=columns)
    estimated = {group: SPEC.estimate_us(config.replace(GROUP_SIZE_M=group), problem, H200) for group in (1, 8)}
    assert min(estimated, key=estimated.get) == faster


@pytest.mark.parametrize(("columns", "group"), [(3072, 1), (3200, 16)])
def test_rows_of_many_columns_do_not_run_side_by_side(columns, group):
    """7704x4096x7168 took 1.05 times as long in groups of 1 (benchmarks/results/drawn-blocks-many-first-h200.json)."""
    assert SPEC.default_config(scaled(7704, columns), H200)["GROUP_SIZE_M"] == group


@pytest.mark.parametrize(
    ("shape", "kernel"),
    [
        # Of these it took 0.72, 0.79 and 0.75 of the time of the default before (benchmarks/results/
        # drawn-blocks-last-h200.json, drawn-blocks-many-h200.json, drawn-blocks-third-h200.json).
        ((4070, 560, 8192), "any_height_split"),
        ((436, 512, 22016), "any_height_split"),
        ((932, 2208, 29824), "any_height_split"),
        ((440, 2560, 5120), SPEC.name),  # not of 112x192 in clusters of eight
        ((302, 608, 3328), SPEC.name),
        # Narrow outputs: 0.32, 0.56 and 0.47 of the time of the default before (narrow-blocks-h200.json).
        ((800, 32, 2048), "any_height_split"),
        ((436, 48, 2816), "any_height_split"),
        ((1755, 32, 1280), "any_height_split"),
        ((328, 64, 640), SPEC.name),
    ],
)
def test_beyond_256_rows_it_is_compared_with_tiles_of_any_height(shape, kernel):
    assert registry.default_config(scaled(*shape), H200).kernel == kernel


@pytest.mark.parametrize(
    ("shape", "compared"), [((300, 512, 8192), False), ((300, 248, 8192), False), ((200, 248, 8192), True)]
)
def test_where_its_model_knows_no_kernel_is_compared_that_was_never_the_fastest(shape, compared):
    other = registry.find("matmul", "block_scaled")
    problem = scaled(*shape)
    assert (other.precedence(problem, H200) == SPEC.precedence(problem, H200)) is compared


@pytest.fixture(scope="module")
def emulated(emulate) -> list[dict[str, object]]:
    return emulate("emulated_ring.py")


def test_its_source_is_exact_where_threads_run_it(emulated):
    right = [one for one in emulated if one["fault"] is None]
    assert len(right) == 9
    for one in right:
        assert one["difference"] == 0.0, one["case"]


def test_faults_that_are_planted_in_its_source_are_seen(emulated):
    faulty = [one for one in emulated if one["fault"] is not None]
    assert len(faulty) == 6
    for one in faulty:
        assert one["difference"] != 0.0, one["fault"]


@pytest.mark.parametrize(
    ("shape", "first"),
    [
        ((4096, 4096, 7168), SPEC.name),
        ((64, 7168, 2048), SPEC.name),
        ((128, 7168, 2048), SPEC.name),
        ((1, 7168, 2048), SPEC.name),
        ((1, 256, 7168), "block_scaled"),  # 4 tiles of 64 columns: there sums are split, in 14 parts
        ((16, 512, 65536), "any_height_split"),  # 8 of them: a cluster splits each
    ],
)
@pytest.mark.usefixtures("no_tables")
def test_where_nobody_tuned_it_comes_first_unless_split_sums_fill_the_device(shape, first):
    import tuner

    assert tuner.lookup(scaled(*shape), H200).config.kernel == first


def test_the_model_is_near_what_was_measured():
    # Medians of a study on an H200 with these configs.
    measured = [
        ((4096, 4096, 7168), MANY.replace(GROUP_SIZE_M=16), 188.5),
        ((4096, 7168, 16384), MANY.replace(GROUP_SIZE_M=16), 764.1),
        ((4096, 24576, 1536), MANY.replace(GROUP_SIZE_M=16), 265.0),
        ((64, 7168, 2048), FEW.replace(BLOCK_SIZE_M=64), 6.18),
        ((128, 7168, 2048), FEW.replace(BLOCK_SIZE_M=128, num_stages=8, num_warps=8), 6.95),
    ]
    for shape, config, us in measured:
        problem = scaled(*shape)
        assert SPEC.estimate_us(config, problem, H200) == pytest.approx(us, rel=0.2)
        if shape[0] != 128:
            assert SPEC.default_config(problem, H200) == config, problem


@pytest.mark.parametrize("k", [2048, 2304])
def test_128_rows_get_one_of_two_tiles_that_took_as_long_to_within_2_percent(k):
    """Microseconds of 128x7168x2304 in benchmarks/data/shipped-h200.db.xz; the next tile took 8.71."""
    took = {(128, 64): 7.61, (64, 128): 7.75}
    config = SPEC.default_config(scaled(128, 7168, k), H200)
    assert (config["BLOCK_SIZE_M"], config["BLOCK_SIZE_N"]) in took


def test_scales_are_kept_where_they_lie_in_memory():
    assert hopper._readable_by_tma(torch.empty(4, 8, device="meta"))
    assert not hopper._readable_by_tma(torch.empty(4, 6, device="meta"))
    assert not hopper._readable_by_tma(torch.empty(8, 4, device="meta").t())
    assert not hopper._readable_by_tma(torch.empty(4, 9)[:, 1:])
