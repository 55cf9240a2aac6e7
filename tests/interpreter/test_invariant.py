"""`matmul(invariant=True)`: a row's bits do not depend on its batch, and a config that changes them is found out."""

from __future__ import annotations

import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter

from tuner.errors import InputError
from tuner.hardware.device import INTERPRETER
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.kernels import matmul
from tuner.problem import Problem
from tuner.store.records import State
from tuner.sweep import bits, verify
from tuner.sweep.measure import Measurement
from tuner.sweep.nvml import GpuMonitor
from tuner.sweep.timer import HostTimer

OTHER = Config("pointer", BLOCK_SIZE_M=64, BLOCK_SIZE_N=64, BLOCK_SIZE_K=64, GROUP_SIZE_M=1, num_stages=1, num_warps=4)
OWN = OTHER.replace(BLOCK_SIZE_M=32, BLOCK_SIZE_N=32, BLOCK_SIZE_K=32)


@pytest.fixture(autouse=True)
def products_in_one_order(monkeypatch):
    """Sums of a product's terms in ascending order.

    The interpreter asks numpy's BLAS. On processors without AVX-512 it adds a row's terms in an order that depends on
    where in the tile the row stands; a GPU's does not.
    """

    def create_dot(_builder, a, b, d, _precision, _imprecise):
        dtype = d.data.dtype
        a_data, b_data = (
            interpreter._convert_float(x.data, x.dtype, tl.float16, None).view("float16")
            if x.dtype.primitive_bitwidth == 8
            else x.data
            for x in (a, b)
        )
        terms = a_data[:, :, None].astype(dtype) * b_data[None].astype(dtype)
        return interpreter.TensorHandle(terms.sum(axis=1) + d.data, d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn])
@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_a_row_has_the_same_bits_in_every_batch(dtype, layout):
    a, b = torch.randn(75, 200), torch.randn(200, 96)
    a, b = (a, b.t().contiguous().t()) if layout == "nt" else (a.t().contiguous().t(), b)
    a, b, bias = a.to(dtype), b.to(dtype), torch.randn(96)
    whole = matmul(a, b, bias=bias, activation="silu", out_dtype=torch.float32, invariant=True)
    for rows in (slice(0, 1), slice(74, 75), slice(0, 8), slice(5, 37), slice(0, 33)):
        part = matmul(a[rows], b, bias=bias, activation="silu", out_dtype=torch.float32, invariant=True)
        assert not verify.differs(part, whole[rows]).any()


@pytest.mark.parametrize("layout", ["nt", "nn"])
def test_a_long_sum_of_few_columns_is_added_in_parts_whatever_kernel_adds_them(layout):
    problem = Problem(33, 40, 1000, dtype="fp16", layout=layout, out_dtype="fp32", invariant=True)
    specs = registry.serving(problem, INTERPRETER)
    assert {"pointer", "split_k"} <= {spec.name for spec in specs}
    inputs = specs[0].make_inputs(problem, "cpu", 0)
    expected = specs[0].invariance.witness(inputs)
    parts = [
        matmul(inputs.a[:, first : first + 256], inputs.b[first : first + 256], out_dtype=torch.float32, invariant=True)
        for first in range(0, 1000, 256)
    ]
    assert not verify.differs(((parts[0] + parts[1]) + parts[2]) + parts[3], expected).any()
    for spec in specs:
        for config in spec.space(problem, INTERPRETER).configs():
            verify.poison(inputs)
            spec.launch(inputs, config)
            assert not verify.differs(inputs.output, expected).any(), config


def test_parts_are_the_same_where_an_odd_number_of_steps_remains():
    """992 elements are 31 steps of 32, and four parts are none of them."""
    a, b = torch.randn(33, 992, dtype=torch.float16), torch.randn(992, 40, dtype=torch.float16)
    whole = matmul(a, b, out_dtype=torch.float32, invariant=True)
    problem = Problem(33, 40, 992, dtype="fp16", out_dtype="fp32", invariant=True)
    for spec in registry.serving(problem, INTERPRETER):
        inputs = spec.make_inputs(problem, "cpu", 0)
        expected = spec.invariance.witness(inputs)
        for config in spec.space(problem, INTERPRETER).configs():
            verify.poison(inputs)
            spec.launch(inputs, config)
            assert not verify.differs(inputs.output, expected).any(), config
    assert not verify.differs(matmul(a[5:6], b, out_dtype=torch.float32, invariant=True), whole[5:6]).any()


def test_without_it_a_row_has_other_bits_in_another_batch():
    a, b = torch.randn(75, 200), torch.randn(200, 96)
    assert verify.differs(matmul(a[:1], b), matmul(a, b)[:1]).any()


def test_scales_of_blocks_are_invariant_too():
    a, b = torch.randn(40, 300).to(torch.float8_e4m3fn), torch.randn(96, 300).to(torch.float8_e4m3fn).t()
    scale_a, scale_b = torch.rand(40, 3), torch.rand(1, 3).t()
    whole = matmul(a, b, scale_a=scale_a, scale_b=scale_b, invariant=True)
    part = matmul(a[:9], b, scale_a=scale_a[:9], scale_b=scale_b, invariant=True)
    assert not verify.differs(part, whole[:9]).any()


def test_gradients_and_compiled_programs_are_computed_likewise():
    a, b = torch.randn(40, 64, requires_grad=True), torch.randn(64, 48)
    matmul(a, b, invariant=True)[:1].sum().backward()
    one = a[:1].detach().clone().requires_grad_()
    matmul(one, b, invariant=True).sum().backward()
    assert torch.equal(a.grad[:1], one.grad)
    compiled = torch.compile(lambda a, b: matmul(a, b, invariant=True), backend="eager")
    assert torch.equal(compiled(one.detach(), b), matmul(a, b, invariant=True)[:1])
    one.grad = None
    compiled(one, b).sum().backward()
    assert torch.equal(a.grad[:1], one.grad)


@pytest.mark.parametrize("backend", ["auto", "vendor"])
def test_torchs_library_serves_no_invariant_call(backend):
    with pytest.raises(InputError, match="whose order of sums depends on M: leave it out"):
        matmul(torch.randn(4, 32), torch.randn(32, 16), invariant=True, backend=backend)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"invariant": "yes"}, "invariant is 'yes': expected True or False"),
        ({"invariant": torch.ones(2)}, r"invariant is tensor\(\[1., 1.\]\): expected True or False"),
        ({"invariant": True, "precision": "tf32x3"}, "precision 'tf32x3' has no invariant form"),
    ],
)
def test_bad_options_are_one_line(options, said):
    with pytest.raises(InputError, match=said):
        matmul(torch.randn(4, 32), torch.randn(32, 16), **options)


def test_a_trial_of_another_order_is_wrong_however_accurate_it_is():
    problem = Problem(40, 96, 200, dtype="fp32", layout="nt", invariant=True)
    spec = registry.find("matmul", "pointer")

    def states(problem: Problem) -> dict[str, tuple[State, str | None]]:
        measurement = Measurement(spec, problem, HostTimer(), GpuMonitor(), "cpu")
        configs = (OWN, OTHER)
        found = measurement.search(configs, lambda _config: None, drop=())
        return {str(config): (outcome.state, outcome.message) for config, outcome in found}

    by_state = states(problem)
    assert by_state[str(OTHER)][0] is State.WRONG_RESULT
    assert "have other bits than every config of an invariant family must write" in by_state[str(OTHER)][1]
    assert by_state[str(OWN)][0] is State.COMPLETE
    plain = Problem(40, 96, 200, dtype="fp32", layout="nt")
    assert {state for state, _ in states(plain).values()} == {State.COMPLETE}


@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_rows_are_compared_between_ms(layout):
    problem = Problem(40, 96, 200, dtype="fp32", layout=layout, invariant=True)
    spec = registry.serving(problem, INTERPRETER)[0]
    right, wrong = ((8, OWN), (32, OWN), (40, OWN)), ((8, OTHER), (40, OWN))
    assert bits.changed_rows(spec, problem, right, HostTimer(), "cpu") == {8: 0, 32: 0, 40: 0}
    assert bits.changed_rows(spec, problem, wrong, HostTimer(), "cpu")[8] > 0
