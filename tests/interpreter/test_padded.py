"""padded is right in every layout and copies no more than it says; what pad_weight laid out is used in place."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tuner import Problem
from tuner.errors import InputError
from tuner.hardware.device import INTERPRETER
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.kernels import matmul, pad_weight
from tuner.kernels.base.operands import make_operands, row_alignment
from tuner.kernels.gemm.padded import spec as padded
from tuner.kernels.gemm.padded.spec import SPEC
from tuner.sweep import verify

TILE = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32}
LAUNCHED = {"num_stages": 1, "num_warps": 4}
INNER = {
    "tma": {**TILE, "GROUP_SIZE_M": 2},
    "persistent_tma": {**TILE, "GROUP_SIZE_M": 2, "EPILOGUE_PARTS": 1},
    "swap_ab": {**TILE, "BLOCK_SIZE_N": 64, "LOADS": "tma", "SPLIT_K": 2},
}


def config_of(inner: str, chosen: str = "ab") -> Config:
    return Config("padded", INNER=inner, PAD=chosen, **INNER[inner], **LAUNCHED)


def failure(problem: Problem, config: Config, inputs=None) -> str | None:
    inputs = inputs or SPEC.make_inputs(problem, "cpu", 0)
    verify.poison(inputs)
    SPEC.launch(inputs, config)
    return verify.check(inputs, SPEC.reference(inputs), problem.k, SPEC.tolerance(problem)).failure


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("inner", list(INNER))
def test_ragged_operands_and_outputs_in_every_layout(inner, layout):
    problem = Problem(17, 67, 33, layout=layout, epilogue="bias+relu")
    assert failure(problem, config_of(inner)) is None


@pytest.mark.parametrize("shape", [(1, 65, 7), (7, 1, 33), (65, 66, 1), (9, 70, 129)], ids=str)
def test_sizes_at_the_edges_of_a_tile(shape):
    assert failure(Problem(*shape, dtype="fp32"), config_of("tma")) is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn"])
def test_every_width_of_element(dtype):
    assert failure(Problem(17, 35, 67, dtype=dtype, layout="nt"), config_of("tma")) is None


@pytest.mark.parametrize("layout", ["nn", "tn", "nt"])
@pytest.mark.parametrize("inner", list(INNER))
@pytest.mark.parametrize(
    "dtypes", [("float8_e4m3fn", "float32"), pytest.param(("float16", "float32"), marks=pytest.mark.long)], ids=str
)
def test_an_output_that_tma_stores_whose_operands_rows_are_no_multiple_of_16_bytes(inner, dtypes, layout):
    """N x 4 bytes are such a multiple, N x 1 and 2 are not: TMA's coordinates along N must be, all the same."""
    dtype, out_dtype = dtypes
    problem = Problem(40, 100, 48, dtype=dtype, out_dtype=out_dtype, layout=layout, aligned=False)
    assert failure(problem, config_of(inner)) is None


def test_the_two_8_bit_floats_are_copied_in_one_launch():
    problem = Problem(17, 35, 67, a_dtype="e4m3", b_dtype="e5m2", layout="nt")
    assert failure(problem, config_of("tma")) is None
    assert len(padded.program(make_operands(problem, "cpu", 0), config_of("tma"))) == 2


def test_operands_without_a_contiguous_dimension():
    problem = Problem(17, 40, 33)
    inputs = make_operands(problem, "cpu", 0)
    a = torch.randn(34, 99, dtype=torch.float16)[::2, ::3]
    b = torch.randn(1, 1, dtype=torch.float16).expand(33, 40)
    assert failure(problem, config_of("tma"), dataclasses.replace(inputs, a=a, b=b)) is None


@pytest.mark.parametrize("inner", list(INNER))
def test_an_output_of_any_strides(inner):
    problem = Problem(17, 72, 40, aligned=False)
    for stored, view in (((72, 17), lambda room: room.t()), ((17, 79), lambda room: room[:, 3:75])):
        inputs = make_operands(problem, "cpu", 0)
        buffer = torch.empty(stored, dtype=torch.float16)
        inputs = dataclasses.replace(inputs, out=view(buffer), buffer=buffer)
        assert failure(problem, config_of(inner), inputs) is None


COPIED = {
    "odd K: both, whatever is chosen": (Problem(32, 48, 65, layout="nt"), "none", "ab"),
    "rows of 16 bytes' multiples: what is chosen": (Problem(32, 48, 72, layout="nt"), "b", "b"),
    "rows of 128 bytes' multiples: none, whatever is chosen": (Problem(32, 48, 128, layout="nt"), "ab", ""),
    "odd N alone: what is stored along N": (Problem(32, 47, 64, layout="nn"), "none", "b"),
    "one row: it has no stride": (Problem(1, 48, 65, layout="nt"), "ab", "b"),
    "a weight padded ahead: not it": (Problem(32, 48, 65, layout="nt", b_padded=True), "ab", "a"),
}
"""Problem, what its config chooses, what is copied of its operands."""


@pytest.mark.parametrize("case", list(COPIED))
def test_an_operand_is_copied_when_tma_cannot_read_it_or_the_config_pads_its_rows(case):
    problem, chosen, copied = COPIED[case]
    operands = make_operands(problem, "cpu", 0)
    launches = padded.program(operands, config_of("tma", chosen))
    a, b = (descriptor.base.data_ptr() for descriptor in launches[-1].arguments[:2])
    assert (a != operands.a.data_ptr(), b != operands.b.data_ptr()) == ("a" in copied, "b" in copied)
    assert len(launches) == 1 + bool(copied)


@pytest.mark.parametrize("problem", [Problem(32, 48, 65, layout="nt"), Problem(32, 48, 65, layout="nt", b_padded=True)])
def test_the_space_names_each_set_of_copies_once(problem):
    space = SPEC.space(problem, INTERPRETER)
    chosen = {config["PAD"] for config in space.configs()}
    assert chosen == ({"a"} if problem.b_padded else {"ab"})
    assert space.rejection(SPEC.default_config(problem, INTERPRETER), fatal_only=True) is None


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Problem(64, 64, 64), "nothing is to be padded"),
        (Problem(64, 64, 65, aligned=True), "aligned operands need"),
    ],
)
def test_it_says_what_it_does_not_serve(problem, reason):
    assert reason in SPEC.supports(problem, INTERPRETER)


def test_a_config_that_cannot_run_is_refused():
    space = SPEC.space(Problem(33, 67, 129), INTERPRETER)
    good = config_of("swap_ab")
    assert space.rejection(good, fatal_only=True) is None
    for wrong in ({"INNER": "pointer"}, {"PAD": "c"}, {"LOADS": "pointer"}, {"num_warps": 3}):
        assert space.rejection(good.replace(**wrong), fatal_only=True), wrong


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float8_e4m3fn])
def test_a_padded_weight_keeps_its_values_in_rows_of_whole_lines(dtype):
    weight = torch.randn(5, 67).to(dtype)
    laid = pad_weight(weight)
    assert laid.shape == weight.shape
    assert laid.float().equal(weight.float())
    assert row_alignment(laid) == 128
    behind = laid.as_strided((5, laid.stride(0)), laid.stride())[:, 67:]
    assert not behind.float().any()


def test_a_weight_is_padded_once_and_without_its_gradient():
    weight = torch.nn.Parameter(torch.randn(5, 67))
    laid = pad_weight(weight)
    assert not laid.requires_grad
    assert pad_weight(laid).data_ptr() == laid.data_ptr()
    assert row_alignment(pad_weight(torch.randn(67, 5).t())) == 128


def test_what_is_no_matrix_is_refused():
    with pytest.raises(InputError, match=r"weight has shape \[2, 3, 4\]: expected \[N, K\]"):
        pad_weight(torch.ones(2, 3, 4))
    for found, weight in {"of type list": [1], "None": None, "sparse_coo": torch.ones(2, 3).to_sparse()}.items():
        with pytest.raises(InputError, match=f"^weight is {found}: expected a (torch.T|dense t)ensor; use "):
            pad_weight(weight)


def test_matmul_tells_a_padded_weight_from_others(monkeypatch):
    problems = []
    find = registry.find

    def recording(op, name):
        spec = find(op, name)
        return dataclasses.replace(spec, launch=lambda o, config: problems.append(o.problem) or spec.launch(o, config))

    monkeypatch.setattr(registry, "find", recording)
    a, weight = torch.randn(8, 67), torch.randn(5, 67)
    for laid in (weight, pad_weight(weight), weight[:, :64], weight[:1]):
        x = a[:, : laid.shape[1]]
        torch.testing.assert_close(matmul(x, laid.t()), x @ laid.t(), rtol=1e-4, atol=1e-4)
    assert [problem.b_padded for problem in problems] == [False, True, False, False]
    assert problems[0] == Problem(8, 5, 67, dtype="fp32", layout="nt")
    assert problems[1] == Problem(8, 5, 67, dtype="fp32", layout="nt", b_padded=True)
