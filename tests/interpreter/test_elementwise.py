"""vector_add and softmax under the interpreter: every kernel, any length, any strides, and what is refused."""

from __future__ import annotations

import itertools

import pytest
import torch
from checked import check_configs

from tuner import Problem
from tuner.errors import KernelError
from tuner.hardware.device import INTERPRETER
from tuner.kernel import registry
from tuner.kernels import softmax, vector_add
from tuner.kernels.ops import rows as rows_ops
from tuner.kernels.ops import vector_add as vector_add_op
from tuner.kernels.softmax.operands import tolerance
from tuner.launch.plan import Recording
from tuner.sweep import verify

DTYPES = ("fp16", "bf16", "fp32")
LENGTHS = (1, 255, 512, 1000, 8193)
SHAPES = ((1, 1), (3, 7), (17, 33), (16, 64), (5, 530), (1, 2049))
INF = float("inf")


def drawn(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def assert_kernels_right(problem: Problem) -> None:
    """By every kernel that serves it: the default, the first and the last config, twice the same bits."""
    for spec in registry.serving(problem, INTERPRETER):
        configs = spec.space(problem, INTERPRETER).configs()
        check_configs(spec, problem, {spec.default_config(problem, INTERPRETER), configs[0], configs[-1]})


@pytest.mark.parametrize("dtype", DTYPES)
def test_vectors_of_any_length_are_added_and_nothing_else_is_written(dtype):
    for length, aligned in itertools.product(LENGTHS, (True, False)):
        assert_kernels_right(Problem(length, 1, 1, dtype=dtype, aligned=aligned, op="vector_add"))


@pytest.mark.parametrize("layout", ["nn", "tn"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_any_length_are_normalized_and_nothing_else_is_written(dtype, layout):
    for rows, columns in SHAPES:
        assert_kernels_right(Problem(rows, columns, 1, dtype=dtype, layout=layout, op="softmax"))


def test_every_kernel_of_the_op_serves_a_matrix():
    names = {spec.name for spec in registry.serving(Problem(4, 1000, 1, op="softmax"), INTERPRETER)}
    assert names == {"softmax_whole", "softmax_online", "softmax_split"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("length", [1, 31, 1000])
def test_a_sum_is_torchs_to_the_bit(length, dtype):
    x, y = drawn(length, dtype=dtype), drawn(length + 1, dtype=dtype)[1:]
    assert torch.equal(vector_add(x, y), (x.float() + y.float()).to(dtype))


def test_vectors_of_any_stride():
    x, y = drawn(300)[::3], drawn(1).expand(100)
    out = torch.full((200,), INF, dtype=torch.float16)
    assert vector_add(x, y, out=out[::2]).stride() == (2,)
    assert torch.equal(out[::2], x + y)
    assert (out[1::2] == INF).all()


def test_an_operand_may_be_the_output():
    x, y = drawn(1000), drawn(1000)
    expected = x + y
    assert vector_add(x, y, out=x) is x
    assert torch.equal(x, expected)
    rows = drawn(5, 300, dtype=torch.float32)
    expected = torch.softmax(rows, -1)
    assert softmax(rows, out=rows) is rows
    torch.testing.assert_close(rows, expected)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.reshape(24, 100),
        lambda x: x.reshape(100, 24).t(),
        lambda x: x.reshape(8, 3, 100).transpose(0, 1),
        lambda x: x.reshape(12, 200)[:, ::2],
        lambda x: x.reshape(12, 200)[::2, 3:77],
        lambda x: x[:60].expand(7, 60),
        lambda x: x[:100],
    ],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rows_of_any_strides_and_dimensions(view, dtype):
    x = view(drawn(2400, dtype=dtype))
    out = softmax(x)
    assert out.is_contiguous()
    limit = tolerance(Problem(x.numel() // x.shape[-1], x.shape[-1], 1, dtype=str(dtype), op="softmax"))
    assert verify.error(out, torch.softmax(x.double(), -1), 1) <= limit
    # A transposed output, and one whose leading dimensions no view flattens.
    stored = torch.empty((x.shape[-1], *x.shape[:-1]), dtype=dtype).movedim(0, -1)
    assert softmax(x, out=stored) is stored
    assert torch.equal(stored, out)


@pytest.mark.parametrize("kernel", ["softmax_whole", "softmax_online", "softmax_split"])
def test_infinities_and_nans_give_what_torch_gives(kernel, monkeypatch):
    only = registry.find("softmax", kernel)
    monkeypatch.setattr(registry, "serving", lambda problem, device, **_: [only])
    x = drawn(6, 130, dtype=torch.float32)
    x[1] = -INF
    x[2, :128] = -INF
    x[3, 5] = INF
    x[4, 129] = float("nan")
    x[5] = 3e38
    torch.testing.assert_close(softmax(x), torch.softmax(x, -1), equal_nan=True)


def test_sizes_of_zero_give_what_torch_gives():
    assert vector_add(torch.empty(0), torch.empty(0)).shape == (0,)
    for shape in ((0, 5), (5, 0), (2, 0, 3)):
        assert softmax(torch.empty(shape)).shape == shape


def test_the_key_is_length_dtype_and_how_memory_lies(monkeypatch):
    asked = []
    for module in (vector_add_op, rows_ops):
        monkeypatch.setattr(module, "launch", lambda tensors, problem, device: asked.append(problem) or Recording())
    vector_add(drawn(1001), drawn(1001))
    vector_add(drawn(1002)[::2], drawn(501))
    softmax(drawn(4, 64))
    softmax(drawn(64, 8).t())
    softmax(drawn(3, 65, dtype=torch.float32))
    assert asked == [
        Problem(1001, 1, 1, op="vector_add"),
        Problem(501, 1, 1, op="vector_add", aligned=False),
        Problem(4, 64, 1, op="softmax"),
        Problem(8, 64, 1, op="softmax", layout="tn"),
        Problem(3, 65, 1, dtype="fp32", op="softmax"),
    ]
    assert [problem.aligned for problem in asked] == [True, False, True, True, False]


def ok(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float16)


SHARED = ok(5)
ERRORS = {
    "x is None: expected a torch.Tensor": lambda: vector_add(None, ok(4)),
    "y is of type list: expected a torch.Tensor": lambda: vector_add(ok(4), [1.0]),
    "x has shape [2, 2]: expected [M]; use x.flatten()": lambda: vector_add(ok(2, 2), ok(2, 2)),
    "one value for all goes in as y.expand(4)": lambda: vector_add(ok(4), ok(1)),
    "x is float16 and y float32: use y.to(x.dtype)": lambda: vector_add(ok(4), ok(4).float()),
    "x is int64: expected one of float32, float16, bfloat16": lambda: vector_add(ok(4).long(), ok(4).long()),
    "x is sparse_coo: expected a dense tensor": lambda: softmax(ok(2, 2).to_sparse()),
    "x is on meta": lambda: softmax(ok(2, 2).to("meta")),
    "x has shape []: expected [..., N]": lambda: softmax(torch.ones(())),
    "out has shape [3]: expected [4]": lambda: vector_add(ok(4), ok(4), out=ok(3)),
    "out is float32: expected float16, as x is": lambda: softmax(ok(2, 2), out=ok(2, 2).float()),
    "out is of type int": lambda: softmax(ok(2, 2), out=3),
    "out has elements that share memory": lambda: softmax(ok(2, 2), out=ok(1, 2).expand(2, 2)),
    "out shares memory with an operand": lambda: vector_add(SHARED[:4], ok(4), out=SHARED[1:]),
    "requires a gradient": lambda: softmax(ok(2, 2).requires_grad_()),
}


@pytest.mark.parametrize("message", list(ERRORS))
def test_what_does_not_fit_is_one_clear_error(message, refused):
    refused(ERRORS[message], message)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Problem(8, 2, 1, op="vector_add"), r"a vector's problem is Problem\(M, 1, 1, op='vector_add'\)"),
        (Problem(8, 8, 8, op="softmax"), r"a matrix's problem is Problem\(M, N, 1, op='softmax'\)"),
        (Problem(8, 8, 1, op="softmax", layout="nt"), "no layout nt: expected nn or tn"),
        (Problem(8, 8, 1, op="softmax", epilogue="relu"), "no epilogue relu: leave it out"),
        (Problem(8, 1, 1, op="vector_add", dtype="e4m3"), "no float8_e4m3fn: it takes float32"),
        (Problem(8, 1, 1, op="vector_add", out_dtype="fp32"), "operands and output are of one dtype"),
        (Problem(8, 1, 1, op="vector_add", extras={"batch": 2}), "no extras {'batch': 2}"),
    ],
    ids=str,
)
def test_a_problem_that_is_none_is_refused_with_the_reason(problem, reason):
    with pytest.raises(KernelError, match=reason):
        registry.serving(problem, INTERPRETER)


def test_the_judge_sees_a_row_left_out_of_a_sum_and_a_missing_maximum():
    problem = Problem(4, 4096, 1, dtype="fp32", op="softmax")
    spec = registry.find("softmax", "softmax_whole")
    inputs = spec.make_inputs(problem, "cpu", 0)
    right = spec.reference(inputs)
    assert verify.error(right * (1 + 2.0**-12), right, 1) <= spec.tolerance(problem) * 100
    wrong = torch.exp(inputs.a.double()) / torch.exp(inputs.a[:, :-16].double()).sum(1, keepdim=True)
    assert verify.error(wrong, right, 1) > spec.tolerance(problem)
    assert verify.error(torch.zeros_like(right), right, 1) > 100 * spec.tolerance(problem)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 64, 1024, 32768, 2**20])
def test_a_result_of_zeros_is_wrong_however_long_the_row(columns, dtype):
    problem = Problem(8, columns, 1, dtype=dtype, op="softmax")
    x = torch.randn(8, columns, generator=torch.Generator().manual_seed(0))
    right = torch.softmax(x.double(), 1)
    assert verify.error(torch.zeros_like(right), right, 1) > 5 * tolerance(problem)
    assert verify.error(torch.softmax(x, 1), right, 1) <= tolerance(problem)
