"""rms_norm under the interpreter: any length, any strides, what torch gives for odd values, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from checked import check_configs

from tuner import Problem
from tuner.errors import KernelError, ProblemError
from tuner.hardware.device import INTERPRETER
from tuner.kernel import registry
from tuner.kernels import rms_norm
from tuner.kernels.ops import rows as rows_ops
from tuner.kernels.ops import torch_fallback
from tuner.kernels.rms_norm.operands import tolerance
from tuner.launch.plan import Recording
from tuner.problem import generic_key, text
from tuner.sweep import verify

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
SHAPES = ((1, 1), (5, 1), (3, 7), (17, 33), (16, 64), (5, 530), (1, 2049))
INF, NAN = float("inf"), float("nan")


def drawn(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def torchs(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)


def problem_of(x: torch.Tensor, eps: float = 1e-6) -> Problem:
    extras = {"eps": eps}
    return Problem(x.numel() // x.shape[-1], x.shape[-1], 1, dtype=str(x.dtype), op="rms_norm", extras=extras)


def assert_right(found: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> None:
    assert (found.shape, found.dtype) == (x.shape, x.dtype)
    assert verify.error(found, torchs(x.double(), weight.double(), eps), 1) <= tolerance(problem_of(x, eps))


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("eps", [1e-6, 1e-5, 0.5])
def test_every_config_is_right_repeats_its_bits_and_writes_nothing_else(dtype, eps):
    spec = registry.find("rms_norm", "rms_norm_whole")
    for rows, columns in SHAPES:
        problem = Problem(rows, columns, 1, dtype=dtype, op="rms_norm", extras={"eps": eps})
        check_configs(spec, problem, spec.space(problem, INTERPRETER).configs())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wrong", [1e-5, 1e-7])
def test_another_eps_no_weight_or_a_mean_over_more_is_no_right_result(dtype, wrong):
    spec = registry.find("rms_norm", "rms_norm_whole")
    problem = Problem(8, 1000, 1, dtype=str(dtype), op="rms_norm", extras={"eps": 1e-6})
    inputs = spec.make_inputs(problem, "cpu", 0)
    right, (x, weight) = spec.reference(inputs), (inputs.a, inputs.b)
    limit = spec.tolerance(problem)
    assert verify.error(torchs(x, weight), right, 1) <= limit
    assert verify.error(torchs(x, weight, wrong), right, 1) > 5 * limit
    assert verify.error(torchs(x, torch.ones_like(weight)), right, 1) > 5 * limit
    longer = 1001 if dtype == torch.float32 else 1100  # what the sum of the squares is divided by
    assert verify.error(torchs(x, weight) * math.sqrt(longer / 1000), right, 1) > limit


def test_the_vendors_result_passes_the_same_check():
    spec = registry.find("rms_norm", "rms_norm_whole")
    for dtype in ("fp16", "bf16", "fp32"):
        problem = Problem(8, 300, 1, dtype=dtype, op="rms_norm", extras={"eps": 1e-6})
        inputs = spec.make_inputs(problem, "cpu", 0)
        assert verify.error(spec.vendor(inputs), spec.reference(inputs), 1) <= spec.tolerance(problem)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.reshape(24, 100),
        lambda x: x.reshape(100, 24).t(),
        lambda x: x.reshape(8, 3, 100).transpose(0, 1),
        lambda x: x.reshape(12, 200)[:, ::2],
        lambda x: x.reshape(12, 200)[::2, 3:77],
        lambda x: x.reshape(12, 200)[:, 7:8],
        lambda x: x.reshape(1, 2400).t(),
        lambda x: x[:60].expand(7, 60),
        lambda x: x[:100],
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_any_strides_and_dimensions(view, dtype):
    x = view(drawn(2400, dtype=dtype))
    weight = drawn(x.shape[-1] * 2, dtype=dtype)[::2]
    out = rms_norm(x, weight, 1e-6)
    assert out.is_contiguous()
    assert_right(out, x, weight)
    # A transposed output, and one whose leading dimensions no view flattens.
    stored = torch.empty((x.shape[-1], *x.shape[:-1]), dtype=dtype).movedim(0, -1)
    assert rms_norm(x, weight, 1e-6, out=stored) is stored
    assert torch.equal(stored, out)


def test_x_and_a_weight_of_its_shape_may_be_the_output():
    for dtype in DTYPES:
        x, weight = drawn(2, 5, 130, dtype=dtype), drawn(130, dtype=dtype)
        expected = rms_norm(x, weight, 1e-5)
        assert rms_norm(x, weight, 1e-5, out=x) is x
        assert torch.equal(x, expected)
        row, expected = x[0, 0].clone(), rms_norm(x[0, 0], weight, 1e-5)
        assert torch.equal(rms_norm(row, weight, 1e-5, out=weight), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [0.0, 1e-4, 1e-2, 1e3])
def test_small_values_are_of_eps_and_large_ones_are_not(dtype, scale):
    x, weight = (drawn(6, 130, dtype=torch.float32) * scale).to(dtype), drawn(130, dtype=dtype)
    for eps in (1e-6, 1e-5, 1.0, 1):
        assert_right(rms_norm(x, weight, eps), x, weight, eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [1.0, 1, -0.5, 2.0**-20, 0, -0.0])
def test_an_offset_is_added_to_the_weight_in_float32(dtype, offset):
    for rows, columns in SHAPES:
        x, weight = drawn(rows, columns, dtype=dtype), drawn(columns, dtype=dtype) * 2**-9
        right = torchs(x.double(), weight.double() + offset)
        found = rms_norm(x, weight, 1e-6, offset=offset)
        assert verify.error(found, right, 1) <= tolerance(problem_of(x))
        assert torch.equal(rms_norm(x, weight, 1e-6, offset=offset, out=x), found)


def test_what_rounds_the_sum_of_offset_and_weight_is_told_apart():
    x, weight = drawn(8, 1000, dtype=torch.bfloat16), drawn(1000, dtype=torch.bfloat16) * 2**-9
    right = torchs(x.double(), weight.double() + 1)
    ours, rounded = rms_norm(x, weight, 1e-6, offset=1.0), torchs(x, 1 + weight)
    assert (ours - right).norm() < 0.8 * (rounded - right).norm()


def test_an_offset_is_looked_up_as_norms_without_one_are(monkeypatch):
    asked = []
    monkeypatch.setattr(rows_ops, "launch", lambda *given: asked.append(given[:2]) or Recording())
    for offset in (0.0, 1.0):
        rms_norm(drawn(4, 64), drawn(64), 1e-6, offset=offset)
    assert [(operands.offset, problem) for operands, problem in asked] == [
        (0.0, problem_of(drawn(4, 64))),
        (1.0, problem_of(drawn(4, 64))),
    ]


def test_torch_in_place_of_a_binary_adds_the_offset_too():
    spec = registry.find("rms_norm", "rms_norm_whole")
    for dtype in ("fp16", "bf16", "fp32"):
        problem = Problem(8, 300, 1, dtype=dtype, op="rms_norm", extras={"eps": 1e-6})
        inputs = replace(spec.make_inputs(problem, "cpu", 0), offset=1.0)
        torch_fallback.compute(inputs, spec.vendor)
        right = torchs(inputs.a.double(), inputs.b.double() + 1)
        assert verify.error(inputs.out, right, 1) <= spec.tolerance(problem)
        torch.testing.assert_close(spec.reference(inputs), right)


def test_infinities_nans_and_squares_beyond_float32_give_what_torch_gives():
    x, weight = drawn(6, 130, dtype=torch.float32), drawn(130, dtype=torch.float32)
    x[1] = 3e38
    x[2, 5] = INF
    x[3, 129] = NAN
    x[4] = -INF
    x[5] = 1e-30
    found = rms_norm(x, weight, 1e-6)
    torch.testing.assert_close(found, torchs(x, weight), equal_nan=True)
    assert found[3].isnan().all()
    assert found[[0, 1, 5]].isfinite().all()
    weight[7] = NAN
    assert rms_norm(x, weight, 1e-6)[0].isnan().nonzero().flatten().tolist() == [7]


def test_sizes_of_zero_give_what_torch_gives():
    for shape in ((0, 5), (5, 0), (2, 0, 3)):
        x, weight = torch.empty(shape), torch.empty(shape[-1])
        assert rms_norm(x, weight, 1e-6).shape == shape
        assert rms_norm(x, weight, 1e-6, out=x) is x


def test_the_key_is_rows_dtype_eps_and_how_memory_lies(monkeypatch):
    asked = []
    monkeypatch.setattr(rows_ops, "launch", lambda tensors, problem, device: asked.append(problem) or Recording())
    x, weight = drawn(4, 64), drawn(64)
    rms_norm(x, weight, 1e-6)
    rms_norm(x.view(2, 2, 64), weight, 0.000001)
    rms_norm(x, weight, 1e-5)
    rms_norm(x, drawn(65)[1:], 1e-5)
    rms_norm(drawn(64, 8).t(), weight, 1e-5)  # is copied
    rms_norm(drawn(3, 65, dtype=torch.float32), drawn(65, dtype=torch.float32), 1)

    def expected(m: int, n: int, eps: float, **rest) -> Problem:
        return Problem(m, n, 1, op="rms_norm", extras={"eps": eps}, **rest)

    assert asked == [
        expected(4, 64, 1e-6),
        expected(4, 64, 1e-6),
        expected(4, 64, 1e-5),
        expected(4, 64, 1e-5, aligned=False),
        expected(8, 64, 1e-5),
        expected(3, 65, 1.0, dtype="fp32"),
    ]
    assert [problem.aligned for problem in asked] == [True, True, True, False, True, False]


@pytest.mark.parametrize("typed", ["1e-6", "1e-06", "0.000001", "1E-6"])
def test_eps_is_one_number_in_every_spelling(typed):
    expected = Problem(4, 64, 1, op="rms_norm", extras={"eps": 1e-6})
    found = text.read("rms_norm", generic_key.cells(f"M=4,N=64,eps={typed}"))
    assert found == expected
    assert (found.family, str(found)) == (expected.family, str(expected))
    assert text.read("rms_norm", generic_key.cells(text.write(found))) == expected
    assert Problem.from_fields(found.fields()) == expected
    assert text.has(expected, text.key_values(f"eps={typed}"))


@pytest.mark.parametrize("eps", [1, 1.0, 2.0**-20, 1 / 3, 1.2e-38, 3.4e38])
def test_every_eps_is_a_float_and_survives_as_text(eps):
    problem = Problem(4, 64, 1, op="rms_norm", extras={"eps": eps})
    assert type(problem["eps"]) is float
    assert text.read("rms_norm", generic_key.cells(text.write(problem))) == problem


@pytest.mark.parametrize("eps", [None, 0, 0.0, -1e-6, NAN, INF, 1e-40, True, "tiny"], ids=str)
def test_no_problem_has_an_eps_that_cannot_be_added(eps):
    with pytest.raises(ProblemError, match=r"eps (is|must be) "):
        Problem(4, 64, 1, op="rms_norm", extras={} if eps is None else {"eps": eps})


def ok(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float16)


SHARED = ok(5)
ERRORS = {
    "x is None: expected a torch.Tensor": lambda: rms_norm(None, ok(4), 1e-6),
    "weight is None: expected a torch.Tensor": lambda: rms_norm(ok(4), None, 1e-6),
    "weight is of type list: expected a torch.Tensor": lambda: rms_norm(ok(4), [1.0], 1e-6),
    "x has shape []: expected [..., N]": lambda: rms_norm(torch.ones(()), ok(1), 1e-6),
    "weight has shape [3]: expected [4], as long as x's rows": lambda: rms_norm(ok(2, 4), ok(3), 1e-6),
    "weight has shape [1, 4]: expected [4]": lambda: rms_norm(ok(2, 4), ok(1, 4), 1e-6),
    "x is float16 and weight float32: use weight.to(x.dtype)": lambda: rms_norm(ok(4), ok(4).float(), 1e-6),
    "x is int64: expected one of float32, float16, bfloat16": lambda: rms_norm(ok(4).long(), ok(4).long(), 1e-6),
    "x is float64: expected one of float32": lambda: rms_norm(ok(4).double(), ok(4).double(), 1e-6),
    "x is sparse_coo: expected a dense tensor": lambda: rms_norm(ok(2, 2).to_sparse(), ok(2), 1e-6),
    "x is on meta": lambda: rms_norm(ok(2, 2).to("meta"), ok(2), 1e-6),
    "weight is on meta": lambda: rms_norm(ok(2, 2), ok(2).to("meta"), 1e-6),
    "eps is 0: expected a number from 1.2e-38 to 3.4e+38, as 1e-6": lambda: rms_norm(ok(4), ok(4), 0),
    "eps is -1e-06: expected a number": lambda: rms_norm(ok(4), ok(4), -1e-6),
    "eps is nan: expected a number": lambda: rms_norm(ok(4), ok(4), NAN),
    "eps is missing: expected a number": lambda: rms_norm(ok(4), ok(4), None),
    "eps is [1e-06]: expected a number": lambda: rms_norm(ok(4), ok(4), [1e-6]),
    "offset is nan: expected 0, or a number from 1.2e-38": lambda: rms_norm(ok(4), ok(4), 1e-6, offset=NAN),
    "offset is -inf: expected 0, or a number": lambda: rms_norm(ok(4), ok(4), 1e-6, offset=-INF),
    "offset is True: expected 0, or a number": lambda: rms_norm(ok(4), ok(4), 1e-6, offset=True),
    "offset is False: expected 0, or a number": lambda: rms_norm(ok(4), ok(4), 1e-6, offset=False),
    "offset is 1e+39: expected 0, or a number": lambda: rms_norm(ok(4), ok(4), 1e-6, offset=1e39),
    "offset is '1': expected 0, or a number": lambda: rms_norm(ok(4), ok(4), 1e-6, offset="1"),
    "offset is [1.0]: expected 0, or a number": lambda: rms_norm(ok(4), ok(4), 1e-6, offset=[1.0]),
    "offset is None: expected 0, or a number": lambda: rms_norm(ok(4), ok(4), 1e-6, offset=None),
    "out has shape [3]: expected [4]": lambda: rms_norm(ok(4), ok(4), 1e-6, out=ok(3)),
    "out is float32: expected float16, as x is": lambda: rms_norm(ok(4), ok(4), 1e-6, out=ok(4).float()),
    "out is of type int": lambda: rms_norm(ok(4), ok(4), 1e-6, out=3),
    "out has elements that share memory": lambda: rms_norm(ok(2, 2), ok(2), 1e-6, out=ok(1, 2).expand(2, 2)),
    "out shares memory with an operand": lambda: rms_norm(SHARED[:4], ok(4), 1e-6, out=SHARED[1:]),
    "out shares memory with an operand and": lambda: rms_norm(ok(4), SHARED[:4], 1e-6, out=SHARED[1:]),
    "requires a gradient": lambda: rms_norm(ok(2, 2), ok(2).requires_grad_(), 1e-6),
}


@pytest.mark.parametrize("message", list(ERRORS))
def test_what_does_not_fit_is_one_clear_error(message, refused):
    refused(ERRORS[message], message)


def test_a_gradient_that_nobody_asks_for_is_no_error():
    x, weight = ok(2, 2).requires_grad_(), ok(2).requires_grad_()
    with torch.no_grad():
        assert_right(rms_norm(x, weight, 1e-6), x, weight)


def test_rows_that_no_kernel_holds_are_an_error_that_says_so():
    with pytest.raises(KernelError, match=r"N is 32769: a program's registers hold 32768"):
        rms_norm(ok(1, 32769), ok(32769), 1e-6)
