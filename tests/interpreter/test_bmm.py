"""bmm is right for every layout, stride, dtype and epilogue, by both of its kernels; wrong arguments are one line."""

from __future__ import annotations

import pytest
import torch

from tuner import Problem
from tuner.errors import KernelError
from tuner.hardware.device import INTERPRETER
from tuner.kernel import registry
from tuner.kernels import bmm
from tuner.kernels.base.activations import activated
from tuner.kernels.base.numerics import tolerance
from tuner.kernels.batched.operands import placement
from tuner.problem.dtype import name_of
from tuner.sweep import verify

PROBLEMS = [
    Problem(33, 50, 70, dtype="fp16", epilogue="bias+gelu", op="bmm", extras={"batch": 3}),
    Problem(40, 48, 80, dtype="bf16", layout="nt", epilogue="bias", op="bmm", extras={"batch": 2}),
    Problem(64, 32, 48, dtype="fp32", layout="tn", op="bmm", extras={"batch": 1}),
    Problem(48, 64, 96, dtype="e4m3", layout="tt", out_dtype="fp32", op="bmm", extras={"batch": 4}),
    Problem(17, 16, 33, dtype="int8", op="bmm", extras={"batch": 2}),
    Problem(32, 32, 32, dtype="fp16", aligned=False, op="bmm", extras={"batch": 2}),
]
KERNELS = ("bmm_pointer", "bmm_tma")


def drawn(*shape: int, dtype: str = "float16") -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(getattr(torch, dtype))


def assert_right(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bias=None, activation: str = "none") -> None:
    reference = a.double() @ b.double()
    if bias is not None:
        reference += bias.double()
    batch, m, n = reference.shape
    problem = Problem(m, n, a.shape[2], dtype=name_of(a.dtype), out_dtype=name_of(out.dtype))
    assert out.shape == (batch, m, n)
    assert verify.error(out, activated(reference, activation), problem.k) <= tolerance(problem)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_every_kernel_is_right_and_keeps_inside_its_output(name, problem):
    spec = registry.find("bmm", name)
    if reason := spec.supports(problem, INTERPRETER):
        assert name == "bmm_tma", reason
        pytest.skip(reason)
    configs = spec.space(problem, INTERPRETER).configs()
    for config in {spec.default_config(problem, INTERPRETER), configs[0], configs[-1]}:
        inputs = spec.make_inputs(problem, "cpu", 0)
        verify.poison(inputs)
        spec.launch(inputs, config)
        found = verify.check(inputs, spec.reference(inputs), problem.k, spec.tolerance(problem))
        assert found.failure is None, str(config)


@pytest.mark.parametrize("problem", [PROBLEMS[1], PROBLEMS[2]], ids=str)
def test_torchs_own_library_passes_the_same_check(problem):
    spec = registry.find("bmm", "bmm_pointer")
    inputs = spec.make_inputs(problem, "cpu", 0)
    verify.poison(inputs)
    spec.vendor(inputs)
    assert verify.check(inputs, spec.reference(inputs), problem.k, spec.tolerance(problem)).failure is None


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 17, 16, 7), (2, 7, 33, 40)], ids=str)
def test_ragged_shapes_in_every_layout(shape, layout):
    batch, m, n, k = shape
    a = drawn(batch, m, k) if layout[0] == "n" else drawn(batch, k, m).mT
    b = drawn(batch, k, n) if layout[1] == "n" else drawn(batch, n, k).mT
    assert_right(bmm(a, b), a, b)


@pytest.mark.parametrize("name", KERNELS)
def test_one_matrix_may_serve_every_product(name, monkeypatch):
    only = registry.find("bmm", name)
    monkeypatch.setattr(registry, "serving", lambda problem, device, **_: [only])
    a, b = drawn(3, 32, 64), drawn(1, 64, 48).expand(3, 64, 48)
    assert b.stride(0) == 0
    assert_right(bmm(a, b, out_dtype="float32"), a, b)
    a = drawn(1, 32, 64).expand(4, 32, 64)
    b = drawn(4, 64, 48)
    assert_right(bmm(a, b, out_dtype="float32"), a, b)


@pytest.mark.parametrize("name", KERNELS)
def test_products_may_lie_between_each_others_rows(name, monkeypatch):
    only = registry.find("bmm", name)
    monkeypatch.setattr(registry, "serving", lambda problem, device, **_: [only])
    # Heads of attention: [tokens, heads, size] taken as [heads, tokens, size].
    a, b = drawn(32, 4, 64).transpose(0, 1), drawn(48, 4, 64).permute(1, 2, 0)
    out = torch.empty(32, 4, 48, dtype=torch.float16).transpose(0, 1)
    assert bmm(a, b, out=out) is out
    assert_right(out, a, b)


def test_slices_and_steps():
    store = drawn(6, 40, 100)
    a, b = store[::2, 3:30:2, 5:65], store[1::2, 0:1, 10:70].mT.expand(3, 60, 20)
    assert_right(bmm(a, b), a, b)


def test_a_batch_stride_that_16_bytes_do_not_divide_is_no_vector():
    odd = torch.empty(5 * 3 * 64 + 5, dtype=torch.float16).as_strided((5, 3, 64), (3 * 64 + 1, 64, 1))
    assert placement(odd).vector == 1
    assert placement(odd[:1]).vector == 8
    assert placement(odd[:1].expand(5, 3, 64)).vector == 8


def test_bias_activation_and_output_dtype():
    a, b, bias = drawn(2, 17, 40), drawn(2, 40, 33), drawn(33)
    out = bmm(a, b, bias=bias, activation="silu", out_dtype="float32")
    assert out.dtype == torch.float32
    assert_right(out, a, b, bias, "silu")


@pytest.mark.parametrize("shape", [(0, 3, 4, 5), (2, 0, 4, 5), (2, 3, 0, 5), (2, 3, 4, 0)], ids=str)
def test_sizes_of_zero_give_what_torch_gives(shape):
    batch, m, n, k = shape
    a, b = drawn(batch, m, k, dtype="float32"), drawn(batch, k, n, dtype="float32")
    torch.testing.assert_close(bmm(a, b), torch.bmm(a, b))


def test_no_products_leave_the_activation_of_the_bias():
    bias = drawn(5, dtype="float32")
    out = bmm(torch.empty(2, 3, 0), torch.empty(2, 0, 5), bias=bias, activation="relu")
    torch.testing.assert_close(out, torch.relu(bias).expand(2, 3, 5))


def ok(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float16)


ERRORS = {
    "a is None: expected a torch.Tensor": lambda: bmm(None, ok(2, 4, 4)),
    "a has shape [4, 4]: expected [B, M, K]; use a.expand(": lambda: bmm(ok(4, 4), ok(2, 4, 4)),
    "b has shape [4, 4]: expected [B, K, N]": lambda: bmm(ok(2, 4, 4), ok(4, 4)),
    "one for all goes in as x.expand(B, -1, -1)": lambda: bmm(ok(2, 4, 4), ok(1, 4, 4)),
    "weights stored [B, N, K] go in as weights.mT": lambda: bmm(ok(2, 4, 5), ok(2, 4, 5)),
    "a is float16 and b float32: expected one dtype": lambda: bmm(ok(2, 4, 4), ok(2, 4, 4).float()),
    "bias has shape [3]: expected [4]": lambda: bmm(ok(2, 4, 4), ok(2, 4, 4), bias=ok(3)),
    "out has shape [4, 4]: expected [2, 4, 4]": lambda: bmm(ok(2, 4, 4), ok(2, 4, 4), out=ok(4, 4)),
    "out has elements that share memory": lambda: bmm(ok(2, 4, 4), ok(2, 4, 4), out=ok(1, 4, 4).expand(2, 4, 4)),
    "activation is 'tanh'": lambda: bmm(ok(2, 4, 4), ok(2, 4, 4), activation="tanh"),
    "requires a gradient": lambda: bmm(ok(2, 4, 4).requires_grad_(), ok(2, 4, 4)),
}


@pytest.mark.parametrize("message", list(ERRORS))
def test_what_does_not_fit_is_one_clear_error(message, refused):
    refused(ERRORS[message], message)


def test_a_problem_without_a_batch_is_refused_with_what_to_type():
    with pytest.raises(KernelError, match=r"batch is None: expected an integer from 1 on, as extras=\{'batch': 8\}"):
        registry.serving(Problem(16, 16, 16, op="bmm"), INTERPRETER)
