"""rms_norm on a real GPU: its space against float64, graphs, plans, other streams, autocast, and accelerated norms."""

from __future__ import annotations

import pytest
import torch
from checked import check_sample, check_streams
from torch import nn

from tuner import Problem
from tuner.hardware import device
from tuner.kernel import registry
from tuner.kernels import rms_norm
from tuner.kernels.ops import rms_norm as rms_norm_op
from tuner.kernels.ops import rows as rows_ops
from tuner.kernels.rms_norm.operands import tolerance
from tuner.launch import launch as launching
from tuner.models import accelerate
from tuner.sweep import verify

BF16 = torch.bfloat16


def problem_of(m: int, n: int, eps: float = 1e-6, **rest) -> Problem:
    return Problem(m, n, 1, **{"dtype": "bf16", **rest}, op="rms_norm", extras={"eps": eps})


PROBLEMS = [
    *(
        problem_of(m, n)
        for m, n in ((1, 1), (1, 4096), (32, 4096), (128, 8192), (4096, 5120), (65536, 128), (777, 1023))
    ),
    *(problem_of(64, 32768, dtype=dtype) for dtype in ("fp16", "bf16", "fp32")),
    *(problem_of(1000, 40, 0.5, dtype=dtype) for dtype in ("fp16", "bf16", "fp32")),
    problem_of(777, 12345, dtype="fp16"),
    problem_of(512, 1024, 1e-5, dtype="fp32", aligned=False),
]


def drawn(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def assert_right(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> None:
    right = nn.functional.rms_norm(x.double(), weight.shape, weight.double(), eps)
    problem = problem_of(x.numel() // x.shape[-1], x.shape[-1], eps, dtype=str(out.dtype))
    assert verify.error(out, right, 1) <= tolerance(problem)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_default_and_a_sample_of_the_space_are_right_and_repeat_their_bits(problem):
    (spec,) = registry.serving(problem, device.current())
    check_sample(spec, problem, 8)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_torchs_own_passes_the_same_check(problem):
    (spec,) = registry.serving(problem, device.current())
    inputs = spec.make_inputs(problem, "cuda", 0)
    assert verify.error(spec.vendor(inputs), spec.reference(inputs), 1) <= spec.tolerance(problem)


def test_views_strides_and_the_operand_as_output():
    weight = drawn(500)
    apart = drawn(64, 16, 576)[..., :500]
    for x in (
        drawn(64, 16, 500),
        apart,
        drawn(64, 16, 500).transpose(0, 1),
        drawn(500, 64).t(),
        drawn(64, 1000)[:, ::2],
    ):
        for _ in range(2):
            assert_right(rms_norm(x, weight, 1e-6), x, weight)
        before = x.clone()
        assert rms_norm(x, weight, 1e-6, out=x) is x
        assert_right(x, before, weight)


def test_infinities_nans_and_squares_beyond_float32_give_what_torch_gives():
    for columns in (128, 5000, 32768):
        x, weight = drawn(5, columns, dtype=torch.float32), drawn(columns, dtype=torch.float32)
        x[1] = 3e38
        x[2, 5] = float("inf")
        x[3, -1] = float("nan")
        x[4] = 0
        torch.testing.assert_close(
            rms_norm(x, weight, 1e-6), nn.functional.rms_norm(x, (columns,), weight, 1e-6), equal_nan=True
        )


@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32])
def test_an_offset_is_added_to_the_weight_by_calls_and_plans_of_its_own(dtype):
    for columns in (128, 1023, 4096, 32768):
        x, weight = drawn(64, columns, dtype=dtype), drawn(columns, dtype=dtype) / 64
        for offset in (1.0, 0.0, 1.0, -0.5, 0.0):
            wide = weight.double() + offset
            assert_right(rms_norm(x, weight, 1e-6, offset=offset), x, wide)


@pytest.mark.parametrize("m", [1, 64])
def test_a_captured_graph_replays_with_the_rows_and_the_weight_of_the_day(m):
    x, weight = drawn(m, 4096), drawn(4096)
    rms_norm(x, weight, 1e-6)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = rms_norm(x, weight, 1e-6)
    for _ in range(4):
        x.normal_()
        weight.normal_()
        out.fill_(float("nan"))
        graph.replay()
        assert_right(out, x, weight)


def test_a_repeated_call_runs_its_plan_and_reads_what_its_tensors_hold_then(monkeypatch):
    x, weight, out = drawn(64, 512), drawn(512), torch.empty(64, 512, device="cuda", dtype=BF16)
    for eps in (1e-6, 0.5):
        rms_norm(x, weight, eps)
        rms_norm(x, weight, eps, out=out)
    launched = []
    monkeypatch.setattr(rows_ops, "launch", lambda *given: launched.append(given))
    monkeypatch.setattr(launching, "run", launched.append)
    for eps in (1e-6, 0.5, 1e-6):
        x.normal_()
        weight.normal_()
        assert_right(rms_norm(x, weight, eps), x, weight, eps)
        out.fill_(float("nan"))
        assert rms_norm(x, weight, eps, out=out) is out
        assert_right(out, x, weight, eps)
    assert launched == []


def test_calls_on_several_streams_do_not_disturb_each_other():
    sets = [(drawn(64, 4096), drawn(4096), 1e-6) for _ in range(4)]
    for given, once in zip(sets, check_streams(rms_norm, sets), strict=True):
        assert_right(once, *given)


@pytest.mark.parametrize("columns", [128, 4096, 32768])
def test_a_call_reads_the_rows_and_the_weight_that_the_one_before_it_wrote(columns):
    """With programmatic dependent launch it has started by then."""
    x, weight, ones = drawn(256, columns), drawn(columns), torch.ones(columns, device="cuda", dtype=BF16)
    for _ in range(5):
        results = []
        for synchronized in (True, False):
            values, scale = x, weight
            for _ in range(4):
                values = rms_norm(values, scale, 1e-6)
                if synchronized:
                    torch.cuda.synchronize()
                scale = rms_norm(values[7], ones, 1e-6)
                if synchronized:
                    torch.cuda.synchronize()
            results.append(values)
        assert torch.isfinite(results[0]).all()
        assert torch.equal(*results)
        x.normal_()


@pytest.mark.parametrize("dtypes", [(BF16, BF16), (BF16, torch.float32), (torch.float32, BF16), (torch.float16,) * 2])
def test_under_autocast_it_gives_what_torch_gives(dtypes):
    if dtypes[0] != dtypes[1] and not rms_norm_op._is_widened():
        pytest.skip("this torch casts nothing here, and no kernel takes two dtypes")
    x, weight = drawn(8, 256, dtype=dtypes[0]), drawn(256, dtype=dtypes[1])
    with torch.autocast("cuda", dtype=BF16):
        for _ in range(2):
            found, theirs = rms_norm(x, weight, 1e-6), nn.functional.rms_norm(x, (256,), weight, 1e-6)
            assert found.dtype == theirs.dtype
            torch.testing.assert_close(found, theirs)


class StepsNorm(nn.Module):
    """An RMSNorm by several kernels, as transformers has it."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.randn(columns)), 1e-5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


def test_an_accelerated_norm_runs_plans_and_replays_in_graphs(monkeypatch):
    norm = StepsNorm(1024).to("cuda", BF16)
    accelerate(norm, backend="tuner")
    checked, own = [], rms_norm_op.checked_call
    monkeypatch.setattr(
        rms_norm_op, "checked_call", lambda x, *rest, **named: checked.append(x.shape) or own(x, *rest, **named)
    )
    x = drawn(2, 3, 1024)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            for _ in range(3):
                x.normal_()
                assert_right(norm(x), x, norm.weight, 1e-5)
    assert checked[:1] == [(2, 3, 1024)]
    assert len(checked) <= 2  # once, or once more in inference mode
    with torch.inference_mode():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = norm(x)
        x.normal_()
        graph.replay()
        assert_right(out, x, norm.weight, 1e-5)
    norm(x).sum().backward()  # by its own forward
    assert norm.weight.grad is not None
