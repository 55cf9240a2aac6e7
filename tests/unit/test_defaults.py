"""What the heuristic says where nobody tuned: not which config, but that it runs, is no bad one, and stays the same."""

from __future__ import annotations

import gzip
import json
import random
import statistics
from collections.abc import Iterable
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the installed kernels need torch and Triton")

from tuner import Config, Problem
from tuner.hardware.device import KNOWN
from tuner.kernel import registry

H200 = KNOWN["sm_90"]
LANDSCAPES = Path(__file__).parents[2] / "benchmarks" / "data" / "landscapes-h200.json.gz"
EXPERTS = {"groups": 128, "top_k": 8}
PROBLEMS = [
    Problem(4096, 4096, 4096, dtype="bf16", layout="nt"),
    Problem(1, 6144, 4096, dtype="bf16", layout="nt"),
    Problem(1, 6144, 4096, dtype="e4m3", layout="nt"),
    Problem(16, 28672, 4096, dtype="bf16", layout="nt"),
    Problem(32, 1280, 8192, dtype="bf16", layout="nt"),
    Problem(100, 3584, 18944, dtype="bf16", layout="nt"),
    Problem(256, 4096, 4096, dtype="fp16"),
    Problem(1023, 2047, 4093, dtype="bf16", layout="nt"),
    Problem(5000, 5000, 5000, dtype="bf16", layout="nt"),
    Problem(2048, 2048, 2048, dtype="fp32"),
    Problem(2048, 2048, 2048, dtype="fp32", precision="tf32"),
    Problem(64, 7168, 2048, dtype="e4m3", layout="nt", scaling="block"),
    Problem(512, 4096, 4096, dtype="int8", layout="nt", scaling="row"),
    Problem(512, 512, 512, dtype="bf16", layout="nt", op="bmm", extras={"batch": 16}),
    Problem(4096, 2048, 1024, dtype="bf16", layout="nt", op="grouped_mm", extras={"groups": 8}),
    Problem(1, 768, 2048, dtype="bf16", layout="nt", epilogue="silu", op="fused_experts", extras=EXPERTS),
    Problem(512, 768, 2048, dtype="bf16", layout="nt", epilogue="silu", op="fused_experts", extras=EXPERTS),
    Problem(4096, 768, 2048, dtype="fp32", layout="nt", precision="tf32", op="fused_experts", extras=EXPERTS),
    Problem(1, 14336, 4096, dtype="bf16", layout="nt", epilogue="silu", op="gated_linear"),
    Problem(17, 4864, 896, dtype="bf16", layout="nt", epilogue="silu", op="gated_linear"),
    Problem(4096, 14336, 4096, dtype="bf16", layout="nt", epilogue="silu", op="gated_linear"),
    Problem(129, 1001, 333, dtype="fp16", layout="nt", epilogue="gelu", op="gated_linear"),
    Problem(512, 2048, 1024, dtype="fp32", layout="nt", precision="tf32", op="gated_linear"),
    Problem(200, 4864, 32, dtype="fp16", layout="nt", epilogue="silu", op="gated_linear"),
    Problem(1, 6144, 4096, dtype="bf16", layout="nt", op="merged_linear", extras={"parts": "4096+1024+1024"}),
    Problem(2, 333, 1001, dtype="fp32", layout="nt", op="merged_linear", extras={"parts": "300+33"}),
    Problem(2**24, 1, 1, dtype="bf16", op="vector_add"),
    Problem(8192, 64, 1, dtype="bf16", op="softmax"),
    Problem(4096, 32768, 1, dtype="bf16", op="softmax"),
    Problem(8, 2**20, 1, dtype="bf16", op="softmax"),
    Problem(32, 4096, 1, dtype="bf16", op="rms_norm", extras={"eps": 1e-6}),
    Problem(8192, 128, 1, dtype="bf16", op="rms_norm", extras={"eps": 1e-6}),
]
MEASURED_APART = {"launch_pdl", "PDL_TRIGGER", "PREFETCH_KIB", "GROUP_SIZE_M", "num_ctas", "SHARE_B"}
"""Parameters that the recorded landscapes do not have, or have one value of."""


@pytest.mark.parametrize("device", KNOWN.values(), ids=lambda device: device.arch)
def test_a_default_is_a_canonical_config_of_its_space_that_no_rule_stops(device):
    served = 0
    for problem in PROBLEMS:
        if all(spec.supports(problem, device) for spec in registry.of(problem.op).values()):
            continue
        config = registry.default_config(problem, device)
        space = registry.find(problem.op, config.kernel).space(problem, device)
        assert space.rejection(config, fatal_only=True) is None, f"{problem}: {config}"
        assert space.canonicalize(config) == config
        assert space.odd_parameters(config) == set()
        served += 1
    assert served >= 18


def test_a_default_is_the_same_whatever_was_asked_before():
    found = [registry.default_config(problem, H200) for problem in PROBLEMS]
    assert [registry.default_config(problem, H200) for problem in reversed(PROBLEMS)] == found[::-1]


@pytest.mark.parametrize("problem", [problem for problem in PROBLEMS if problem.op != "softmax"], ids=str)
def test_nothing_that_a_search_tries_is_estimated_to_be_much_faster_than_the_default(problem):
    config = registry.default_config(problem, H200)
    spec = registry.find(problem.op, config.kernel)
    tried = spec.space(problem, H200).configs()
    sample = random.Random(0).sample(tried, min(200, len(tried)))
    least_us = min(spec.estimate_us(one, problem, H200) for one in sample)
    assert spec.estimate_us(config, problem, H200) <= 1.1 * least_us


def programs(problem: Problem, config: Config) -> int:
    """The tiles of a product's output, times the parts of K."""
    rows = config.integer("BLOCK_SIZE_M", problem.m)
    columns = config.integer("BLOCK_SIZE_N") + config.integer("BLOCK_SIZE_N_REST", 0)
    return -(-problem.m // rows) * -(-problem.n // columns) * config.integer("SPLIT_K", 1)


@pytest.mark.parametrize("problem", [problem for problem in PROBLEMS if problem.op == "matmul"], ids=str)
def test_a_default_keeps_most_of_the_device_busy(problem):
    assert programs(problem, registry.default_config(problem, H200)) >= H200.sm_count / 2


def recorded() -> list[tuple[Problem, dict[tuple[object, ...], float]]]:
    """Problems swept exhaustively on an H200: the time of each config, less what was measured apart."""
    document = json.loads(gzip.decompress(LANDSCAPES.read_bytes()))
    configs = [_seen(Config(kernel, **parameters)) for kernel, parameters in document["configs"]]
    found = []
    for entry in document["problems"]:
        us: dict[tuple[object, ...], float] = {}
        for number, time_us in zip(entry["configs"], entry["us"], strict=True):
            us[configs[number]] = min(time_us, us.get(configs[number], time_us))
        found.append((Problem.from_fields(entry["problem"]), us))
    return found


def _seen(config: Config) -> tuple[object, ...]:
    return (config.kernel, *sorted((name, value) for name, value in config.items() if name not in MEASURED_APART))


def of_newer_kernels(problem: Problem, us: Iterable[tuple[object, ...]]) -> dict[Config, str]:
    """The defaults of kernels of which the landscapes have no trial: `registry.default_config` skips these kernels."""
    known = {kernel for kernel, *_ in us}
    newer = [spec for spec in registry.serving(problem, H200) if spec.name not in known]
    return {spec.default_config(problem, H200): "no trial" for spec in newer}


def test_defaults_are_near_the_best_recorded_configs_and_ahead_of_the_median_of_the_plain_kernel():
    regrets = []
    for problem, us in recorded():
        default_us = us.get(_seen(registry.default_config(problem, H200, of_newer_kernels(problem, us))))
        plain = [time_us for (kernel, *_), time_us in us.items() if kernel == "pointer"]
        if default_us is not None:
            regrets.append(default_us / min(us.values()))
            assert not plain or default_us < statistics.median(plain), problem
            assert regrets[-1] < 1.4, problem
    assert len(regrets) >= 40, "of 52 problems; the others' default configs are newer than the landscapes"
    assert statistics.geometric_mean(regrets) < 1.08


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "gfx950"])
def test_tiles_of_eight_rows_are_defaults_where_they_were_measured(arch):
    """On an H200 (decision 160). On sm_100 one of 8x128x512 by pointers had 3,432 bytes of registers spilled."""
    problem = Problem(5, 4224, 1536, dtype="fp32", layout="tn")
    config = registry.find("matmul", "swap_ab").default_config(problem, KNOWN[arch])
    assert (config["BLOCK_SIZE_M"] == 8) == (arch == "sm_90")


def test_pointer_alone_may_take_all_of_a_k_up_to_256_in_one_step():
    config = registry.find("matmul", "pointer").default_config(Problem(17848, 24, 200, dtype="bf16"), KNOWN["sm_90"])
    assert (config["BLOCK_SIZE_K"], config["num_stages"]) == (256, 1)
    longer = registry.find("matmul", "pointer").default_config(Problem(17848, 24, 264, dtype="bf16"), KNOWN["sm_90"])
    assert longer["BLOCK_SIZE_K"] < 264
    batched = Problem(17848, 24, 200, dtype="bf16", op="bmm", extras={"batch": 1})
    assert registry.find("bmm", "bmm_pointer").default_config(batched, KNOWN["sm_90"])["BLOCK_SIZE_K"] < 200


@pytest.mark.parametrize("layout", ["nt", "nn", "tn"])
@pytest.mark.parametrize("length", [197, 333, 577, 1500])
def test_unaligned_batches_have_two_stages_at_most(length, layout):
    shape = (length, length, 64) if layout == "nt" else (length, 64, length)
    batched = Problem(*shape, dtype="bf16", layout=layout, op="bmm", extras={"batch": 96})
    assert not batched.aligned
    default = registry.find("bmm", "bmm_pointer").default_config
    assert default(batched, KNOWN["sm_90"]).integer("num_stages") <= 2
    aligned = Problem(32, 16, 4096, dtype="bf16", layout="nt", op="bmm", extras={"batch": 8})
    assert default(aligned, KNOWN["sm_90"]).integer("num_stages") == 6, "the fastest of benchmarks/suites/batches.csv"


def test_a_batch_whose_tokens_were_timed_gets_the_fastest_config():
    """The winner of benchmarks/results/batches-h200.json; the default before took 1.56 times as long."""
    values = Problem(577, 64, 577, dtype="bf16", layout="nn", op="bmm", extras={"batch": 64})
    config = registry.default_config(values, KNOWN["sm_90"])
    assert [config[name] for name in ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_stages")] == [64, 64, 32, 2]
