"""Products of float32 by `simt` are right in every layout, for ragged shapes, split sums and outputs with strides."""

from __future__ import annotations

import random

import pytest
import torch
from checked import check_configs

from tuner import Config, Problem
from tuner.hardware import device
from tuner.kernel import registry
from tuner.kernels.base.operands import Operands
from tuner.sweep import verify

SPEC = registry.find("matmul", "simt")
PLAIN = Config(
    SPEC.name,
    BLOCK_SIZE_M=64,
    BLOCK_SIZE_N=64,
    BLOCK_SIZE_K=32,
    GROUP_SIZE_M=4,
    SPLIT_K=1,
    num_stages=3,
    num_warps=4,
    launch_pdl=True,
)
SHAPES = [(300, 520, 1088), (129, 1003, 77), (37, 250, 2050), (5, 96, 4100), (700, 700, 16)]
_CONFIGS = 3


def sampled(problem):
    here = device.current()
    configs, default = SPEC.space(problem, here).configs(), SPEC.default_config(problem, here)
    return [default, *random.Random(str(problem)).sample(configs, min(_CONFIGS, len(configs)))]


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", [{}, {"epilogue": "bias+gelu", "out_dtype": "bf16"}], ids=["plain", "finished"])
def test_results_are_right_and_the_same_bits_each_time(layout, shape, kind):
    problem = Problem(*shape, dtype="fp32", layout=layout, **kind)
    check_configs(SPEC, problem, sampled(problem), on="cuda", launches=3)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
def test_outputs_with_strides_are_right_and_what_lies_beside_them_stays(splits, transposed):
    m, n, k = 200, 333, 640
    problem = Problem(m, n, k, dtype="fp32", layout="nt", epilogue="bias")
    a, weight = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")
    bias = torch.randn(n, device="cuda")
    expected = a.double() @ weight.double().t() + bias.double()
    rows, columns = (n, m) if transposed else (m, n)
    room = torch.full((rows + 2, columns + 3), 7.0, device="cuda")
    inside = room[1:-1, 1:-2]
    out = inside.t() if transposed else inside
    SPEC.launch(Operands(a, weight.t(), out, bias, problem, room), PLAIN.replace(SPLIT_K=splits))
    assert verify.error(out, expected, k) <= SPEC.tolerance(problem)
    inside.fill_(7.0)
    assert bool((room == 7.0).all())


def test_infinities_and_nan_stay_in_their_rows_and_columns():
    problem = Problem(100, 96, 70, dtype="fp32", layout="nt")
    inputs = SPEC.make_inputs(problem, "cuda", 0)
    inputs.a[3, 69], inputs.b[5, 9] = float("inf"), float("nan")
    for config in (PLAIN, PLAIN.replace(SPLIT_K=2, num_stages=2)):
        verify.poison(inputs)
        SPEC.launch(inputs, config)
        broken = ~inputs.output.isfinite()
        assert bool(broken[3].all())
        assert bool(broken[:, 9].all())
        broken[3], broken[:, 9] = False, False
        assert not bool(broken.any())


def test_it_writes_the_same_bits_as_pointer():
    problem = Problem(200, 300, 1000, dtype="fp32", layout="nn")
    here, pointer = device.current(), registry.find("matmul", "pointer")
    inputs = SPEC.make_inputs(problem, "cuda", 0)
    pointer.launch(inputs, pointer.default_config(problem, here))
    expected = inputs.output.clone()
    verify.poison(inputs)
    SPEC.launch(inputs, PLAIN)
    assert torch.equal(inputs.output, expected)


def test_rows_that_lie_more_than_2_to_the_31_elements_apart_in_a_tile_are_read_and_written():
    m, n, k, stride = 33, 40, 64, 1 << 26
    problem = Problem(m, n, k, dtype="fp32", layout="nt")
    far = torch.empty(m * stride, device="cuda")
    a, out = far.as_strided((m, k), (stride, 1)), far.as_strided((m, n), (stride, 1), k)
    a.copy_(torch.randn(m, k))
    weight = torch.randn(n, k, device="cuda")
    SPEC.launch(Operands(a, weight.t(), out, None, problem, out), PLAIN)
    assert verify.error(out, a.double() @ weight.double().t(), k) <= SPEC.tolerance(problem)
