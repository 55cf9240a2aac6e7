"""`block_scaled_warp_specialized` is right for ragged shapes, any strides of scales and outputs, and run after run."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from checked import skip_where_refused

from tuner import Config, Problem
from tuner.hardware import device
from tuner.kernel import registry
from tuner.kernels import matmul
from tuner.sweep import verify

SPEC = registry.find("matmul", "block_scaled_warp_specialized")
FEW = Config(
    SPEC.name,
    BLOCK_SIZE_M=64,
    BLOCK_SIZE_N=64,
    BLOCK_SIZE_K=128,
    GROUP_SIZE_M=1,
    EPILOGUE_PARTS=1,
    num_stages=12,
    num_warps=4,
    launch_pdl=True,
)
MANY = FEW.replace(BLOCK_SIZE_M=128, BLOCK_SIZE_N=128, EPILOGUE_PARTS=2, GROUP_SIZE_M=16, num_stages=5, num_warps=8)
FOUR = MANY.replace(EPILOGUE_PARTS=4, num_stages=6)
WIDE = FEW.replace(BLOCK_SIZE_N=128, EPILOGUE_PARTS=2, num_stages=8)
TALL = FEW.replace(BLOCK_SIZE_M=128, num_stages=8, num_warps=8)


def scaled(m: int, n: int, k: int, **parts: object) -> Problem:
    return Problem(m, n, k, **{"dtype": "e4m3", "layout": "nt", "scaling": "block", **parts})


CASES = [
    # Scales that TMA reads: M and the blocks along K are multiples of 4.
    (scaled(512, 1024, 1536), MANY),
    (scaled(4096, 4096, 7168), MANY),
    (scaled(1000, 984, 1536), FOUR.replace(GROUP_SIZE_M=4)),
    (scaled(132, 472, 2048, epilogue="bias+gelu"), MANY),
    (scaled(260, 1000, 512, out_dtype="fp32"), MANY.replace(num_stages=4)),
    (scaled(64, 7168, 2048), FEW),
    (scaled(128, 7168, 2048, a_dtype="e4m3", b_dtype="e5m2", dtype=None), TALL),
    (scaled(76, 24576, 1536, epilogue="silu"), WIDE),
    (scaled(52, 472, 2048, out_dtype="fp16", epilogue="bias"), FEW),
    (scaled(4, 2112, 7168), FEW.replace(BLOCK_SIZE_M=8)),
    # Scales that the loading warp's threads copy.
    (scaled(4095, 1000, 2176), FOUR),
    (scaled(129, 1000, 912, out_dtype="fp32"), MANY.replace(num_stages=4)),
    (scaled(131, 200, 896, epilogue="bias+silu"), TALL),
    (scaled(1, 7168, 2048), FEW.replace(BLOCK_SIZE_M=8)),
    (scaled(1, 64, 80), FEW.replace(BLOCK_SIZE_M=8)),
    (scaled(3, 7168, 2048, out_dtype="e4m3"), FEW.replace(BLOCK_SIZE_M=8)),
    (scaled(13, 24576, 1536, dtype="e5m2"), WIDE.replace(BLOCK_SIZE_M=16)),
    (scaled(31, 1536, 7168), FEW.replace(BLOCK_SIZE_M=32, num_stages=2)),
    (scaled(61, 264, 1152), WIDE.replace(EPILOGUE_PARTS=4)),
    (scaled(77, 2112, 16384), FEW),
]


def checked(problem, config, inputs, reference):
    verify.poison(inputs)
    SPEC.launch(inputs, config)
    torch.cuda.synchronize()
    assert verify.check(inputs, reference, problem.k, SPEC.tolerance(problem)).failure is None
    return inputs.output.clone()


@pytest.mark.parametrize(("problem", "config"), CASES, ids=str)
def test_results_are_right_and_the_same_bits_each_time(problem, config):
    skip_where_refused(SPEC, problem, config)
    inputs = SPEC.make_inputs(problem, "cuda", 0)
    reference = SPEC.reference(inputs)
    first = checked(problem, config, inputs, reference)
    for _ in range(19):
        assert torch.equal(first.view(torch.uint8), checked(problem, config, inputs, reference).view(torch.uint8))


def test_no_case_is_refused_on_hopper():
    here = device.current()
    if not here.features.wgmma:
        pytest.skip(f"{here.arch} is no Hopper")
    for problem, config in CASES:
        assert SPEC.supports(problem, here) is None
        assert SPEC.space(problem, here).rejection(config, fatal_only=True) is None, (problem, config)


@pytest.mark.parametrize("config", [FEW, TALL, MANY], ids=["64x64", "128x64", "128x128"])
def test_one_config_serves_every_m(config):
    skip_where_refused(SPEC, scaled(1, 456, 1536), config)
    weights = SPEC.make_inputs(scaled(1, 456, 1536), "cuda", 1)
    for m in (*range(1, 20), 31, 63, 64, 65, 100, 127, 128, 129, 191, 255, 256):
        problem = scaled(m, 456, 1536)
        inputs = dataclasses.replace(SPEC.make_inputs(problem, "cuda", m), b=weights.b, scale_b=weights.scale_b)
        checked(problem, config, inputs, SPEC.reference(inputs))


def laid_out(scales: torch.Tensor, strides: tuple[int, int]) -> torch.Tensor:
    """The same scales with such strides, and NaN where no scale lies."""
    rows, columns = scales.shape
    memory = torch.full((rows * strides[0] + columns * strides[1] + 1,), torch.nan, device=scales.device)
    made = memory.as_strided((rows, columns), strides)
    return made.copy_(scales)


@pytest.mark.parametrize("m", [1, 2, 6, 64, 129, 132])
@pytest.mark.parametrize("kind", ["rows", "columns", "padded columns", "spread", "shifted"])
def test_scales_of_a_may_have_any_strides(m, kind):
    problem = scaled(m, 456, 2048)
    config = MANY if m > 128 else FEW
    skip_where_refused(SPEC, problem, config)
    inputs = SPEC.make_inputs(problem, "cuda", 0)
    strides = {"rows": (16, 1), "columns": (1, m), "padded columns": (1, -(-m // 4) * 4)}.get(kind, (3, 3 * m))
    scales = laid_out(inputs.scale_a, strides)
    if kind == "shifted":
        memory = torch.full((16 * 132 + 1,), torch.nan, device="cuda")
        scales = memory[1:].as_strided((m, 16), (1, 132)).copy_(inputs.scale_a)
        assert scales.data_ptr() % 16 == 4
    checked(problem, config, dataclasses.replace(inputs, scale_a=scales), SPEC.reference(inputs))


@pytest.mark.parametrize("strides", [(18, 1), (1, 18), (1, 20), (40, 2)], ids=str)
@pytest.mark.parametrize("config", [FEW, MANY], ids=["64x64", "128x128"])
def test_scales_of_b_may_have_any_strides(strides, config):
    problem = scaled(132, 2112, 2304)
    skip_where_refused(SPEC, problem, config)
    inputs = SPEC.make_inputs(problem, "cuda", 0)
    scales = laid_out(inputs.scale_b, strides)
    checked(problem, config, dataclasses.replace(inputs, scale_b=scales), SPEC.reference(inputs))


@pytest.mark.parametrize("kind", ["transposed", "every other column", "odd rows"])
@pytest.mark.parametrize(("m", "config"), [(5, FEW.replace(BLOCK_SIZE_M=8)), (300, MANY), (304, MANY)])
def test_an_output_may_have_any_strides(kind, m, config):
    problem = scaled(m, 456, 1536, epilogue="bias+relu")
    skip_where_refused(SPEC, problem, config)
    inputs = SPEC.make_inputs(problem, "cuda", 0)
    shape, strides = (
        (m, 456),
        {"transposed": (1, -(-m // 8) * 8), "every other column": (920, 2), "odd rows": (457, 1)}[kind],
    )
    buffer = torch.full(
        (sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) + 1,), 7.0, device="cuda"
    )
    buffer = buffer.to(torch.bfloat16)
    out = buffer.as_strided(shape, strides)
    SPEC.launch(dataclasses.replace(inputs, out=out, buffer=buffer), config)
    torch.cuda.synchronize()
    expected = SPEC.reference(inputs)
    assert verify.error(out, expected, problem.k) <= SPEC.tolerance(problem)
    out.fill_(7.0)
    assert torch.all(buffer == 7.0), "memory between the rows was written"


def test_launches_that_follow_each_other_keep_their_operands_apart():
    problem = scaled(64, 7168, 2048)
    skip_where_refused(SPEC, problem, FEW)
    sets = [SPEC.make_inputs(problem, "cuda", seed) for seed in range(4)]
    for inputs in sets:
        verify.poison(inputs)
    for _ in range(5):
        for inputs in sets:
            SPEC.launch(inputs, FEW)
    torch.cuda.synchronize()
    for inputs in sets:
        assert verify.check(inputs, SPEC.reference(inputs), problem.k, SPEC.tolerance(problem)).failure is None


@pytest.mark.parametrize("m", [1, 7, 64, 300])
def test_matmul_takes_the_scales_of_serving_projects_and_can_be_captured(m):
    skip_where_refused(SPEC, scaled(m, 2112, 7168), FEW)
    torch.manual_seed(0)
    a = torch.randn(m, 7168, device="cuda").to(torch.float8_e4m3fn)
    weight = torch.randn(2112, 7168, device="cuda").to(torch.float8_e4m3fn)
    scale_a, scale_b = (torch.rand(*shape, device="cuda") / 2 + 0.5 for shape in ((m, 56), (17, 56)))
    padded = torch.zeros(56, -(-m // 4) * 4, device="cuda").t()[:m].copy_(scale_a)
    expected = matmul(a, weight.t(), scale_a=scale_a, scale_b=scale_b.t())
    exact = (a.double() * scale_a.double().repeat_interleave(128, 1)) @ (
        weight.double() * scale_b.double().repeat_interleave(128, 0)[:2112].repeat_interleave(128, 1)
    ).t()
    assert verify.error(expected, exact, 7168) <= SPEC.tolerance(scaled(m, 2112, 7168))
    for scales in (padded, scale_a.t().contiguous().t()):
        assert torch.equal(matmul(a, weight.t(), scale_a=scales, scale_b=scale_b.t()), expected)
        out, graph = torch.zeros_like(expected), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            matmul(a, weight.t(), scale_a=scales, scale_b=scale_b.t(), out=out)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, expected)
