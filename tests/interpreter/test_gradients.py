"""Derivatives of matmul are torch's own: by autograd, and by the transforms of torch.func."""

from __future__ import annotations

import pytest
import torch
from torch import func
from torch.autograd import forward_ad

from tuner.errors import InputError
from tuner.kernels import bmm, fused_experts, gated_linear, grouped_mm, matmul, rms_norm, softmax, vector_add


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def learnt(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return drawn(*shape, dtype=dtype, seed=seed).requires_grad_()


ACTIVATED = {
    None: lambda values: values,
    "relu": torch.nn.functional.relu,
    "leaky_relu": torch.nn.functional.leaky_relu,
    "gelu": lambda values: torch.nn.functional.gelu(values, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}


@pytest.mark.parametrize("activation", list(ACTIVATED))
def test_gradients_are_torchs(activation):
    a, weight, bias = learnt(2, 9, 40), learnt(33, 40, seed=1), learnt(33, seed=2)
    out = matmul(a, weight.t(), bias=bias, activation=activation)
    cotangent = drawn(*out.shape, seed=3)
    found = torch.autograd.grad(out, (a, weight, bias), cotangent)
    expected = torch.autograd.grad(ACTIVATED[activation](a @ weight.t() + bias), (a, weight, bias), cotangent)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_gradient_comes_in_its_tensors_dtype_whatever_the_results_is():
    a, b = learnt(16, 32, dtype=torch.float16), learnt(32, 24, dtype=torch.float16)
    matmul(a, b, out_dtype=torch.float32).sum().backward()
    assert (a.grad.dtype, b.grad.dtype) == (torch.float16, torch.float16)
    torch.testing.assert_close(a.grad, b.detach().float().sum(1).expand(16, 32).half(), rtol=1e-2, atol=1e-2)


def test_only_what_asks_for_a_gradient_gets_one_and_gradients_have_gradients():
    a, b = drawn(5, 6), learnt(6, 7)
    (grad,) = torch.autograd.grad(matmul(a, b).square().sum(), b, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), b)
    expected = 2 * a.t() @ (a @ torch.ones(6, 7))
    torch.testing.assert_close(second, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(0, 4, 5), (3, 0, 5), (3, 4, 0), (2, 0, 4, 5)], ids=str)
def test_sums_over_nothing_have_gradients(shape):
    *rows, k, n = shape
    given = learnt(*rows, k), learnt(k, n, seed=1), learnt(n, seed=2)
    found = torch.autograd.grad(matmul(*given[:2], bias=given[2]).sum(), given)
    expected = torch.autograd.grad((given[0] @ given[1] + given[2]).sum(), given)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def product(x, y, bias):
    return matmul(x, y, bias=bias, activation="silu")


def torchs(x, y, bias):
    return torch.nn.functional.silu(x @ y + bias)


def of_sum(op, by):
    """The gradient by an argument of a number that all of an op's result goes into."""
    return func.grad(lambda *given: op(*given).square().sum(), argnums=by)


TRANSFORMED = {
    "a gradient by each": lambda op, x, y, bias: of_sum(op, (0, 1, 2))(x[0], y[0], bias),
    "mapped over rows": lambda op, x, y, bias: func.vmap(op, in_dims=(0, None, None))(x, y[0], bias),
    "mapped over weights, along their last dimension": lambda op, x, y, bias: func.vmap(op, in_dims=(None, 2, None))(
        x[0], y.movedim(0, 2), bias
    ),
    "each sample's gradient": lambda op, x, y, bias: func.vmap(of_sum(op, 1), in_dims=(0, None, None))(x, y[0], bias),
    "the gradient of what is mapped": lambda op, x, y, bias: func.grad(
        lambda y: func.vmap(op, in_dims=(0, 0, None))(x, y, bias).square().sum()
    )(y),
    "tangents": lambda op, x, y, bias: func.jvp(op, (x[0], y[0], bias), (x[1], y[1], bias))[1],
    "rows of the Jacobian": lambda op, x, y, bias: func.jacrev(op, 1)(x[0], y[0], bias),
    "columns of the Jacobian": lambda op, x, y, bias: func.jacfwd(op, 2)(x[0], y[0], bias),
    "a Hessian": lambda op, x, y, bias: func.hessian(lambda x: op(x, y[0], bias).square().sum())(x[0, :2]),
    "functions without side effects": lambda op, x, y, bias: func.functionalize(op)(x[0], y[0], bias),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own use of it, for tangents
@pytest.mark.parametrize("transformed", list(TRANSFORMED))
def test_torch_func_takes_the_derivatives_that_it_takes_of_torchs_own(transformed):
    given = [drawn(*shape, seed=seed) for seed, shape in enumerate(((2, 3, 4), (2, 4, 5), (5,)))]
    found, expected = (TRANSFORMED[transformed](op, *given) for op in (product, torchs))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_tangent_outside_of_torch_func_is_carried_on_or_refused():
    x, tangent, b = drawn(3, 4), drawn(3, 4, seed=1), drawn(4, 5)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        found = forward_ad.unpack_dual(matmul(dual, b, activation="relu")).tangent
        with pytest.raises(InputError, match="an operand requires a gradient"):
            softmax(dual)
        with pytest.raises(InputError, match="an operand requires a gradient"):
            rms_norm(dual, tangent[0], 1e-6)
        with pytest.raises(InputError, match="an operand requires a gradient"):
            gated_linear(tangent, tangent, dual)
        assert forward_ad.unpack_dual(matmul(x, b)).tangent is None
    torch.testing.assert_close(found, (tangent @ b) * (x @ b > 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("trained", ["a", "b", "bias"])
def test_only_what_a_gradient_needs_is_kept(trained):
    given = {"a": drawn(9, 40), "b": drawn(40, 33), "bias": drawn(33)}
    given[trained].requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda each: kept.append(tuple(each.shape)) or each, lambda each: each
    ):
        out = matmul(given["a"], given["b"], bias=given["bias"])
    assert kept == {"a": [(40, 33)], "b": [(9, 40)], "bias": []}[trained]
    theirs = given["a"] @ given["b"] + given["bias"]
    (found,), (expected,) = (torch.autograd.grad(each.sum(), (given[trained],)) for each in (out, theirs))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_operands_of_inference_mode_are_refused_only_where_a_gradient_would_keep_them():
    with torch.inference_mode():
        a = drawn(9, 40)
    assert matmul(a, drawn(40, 33), bias=learnt(33)).requires_grad
    with pytest.raises(InputError, match=r"a was made under torch.inference_mode"):
        matmul(a, learnt(40, 33))


SQUARE, ENDS = drawn(4, 4, seed=5), torch.tensor([4], dtype=torch.int32)
WRITES = {
    "matmul": lambda out: matmul(SQUARE, SQUARE, out=out),
    "matmul of a batch": lambda out: matmul(SQUARE[None], SQUARE, out=out[None]),
    "bmm": lambda out: bmm(SQUARE[None], SQUARE[None], out=out[None]),
    "grouped_mm": lambda out: grouped_mm(SQUARE, SQUARE[None], ENDS, out=out),
    "lists": lambda out: grouped_mm([SQUARE], [SQUARE], out=[out]),
    "fused_experts": lambda out: fused_experts(
        SQUARE, SQUARE.repeat(2, 2, 1), SQUARE.repeat(2, 1, 1), ENDS.expand(4, 1) - 4, SQUARE[:, :1], out=out
    ),
    "gated_linear": lambda out: gated_linear(SQUARE, SQUARE, SQUARE, out=out),
    "softmax": lambda out: softmax(SQUARE, out=out),
    "rms_norm": lambda out: rms_norm(SQUARE, SQUARE[0], 1e-6, out=out),
    "vector_add": lambda out: vector_add(SQUARE.flatten(), SQUARE.flatten(), out=out.view(16)),
}


@pytest.mark.parametrize("name", WRITES)
def test_an_output_that_a_backward_pass_still_needs_is_torchs_error(name):
    factor, out = learnt(4, 4), torch.ones(4, 4)
    loss = (factor * out).sum()
    WRITES[name](out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
