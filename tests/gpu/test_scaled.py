"""Scales, int8 and fast accumulation on a real GPU: every kernel that serves them, and torch's own library."""

from __future__ import annotations

import random

import pytest
import torch

from tuner import Problem
from tuner.errors import KernelError
from tuner.hardware import device
from tuner.kernel import registry
from tuner.kernels import matmul
from tuner.sweep import verify

PROBLEMS = [
    *(Problem(512, 768, 1024, dtype="e4m3", layout="nt", scaling=scaling) for scaling in ("scalar", "row", "block")),
    Problem(512, 768, 14336, dtype="e4m3", layout="nt", scaling="row", out_dtype="fp32", fast_accum=True),
    Problem(512, 768, 14336, dtype="e4m3", layout="nt", scaling="row", fast_accum=False),
    Problem(129, 1000, 1001, a_dtype="e4m3", b_dtype="e5m2", layout="nt", scaling="row", epilogue="bias+gelu"),
    Problem(3, 4096, 4096, dtype="e4m3", layout="nt", scaling="row", epilogue="bias"),
    Problem(16, 2112, 7168, dtype="e4m3", layout="nt", scaling="block", epilogue="bias+silu"),
    Problem(129, 1000, 1001, dtype="e4m3", layout="nt", scaling="block", out_dtype="fp32"),
    Problem(512, 768, 1024, dtype="i8", layout="nt"),
    Problem(512, 768, 1024, dtype="i8", layout="nn"),
    Problem(33, 1000, 1001, dtype="i8", layout="tn"),
    Problem(3, 4096, 4096, dtype="i8", layout="nt"),
    Problem(512, 768, 1024, dtype="i8", layout="nt", scaling="row", epilogue="bias+silu"),
    Problem(64, 768, 4096, dtype="i8", layout="nn", scaling="scalar", out_dtype="fp32"),
    Problem(300, 208, 1008, dtype="fp32", layout="nt", precision="tf32x3"),
    Problem(3, 208, 1008, dtype="fp32", layout="nt", precision="tf32x3"),
]


def check(spec, problem: Problem, inputs, reference) -> str | None:
    torch.cuda.synchronize()
    return verify.check(inputs, reference, problem.k, spec.tolerance(problem)).failure


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_every_kernel_that_serves_it_is_right_by_default_and_by_a_sample(problem):
    here = device.current()
    try:
        serving = registry.serving(problem, here)
    except KernelError as e:
        pytest.skip(str(e))
    inputs = serving[0].make_inputs(problem, "cuda", 0)
    reference = serving[0].reference(inputs)
    for spec in serving:
        configs = spec.space(problem, here).configs()
        for config in [spec.default_config(problem, here), *random.Random(0).sample(configs, min(2, len(configs)))]:
            verify.poison(inputs)
            spec.launch(inputs, config)
            assert check(spec, problem, inputs, reference) is None, str(config)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_torchs_library_passes_the_same_check(problem):
    spec = registry.find("matmul", "block_scaled" if problem.scaling == "block" else "pointer")
    inputs = spec.make_inputs(problem, "cuda", 0)
    verify.poison(inputs)
    try:
        spec.vendor(inputs)
    except (NotImplementedError, RuntimeError, ValueError) as e:
        pytest.skip(str(e).splitlines()[0])
    assert check(spec, problem, inputs, spec.reference(inputs)) is None


def test_matmul_takes_scales_and_can_be_captured():
    a = torch.randn(64, 1024, device="cuda").to(torch.float8_e4m3fn)
    weight = torch.randn(768, 1024, device="cuda").to(torch.float8_e4m3fn)
    scale_a, scales = torch.rand(64, 8, device="cuda"), torch.rand(6, 8, device="cuda")
    if reason := registry.find("matmul", "block_scaled").supports(
        Problem(64, 768, 1024, dtype="e4m3", layout="nt", scaling="block"), device.current()
    ):
        pytest.skip(reason)
    expected = matmul(a, weight.t(), scale_a=scale_a, scale_b=scales.t())
    out, graph = torch.empty_like(expected), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        matmul(a, weight.t(), scale_a=scale_a, scale_b=scales.t(), out=out)
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert out.equal(expected)
