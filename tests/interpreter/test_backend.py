"""`matmul(backend=...)`: whose product it is, and that it is right."""

from __future__ import annotations

import pytest
import torch

import tuner
from tuner.errors import InputError
from tuner.hardware.device import INTERPRETER
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.kernels import matmul
from tuner.lookup.row import Row
from tuner.problem import Problem

CONFIG = Config("pointer", BLOCK_SIZE_M=32, BLOCK_SIZE_N=32, BLOCK_SIZE_K=32, GROUP_SIZE_M=1, num_stages=1, num_warps=4)
A, B = torch.randn(2, 16, 32), torch.randn(32, 48)


@pytest.fixture
def tuned(tmp_path, no_tables, make_row, make_table):
    """Name a table whose row for A @ B says how much faster than torch's library it is."""

    def name(vs_vendor: float | None, **parts: object) -> None:
        version = registry.find("matmul", "pointer").version
        problem = Problem(32, 48, 32, dtype="float32", **parts)
        row = Row(problem, CONFIG, version, make_row().made, 10.0, 1.0, vs_vendor, 1)
        tuner.use(make_table(row, device=INTERPRETER).write(tmp_path))

    return name


@pytest.mark.parametrize(
    ("vs_vendor", "backend", "launched"),
    [
        (0.5, None, 3),
        (0.5, "triton", 3),
        (0.5, "auto", 0),
        (0.98, "auto", 0),
        (0.995, "auto", 3),
        (1.3, "auto", 3),
        (None, "auto", 3),
        (1.3, "vendor", 0),
    ],
)
def test_torch_serves_where_its_library_was_faster_by_more_than_noise(vs_vendor, backend, launched, tuned, ours):
    tuned(vs_vendor)
    for _ in range(3):
        out = matmul(A, B, backend=backend)
        torch.testing.assert_close(out, A @ B)
    assert len(ours) == launched


def test_other_sources_decide_anew(tuned, ours):
    for vs_vendor, launched in ((0.5, 0), (1.5, 1), (0.5, 1)):
        tuned(vs_vendor)
        matmul(A, B, backend="auto")
        assert len(ours) == launched


def test_bias_activation_and_output_go_through_torch_too(tuned, ours):
    tuned(0.5, epilogue="bias+relu")
    bias, out = torch.randn(48), torch.empty(2, 16, 48)
    expected = torch.relu(A @ B + bias)
    for _ in range(2):
        torch.testing.assert_close(matmul(A, B, bias=bias, activation="relu", backend="auto"), expected)
        assert matmul(A, B, bias=bias, activation="relu", out=out, backend="auto") is out
        torch.testing.assert_close(out, expected)
    assert ours == []


def test_what_torch_does_not_have_is_ours_under_auto_and_an_error_under_vendor(tuned, ours):
    tuned(0.5, epilogue="bias")
    bias = torch.randn(48, dtype=torch.float16)
    for _ in range(2):
        torch.testing.assert_close(matmul(A, B, bias=bias, backend="auto"), A @ B + bias)
    assert len(ours) == 2
    with pytest.raises(InputError, match="backend 'vendor': torch adds a bias of the output's dtype"):
        matmul(A, B, bias=bias, backend="vendor")


def test_torch_writes_8_bit_products_into_any_strides(ours):
    a, b = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((32, 64), (64, 48)))
    wide = torch.full((32, 96), 7, dtype=torch.int32)
    for out in (wide[:, ::2], torch.empty(48, 32, dtype=torch.int32).t()):
        assert matmul(a, b, out=out, backend="vendor") is out
        assert torch.equal(out, a.int() @ b.int())
    assert (wide[:, 1::2] == 7).all()
    assert ours == []


def test_gradients_are_those_of_our_kernels(tuned, ours):
    tuned(0.5)
    a = A.clone().requires_grad_()
    matmul(a, B, backend="auto").sum().backward()
    torch.testing.assert_close(a.grad, torch.ones(2, 16, 48) @ B.t())
    assert len(ours) == 2


def test_wrong_arguments_are_named():
    with pytest.raises(InputError, match="unknown backend 'cublas': expected one of triton, auto, vendor"):
        matmul(A, B, backend="cublas")
    with pytest.raises(InputError, match="a is"):
        matmul([1.0], B, backend="auto")
    with pytest.raises(InputError, match=r"unknown backend \['auto'\]"):
        matmul(A, B, backend=["auto"])
    with pytest.raises(InputError, match=r"activation is \['relu'\]: expected one of"):
        matmul(A, B, activation=["relu"], backend="auto")
    with pytest.raises(InputError, match="do not fit"):
        matmul(A, B.t(), backend="vendor")
