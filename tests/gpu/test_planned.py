"""Every op's later calls on a real GPU: right, by the plan that the first one made, on the operands of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tuner.kernels import bmm, gated_linear, grouped_mm, matmul, rms_norm, softmax, vector_add
from tuner.launch import launch as launching


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.float16)


def by_groups(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    bounds = [0, *ends.tolist()]
    return torch.cat([a[first:end] @ each for first, end, each in zip(bounds, bounds[1:], b, strict=False)])


def biased(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, **options: torch.Tensor) -> torch.Tensor:
    return matmul(a, b, bias=bias, **options)


def normalized(x: torch.Tensor, weight: torch.Tensor, **options: torch.Tensor) -> torch.Tensor:
    return rms_norm(x, weight, 1e-6, **options)


def normalized_by_torch(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, weight.shape, weight, 1e-6)


def gated_by_torch(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    linear = torch.nn.functional.linear
    return torch.nn.functional.silu(linear(x, gate)) * linear(x, up)


def ends() -> torch.Tensor:
    return torch.tensor([64, 96, 256], device="cuda", dtype=torch.int32)


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "matmul": (matmul, torch.matmul, lambda: (half(256, 256), half(256, 256).t())),
    "even strides": (matmul, torch.matmul, lambda: (half(256, 512)[:, ::2], half(256, 512)[:, ::2])),
    "matmul with a bias": (biased, lambda a, b, bias: a @ b + bias, lambda: (half(64, 256), half(256, 128), half(128))),
    "bmm": (bmm, torch.bmm, lambda: (half(3, 128, 256), half(3, 192, 256).mT)),
    "grouped_mm": (grouped_mm, by_groups, lambda: (half(256, 128), half(3, 128, 64), ends())),
    "gated_linear": (gated_linear, gated_by_torch, lambda: (half(64, 256), half(384, 256), half(384, 256))),
    "softmax": (softmax, lambda x: torch.softmax(x, -1), lambda: (half(64, 1000),)),
    "softmax of long rows": (softmax, lambda x: torch.softmax(x, -1), lambda: (half(2, 131_072),)),
    "vector_add": (vector_add, torch.add, lambda: (half(100_000), half(100_000))),
    "rms_norm": (normalized, normalized_by_torch, lambda: (half(64, 1000), half(1000))),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("given", [False, True], ids=["fresh", "out"])
def test_later_calls_are_right_and_look_nothing_up(name, given, monkeypatch):
    op, reference, make = CASES[name]
    looked = []
    run = launching.run
    monkeypatch.setattr(launching, "run", lambda launches: (looked.append(name), run(launches)))
    seen = []
    for _ in range(4):
        tensors = make()
        expected = reference(*tensors)
        out = {"out": torch.full_like(expected, torch.nan)} if given else {}
        found = op(*tensors, **out)
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-3 * float(expected.abs().max()))
        assert not given or found is out["out"]
        seen.append(len(looked))
    assert len(set(seen)) == 1, "another call than the first was looked at"


def test_autocast_casts_as_torchs_own_on_a_gpu_and_not_once_it_ends():
    x, y = half(256), torch.randn(256, device="cuda")
    a, b = torch.randn(64, 256, device="cuda"), half(256, 128)
    pairs = [
        (matmul, torch.matmul, (a, b)),
        (matmul, torch.matmul, (a, a.t())),
        (bmm, torch.bmm, (a[None], b[None])),
        (gated_linear, gated_by_torch, (a, b.t().contiguous(), b.t().contiguous())),
        (vector_add, torch.add, (x, y)),
        (softmax, lambda x: torch.softmax(x, -1), (b,)),
    ]
    for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
        for op, reference, given in pairs:
            with torch.autocast("cuda", dtype=dtype):
                found, expected = op(*given), reference(*given)
            torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2 * float(expected.abs().max()))
        assert matmul(a, a.t()).dtype == torch.float32
        assert softmax(b).dtype == torch.float16


def test_a_training_step_under_autocast_is_torchs_on_a_gpu():
    given = [torch.randn(*shape, device="cuda") for shape in ((64, 256), (128, 256), (128,))]
    results = []
    for linear in (lambda x, w, bias: matmul(x, w.t(), bias=bias), torch.nn.functional.linear):
        leaves = [each.clone().requires_grad_() for each in given]
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = linear(*leaves)
        out.float().square().sum().backward()
        results.append((out.detach(), *[leaf.grad for leaf in leaves]))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=5e-2, atol=5e-2 * float(expected.abs().max()))
