"""gated_linear under the interpreter: every config, views, what torch gives for odd sizes, and what is refused."""

from __future__ import annotations

import random

import pytest
import torch
from checked import check_configs

from tuner import Problem
from tuner.errors import ProblemError
from tuner.hardware.device import INTERPRETER
from tuner.kernel import registry
from tuner.kernels import gated_linear
from tuner.kernels.base.activations import activated
from tuner.kernels.gated.operands import make_operands, product, reference, tolerance, vendor
from tuner.kernels.ops import gated_linear as gated_linear_op
from tuner.launch.call_cache import CallCache
from tuner.launch.plan import Recording
from tuner.launch.torch_precision import torch_precision_set
from tuner.problem import generic_key, text
from tuner.problem.gemm_fields import ACTIVATIONS
from tuner.sweep import verify

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
SHAPES = ((1, 1, 1), (1, 40, 72), (3, 33, 65), (4, 64, 32), (17, 48, 64), (40, 7, 129))
INF, NAN = float("inf"), float("nan")


def drawn(*shape: int, dtype: torch.dtype = torch.float16, seed: int = 0) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))
    return (values / shape[-1] ** 0.25 if values.numel() else values).to(dtype)


def given(m: int, n: int, k: int, dtype: torch.dtype = torch.float16) -> list[torch.Tensor]:
    return [drawn(m, k, dtype=dtype), drawn(n, k, dtype=dtype, seed=1), drawn(n, k, dtype=dtype, seed=2)]


def torchs(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: str = "silu") -> torch.Tensor:
    """In float64."""
    x, gate, up = x.double(), gate.double(), up.double()
    return activated(x @ gate.t(), activation) * (x @ up.t())


def problem_of(m: int, n: int, k: int, **rest) -> Problem:
    return Problem(m, n, k, **{"layout": "nt", "epilogue": "silu", **rest}, op="gated_linear")


def assert_right(found: torch.Tensor, x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, kind: str = "silu"):
    assert (found.shape, found.dtype) == ((*x.shape[:-1], len(gate)), x.dtype)
    limit = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[x.dtype]
    right = torchs(x, gate, up, kind)
    torch.testing.assert_close(found.double(), right, rtol=limit, atol=limit * max(1.0, float(right.abs().max())))


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("name", ["gated_pointer", "gated_gemv"])
def test_every_config_is_right_repeats_its_bits_and_writes_nothing_else(name, dtype):
    spec, swapped = registry.find("gated_linear", name), set()
    for at, shape in enumerate(SHAPES):
        problem = problem_of(*shape, dtype=dtype, epilogue=ACTIVATIONS[at % len(ACTIVATIONS)])
        if spec.supports(problem, INTERPRETER):
            continue
        configs = spec.space(problem, INTERPRETER).configs()
        check_configs(spec, problem, configs)
        swapped.update(config.get("SWAP_AB") for config in configs)
    assert swapped == ({False, True} if name == "gated_pointer" else {None})


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_vendors_result_passes_the_check_and_what_is_nearly_right_does_not(activation, dtype):
    problem = problem_of(64, 96, 256, dtype=dtype, epilogue=activation)
    operands = make_operands(problem, "cpu", 0)
    right, limit, (x, gate, up) = reference(operands), tolerance(problem), (operands.a, operands.b, operands.up)
    vendor(operands)

    def error(found: torch.Tensor) -> float:
        return verify.error(found.to(x.dtype), right, problem.k)

    assert error(operands.out) <= limit
    assert error(torchs(x, gate, up, activation)) <= limit
    assert activation == "none" or error(torchs(x, up, gate, activation)) > 5 * limit
    for other in {*ACTIVATIONS} - {activation}:
        is_hidden = dtype == "bf16" and {activation, other} == {"relu", "leaky_relu"}  # by rounding the largest values
        assert is_hidden or error(torchs(x, gate, up, other)) > 1.5 * limit
    assert error(torchs(x[:, :-16], gate[:, :-16], up[:, :-16], activation)) > 5 * limit
    moved = torchs(x, gate, up, activation)
    moved[-1] = moved[-2]
    assert error(moved) > 5 * limit


def test_torch_has_no_tf32x3():
    with pytest.raises(NotImplementedError, match="tf32x3"):
        vendor(make_operands(problem_of(4, 16, 16, dtype="fp32", precision="tf32x3"), "cpu", 0))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.reshape(24, 100),
        lambda x: x.reshape(2, 3, 4, 100),
        lambda x: x.reshape(8, 3, 100).transpose(0, 1),
        lambda x: x.reshape(100, 24).t(),
        lambda x: x.reshape(12, 200)[:, ::2],
        lambda x: x.reshape(12, 200)[::2, 3:77],
        lambda x: x.reshape(12, 200)[:, 7:8],
        lambda x: x.reshape(12, 200)[-1:, 8:72],
        lambda x: x.as_strided((1, 64), (1, 1)),
        lambda x: x[:60].expand(7, 60),
        lambda x: x[:7, None].expand(7, 60),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_x_of_any_strides_and_dimensions(view, dtype):
    x = view(drawn(2400, dtype=dtype))
    gate, up = drawn(2, 33, x.shape[-1], dtype=dtype)
    for activation in ("silu", "none"):
        found = gated_linear(x, gate, up, activation=activation)
        assert found.is_contiguous()
        assert_right(found, x, gate, up, activation)
    # An output with room between its rows, and one whose leading dimensions no view flattens.
    room = torch.full((*x.shape[:-1], 40), NAN, dtype=dtype)
    turned = torch.empty((*x.shape[:-1][::-1], 33), dtype=dtype).movedim(-1, 0).mT.movedim(0, -1)
    for out in (room[..., 2:35], turned if x.dim() == 3 else room[..., :33]):
        assert gated_linear(x, gate, up, activation="none", out=out) is out
        assert torch.equal(out, found)
    assert room[..., 35:].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_may_be_parts_of_one_and_need_not_be_aligned(dtype):
    x = drawn(5, 40, dtype=dtype)
    both = drawn(66, 48, dtype=dtype)
    for gate, up in (
        (both[:33, :40], both[33:, :40]),
        (both[:33, 3:43], both[33:, 8:48]),
        (both[::2, :40], both[1::2, :40]),
        (both[:1, :40], both[1:2, :40].contiguous()),
        (both[:7, :40], both[:7, :40]),
        (both[:1, :40].expand(9, 40), both[1:2, :40].expand(9, 40)),
    ):
        assert_right(gated_linear(x, gate, up), x, gate, up)
    columns = both[:, :1], both[:, 1:2].as_strided((66, 1), (48, 7))
    assert_right(gated_linear(x[:, :1], *columns), x[:, :1], *columns)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_activation_of_one_row_of_few_and_of_many(activation, dtype):
    for m in (1, 3, 20):
        operands = given(m, 24, 40, dtype)
        for _ in range(2):
            assert_right(gated_linear(*operands, activation=activation), *operands, activation)


def test_no_activation_may_be_none():
    operands = given(3, 24, 40)
    assert torch.equal(gated_linear(*operands, activation=None), gated_linear(*operands, activation="none"))


def test_infinities_and_nans_stay_in_their_rows():
    x, gate, up = given(6, 20, 30, torch.float32)
    x[1, 5], x[2, 0], x[4] = NAN, INF, -INF
    found, right = gated_linear(x, gate, up), torchs(x, gate, up)
    assert found[[0, 3, 5]].isfinite().all()
    assert found[1].isnan().all()
    torch.testing.assert_close(found[2].double(), right[2], equal_nan=True)
    torch.testing.assert_close(found[4].double(), right[4], equal_nan=True)


def test_sizes_of_zero_give_what_torch_gives():
    for lead, n, k in (((0,), 4, 5), ((3,), 0, 5), ((3,), 4, 0), ((2, 0), 4, 5), ((2, 3), 4, 0), ((0,), 0, 0)):
        for activation in ACTIVATIONS:
            x, gate, up = torch.empty(*lead, k), torch.empty(n, k), torch.empty(n, k)
            found = gated_linear(x, gate, up, activation=activation)
            assert torch.equal(found, torchs(x, gate, up, activation).float())
            out = torch.full((*lead, n), NAN)
            assert gated_linear(x, gate, up, activation=activation, out=out) is out
            assert torch.equal(out, found)


def test_the_key_is_sizes_dtype_activation_and_how_memory_lies(monkeypatch):
    asked = []
    monkeypatch.setattr(gated_linear_op, "launch", lambda _, problem, device: asked.append(problem) or Recording())
    x, gate, up = given(6, 16, 32)
    gated_linear(x, gate, up)
    gated_linear(x.view(2, 3, 32), gate, up, activation="gelu")
    gated_linear(x[:1].as_strided((1, 32), (1, 1)), gate, up)
    gated_linear(drawn(32, 6).t(), gate, up)  # is copied
    gated_linear(x, drawn(16 * 32 + 1)[1:].view(16, 32), up)
    gated_linear(x, gate, up, out=torch.empty(6, 24, dtype=x.dtype)[:, :16])
    gated_linear(x, gate, up, out=torch.empty(6, 17, dtype=x.dtype)[:, :16])
    gated_linear(*given(6, 15, 32), activation="none")
    gated_linear(*given(2, 16, 32, torch.float32))
    assert asked == [
        problem_of(6, 16, 32),
        problem_of(6, 16, 32, epilogue="gelu"),
        problem_of(1, 16, 32),
        problem_of(6, 16, 32),
        problem_of(6, 16, 32, aligned=False),
        problem_of(6, 16, 32),
        problem_of(6, 16, 32, aligned=False),
        problem_of(6, 15, 32, epilogue="none"),
        problem_of(2, 16, 32, dtype="fp32"),
    ]


def test_torchs_setting_says_how_float32_is_multiplied(monkeypatch):
    asked = []
    monkeypatch.setattr(gated_linear_op, "launch", lambda _, problem, device: asked.append(problem) or Recording())
    for precision in ("ieee", "tf32"):
        with torch_precision_set(precision):
            gated_linear(*given(2, 16, 32, torch.float32))
            gated_linear(*given(2, 16, 32))
    assert [problem.precision for problem in asked] == ["ieee", "default", "tf32", "default"]


def test_a_problem_is_one_text_and_its_activation_none_by_default():
    for typed, activation in (("", "none"), (",epilogue=silu", "silu"), (",epilogue=none", "none")):
        found = text.read("gated_linear", generic_key.cells(f"M=4,N=64,K=32,layout=nt{typed}"))
        assert found == problem_of(4, 64, 32, epilogue=activation)
        assert text.read("gated_linear", generic_key.cells(text.write(found))) == found
        assert Problem.from_fields(found.fields()) == found
        assert found.activation == activation


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"dtype": "e4m3"}, "no float8_e4m3fn: it takes float32, float16, bfloat16"),
        ({"out_dtype": "fp32"}, "no float16->float32: x, all weights and the output are of one dtype"),
        ({"layout": "nn"}, "no layout nn: expected nt, weights stored [N, K]"),
        ({"epilogue": "bias+silu"}, "no epilogue bias+silu: gated layers have no bias"),
        ({"scaling": "row", "dtype": "fp16"}, "no extras scaling: leave them out"),
        ({"n": 2**30}, "N is 1073741824: expected at most 1073741823, as gate and up have twice as many columns"),
    ],
    ids=str,
)
def test_what_no_kernel_serves_is_one_reason(changed, words):
    parts = {"n": 64, "k": 32, "layout": "nt", "op": "gated_linear", **changed}
    scaling = {"scaling": parts.pop("scaling")} if "scaling" in parts else {}
    problem = Problem(4, **parts, extras=scaling)
    for spec in registry.of("gated_linear").values():
        assert spec.supports(problem, INTERPRETER) == words


def test_a_gemv_is_for_few_rows_and_a_product_for_as_many_columns_as_a_problem_has():
    spec = registry.find("gated_linear", "gated_gemv")
    assert spec.supports(problem_of(2, 64, 32), INTERPRETER) is None
    assert spec.supports(problem_of(3, 64, 32), INTERPRETER) == "M is 3: it takes 2 rows at most"
    assert product(problem_of(4, 64, 32, aligned=False)) == Problem(4, 128, 32, layout="nt", aligned=False)
    with pytest.raises(ProblemError, match="N must be from 1 to 2147483647"):
        product(problem_of(4, 2**30, 32))


def test_a_cache_of_its_own_keeps_the_plans_of_who_calls_by_it():
    cache, operands = CallCache(), given(3, 24, 40)
    found = gated_linear_op.checked_call(*operands, "gelu", cache=cache, options=("mine",))
    assert_right(found, *operands, "gelu")
    out = torch.empty_like(found)
    assert gated_linear_op.checked_call(*operands, "gelu", out, cache=cache, options=("mine",)) is out
    assert torch.equal(out, found)


def ok(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float16)


SHARED = ok(9)
W = (ok(3, 4), ok(3, 4))
ERRORS = {
    "x is None: expected a torch.Tensor": lambda: gated_linear(None, *W),
    "gate is None: expected a torch.Tensor": lambda: gated_linear(ok(2, 4), None, W[1]),
    "up is of type list: expected a torch.Tensor": lambda: gated_linear(ok(2, 4), W[0], [1.0]),
    "x has shape [4]: expected [..., M, K]; use gated_linear(x.unsqueeze(0)": lambda: gated_linear(ok(4), *W),
    "x has shape []: expected [..., M, K]": lambda: gated_linear(ok(), *W),
    "x [2, 5], gate [3, 4] and up [3, 4] do not fit": lambda: gated_linear(ok(2, 5), *W),
    "gate [3, 4] and up [2, 4] do not fit": lambda: gated_linear(ok(2, 4), W[0], ok(2, 4)),
    "gate [4] and up [4] do not fit": lambda: gated_linear(ok(2, 4), ok(4), ok(4)),
    "goes in as weight.t().contiguous()": lambda: gated_linear(ok(2, 4), ok(4, 3), ok(4, 3)),
    "x is float16 and gate float32: use gate.to(x.dtype)": lambda: gated_linear(ok(2, 4), W[0].float(), W[1]),
    "x is float16 and up bfloat16: use up.to(x.dtype)": lambda: gated_linear(ok(2, 4), W[0], W[1].bfloat16()),
    "x is float64: expected one of float32, float16, bfloat16": lambda: gated_linear(ok(2, 4).double(), *W),
    "gate is int64: expected one of float32": lambda: gated_linear(ok(2, 4), W[0].long(), W[1]),
    "gate's rows are not contiguous: use gate.contiguous()": lambda: gated_linear(ok(2, 4), ok(4, 3).t(), W[1]),
    "up's rows are not contiguous: use up.contiguous()": lambda: gated_linear(ok(2, 4), W[0], ok(3, 8)[:, ::2]),
    "gate's rows are 4 elements apart and up's 8: expected one distance": lambda: gated_linear(
        ok(2, 4), W[0], ok(3, 8)[:, :4]
    ),
    "x is sparse_coo: expected a dense tensor": lambda: gated_linear(ok(2, 4).to_sparse(), *W),
    "x is on meta": lambda: gated_linear(ok(2, 4).to("meta"), *W),
    "up is on meta": lambda: gated_linear(ok(2, 4), W[0], W[1].to("meta")),
    "activation is 'swish': expected one of none, relu": lambda: gated_linear(ok(2, 4), *W, activation="swish"),
    "activation is ['silu']: expected one of": lambda: gated_linear(ok(2, 4), *W, activation=["silu"]),
    "out has shape [2, 4]: expected [2, 3]": lambda: gated_linear(ok(2, 4), *W, out=ok(2, 4)),
    "out is float32: expected float16, as x is": lambda: gated_linear(ok(2, 4), *W, out=ok(2, 3).float()),
    "out is of type int": lambda: gated_linear(ok(2, 4), *W, out=3),
    "out is on meta and x on cpu": lambda: gated_linear(ok(2, 4), *W, out=ok(2, 3).to("meta")),
    "out's rows are not contiguous: leave out= away": lambda: gated_linear(ok(2, 4), *W, out=ok(3, 2).t()),
    "out has elements that share memory": lambda: gated_linear(ok(2, 4), *W, out=ok(1, 3).expand(2, 3)),
    "out shares memory with an operand": lambda: gated_linear(SHARED[:8].view(2, 4), *W, out=SHARED[3:].view(2, 3)),
    "requires a gradient": lambda: gated_linear(ok(2, 4), W[0].clone().requires_grad_(), W[1]),
}


@pytest.mark.parametrize("message", list(ERRORS))
def test_what_does_not_fit_is_one_clear_error(message, refused):
    refused(ERRORS[message], message)


def test_a_gradient_that_nobody_asks_for_is_no_error():
    x, gate, up = (each.requires_grad_() for each in given(2, 8, 16))
    with torch.no_grad():
        assert_right(gated_linear(x, gate, up), x, gate, up)


@pytest.mark.parametrize("by", range(3))
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own use of it, for tangents
def test_torch_func_maps_it_and_takes_no_derivative(by, refused):
    operands = given(3, 8, 16, torch.float32)

    def of(tensor: torch.Tensor) -> torch.Tensor:
        return gated_linear(*operands[:by], tensor, *operands[by + 1 :])

    several = torch.stack([operands[by], operands[by] * 2])
    for found, each in zip(torch.func.vmap(of)(several), several, strict=True):
        torch.testing.assert_close(found, of(each))
    message = "an operand requires a gradient"
    refused(lambda: torch.func.grad(lambda tensor: of(tensor).sum())(operands[by]), message)
    refused(lambda: torch.func.jvp(of, (operands[by],), (operands[by],)), message)
    refused(lambda: torch.func.linearize(of, operands[by]), message)


@pytest.mark.parametrize("given_out", [False, True])
def test_torch_compile_has_no_break_and_no_graph_for_each_m(given_out):
    torch.compiler.reset()
    graphs = []

    def counted(graph, _inputs):
        graphs.append(graph)
        return graph

    def layer(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        return gated_linear(x * 2, gate, up, activation="gelu", out=out) + 1

    compiled = torch.compile(layer, backend=counted, fullgraph=True, dynamic=True)
    for m in (3, 5, 17):
        x, gate, up = given(m, 8, 16, torch.float32)
        out = torch.empty(m, 8) if given_out else None
        right = torchs(x * 2, gate, up, "gelu").float()
        torch.testing.assert_close(compiled(x, gate, up, out), right + 1, rtol=1e-5, atol=1e-5)
        assert out is None or torch.allclose(out, right, atol=1e-5)
    assert len(graphs) == 1


def test_a_problem_that_was_made_for_another_m_is_the_one_that_its_tensors_stand_for():
    """Ms of few kinds of operands in random order, so that most problems are made of another M's."""
    draw, families = random.Random(16), set()

    def matrix(rows: int, columns: int, beyond: int) -> torch.Tensor:
        shift = draw.choice((0, 0, 8, 1))
        room = torch.empty(shift + rows * (columns + beyond), dtype=torch.float16)
        return room[shift:].view(rows, columns + beyond)[:, :columns]

    for _ in range(2000):
        m, (n, k) = draw.choice((1, 2, 8, 17, 64, 200)), draw.choice(((64, 32), (40, 72), (1, 8), (33, 1)))
        beyond = draw.choice((0, 0, 8, 3))
        weights = matrix(n, k, beyond), matrix(n, k, beyond)
        x, out = matrix(m, k, draw.choice((0, 8, 3))), matrix(m, n, draw.choice((0, 8, 3)))
        operands = gated_linear_op._operands(gated_linear_op._Tensors(x, *weights), out, "silu")
        matrices = operands.a, operands.b, operands.up, operands.out
        assert operands.problem == gated_linear_op._problem(*matrices, "silu", "default"), [
            t.stride() for t in matrices
        ]
        families.add(operands.problem.family)
    assert len(families) == 6
