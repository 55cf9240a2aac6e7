"""The GEMM kernels through Triton's real launch path: what a config becomes at the driver, and what compiles anew."""

from __future__ import annotations

import json

import pytest

from tuner.kernel.config import Config
from tuner.problem import Problem

CONFIG = Config(
    "pointer", BLOCK_SIZE_M=64, BLOCK_SIZE_N=128, BLOCK_SIZE_K=32, GROUP_SIZE_M=8, num_warps=4, num_stages=3
)


@pytest.fixture(scope="module")
def gemm(stub):
    """Run GEMMs over the stub, in one process; compile them in one that shares nothing with those but the cache."""

    def gemm(*asked: tuple[Problem, Config], mode: str = ""):
        steps = [[problem.fields(), config.kernel, dict(config)] for problem, config in asked]
        return stub.run("gemm.py", json.dumps(steps), *filter(None, [mode]), alone=mode == "compile")

    return gemm


def test_a_config_becomes_grid_block_and_arguments_in_order(gemm):
    # A's leading stride, B's, the output's: a stride of 1 is compiled in and is no argument.
    strides = {"nn": (64, 300, 300), "nt": (64, 64, 300), "tn": (200, 300, 300), "tt": (200, 64, 300)}
    report = gemm(*((Problem(200, 300, 64, layout=layout), CONFIG) for layout in strides))
    for launch, told, expected in zip(report.launches, report.printed["launches"], strides.values(), strict=True):
        assert launch.grid == (4 * 3, 1, 1)  # ceil(200 / 64) by ceil(300 / 128)
        assert launch.block == (4 * 32, 1, 1)
        assert launch.shared_bytes > 0
        # The four rows of tiles are fewer than the group of eight; two null scratch pointers come last.
        arguments = [launch.integer(i) for i in range(len(launch.params))]
        assert arguments == [*told["pointers"], 200, 300, 64, *expected, 4, 0, 0]


def test_a_bias_follows_the_output(gemm):
    report = gemm((Problem(64, 128, 32, epilogue="bias+relu"), CONFIG))
    (launch,) = report.launches
    assert [launch.integer(i) for i in range(4)] == report.printed["launches"][0]["pointers"]


def test_one_binary_serves_every_m_n_k_and_group(gemm):
    problems = [Problem(m, n, k) for m, n, k in ((200, 304, 64), (1, 304, 64), (4096, 304, 64), (200, 1024, 4096))]
    groups = [CONFIG.replace(GROUP_SIZE_M=size) for size in (1, 4, 16)]
    report = gemm(*((problem, CONFIG) for problem in problems), *((problems[0], config) for config in groups))
    told = report.printed["launches"]
    assert len(report.launches) == 7
    assert len(report.loads) == 1
    assert len({one["compile_class"] for one in told}) == 1
    assert [launch.grid[0] for launch in report.launches] == [12, 3, 192, 32, 12, 12, 12]


def test_another_tile_pipeline_or_warp_count_is_another_binary(gemm):
    problem = Problem(64, 128, 64)
    configs = [CONFIG, CONFIG.replace(BLOCK_SIZE_M=32), CONFIG.replace(num_stages=2), CONFIG.replace(num_warps=8)]
    report = gemm(*((problem, config) for config in configs))
    assert len(report.loads) == 4
    assert len({one["compile_class"] for one in report.printed["launches"]}) == 4
    assert [launch.block[0] for launch in report.launches] == [128, 128, 128, 256]


TMA = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "num_warps": 4, "num_stages": 3}
NT = Problem(512, 512, 512, dtype="bfloat16", layout="nt")
FEW = Problem(8, 256, 512, dtype="bfloat16", layout="nt", epilogue="bias+silu")
EVERY_KERNEL = [
    (NT, CONFIG.replace(num_stages=4)),
    (NT, Config("split_k", **TMA, LOADS="pointer", SPLIT_K=2)),
    (NT, Config("split_k", **TMA, LOADS="tma", SPLIT_K=4)),
    (FEW, Config("swap_ab", **{**TMA, "BLOCK_SIZE_M": 16}, LOADS="tma", SPLIT_K=2)),
    (FEW.with_shape(1, 256, 512), Config("gemv", BLOCK_SIZE_N=16, BLOCK_SIZE_K=64, SPLIT_K=1, num_warps=2)),
    (NT, Config("tma", **TMA, GROUP_SIZE_M=4)),
    (NT, Config("persistent_tma", **TMA, GROUP_SIZE_M=4, EPILOGUE_PARTS=1)),
]


@pytest.mark.long
def test_what_the_tuner_compiled_is_what_a_launch_finds(gemm):
    offline = gemm(*EVERY_KERNEL, mode="compile").printed
    serving = gemm(*EVERY_KERNEL)
    assert (offline["compiled"], offline["from_cache"]) == (len(EVERY_KERNEL), 0)
    assert (serving.printed["compiled"], serving.printed["from_cache"]) == (0, len(EVERY_KERNEL))
    assert len(serving.launches) == len(EVERY_KERNEL)


def test_splits_are_a_second_axis_of_the_grid_and_persistent_programs_no_more_than_multiprocessors(gemm):
    grids = [launch.grid for launch in gemm(*EVERY_KERNEL).launches]
    # Tiles of 64x64; over operands on the CPU a persistent kernel has one program.
    assert grids[1:] == [(64, 2, 1), (64, 4, 1), (4, 2, 1), (16, 1, 1), (64, 1, 1), (1, 1, 1)]


def test_too_much_shared_memory_is_refused_before_the_launch(gemm):
    greedy = CONFIG.replace(BLOCK_SIZE_M=128, BLOCK_SIZE_K=128, num_stages=4)
    report = gemm((Problem(512, 512, 512), greedy))
    assert "shared memory" in report.printed["launches"][0]["refused"]
    assert (report.loads, report.launches) == ((), ())
