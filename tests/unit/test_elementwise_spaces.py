"""Kernels of ops that only move memory: spaces that can be searched, defaults that obey them, formulas that hold."""

from __future__ import annotations

import random

import pytest

from tuner import Problem
from tuner.hardware.device import INTERPRETER, KNOWN
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.kernels.elementwise import rules as elementwise_rules
from tuner.launch.arguments import AddressArgument
from tuner.launch.plan import arguments_without_memory, recorded

H200 = KNOWN["sm_90"]
DEVICES = [*KNOWN.values(), INTERPRETER]
DTYPES = ("fp16", "bf16", "fp32")
VECTORS = [
    Problem(length, 1, 1, dtype=dtype, op="vector_add")
    for length in (1, 7, 33, 5000, 2**16, 10**6 + 1, 2**24, 2**28, 2**31 - 1)
    for dtype in DTYPES
]
MATRICES = [
    Problem(rows, columns, 1, dtype=dtype, layout=layout, op="softmax")
    for rows, columns in ((1, 1), (5, 3), (8192, 64), (100, 1000), (4096, 4096), (4096, 32768), (64, 10**5), (1, 2**20))
    for dtype in DTYPES
    for layout in ("nn", "tn")
]
NORMS = [
    Problem(rows, columns, 1, dtype=dtype, op="rms_norm", extras={"eps": 1e-6})
    for rows, columns in ((1, 1), (5, 3), (8192, 64), (65536, 128), (1, 4096), (256, 7168), (4096, 8192), (64, 32768))
    for dtype in DTYPES
]
PROBLEMS = VECTORS + MATRICES + NORMS


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.arch)
def test_every_space_holds_configs_and_its_default(device):
    for problem in PROBLEMS:
        for spec in registry.serving(problem, device):
            space, default = spec.space(problem, device), spec.default_config(problem, device)
            configs = space.configs()
            assert configs, f"{spec.name} {problem}"
            assert space.canonicalize(default) in configs, f"{problem}: {default}"
            assert space.odd_parameters(default) == set()
            for config in random.Random(0).sample(configs, min(5, len(configs))):
                assert space.canonicalize(config) == config
                assert spec.shared_bytes is None or spec.shared_bytes(config, problem, device) <= device.shared_bytes
                assert spec.estimate_us(config, problem, device) > 0


def test_spaces_are_small_enough_to_be_searched_exhaustively():
    for problem in PROBLEMS:
        assert sum(len(spec.space(problem, H200).configs()) for spec in registry.serving(problem, H200)) <= 900


def test_every_value_of_the_tutorials_axes_is_there():
    axes = registry.find("vector_add", "add_block").space(VECTORS[0], H200).axes
    assert axes["BLOCK_SIZE"] == tuple(2**power for power in range(14))
    assert axes["num_warps"] == (1, 2, 4, 8, 16, 32)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_every_rule_has_a_source(problem):
    for spec in registry.serving(problem, H200):
        assert all(rule.source for rule in spec.space(problem, H200).rules)


ADD = Config("add_block", BLOCK_SIZE=1024, PROGRAMS_PER_SM=0, launch_pdl=True, num_stages=3, num_warps=4)


@pytest.mark.parametrize(
    ("length", "change", "rule", "fatal"),
    [
        (2**20, {"BLOCK_SIZE": 1000}, "parameters", True),
        (2**20, {"BLOCK_SIZE": 2**21}, "parameters", True),
        (2**20, {"num_warps": 64}, "parameters", True),
        (2**20, {"PROGRAMS_PER_SM": 8}, "parameters", True),
        (2**20, {"BLOCK_SIZE": 64}, "idle threads", False),
        (2**20, {"BLOCK_SIZE": 128}, "narrow loads", False),
        (2**20, {"BLOCK_SIZE": 8192, "num_warps": 1}, "registers", False),
        (1000, {"BLOCK_SIZE": 4096}, "beyond M", False),
    ],
    ids=str,
)
def test_a_rule_says_why_a_config_is_not_tried(length, change, rule, fatal):
    space = registry.find("vector_add", "add_block").space(Problem(length, 1, 1, op="vector_add"), H200)
    assert space.rejection(ADD) is None or length == 1000
    assert space.rejection(ADD.replace(**change)).startswith(f"{rule}: ")
    assert (space.rejection(ADD.replace(**change), fatal_only=True) is not None) is fatal


@pytest.mark.parametrize("kernel", ["add_block", "softmax_whole"])
def test_a_winner_that_loops_over_blocks_is_refused_and_those_that_do_not_stay_what_they_were(kernel):
    problem = Problem(2**20, 1, 1, op="vector_add") if kernel == "add_block" else Problem(4096, 1024, 1, op="softmax")
    spec = registry.find(problem.op, kernel)
    space, before = spec.space(problem, H200), ADD
    if kernel == "softmax_whole":
        before = Config(kernel, BLOCK_SIZE_M=1, PROGRAMS_PER_SM=0, launch_pdl=True, num_stages=3, num_warps=4)
    assert before in space.configs()
    assert space.tries(before)
    assert "the only value left" in space.rejection(before.replace(PROGRAMS_PER_SM=4), fatal_only=True)


@pytest.mark.parametrize(
    ("problem", "slots"),
    [
        (Problem(1000, 1, 1, op="vector_add"), [1, 2, 0]),
        (Problem(4096, 1024, 1, op="softmax"), [1, 0]),
        (Problem(64, 4096, 1, op="rms_norm", extras={"eps": 1e-6}), [1, 2, 0]),
    ],
    ids=str,
)
def test_an_export_can_say_what_is_launched_on_which_of_a_calls_tensors(problem, slots):
    config = registry.default_config(problem, H200)
    with recorded(lambda _launch: None) as seen:
        registry.find(problem.op, config.kernel).compile(problem, config)
    (given,) = arguments_without_memory(seen)
    assert [each.slot for each in given if isinstance(each, AddressArgument)] == slots


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_default_keeps_enough_bytes_in_flight_or_reaches_every_multiprocessor(dtype):
    for length in (2**12, 2**17, 2**22, 2**28):
        problem = Problem(length, 1, 1, dtype=dtype, op="vector_add")
        config = registry.default_config(problem, H200)
        block, size = int(config["BLOCK_SIZE"]), 4 if dtype == "fp32" else 2
        in_flight = 2 * block * size * elementwise_rules.resident(config, H200)
        assert in_flight >= elementwise_rules.BYTES_IN_FLIGHT or -(-length // block) <= 2 * H200.sm_count


def test_few_long_rows_are_split_over_the_device_and_short_ones_share_a_program():
    few, short = (registry.default_config(Problem(*shape, 1, op="softmax"), H200) for shape in ((8, 2**20), (8192, 64)))
    assert few.kernel == "softmax_split", "eight programs would leave most multiprocessors idle"
    assert short["BLOCK_SIZE_M"] > 1


@pytest.mark.parametrize("m", [1, 8, 32, 128])
@pytest.mark.parametrize(("n", "warps"), [(1024, 2), (2048, 4), (3072, 8), (4096, 8), (5120, 16), (8192, 16)])
def test_a_norm_of_a_decode_step_has_a_program_for_each_row(m, n, warps):
    """As the prototype had it that decision 123 names."""
    config = registry.default_config(Problem(m, n, 1, dtype="bf16", op="rms_norm", extras={"eps": 1e-6}), H200)
    assert (config["BLOCK_SIZE_M"], config["num_warps"], config["launch_pdl"]) == (1, warps, True)


def test_norms_of_heads_share_a_program_where_there_are_many():
    few, many, longer = (
        registry.default_config(Problem(*shape, 1, dtype="bf16", op="rms_norm", extras={"eps": 1e-6}), H200)
        for shape in ((32, 128), (65536, 128), (4096, 4096))
    )
    assert (few["BLOCK_SIZE_M"], longer["BLOCK_SIZE_M"]) == (1, 1)
    assert many["BLOCK_SIZE_M"] > 1
    assert many["num_warps"] > 1


NORM = Config("rms_norm_whole", BLOCK_SIZE_M=4, launch_pdl=True, num_warps=4)


@pytest.mark.parametrize(
    ("shape", "change", "rule", "fatal"),
    [
        ((4096, 1024), {"BLOCK_SIZE_M": 3}, "parameters", True),
        ((4096, 1024), {"num_stages": 3}, "parameters", True),
        ((4096, 128), {"BLOCK_SIZE_M": 1}, "narrow loads", False),
        ((4096, 32768), {"BLOCK_SIZE_M": 1, "num_warps": 2}, "registers", False),
        ((4096, 32768), {"BLOCK_SIZE_M": 128, "num_warps": 32}, "tile", True),
        ((2, 1024), {}, "beyond M", False),
    ],
    ids=str,
)
def test_a_rule_says_why_a_norms_config_is_not_tried(shape, change, rule, fatal):
    problem = Problem(*shape, 1, dtype="bf16", op="rms_norm", extras={"eps": 1e-6})
    space = registry.find("rms_norm", "rms_norm_whole").space(problem, H200)
    assert space.rejection(NORM.replace(**change)).startswith(f"{rule}: ")
    assert (space.rejection(NORM.replace(**change), fatal_only=True) is not None) is fatal


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"n": 32769}, "N is 32769: a program's registers hold 32768; use torch.nn.functional.rms_norm"),
        ({"k": 2}, "K is 2: a matrix's problem is Problem(M, N, 1, op='rms_norm', extras={'eps': 1e-6})"),
        ({"layout": "tn"}, "no layout tn: expected nn"),
        ({"epilogue": "relu"}, "no epilogue relu"),
        ({"dtype": "e4m3"}, "no float8_e4m3fn"),
        ({"extras": {"eps": 1e-6, "batch": 2}}, "no extras {'batch': 2}"),
    ],
    ids=str,
)
def test_what_the_norms_kernel_does_not_serve_is_said(changed, words):
    parts = {"n": 64, "k": 1, "op": "rms_norm", "extras": {"eps": 1e-6}, **changed}
    reason = registry.find("rms_norm", "rms_norm_whole").supports(Problem(4, **parts), H200)
    assert reason.startswith(words)


def test_a_key_that_no_gemm_has_is_aligned_by_its_own_rule():
    assert Problem(1001, 1, 1, op="vector_add").aligned
    assert not Problem(64, 1001, 1, op="softmax").aligned
    assert Problem(1001, 64, 1, op="softmax").aligned
    assert not Problem(1001, 64, 1, op="softmax", layout="tn").aligned
    assert not Problem(64, 1001, 1, op="rms_norm", extras={"eps": 1e-6}).aligned
    assert Problem(1001, 64, 1, op="rms_norm", extras={"eps": 1e-6}).aligned
    assert Problem(64, 1, 1, op="matmul").aligned is False


def test_what_is_moved_is_counted_once():
    add, softmax = registry.find("vector_add", "add_block"), registry.find("softmax", "softmax_online")
    assert add.bytes_moved(Problem(1000, 1, 1, dtype="fp32", op="vector_add")) == 12_000
    assert add.flops(Problem(1000, 1, 1, op="vector_add")) == 1000
    assert softmax.bytes_moved(Problem(10, 100, 1, op="softmax")) == 4000
    norm = registry.find("rms_norm", "rms_norm_whole")
    assert norm.bytes_moved(Problem(10, 100, 1, op="rms_norm", extras={"eps": 1e-6})) == 4200
