"""The pointer kernel itself, through its KernelSpec: what test_numerics.py, which tries every kernel, leaves out."""

from __future__ import annotations

import pytest

from tuner import Problem
from tuner.kernel.config import Config
from tuner.kernels.gemm.pointer.spec import SPEC
from tuner.sweep import verify

PROBLEMS = [
    Problem(64, 64, 64, dtype="bf16", layout="nt"),
    Problem(33, 50, 70, dtype="fp16", epilogue="bias+silu"),
    Problem(48, 17, 96, dtype="e4m3", layout="tt", out_dtype="e5m2", epilogue="bias"),
    Problem(17, 64, 33, dtype="fp32", layout="tn", epilogue="gelu"),
    Problem(64, 64, 64, dtype="fp16", aligned=False),
]


def checked(problem: Problem, config: Config, seed: int = 0) -> verify.Comparison:
    inputs = SPEC.make_inputs(problem, "cpu", seed)
    verify.poison(inputs)
    SPEC.launch(inputs, config)
    return verify.check(inputs, SPEC.reference(inputs), problem.k, SPEC.tolerance(problem))


@pytest.mark.parametrize("group", [0, 1, 3, 4, 16])
def test_group_size_m_changes_the_order_and_no_result(group):
    config = Config("pointer", BLOCK_SIZE_M=16, BLOCK_SIZE_N=16, BLOCK_SIZE_K=32, GROUP_SIZE_M=group, num_warps=4)
    assert checked(Problem(100, 70, 40), config).failure is None


def test_wide_offsets_give_the_same_result():
    problem = Problem(40, 50, 60)
    inputs = SPEC.make_inputs(problem, "cpu", 0)
    config = Config("pointer", BLOCK_SIZE_M=16, BLOCK_SIZE_N=16, BLOCK_SIZE_K=32, num_warps=4)
    # Rows 2^27 elements apart would take 2^33 elements; one row of them takes none, and its tile is still wide.
    far = inputs.a[:1].as_strided((1, 60), (2**27 + 8, 1))
    from tuner.kernels.base.operands import Operands
    from tuner.kernels.gemm.pointer.spec import pointer_launch

    single = Operands(far, inputs.b, inputs.out[:1], None, Problem(1, 50, 60), inputs.buffer)
    assert not pointer_launch(inputs, config).constants["WIDE"]
    assert pointer_launch(single, config.replace(BLOCK_SIZE_M=32)).constants["WIDE"]
    verify.poison(single)
    SPEC.launch(single, config.replace(BLOCK_SIZE_M=32))
    assert verify.error(single.out, SPEC.reference(single), 60) <= SPEC.tolerance(problem)


def test_inputs_are_drawn_anew_for_each_seed_and_alike_for_the_same():
    problem = Problem(32, 48, 64, epilogue="bias")
    first, same, other = (SPEC.make_inputs(problem, "cpu", seed) for seed in (1, 1, 2))
    assert first.a.equal(same.a)
    assert first.b.equal(same.b)
    assert not first.a.equal(other.a)
    assert not first.bias.equal(other.bias)
    assert abs(float(first.a.float().std()) - 1) < 0.1


@pytest.mark.parametrize("problem", PROBLEMS[:2] + PROBLEMS[3:], ids=str)
def test_torchs_own_library_passes_the_same_check(problem):
    inputs = SPEC.make_inputs(problem, "cpu", 0)
    verify.poison(inputs)
    SPEC.vendor(inputs)
    assert verify.check(inputs, SPEC.reference(inputs), problem.k, SPEC.tolerance(problem)).failure is None
