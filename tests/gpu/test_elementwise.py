"""vector_add and softmax on a real GPU: every kernel against float64, torch's own, strides, graphs, other streams."""

from __future__ import annotations

import pytest
import torch
from checked import check_sample

from tuner import Problem
from tuner.hardware import device
from tuner.kernel import registry
from tuner.kernels import softmax, vector_add
from tuner.kernels.softmax.operands import tolerance
from tuner.sweep import verify

DTYPES = ("fp16", "bf16", "fp32")
PROBLEMS = [
    *(Problem(length, 1, 1, dtype=dtype, op="vector_add") for length in (1, 1000, 2**20 + 1) for dtype in DTYPES),
    Problem(2**24, 1, 1, dtype="bf16", op="vector_add", aligned=False),
    *(
        Problem(*shape, 1, dtype=dtype, op="softmax")
        for shape in ((1, 1), (3000, 40), (777, 1023), (64, 8192), (100, 32768), (5, 100_003), (2, 2**20))
        for dtype in DTYPES
    ),
    Problem(2048, 300, 1, dtype="bf16", op="softmax", layout="tn"),
    Problem(1000, 5000, 1, dtype="fp32", op="softmax", layout="tn"),
    Problem(512, 1024, 1, dtype="fp16", op="softmax", aligned=False),
]
BF16 = torch.bfloat16


def drawn(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def assert_rows_right(out: torch.Tensor, x: torch.Tensor) -> None:
    problem = Problem(x.numel() // x.shape[-1], x.shape[-1], 1, dtype=str(x.dtype), op="softmax")
    assert verify.error(out, torch.softmax(x.double(), -1), 1) <= tolerance(problem)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_every_kernels_default_and_a_sample_of_its_space_are_right_and_repeatable(problem):
    for spec in registry.serving(problem, device.current()):
        check_sample(spec, problem, 6)


@pytest.mark.parametrize("problem", PROBLEMS[-6:], ids=str)
def test_torchs_own_passes_the_same_check(problem):
    spec = registry.serving(problem, device.current())[0]
    inputs = spec.make_inputs(problem, "cuda", 0)
    verify.poison(inputs)
    spec.vendor(inputs)
    assert verify.check(inputs, spec.reference(inputs), problem.k, spec.tolerance(problem)).failure is None


def test_views_strides_and_operands_as_outputs():
    x, y = drawn(3_000_000)[::3], drawn(1).expand(1_000_000)
    assert torch.equal(vector_add(x, y), x + y)
    expected = x + x
    assert torch.equal(vector_add(x, x, out=x), expected)
    rows = drawn(64, 16, 500).transpose(0, 1)
    assert_rows_right(softmax(rows), rows)
    before = rows.clone()
    assert_rows_right(softmax(rows, out=rows), before)


def test_infinities_and_nans_give_what_torch_gives():
    for columns in (1000, 40_000, 2**18):
        x = drawn(5, columns, dtype=torch.float32)
        x[1] = -float("inf")
        x[2, : columns // 2] = -float("inf")
        x[3, 5] = float("inf")
        x[4, -1] = float("nan")
        torch.testing.assert_close(softmax(x), torch.softmax(x, -1), equal_nan=True)


def test_a_captured_graph_replays_on_what_its_inputs_hold_then_also_beside_another_stream():
    x, rows = drawn(2**20), drawn(4, 2**18)
    out, weights = torch.empty_like(x), torch.empty_like(rows)
    vector_add(x, x, out=out)
    softmax(rows, out=weights)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        vector_add(x, x, out=out)
        softmax(rows, out=weights)
    side = torch.cuda.Stream()
    for _ in range(3):
        x.normal_()
        rows.normal_()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            beside = softmax(rows)
        graph.replay()
        torch.cuda.current_stream().wait_stream(side)
        assert torch.equal(out, x + x)
        assert_rows_right(weights, rows)
        assert torch.equal(beside, weights)


def test_vectors_and_matrices_beyond_2_31_elements():
    free, _ = torch.cuda.mem_get_info()
    if free < 24 << 30:
        pytest.skip("less than 24 GiB of free GPU memory")
    x = torch.ones(2**31 + 100, dtype=BF16, device="cuda")
    x[-1] = 3
    out = vector_add(x, x)
    assert out[-1] == 6
    assert bool((out[:-1] == 2).all())
    del out
    weights = softmax(x[: 2**31].view(2**15, 2**16))
    torch.testing.assert_close(weights[-1].float(), torch.full((2**16,), 2.0**-16, device="cuda"))
