"""Every kernel of the op matmul: a space that can be searched, a default that obeys it, configs that a lookup takes."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest
import torch

from tuner import Problem
from tuner.hardware.device import INTERPRETER, KNOWN
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.kernel.space import Rule, SearchSpace
from tuner.kernels.base import workspace
from tuner.kernels.base.operands import make_operands
from tuner.kernels.gemm import splitting
from tuner.kernels.gemm.small_m import gemv
from tuner.problem import suite

SUITE = suite.load(str(Path(__file__).parents[2] / "benchmarks" / "suites" / "public.csv"))
H200 = KNOWN["sm_90"]
NAMES = sorted(name for op, name in registry.specs() if op == "matmul")
PROBLEMS = [
    Problem(4096, 4096, 4096, dtype="bf16", layout="nt"),
    Problem(1, 6144, 4096, dtype="bf16", layout="nt"),
    Problem(3, 1000, 1001, dtype="fp16", layout="tn", epilogue="bias"),
    Problem(16, 8192, 1024, dtype="bf16", layout="nt", epilogue="silu"),
    Problem(64, 256, 7168, dtype="bf16", layout="nt"),
    Problem(32, 32, 16384, dtype="bf16", layout="nt"),
    Problem(128, 2112, 7168, dtype="e4m3", layout="nt"),
    Problem(1000, 3000, 2000, dtype="bf16", layout="nt"),
    Problem(1023, 2047, 4093, dtype="bf16", layout="nt"),
    Problem(512, 512, 512, dtype="bf16", aligned=False),
    Problem(300, 200, 1000, dtype="fp32", layout="tt", precision="tf32x3"),
    Problem(2048, 2048, 2048, dtype="fp32"),
    Problem(2048, 2048, 2048, dtype="e5m2", layout="nn", out_dtype="fp32"),
    Problem(4096, 32768, 512, dtype="bf16", layout="nt"),
    Problem(256, 8192, 3584, dtype="fp16", layout="tn", out_dtype="fp32"),
    Problem(100_000, 96, 128, dtype="bf16", layout="nt"),
    Problem(33, 100_000, 64, dtype="bf16", layout="nt"),
    Problem(16, 7168, 2048, dtype="e4m3", layout="nt", scaling="block"),
    Problem(100, 512, 1024, dtype="int8", layout="nt", scaling="row"),
]
DEVICES = [*KNOWN.values(), INTERPRETER]


def served(name: str, device) -> list[Problem]:
    spec = registry.find("matmul", name)
    return [problem for problem in PROBLEMS if spec.supports(problem, device) is None]


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.arch)
@pytest.mark.parametrize("name", NAMES)
def test_a_default_can_run_and_is_a_config_of_its_kernel(name, device):
    spec = registry.find("matmul", name)
    for problem in served(name, device):
        config, space = spec.default_config(problem, device), spec.space(problem, device)
        assert config.kernel == name
        assert space.rejection(config, fatal_only=True) is None, f"{problem}: {config}"
        assert space.odd_parameters(config) == set(), f"{problem}: {config}"


@pytest.mark.parametrize("name", NAMES)
def test_a_default_takes_a_hundred_thousand_calls_or_so_at_most(name, count_calls):
    spec = registry.find("matmul", name)
    for problem in served(name, H200):
        assert count_calls(partial(spec.default_config, problem, H200)) < 150_000


@pytest.mark.parametrize("name", NAMES)
def test_a_space_is_not_empty_and_holds_canonical_configs_that_a_lookup_would_take(name):
    spec = registry.find("matmul", name)
    for device in (H200, KNOWN["sm_100"], KNOWN["gfx942"], INTERPRETER):
        for problem in served(name, device):
            space = spec.space(problem, device)
            configs = space.configs()
            assert configs, f"{problem} on {device.arch}"
            for config in random.Random(0).sample(configs, min(5, len(configs))):
                assert space.canonicalize(config) == config
                assert space.rejection(config) is None
                assert space.odd_parameters(config) == set()
                # What these pass on depends on their inner kernel.
                assert config.keys() ^ configs[0].keys() <= {*space.options} or name in {"padded", "k_major"}


MOST = {"pointer": 3000, "split_k": 2500, "swap_ab": 2500, "gemv": 300, "padded": 4000}


def test_every_row_of_the_public_suite_can_be_searched_exhaustively():
    for problem in SUITE:
        sizes = {spec.name: len(spec.space(problem, H200).configs()) for spec in registry.serving(problem, H200)}
        assert all(0 < size <= MOST.get(name, 600) for name, size in sizes.items()), f"{problem}: {sizes}"
        assert 200 <= sum(sizes.values()) <= 8000, f"{problem}: {sizes}"


@pytest.mark.parametrize("name", NAMES)
def test_every_rule_has_a_source(name):
    spec = registry.find("matmul", name)
    for problem in served(name, H200)[:1]:
        assert all(rule.source for rule in spec.space(problem, H200).rules)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_exchanging_operands_twice_gives_the_problem_back(problem):
    turned = problem.exchanged()
    assert turned.shape == (problem.n, problem.m, problem.k)
    assert (turned.a_dtype, turned.b_dtype, turned.out_dtype) == (problem.b_dtype, problem.a_dtype, problem.out_dtype)
    assert turned.aligned == problem.aligned
    assert turned.exchanged() == problem


def test_what_is_exchanged_lies_in_memory_as_before():
    assert Problem(8, 64, 32, layout="nt").exchanged().layout == "nt"
    assert Problem(8, 64, 32, layout="nn").exchanged().layout == "tt"
    assert Problem(8, 64, 32, layout="tn").exchanged().layout == "tn"


SPLIT = Config(
    "split_k", BLOCK_SIZE_M=64, BLOCK_SIZE_N=64, BLOCK_SIZE_K=64, LOADS="pointer", SPLIT_K=8, num_stages=4, num_warps=4
)


@pytest.mark.parametrize(
    ("shape", "change", "rule", "fatal"),
    [
        ((512, 512, 4096), {"SPLIT_K": 1}, "unsplit", False),
        ((64, 256, 2048), {"SPLIT_K": 24}, "idle split", False),
        ((64, 256, 1024), {"SPLIT_K": 12}, "idle split", False),
        ((1024, 1024, 8192), {}, "crowd", False),
        ((64, 64, 16384), {"SPLIT_K": 2}, "crowd", False),
        ((8192, 8192, 4096), {}, "workspace", True),
        ((512, 512, 4096), {"LOADS": "wire"}, "parameters", True),
        ((512, 512, 4096), {"num_stages": 64}, "shared memory", True),
    ],
    ids=str,
)
def test_a_rule_says_why_a_split_is_not_tried(shape, change, rule, fatal):
    space = registry.find("matmul", "split_k").space(Problem(*shape, dtype="bf16", layout="nt"), H200)
    assert space.rejection(SPLIT.replace(**change)).startswith(f"{rule}: ")
    assert (space.rejection(SPLIT.replace(**change), fatal_only=True) is not None) is fatal


@pytest.mark.parametrize("tiles", [1, 3, 40])
def test_however_many_steps_there_are_some_split_leaves_none_idle_and_fills_the_device(tiles):
    """A single tile of 104 steps had no split at all (benchmarks/results/even-splits-first-h200.json)."""
    for steps in range(8, 1100):
        problem = Problem(64, 64 * tiles, 64 * steps, dtype="bf16", layout="nt")
        splits = splitting.splits_of(SPLIT, problem, H200)
        assert all((each - 1) * -(-steps // each) < steps for each in splits)
        # Half of the multiprocessors have a program, or programs have few steps, or there are as many as are tried.
        assert 2 * splits[-1] * tiles >= H200.sm_count or -(-steps // splits[-1]) <= max(8, -(-steps // 64))


def test_operands_that_are_not_aligned_are_split_by_pointers_only():
    problem = Problem(64, 255, 7169, dtype="bf16", layout="nt")
    space = registry.find("matmul", "split_k").space(problem, H200)
    assert {config["LOADS"] for config in space.configs()} == {"pointer"}
    assert space.rejection(SPLIT.replace(LOADS="tma"), fatal_only=True).startswith("parameters: LOADS")
    assert splitting.loads(problem, H200) == ("pointer",)


def test_split_sums_never_leave_the_workspace():
    for problem in SUITE[::3]:
        for name in ("split_k", "swap_ab"):
            spec = registry.find("matmul", name)
            if spec.supports(problem, H200) is None:
                for config in spec.space(problem, H200).configs()[::97]:
                    tiles = -(-problem.m // int(config["BLOCK_SIZE_M"])) * -(-problem.n // int(config["BLOCK_SIZE_N"]))
                    block = 4 * int(config["BLOCK_SIZE_M"]) * int(config["BLOCK_SIZE_N"])
                    if config["SPLIT_K"] != 1:
                        assert tiles <= workspace.MOST_TILES
                        assert tiles * int(config["SPLIT_K"]) * block <= workspace.MOST_BYTES


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_without_a_gpu_every_launch_has_a_workspace_of_its_own(dtype, device):
    (sums, zeros), (_, others) = (workspace.workspace(100, dtype, torch.device(device)) for _ in range(2))
    assert sums.numel() >= 100
    assert sums.dtype == dtype
    assert zeros.dtype == torch.int32
    assert zeros.numel() == workspace.MOST_TILES
    if device == "cpu":
        assert not zeros.any()
        assert zeros.data_ptr() != others.data_ptr()


def toy_space(*rules: Rule) -> SearchSpace:
    def doubled(config, problem, device):
        return [config, config.replace(b=2 * int(config["a"]))]

    return SearchSpace("toy", PROBLEMS[0], H200, {"a": (1, 2, 3), "b": (0,)}, rules, expand=doubled)


def test_a_point_of_the_axes_is_expanded_to_configs():
    assert toy_space().configs() == [
        Config("toy", a=a, b=b) for a, b in ((1, 0), (1, 2), (2, 0), (2, 4), (3, 0), (3, 6))
    ]


def test_an_early_rule_spares_the_expansion():
    asked = []

    def odd(config, problem, device):
        asked.append(config)
        return "odd" if int(config["a"]) % 2 else None

    assert {config["a"] for config in toy_space(Rule("odd", "here", odd, early=True)).configs()} == {2}
    assert len(asked) == 3 + 2


def test_a_rule_of_few_axes_is_asked_before_the_others_are_set():
    asked = []

    def odd(config, problem, device):
        asked.append(dict(config))
        return "odd" if int(config["a"]) % 2 else None

    rule = Rule("odd", "here", odd, early=True, reads=("a", "c"))
    space = SearchSpace("toy", PROBLEMS[0], H200, {"a": (1, 2, 3), "b": (0, 1, 2, 3)}, (rule,))
    assert space.points() == [Config("toy", a=2, b=b) for b in range(4)]
    assert asked == [{"a": 1}, {"a": 2}, {"a": 3}], "c is no axis of this space"


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_a_rule_reads_no_parameters_but_those_it_names(problem):
    drawn = random.Random(3)
    named = 0
    for spec in registry.of(problem.op).values():
        if spec.supports(problem, H200) is None:
            space = spec.space(problem, H200)
            for rule in (rule for rule in space.rules if rule.reads):
                for _ in range(20):
                    point = {name: drawn.choice(values) for name, values in space.axes.items()}
                    part = {name: value for name, value in point.items() if name in rule.reads}
                    configs = Config(spec.name, **point), Config(spec.name, **part)
                    assert len({rule.rejects(config, problem, H200) for config in configs}) == 1, (spec.name, rule.name)
                    named += 1
    assert named


def test_the_best_config_is_the_cheapest_that_no_rule_rejects():
    dear = Rule("dear", "here", lambda config, problem, device: "dear" if config["b"] == 6 else None)
    assert toy_space(dear).best(lambda config: -int(config["b"])) == Config("toy", a=2, b=4)
    assert toy_space(dear).narrowed(a=(1, 3)).best(lambda config: -int(config["b"])) == Config("toy", a=1, b=2)
    assert toy_space(Rule("none", "here", lambda *_: "no")).best(lambda config: 0) is None


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "gfx942"])
def test_no_kernel_takes_more_threads_than_a_block_has(arch):
    device = KNOWN[arch]
    problems = {
        "matmul": Problem(512, 512, 512),
        "bmm": Problem(512, 512, 512, op="bmm", extras={"batch": 4}),
        "grouped_mm": Problem(512, 512, 512, op="grouped_mm", extras={"groups": 4}),
        "fused_experts": Problem(512, 512, 512, layout="nt", op="fused_experts", extras={"groups": 4, "top_k": 2}),
        "gated_linear": Problem(512, 512, 512, layout="nt", op="gated_linear"),
        "merged_linear": Problem(1, 512, 512, layout="nt", op="merged_linear", extras={"parts": "256+256"}),
        "softmax": Problem(512, 4096, 1, op="softmax"),
        "rms_norm": Problem(512, 4096, 1, op="rms_norm", extras={"eps": 1e-6}),
        "vector_add": Problem(4096, 1, 1, op="vector_add"),
    }
    asked = 0
    for (op, _), spec in registry.specs().items():
        if op not in problems or spec.supports(problems[op], device) is not None:
            continue
        space = spec.space(problems[op], device)
        default = spec.default_config(problems[op], device)
        assert space.rejection(default, fatal_only=True) is None
        found = space.rejection(default.replace(num_warps=2048 // device.warp_size), fatal_only=True)
        assert found is not None, spec.name
        assert "2048 threads" in found, spec.name
        asked += 1
    assert asked >= 7


@pytest.mark.parametrize(
    ("problem", "folded"),
    [
        (Problem(1, 256, 512, dtype="bf16", layout="nt"), 8),
        (Problem(2, 256, 512, dtype="e4m3", layout="nt"), 8),
        (Problem(1, 256, 512, dtype="fp32", layout="nt"), 4),
        (Problem(1, 256, 513, dtype="bf16", layout="nt"), 1),
        (Problem(1, 256, 512, dtype="bf16"), 1),
    ],
    ids=str,
)
def test_gemv_adds_at_once_what_one_load_brings_of_a_row_of_the_weight(problem, folded):
    config = Config("gemv", BLOCK_SIZE_N=1, BLOCK_SIZE_K=256, SPLIT_K=1, num_warps=1)
    (launch,) = gemv.program(make_operands(problem, "meta", 0), config)
    assert launch.constants["FOLD"] == folded
