"""Derivatives of matmul on a real GPU: by autograd, compiled or not, and by torch.func."""

from __future__ import annotations

import pytest
import torch
from torch import func

from tuner.kernels import matmul


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.float16)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # TorchInductor's own
def test_the_gradients_and_the_compiled_op_are_right():
    x, weight, bias = (half(*shape).requires_grad_() for shape in ((4, 64, 256), (512, 256), (512,)))

    def layer(x, weight, bias):
        return matmul(x, weight.t(), bias=bias, activation="silu")

    def reference(x, weight, bias):
        return torch.nn.functional.silu(x.double() @ weight.double().t() + bias.double())

    cotangent = half(4, 64, 512)
    expected = torch.autograd.grad(reference(x, weight, bias), (x, weight, bias), cotangent.double())
    torch._dynamo.reset()
    for op in (layer, torch.compile(layer, fullgraph=True)):
        found = torch.autograd.grad(op(x, weight, bias), (x, weight, bias), cotangent)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs.to(ours.dtype), rtol=2e-2, atol=2e-1)
    with torch.no_grad():
        compiled = torch.compile(layer, fullgraph=True)(x, weight, bias)
        torch.testing.assert_close(compiled, layer(x, weight, bias), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own use of it, for tangents
def test_each_samples_gradient_and_tangents_are_right():
    x, b = half(3, 64, 128), half(128, 96)

    def squares(op):
        return lambda b, x: op(x, b).float().square().sum()

    found = func.vmap(func.grad(squares(matmul)), in_dims=(None, 0))(b, x)
    expected = func.vmap(func.grad(squares(torch.matmul)), in_dims=(None, 0))(b.double(), x.double())
    torch.testing.assert_close(found.double(), expected, rtol=2e-2, atol=2.0)
    _, tangent = func.jvp(matmul, (x[0], b), (x[1], b))
    torch.testing.assert_close(tangent, x[1] @ b + x[0] @ b, rtol=1e-2, atol=1e-1)
