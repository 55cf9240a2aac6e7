"""gated_linear on a real GPU: its spaces against float64, graphs, plans, other streams, and launches that overlap."""

from __future__ import annotations

import pytest
import torch
from checked import check_sample, check_streams
from torch import nn

from tuner import Problem
from tuner.hardware import device
from tuner.kernel import registry
from tuner.kernels import gated_linear
from tuner.kernels.gated.operands import tolerance
from tuner.kernels.ops import gated_linear as gated_linear_op
from tuner.launch import launch as launching
from tuner.sweep import verify

BF16 = torch.bfloat16


def problem_of(m: int, n: int, k: int, activation: str = "silu", **rest) -> Problem:
    return Problem(m, n, k, **{"dtype": "bf16", **rest}, layout="nt", epilogue=activation, op="gated_linear")


PROBLEMS = [
    *(problem_of(m, 14336, 4096) for m in (1, 2, 8, 33, 200, 1024)),
    *(problem_of(m, 3072, 1024, "gelu") for m in (1, 64, 300)),
    problem_of(1, 1, 1),
    problem_of(5, 1000, 72, "relu", dtype="fp16"),
    problem_of(129, 520, 4104, "leaky_relu", dtype="fp16"),
    problem_of(777, 255, 511),
    problem_of(512, 1024, 1024, aligned=False),
    problem_of(2, 1024, 1024, aligned=False),
    problem_of(64, 512, 256, "none"),
    *(problem_of(m, 640, 320, dtype="fp32", precision=each) for m in (3, 300) for each in ("ieee", "tf32", "tf32x3")),
]


def drawn(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def weights(n: int, k: int, dtype: torch.dtype = BF16) -> tuple[torch.Tensor, torch.Tensor]:
    gate, up = (torch.randn(n, k, device="cuda").mul_(k**-0.5).to(dtype) for _ in range(2))
    return gate, up


def assert_right(out: torch.Tensor, x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> None:
    a, b, c = (each.double() for each in (x, gate, up))
    right = nn.functional.silu(a @ b.t()) * (a @ c.t())
    problem = problem_of(x.numel() // x.shape[-1], *gate.shape, dtype=str(out.dtype))
    assert verify.error(out.flatten(0, -2), right.flatten(0, -2), gate.shape[1]) <= tolerance(problem)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_defaults_and_a_sample_of_every_space_are_right_and_repeat_their_bits(problem):
    for spec in registry.serving(problem, device.current()):
        check_sample(spec, problem, 6)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_torchs_own_is_right_too(problem):
    if problem.precision == "tf32x3":
        pytest.skip("torch has no tf32x3")
    spec = registry.serving(problem, device.current())[0]
    inputs = spec.make_inputs(problem, "cuda", 0)
    spec.vendor(inputs)
    # It rounds both products, and the activation's value, before it multiplies them.
    assert verify.error(inputs.output, spec.reference(inputs), problem.k) <= 4 * spec.tolerance(problem)


def test_views_and_halves_of_one_weight():
    joined = torch.randn(2 * 512, 256, device="cuda").mul_(1 / 16).to(BF16)
    wide = drawn(64, 3, 300)
    for x in (drawn(7, 256), drawn(4, 16, 256), wide[..., :256], drawn(16, 4, 256).transpose(0, 1), drawn(256, 9).t()):
        for gate, up in (joined.chunk(2), joined.chunk(2)[::-1]):
            for _ in range(2):
                assert_right(gated_linear(x, gate, up), x, gate, up)


def test_infinities_and_nans_give_what_torch_gives():
    gate, up = weights(256, 128)
    x = drawn(4, 128)
    x[1, 5] = float("inf")
    x[2, -1] = float("nan")
    x[3] = 0
    theirs = nn.functional.silu(x.float() @ gate.float().t()) * (x.float() @ up.float().t())
    for rows in (x, x.repeat(64, 1)):
        found = gated_linear(rows, gate, up)
        assert torch.equal(found.isnan(), theirs.isnan().repeat(len(rows) // 4, 1))
        assert torch.equal(found.isinf(), theirs.isinf().repeat(len(rows) // 4, 1))
    assert not found[3].any()


@pytest.mark.parametrize("m", [1, 48, 600])
def test_a_captured_graph_replays_with_the_rows_and_the_weights_of_the_day(m):
    x, (gate, up) = drawn(m, 1024), weights(3072, 1024)
    gated_linear(x, gate, up)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = gated_linear(x, gate, up)
    for _ in range(4):
        x.normal_()
        for weight in (gate, up):
            weight.copy_(torch.randn_like(weight) / 32)
        out.fill_(float("nan"))
        graph.replay()
        assert_right(out, x, gate, up)


def test_a_repeated_call_runs_its_plan_and_reads_what_its_tensors_hold_then(monkeypatch):
    x, (gate, up) = drawn(64, 512), weights(1024, 512)
    out = torch.empty(64, 1024, device="cuda", dtype=BF16)
    for _ in range(2):
        gated_linear(x, gate, up)
        gated_linear(x, gate, up, out=out)
    launched = []
    monkeypatch.setattr(gated_linear_op, "launch", lambda *given: launched.append(given))
    monkeypatch.setattr(launching, "run", launched.append)
    for _ in range(3):
        x.normal_()
        assert_right(gated_linear(x, gate, up), x, gate, up)
        out.fill_(float("nan"))
        assert gated_linear(x, gate, up, out=out) is out
        assert_right(out, x, gate, up)
    assert launched == []


def test_calls_on_several_streams_do_not_disturb_each_other():
    sets = [(drawn(64, 1024), *weights(2048, 1024)) for _ in range(4)]
    for given, once in zip(sets, check_streams(gated_linear, sets), strict=True):
        assert_right(once, *given)


@pytest.mark.parametrize(
    ("kernel", "rows", "size"),
    [
        ("gated_pointer", 2, 2048),
        ("gated_gemv", 2, 2048),
        ("gated_warp_specialized", 2, 2048),
        ("gated_any_height", 129, 7168),  # by default in clusters of four
        ("gated_any_height", 112, 2048),  # in pairs
        ("gated_any_height", 600, 2048),  # in turn
    ],
)
def test_a_launch_reads_the_rows_and_the_weights_that_the_one_before_it_wrote(kernel, rows, size):
    """With programmatic dependent launch it has started by then."""
    here, problem = device.current(), problem_of(rows, size, size)
    spec = registry.find("gated_linear", kernel)
    if reason := spec.supports(problem, here):
        pytest.skip(reason)
    config = spec.default_config(problem, here)
    first, second, third = (spec.make_inputs(problem, "cuda", seed) for seed in range(3))
    results = []
    for synchronized in (True, False):
        second.a.zero_()
        third.b.zero_()
        torch.cuda.synchronize()
        spec.launch(first, config)
        second.a.copy_(first.out)
        if synchronized:
            torch.cuda.synchronize()
        spec.launch(second, config)
        third.b.copy_(second.b * second.out[0])
        if synchronized:
            torch.cuda.synchronize()
        spec.launch(third, config)
        results.append(third.out.clone())
    assert results[0].any()
    assert torch.equal(*results)


def test_a_compiled_call_serves_every_number_of_rows_by_one_program():
    gate, up = weights(1024, 512)
    step = torch.compile(lambda x: gated_linear(x + 1, gate, up) * 2, dynamic=True, fullgraph=True, backend="aot_eager")
    for m in (3, 64, 300):
        x = drawn(m, 512)
        torch.testing.assert_close(step(x), gated_linear(x + 1, gate, up) * 2)
