"""split_sum: a second launch adds the parts of every sum in order, whatever the layout and the epilogue."""

from __future__ import annotations

import pytest
import torch

from tuner import Config, Problem
from tuner.kernel import registry
from tuner.kernels.gemm.small_m import split_sum
from tuner.launch.launch import Launch
from tuner.sweep import verify

SPEC = registry.find("matmul", "split_sum")
OPERANDS = [
    {"dtype": "fp32", "precision": "ieee"},
    {"dtype": "fp16", "epilogue": "bias+silu"},
    {"dtype": "int8", "out_dtype": "int32"},
    {"dtype": "int8", "out_dtype": "fp16", "scaling": "row", "epilogue": "bias"},
]


def tile(splits: int) -> Config:
    sizes = {"BLOCK_SIZE_M": 32, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32}
    return Config("split_sum", **sizes, SPLIT_K=splits, num_stages=1, num_warps=4)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("operands", OPERANDS, ids=str)
@pytest.mark.parametrize(("shape", "splits"), [((48, 80, 320), 3), ((112, 48, 304), 2), ((16, 208, 256), 5)], ids=str)
def test_results_are_right(shape, splits, operands, layout):
    problem = Problem(*shape, layout=layout, **operands)
    inputs = SPEC.make_inputs(problem, "cpu", 0)
    SPEC.launch(inputs, tile(splits))
    assert verify.error(inputs.output, SPEC.reference(inputs), problem.k) <= SPEC.tolerance(problem)


@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
def test_an_output_that_tma_cannot_write_is_right_and_what_lies_beside_it_stays(transposed):
    problem = Problem(48, 72, 256, dtype="fp16", layout="nt")
    inputs = SPEC.make_inputs(problem, "cpu", 0)
    room = torch.full((72, 49) if transposed else (48, 73), 7.0, dtype=torch.float16)
    out = room[:, :48].t() if transposed else room[:, :72]
    given = type(inputs)(inputs.a, inputs.b, out, None, problem, room)
    SPEC.launch(given, tile(3))
    assert verify.error(out, SPEC.reference(inputs), 256) <= SPEC.tolerance(problem)
    assert (room[:, -1] == 7).all()


def test_parts_are_counted_by_no_program_and_each_row_of_a_tile_is_added_once():
    problem = Problem(64, 96, 512, dtype="fp16", layout="nt")
    split, added = split_sum.program(SPEC.make_inputs(problem, "meta", 0), tile(4))
    assert isinstance(split, Launch)
    assert split.grid == (6, 4)
    assert dict(zip(split.function.arg_names, split.arguments, strict=False))["counters_ptr"] is None
    assert added.grid[0] * added.constants["ROWS"] == 6 * 32
    assert added.arguments[0] is dict(zip(split.function.arg_names, split.arguments, strict=False))["partials_ptr"]
