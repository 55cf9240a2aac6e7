"""grouped_mm is right for groups of any sizes, empty ones too, as rows of one matrix and as lists of matrices."""

from __future__ import annotations

import itertools

import pytest
import torch

from tuner import Problem
from tuner.errors import InputError, KernelError
from tuner.hardware.device import INTERPRETER
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.kernels import grouped_mm
from tuner.kernels.base.activations import activated
from tuner.kernels.base.numerics import tolerance
from tuner.kernels.grouped.jit import write_row
from tuner.kernels.grouped.operands import GroupedOperands, ragged_ends
from tuner.problem.dtype import name_of
from tuner.sweep import verify


def problem_of(m: int, n: int, k: int, groups: int, *, listed: bool = False, **rest) -> Problem:
    extras = {"groups": groups, **({"listed": True} if listed else {})}
    return Problem(m, n, k, op="grouped_mm", extras=extras, **rest)


PROBLEMS = [
    problem_of(100, 50, 70, 5, dtype="fp16", epilogue="bias+gelu"),
    problem_of(90, 48, 80, 3, dtype="bf16", layout="nt"),
    problem_of(60, 33, 40, 4, dtype="fp32", layout="tn", epilogue="relu"),
    problem_of(48, 64, 96, 1, dtype="e4m3", layout="tt", out_dtype="fp32"),
    problem_of(3, 16, 32, 5, dtype="int8"),
    problem_of(64, 32, 32, 2, dtype="fp16", aligned=False),
    problem_of(100, 50, 70, 5, dtype="fp16", layout="nt", listed=True),
    problem_of(90, 48, 80, 3, dtype="bf16", layout="tn", epilogue="silu", listed=True),
]


def drawn(*shape: int, dtype: str = "float16") -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(getattr(torch, dtype))


def offs_of(*sizes: int) -> torch.Tensor:
    return torch.tensor(list(itertools.accumulate(sizes)), dtype=torch.int32)


def assert_right(out: torch.Tensor, a, b, bias=None, activation: str = "none") -> None:
    reference = a.double() @ b.double()
    if bias is not None:
        reference += bias.double()
    assert out.shape == reference.shape
    if out.numel():
        problem = Problem(1, 1, max(1, a.shape[1]), dtype=name_of(a.dtype), out_dtype=name_of(out.dtype))
        assert verify.error(out, activated(reference, activation), a.shape[1]) <= tolerance(problem)


def assert_groups_right(out, a, b, offs, bias=None, activation: str = "none") -> None:
    for group, (first, beyond) in enumerate(itertools.pairwise([0, *offs.tolist()])):
        assert_right(out[first:beyond], a[first:beyond], b[group], None if bias is None else bias[group], activation)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_every_config_is_right_and_keeps_inside_its_output(problem):
    for spec in registry.serving(problem, INTERPRETER):
        configs = spec.space(problem, INTERPRETER).configs()
        for config in {spec.default_config(problem, INTERPRETER), *configs}:
            inputs = spec.make_inputs(problem, "cpu", 0)
            verify.poison(inputs)
            spec.launch(inputs, config)
            found = verify.check(inputs, spec.reference(inputs), problem.k, spec.tolerance(problem))
            assert found.failure is None, str(config)


SIZES = [(5, 17, 0, 1, 40), (0, 0, 9), (16, 16), (33,), (1,) * 9, (0, 3, 0)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_groups_of_any_sizes_in_every_layout(sizes, layout):
    offs, groups, rows = offs_of(*sizes), len(sizes), sum(sizes)
    a = drawn(rows, 40) if layout[0] == "n" else drawn(40, rows).t()
    b = drawn(groups, 40, 24) if layout[1] == "n" else drawn(groups, 24, 40).mT
    assert_groups_right(grouped_mm(a, b, offs), a, b, offs)


def test_each_group_has_a_bias_of_its_own():
    offs, a, b, bias = offs_of(5, 20, 8), drawn(33, 40), drawn(3, 40, 24), drawn(3, 24)
    assert_groups_right(grouped_mm(a, b, offs, bias=bias, activation="silu"), a, b, offs, bias, "silu")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rows_beyond_the_last_group_are_not_written(dtype):
    a, b, offs = drawn(40, 32, dtype=dtype), drawn(2, 32, 16, dtype=dtype), offs_of(10, 12)
    out = torch.full((40, 16), 7.0, dtype=a.dtype)
    assert grouped_mm(a, b, offs, out=out) is out
    assert_groups_right(out, a, b, offs)
    assert (out[22:] == 7).all()


@pytest.mark.parametrize("ends", [[5, 90], [90, 95], [30, 10], [-4, 20], [2**31 - 1, -(2**31)]])
def test_ends_that_are_no_ends_read_and_write_nothing_outside(ends):
    problem = problem_of(40, 32, 32, 2, dtype="fp32")
    (spec, *_) = registry.serving(problem, INTERPRETER)
    made = spec.make_inputs(problem, "cpu", 0)
    inputs = GroupedOperands(
        made.a, made.b, made.out, None, torch.tensor(ends, dtype=torch.int32), problem, made.buffer
    )
    verify.poison(inputs)
    spec.launch(inputs, spec.default_config(problem, INTERPRETER))
    assert not verify.check(inputs, torch.zeros(40, 32, dtype=torch.float64), 32, 1.0).stray


def test_other_offsets_in_the_same_memory_are_what_the_next_launch_reads():
    a, b, offs = drawn(40, 32), drawn(3, 32, 16), offs_of(5, 15, 20)
    out = grouped_mm(a, b, offs)
    assert_groups_right(out, a, b, offs)
    offs.copy_(offs_of(30, 0, 10))
    grouped_mm(a, b, offs, out=out)
    assert_groups_right(out, a, b, offs)


LISTS = [
    [(17, 33, 40), (1, 16, 7), (64, 5, 96)],
    [(16, 16, 32), (32, 48, 64)],
    [(0, 8, 16), (20, 0, 16), (9, 24, 0), (5, 8, 16)],
    [(7, 9, 11)],
]


@pytest.mark.parametrize("shapes", LISTS, ids=str)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "mixed"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_lists_of_matrices_of_any_sizes(shapes, layout, dtype):
    a, b = [], []
    for index, (m, n, k) in enumerate(shapes):
        ways = layout if layout != "mixed" else ("nn", "tt", "nt", "tn")[index % 4]
        a.append(drawn(m, k, dtype=dtype) if ways[0] == "n" else drawn(k, m, dtype=dtype).t())
        b.append(drawn(k, n, dtype=dtype) if ways[1] == "n" else drawn(n, k, dtype=dtype).t())
    results = grouped_mm(a, b, activation="leaky_relu")
    assert len(results) == len(shapes)
    for one, other, result in zip(a, b, results, strict=True):
        assert_right(result, one, other, activation="leaky_relu")


def test_lists_are_written_into_lists_of_any_strides():
    shapes = [(16, 32, 32), (8, 16, 32)]
    a, b = [drawn(m, k) for m, _, k in shapes], [drawn(k, n) for _, n, k in shapes]
    wide = torch.full((16, 80), 7.0, dtype=torch.float16)
    out = [wide[:, 10:42], torch.empty(16, 8, dtype=torch.float16).t()]
    results = grouped_mm(a, b, out=out)
    assert all(result is given for result, given in zip(results, out, strict=True))
    for one, other, result in zip(a, b, out, strict=True):
        assert_right(result, one, other)
    assert (wide[:, :10] == 7).all()
    assert (wide[:, 42:] == 7).all()


def test_results_side_by_side_in_one_matrix_are_written_and_one_matrix_twice_is_refused():
    a, b, wide = [drawn(16, 32), drawn(16, 24)], [drawn(32, 8), drawn(24, 8)], torch.empty(16, 16, dtype=torch.float16)
    for one, other, result in zip(a, b, grouped_mm(a, b, out=wide.split(8, dim=1)), strict=True):
        assert_right(result, one, other)
    with pytest.raises(InputError, match=r"out\[0\] and out\[1\] share memory: expected its own for each"):
        grouped_mm(a, b, out=[wide[:, :8]] * 2)


def test_a_row_of_the_table_can_be_written_by_a_launch():
    row = (2**62 + 1, 2**40, 3, 4, 5, 6, 7, 8, 9, 10, 2**33, -1)
    table = torch.zeros(3, 12, dtype=torch.int64)
    write_row[(1,)](table, 1, *row)
    assert table.tolist() == [[0] * 12, list(row), [0] * 12]


@pytest.mark.parametrize(
    "shapes",
    [
        [(24, 3, 0)],
        [(16, 16, 0), (8, 5, 0)],
        [(16, 16, 32), (9, 33, 0), (8, 16, 0)],
        [(16, 16, 32), (0, 33, 0)],
        [(16, 16, 32), (0, 0, 33)],
    ],
    ids=str,
)
def test_products_of_lists_without_a_k_are_zeros_and_leave_the_others_alone(shapes):
    a, b = [drawn(m, k) for m, _, k in shapes], [drawn(k, n) for _, n, k in shapes]
    out = [torch.full((m, n), 7.0, dtype=torch.float16) for m, n, _ in shapes]
    for one, other, result in zip(a, b, grouped_mm(a, b, out=out, activation="silu"), strict=True):
        assert_right(result, one, other, activation="silu")


def test_an_empty_list_gives_an_empty_list():
    assert grouped_mm([], []) == []


def test_sizes_of_zero():
    assert grouped_mm(drawn(0, 8), drawn(2, 8, 4), offs_of(0, 0)).shape == (0, 4)
    assert grouped_mm(drawn(6, 8), drawn(2, 8, 0), offs_of(2, 4)).shape == (6, 0)
    out = grouped_mm(torch.empty(6, 0), torch.empty(2, 0, 4), offs_of(2, 4), bias=torch.ones(2, 4))
    assert (out == 1).all()


def test_ragged_ends_hold_all_rows_and_every_seed_draws_others():
    for rows, groups in ((4096, 8), (3, 5), (1, 1), (1000, 64)):
        ends = ragged_ends(rows, groups, 0)
        assert ends == sorted(ends)
        assert (len(ends), ends[-1]) == (groups, rows)
    assert ragged_ends(4096, 8, 0) == ragged_ends(4096, 8, 0) != ragged_ends(4096, 8, 1)


@pytest.mark.parametrize("programs", [1, 3, 64])
def test_however_few_programs_take_all_tiles(programs):
    problem = problem_of(100, 48, 40, 4, dtype="fp32")
    (spec, *_) = registry.serving(problem, INTERPRETER)
    tile = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 16, "BLOCK_SIZE_K": 16}
    config = Config("grouped_pointer", **tile, GROUP_SIZE_M=4, PROGRAMS_PER_SM=programs, num_stages=1, num_warps=4)
    inputs = spec.make_inputs(problem, "cpu", 3)
    verify.poison(inputs)
    registry.find("grouped_mm", "grouped_pointer").launch(inputs, config)
    assert verify.check(inputs, spec.reference(inputs), 40, spec.tolerance(problem)).failure is None


def ok(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float16)


OFFS = offs_of(1, 3)
HALF_AND_FLOAT = [ok(4, 4), ok(4, 4).float()]
TWO, WIDE = [ok(4, 4), ok(4, 4)], ok(4, 9)
ERRORS = {
    "a has shape [2, 4, 4] and b [2, 4, 4]: expected [M, K]": lambda: grouped_mm(ok(2, 4, 4), ok(2, 4, 4), OFFS),
    "for [G, M, K] use bmm": lambda: grouped_mm(ok(2, 4, 4), ok(2, 4, 4), OFFS),
    "weights stored [G, N, K] go in as weights.mT": lambda: grouped_mm(ok(4, 4), ok(2, 5, 4), OFFS),
    "offs is None: expected int32 [2]": lambda: grouped_mm(ok(4, 4), ok(2, 4, 4)),
    "offs has shape [2]: expected [3]": lambda: grouped_mm(ok(4, 4), ok(3, 4, 4), OFFS),
    "offs is int64: expected int32; use offs.int()": lambda: grouped_mm(ok(4, 4), ok(2, 4, 4), OFFS.long()),
    "offs is on meta and a on cpu": lambda: grouped_mm(ok(4, 4), ok(2, 4, 4), OFFS.to("meta")),
    "bias has shape [4]: expected [2, 4]": lambda: grouped_mm(ok(4, 4), ok(2, 4, 4), OFFS, bias=ok(4)),
    "out has shape [4, 5]: expected [4, 4]": lambda: grouped_mm(ok(4, 4), ok(2, 4, 4), OFFS, out=ok(4, 5)),
    "bias is given and a is a list": lambda: grouped_mm([ok(4, 4)], [ok(4, 4)], bias=ok(4)),
    "b is of type Tensor and a a list: expected a list of 1": lambda: grouped_mm([ok(4, 4)], ok(1, 4, 4)),
    "b has 2 matrices and a 1: expected as many": lambda: grouped_mm([ok(4, 4)], [ok(4, 4), ok(4, 4)]),
    "pair 1: a [4, 5] and b [4, 4] do not fit": lambda: grouped_mm([ok(4, 4), ok(4, 5)], [ok(4, 4), ok(4, 4)]),
    "a[1] and b[1] are not of the dtypes": lambda: grouped_mm(HALF_AND_FLOAT, HALF_AND_FLOAT),
    "out[1] is None: expected a torch.Tensor; leave out= away": lambda: grouped_mm(TWO, TWO, out=[ok(4, 4), None]),
    "pair 0: out is of type int: expected a torch.Tensor": lambda: grouped_mm(TWO, TWO, out=[1, ok(4, 4)]),
    "pair 0: out is sparse_coo": lambda: grouped_mm([ok(4, 4)], [ok(4, 4)], out=[ok(4, 4).to_sparse()]),
    "out[0] and out[1] share memory": lambda: grouped_mm(TWO, TWO, out=[WIDE[:, :4], WIDE[:, 3:7]]),
    "requires a gradient": lambda: grouped_mm(ok(4, 4).requires_grad_(), ok(2, 4, 4), OFFS),
}  # fmt: skip


@pytest.mark.parametrize("message", list(ERRORS))
def test_what_does_not_fit_is_one_clear_error(message, refused):
    refused(ERRORS[message], message)


def test_a_problem_without_groups_is_refused_with_what_to_type():
    with pytest.raises(KernelError, match=r"groups is None: expected an integer from 1 on, as extras=\{'groups': 8"):
        registry.serving(Problem(16, 16, 16, op="grouped_mm"), INTERPRETER)
