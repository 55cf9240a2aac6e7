"""The kernels on a real GPU: every dtype and layout against float64, operands beyond 2^31 elements, streams, graphs."""

from __future__ import annotations

import pytest
import torch

from tuner import Problem, device, registry
from tuner.errors import KernelError
from tuner.kernels import matmul
from tuner.kernels.pointer import SPEC
from tuner.sweep import verify

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: torch.cuda.is_available() is False"),
]

PROBLEMS = [
    Problem(512, 512, 512, dtype="bf16", layout="nt"),
    Problem(129, 1000, 4093, dtype="fp16", epilogue="bias+gelu"),
    Problem(16, 4096, 14336, dtype="bf16", layout="nt", epilogue="bias+silu"),
    Problem(300, 200, 1000, dtype="fp32", layout="tn", precision="tf32"),
    Problem(300, 200, 1000, dtype="fp32", layout="tt", precision="tf32x3"),
    Problem(256, 256, 512, dtype="fp32"),
    Problem(256, 512, 14336, dtype="e4m3", layout="nt"),
    Problem(256, 512, 14336, a_dtype="e4m3", b_dtype="e5m2", layout="nt", out_dtype="fp32"),
    Problem(64, 512, 1024, dtype="e4m3", layout="nn", out_dtype="e4m3", epilogue="relu"),
    Problem(512, 512, 512, dtype="fp16", aligned=False),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_default_of_every_kernel_is_right(problem):
    """benchmarks/numerics.py tries sampled configs and ragged shapes as well."""
    here = device.current()
    try:
        specs = registry.serving(problem, here)
    except KernelError as e:
        pytest.skip(str(e))
    inputs = SPEC.make_inputs(problem, "cuda", 0)
    reference = SPEC.reference(inputs)
    for spec in specs:
        config = spec.default_config(problem, here)
        verify.poison(inputs)
        spec.launch(inputs, config)
        torch.cuda.synchronize()
        assert verify.check(inputs, reference, problem.k, spec.tolerance(problem)).failure is None, str(config)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_torchs_library_passes_the_same_check(problem):
    inputs = SPEC.make_inputs(problem, "cuda", 0)
    verify.poison(inputs)
    try:
        SPEC.vendor(inputs)
    except NotImplementedError as e:
        pytest.skip(str(e))
    torch.cuda.synchronize()
    assert verify.check(inputs, SPEC.reference(inputs), problem.k, SPEC.tolerance(problem)).failure is None


def beyond_2_31(free_gib: int) -> None:
    if torch.cuda.mem_get_info()[0] < free_gib * 2**30:
        pytest.skip(f"needs {free_gib} GiB of free device memory")


def test_elements_of_a_and_the_output_beyond_2_31():
    beyond_2_31(12)
    m, n, k = 2**31 // 256 + 300, 256, 256
    a = torch.zeros(m, k, device="cuda", dtype=torch.bfloat16)
    a[-300:].normal_()
    b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
    out = matmul(a, b)
    tail = a[-300:].double() @ b.double()
    assert verify.error(out[-300:], tail, k) <= SPEC.tolerance(Problem(m, n, k, dtype="bf16"))
    assert (out[:1000] == 0).all()


def test_elements_of_b_beyond_2_31_and_an_advance_along_k_of_that_length():
    beyond_2_31(10)
    k, n = 96, 2**31 // 64 + 48
    b = torch.zeros(k, n, device="cuda", dtype=torch.float8_e4m3fn)
    b[:, -160:] = torch.randn(k, 160, device="cuda").to(torch.float8_e4m3fn)
    a = torch.randn(16, k, device="cuda").to(torch.float8_e4m3fn)
    if reason := SPEC.supports(Problem(16, n, k, dtype="e4m3"), device.current()):
        pytest.skip(reason)
    out = matmul(a, b)
    tail = a.double() @ b[:, -160:].double()
    assert verify.error(out[:, -160:].contiguous(), tail, k) <= SPEC.tolerance(Problem(16, n, k, dtype="e4m3"))


def test_a_launch_stays_on_the_current_stream_and_can_be_captured():
    a, b = (torch.randn(256, 256, device="cuda", dtype=torch.float16) for _ in range(2))
    expected = matmul(a, b)
    out = torch.empty_like(expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        matmul(a, b, out=out)
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert out.equal(expected)
