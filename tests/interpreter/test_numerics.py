"""Every kernel over a covering design in miniature, and that what judges them sees each kind of fault.

benchmarks/checks/numerics.py runs the same design, judged in the same way, in full on a GPU.
"""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest
import torch
from attempts import attempt, laid_out
from covering import VIEWS, Case, Coverage, cover

from tuner import Problem
from tuner.hardware.device import INTERPRETER, KNOWN
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.kernels.gemm.pointer.spec import SPEC
from tuner.store.records import State

KERNELS = sorted(key for key, spec in registry.specs().items() if spec.launch.__module__.startswith("tuner.kernels."))
"""Without those that other tests register, which a process that runs this file alone does not know."""
SIZES = ((1, 3, 16, 17, 33), (1, 7, 16, 17, 96, 129), (1, 7, 16, 17, 64, 129, 272))
"""Of M, N and K: small, as the interpreter is slow; K long enough to be split."""
FEWER = {"padded": (SIZES[0], SIZES[1], SIZES[2][:-1]), "softmax_split": (SIZES[0][:2], *SIZES[1:])}
"""Of kernels that have a program for a few rows of what they copy, or for a part of a row: more are the same again."""
CASES = 14
"""Of each kernel: the design's first rows hold most of its pairs."""
FIRST = 4
"""Of these, how many a quick run takes."""
CONFIG = Config("pointer", BLOCK_SIZE_M=16, BLOCK_SIZE_N=16, BLOCK_SIZE_K=32, GROUP_SIZE_M=1, num_stages=1, num_warps=4)


@pytest.mark.parametrize("rows", [slice(FIRST), pytest.param(slice(FIRST, CASES), marks=pytest.mark.long)], ids=str)
@pytest.mark.parametrize(("op", "name"), KERNELS, ids=map("-".join, KERNELS))
def test_a_kernel_is_right_wherever_it_serves_and_writes_nothing_else(op, name, rows):
    coverage = Coverage(registry.find(op, name), INTERPRETER, FEWER.get(name, SIZES))
    if not coverage.problems:
        pytest.skip("it does not run on the interpreter")
    cases = list(itertools.islice(coverage.cases(), rows.stop))[rows]
    results = {case: attempt(case, "cpu") for case in cases}
    assert results
    assert coverage.faults == []
    assert [f"{case}: {result.message}" for case, result in results.items() if result.state is not State.COMPLETE] == []


def faults_of(launch, install, *, view: str = "dense"):
    """What is found when the kernel's own launch is followed by another one's fault."""

    def launched(inputs, config):
        SPEC.launch(inputs, config)
        launch(inputs)

    spec = dataclasses.replace(SPEC, launch=launched)
    install(spec)
    aligned = None if view in ("dense", "strided") else False
    problem = Problem(17, 48, 64, dtype="fp16", layout="nt", epilogue="bias", aligned=aligned)
    return attempt(Case(problem, view, CONFIG, True, 0), "cpu")


@pytest.mark.parametrize("view", VIEWS["matmul"])
def test_a_right_launch_is_found_right_in_every_view(view, install):
    result = faults_of(lambda inputs: None, install, view=view)
    assert (result.state, result.message) == (State.COMPLETE, "")
    assert 0 < result.ratio <= 1


@pytest.mark.parametrize("view", VIEWS["matmul"])
def test_one_wrong_element_is_found(view, install):
    result = faults_of(lambda inputs: inputs.out[16, 47].add_(0.5), install, view=view)
    assert result.state is State.WRONG_RESULT
    assert result.ratio > 1


@pytest.mark.parametrize("view", VIEWS["matmul"])
@pytest.mark.parametrize("behind", [False, True])
def test_a_byte_beside_the_output_is_found(view, behind, install):
    def stray(inputs):
        flat = inputs.buffer.view(-1)
        first = (inputs.out.data_ptr() - flat.data_ptr()) // flat.element_size()
        last = first + sum(
            stride * (size - 1) for stride, size in zip(inputs.out.stride(), inputs.out.shape, strict=True)
        )
        flat[last + 1 if behind else first - 1] = 0

    result = faults_of(stray, install, view=view)
    assert result.stray
    assert result.message == "wrote outside its output"


def test_a_byte_between_two_rows_of_the_output_is_found(install):
    def stray(inputs):
        inputs.out.as_strided((17, 49), inputs.out.stride())[3, 48] = 0

    assert faults_of(stray, install, view="odd").stray


def test_a_second_launch_that_writes_other_bits_is_found(install):
    launches = itertools.count()
    result = faults_of(lambda inputs: inputs.out[0, :1].mul_(1 + 2**-9 * next(launches)), install)
    assert not result.repeatable
    assert result.message == "a second launch wrote other bits"


def test_a_read_between_two_rows_of_an_operand_is_found(install):
    def read(inputs):
        rows, columns = inputs.a.shape
        inputs.out[0, 0] += 0 * inputs.a.as_strided((rows, columns + 1), inputs.a.stride())[0, columns]

    assert faults_of(read, install, view="strided").message == "left elements unwritten, or wrote NaN or infinity"


@pytest.mark.parametrize("layout", ["nn", "tt"])
@pytest.mark.parametrize("view", ["strided", "odd"])
def test_a_view_changes_strides_and_no_value(layout, view):
    dense = SPEC.make_inputs(Problem(16, 32, 64, layout=layout, aligned=view == "strided"), "cpu", 0)
    spread = laid_out(dense, view)
    gap = 1 if view == "odd" else 8
    for before, after in ((dense.a, spread.a), (dense.b, spread.b)):
        assert torch.equal(before, after)
        assert sorted(after.stride()) == [1, max(before.stride()) + gap]
        assert after.stride().index(1) == before.stride().index(1)
    assert spread.out.stride() == (32 + gap, 1)
    assert laid_out(dense, "transposed").out.stride() == (1, 16)


def test_a_design_holds_every_pair_in_fewer_rows():
    rows = list(itertools.product(range(5), range(4), "abc", "xy"))
    # A constraint: some pairs cannot be.
    rows = [row for row in rows if row[0] != 3 or row[2] == "a"]

    def pairs(chosen):
        return {pair for row in chosen for pair in itertools.combinations(enumerate(row), 2)}

    chosen = cover(rows, random.Random(0))
    assert pairs(chosen) == pairs(rows)
    assert len(chosen) <= 30 < len(rows)


def test_sampled_configs_hold_every_value_of_every_axis():
    coverage = Coverage(SPEC, KNOWN["sm_90"])
    cases = list(coverage.cases())
    assert coverage.untried == []
    again = itertools.islice(Coverage(SPEC, KNOWN["sm_90"]).cases(), 40)
    assert cases[:40] == [*again], "the same seed gives other cases"
