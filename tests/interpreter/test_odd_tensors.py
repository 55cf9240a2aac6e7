"""What torch knows besides plain tensors, and its modes and transforms, is right or one InputError."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import tuner
from tuner.errors import InputError
from tuner.kernels import (
    bmm,
    fused_experts,
    gated_linear,
    grouped_mm,
    matmul,
    pad_weight,
    rms_norm,
    softmax,
    vector_add,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, of prototypes and of what is deprecated


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


ENDS = torch.tensor([1, 4], dtype=torch.int32)


@pytest.mark.long
@pytest.mark.parametrize(
    ("op", "operands", "expected"),
    [
        (softmax, (drawn(4, 8),), lambda x: x.softmax(1)),
        (vector_add, (drawn(8), drawn(8)), torch.add),
        (
            lambda x, w: rms_norm(x, w, 1e-6),
            (drawn(4, 8), drawn(8)),
            lambda x, w: torch.nn.functional.rms_norm(x, (8,), w, 1e-6),
        ),
        (bmm, (drawn(2, 4, 8), drawn(2, 8, 4)), torch.bmm),
        (grouped_mm, (drawn(4, 8), drawn(2, 8, 4), ENDS), lambda a, b, _: torch.cat([a[:1] @ b[0], a[1:] @ b[1]])),
        (lambda a, b: grouped_mm([a], [b])[0], (drawn(4, 8), drawn(8, 4)), torch.mm),
    ],
    ids=["softmax", "vector_add", "rms_norm", "bmm", "grouped_mm", "grouped_mm of lists"],
)
def test_ops_that_are_no_operators_run_between_the_graphs_of_torch_compile(op, operands, expected):
    torch.compiler.reset()
    graphs = []

    def counted(graph, _inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(lambda *given: op(given[0] * 2, *given[1:]) + 1, backend=counted)
    doubled = expected(operands[0].double() * 2, *(o if o is ENDS else o.double() for o in operands[1:]))
    for _ in range(2):
        torch.testing.assert_close(compiled(*operands).double(), doubled + 1, rtol=1e-5, atol=1e-5)
    known = len(graphs)
    compiled(*operands)
    assert len(graphs) == known <= 4


def grouped(a: torch.Tensor, b: torch.Tensor) -> Any:
    return grouped_mm(a, b, ENDS)


CHOSEN = torch.tensor([[0, 1], [1, -1], [1, 0], [-1, -1]])


def normalized(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return rms_norm(x, weight, 1e-6)


def moe(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    return fused_experts(x, gate_up, down, CHOSEN, shares, activation="relu")


def moe_by_torch(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    gate, up = torch.einsum("mk,enk->emn", x, gate_up).chunk(2, dim=-1)
    each = torch.einsum("emn,ekn->emk", gate.relu() * up, down)
    weights = torch.stack([(shares * CHOSEN.eq(expert)).sum(1) for expert in range(2)])
    return (each * weights[..., None]).sum(0)


def gated(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(x @ gate.mT) * (x @ up.mT)


OPS: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "matmul": (matmul, torch.matmul, ((4, 8), (8, 5))),
    "with a bias": (lambda a, b, c: matmul(a, b, bias=c), lambda a, b, c: a @ b + c, ((4, 8), (8, 5), (5,))),
    "auto": (lambda a, b: matmul(a, b, backend="auto"), torch.matmul, ((4, 8), (8, 5))),
    "vendor": (lambda a, b: matmul(a, b, backend="vendor"), torch.matmul, ((4, 8), (8, 5))),
    "bmm": (bmm, torch.bmm, ((2, 4, 8), (2, 8, 5))),
    "grouped_mm": (grouped, lambda a, b: torch.cat([a[:1] @ b[0], a[1:] @ b[1]]), ((4, 8), (2, 8, 5))),
    "lists": (lambda a, b: grouped_mm([a], [b])[0], torch.matmul, ((4, 8), (8, 5))),
    "fused_experts": (moe, moe_by_torch, ((4, 8), (2, 10, 8), (2, 8, 5), (4, 2))),
    "gated_linear": (gated_linear, gated, ((4, 8), (5, 8), (5, 8))),
    "softmax": (softmax, lambda x: x.softmax(-1), ((4, 8),)),
    "rms_norm": (normalized, lambda x, w: torch.nn.functional.rms_norm(x, (8,), w, 1e-6), ((4, 8), (8,))),
    "vector_add": (vector_add, torch.add, ((9,), (9,))),
}


OPERATORS = [name for name in OPS if name != "lists"]
MATMULS = ("matmul", "with a bias", "auto", "vendor")


class Subclass(torch.Tensor):
    pass


class MyParameter(torch.nn.Parameter):
    pass


def freed(tensor: torch.Tensor) -> torch.Tensor:
    gone = tensor.clone()
    gone.untyped_storage().resize_(0)
    return gone


def inference(tensor: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return tensor.clone()


WORK: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "zeros without memory": lambda tensor: torch._efficientzerotensor(tensor.shape),
    "negated": lambda tensor: torch.complex(tensor, -tensor).conj().imag,
    "a subclass": lambda tensor: tensor.as_subclass(Subclass),
    "a parameter's subclass": lambda tensor: MyParameter(tensor, requires_grad=False),
    "expanded": lambda tensor: tensor[..., :1].expand(tensor.shape),
    "of inference mode": inference,
}
REFUSED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "freed": (freed, "has no memory"),
    "sparse": (lambda tensor: tensor.to_sparse(), "is sparse_coo"),
    "mkldnn": (lambda tensor: tensor.to_mkldnn(), "is _mkldnn"),
    "nested": (lambda tensor: torch.nested.nested_tensor([tensor]), "is a nested tensor"),
    "jagged": (lambda tensor: torch.nested.nested_tensor([tensor], layout=torch.jagged), "is a nested tensor"),
    "quantized": (lambda tensor: torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8), "is quantized"),
    "meta": (lambda tensor: tensor.to("meta"), "is on meta"),
    "conjugated": (lambda tensor: torch.complex(tensor, tensor).conj(), "complex64"),
}


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("kind", WORK)
def test_these_tensors_are_right_in_every_place(kind, name):
    if kind == "expanded" and name in ("fused_experts", "gated_linear"):
        pytest.skip(f"its rows are contiguous: test_{name}.py")
    op, reference, shapes = OPS[name]
    plain = [drawn(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    for place in range(min(len(plain), 2) if kind == "expanded" else len(plain)):  # a bias is contiguous
        given = [WORK[kind](each) if at == place else each for at, each in enumerate(plain)]
        values = [torch.zeros_like(each) + each.as_subclass(torch.Tensor) for each in given]
        for _ in range(2):
            torch.testing.assert_close(op(*given).as_subclass(torch.Tensor), reference(*values), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("kind", REFUSED)
def test_these_are_one_error_in_every_place(kind, name, refused):
    op, _, shapes = OPS[name]
    make, words = REFUSED[kind]
    plain = [drawn(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    op(*plain)
    for place in range(len(plain)):
        given = [make(each) if at == place else each for at, each in enumerate(plain)]
        refused(lambda given=given: op(*given), words)


def test_an_output_without_memory_is_refused(refused):
    a, b = drawn(4, 8), drawn(8, 5)
    for out, words in (
        (freed(torch.ones(4, 5)), "out has no memory"),
        (torch._efficientzerotensor((4, 5)), "out is one of torch's zeros"),
    ):
        refused(lambda out=out: matmul(a, b, out=out), words)
        refused(lambda out=out: softmax(drawn(4, 5), out=out), words)
        refused(lambda out=out: gated_linear(drawn(4, 8), drawn(5, 8), drawn(5, 8), out=out), words)
        refused(lambda out=out: rms_norm(drawn(4, 5), drawn(5), 1e-6, out=out), words)
    refused(lambda: pad_weight(freed(a)), "weight has no memory")
    refused(lambda: torch.func.vmap(pad_weight)(drawn(2, 4, 8)), "weight is a Tensor without memory")


RECORDED: dict[str, Callable[..., Any]] = {
    "torch.jit.trace": torch.jit.trace,
    "make_fx": lambda op, given: make_fx(op)(*given),
    "make_fx of fakes": lambda op, given: make_fx(op, tracing_mode="fake", _allow_non_fake_inputs=True)(*given),
    "make_fx of symbols": lambda op, given: make_fx(op, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*given),
}


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("way", RECORDED)
def test_a_recorded_call_is_an_operator_or_one_error_and_never_a_constant(way, name):
    op, reference, shapes = OPS[name]
    first, other = ([drawn(*shape, seed=seed) for shape in shapes] for seed in (1, 2))
    op(*first)
    try:
        program = RECORDED[way](lambda *given: op(*given), tuple(first))  # noqa: PLW0108  make_fx asks what it wraps
    except InputError as e:
        assert name not in OPERATORS
        assert "records this call" in str(e) or "without memory" in str(e)  # noqa: PT017
    else:
        torch.testing.assert_close(program(*other), reference(*other), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(op(*other), reference(*other), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "name",
    [name if name in ("bmm", "fused_experts") else pytest.param(name, marks=pytest.mark.long) for name in OPERATORS],
)
def test_a_compiled_call_is_one_operator_and_breaks_no_graph(name):
    op, reference, shapes = OPS[name]
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _inputs: object) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()  # it counts the programs of this test's function, whatever op it calls
    compiled = torch.compile(lambda *given: op(*given) + 1, backend=backend, fullgraph=True, dynamic=True)
    for seed in (1, 2):
        given = [drawn(*shape, seed=seed) for shape in shapes]
        torch.testing.assert_close(compiled(*given), reference(*given) + 1, rtol=1e-4, atol=1e-4)
    (graph,) = graphs
    assert graph.code.count("triton_tuner") == 1


@pytest.mark.parametrize(
    "name", ["bmm", "grouped_mm", "fused_experts", "gated_linear", "softmax", "rms_norm", "vector_add"]
)
def test_an_operator_without_a_gradient_says_so_to_a_mode(name, refused):
    op, _, shapes = OPS[name]
    given = [drawn(*shape).requires_grad_() for shape in shapes]
    with FlopCounterMode(display=False):
        refused(lambda: op(*given), "requires a gradient")


@pytest.mark.parametrize("name", ["matmul", "with a bias", "auto"])
def test_linearize_takes_tangents_as_of_torchs_own(name):
    op, reference, shapes = OPS[name]
    given, tangents = ([drawn(*shape, seed=seed) for shape in shapes] for seed in (1, 2))
    (out, pushed), (expected, theirs) = (torch.func.linearize(each, *given) for each in (op, reference))
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(pushed(*tangents), theirs(*tangents), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", OPS)
def test_modes_and_defaults_of_torch_change_nothing(name, refused):
    op, reference, shapes = OPS[name]
    given = [drawn(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    with FlopCounterMode(display=False), torch.device("meta"):
        found = op(*given)
    torch.testing.assert_close(found, reference(*given), rtol=1e-4, atol=1e-4)
    with FakeTensorMode(allow_non_fake_inputs=True):
        if name in OPERATORS:
            assert op(*given).shape == found.shape
        else:
            refused(lambda: op(*given), "records this call")


@tuner.tuned([triton.Config({"BLOCK": 64})], key=["count"])
@triton.jit
def negate_odd(x, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, -tl.load(x + at, mask=at < count), mask=at < count)


class Layer(torch.nn.Module):
    """A module that holds the ops, a tuned kernel and padded weights."""

    def __init__(self) -> None:
        super().__init__()
        self.ops = [matmul, bmm, grouped_mm, fused_experts, gated_linear, softmax, rms_norm, vector_add, pad_weight]
        self.ops.append(negate_odd)
        self.weight = torch.nn.Parameter(pad_weight(drawn(5, 7)))
        self.register_buffer("padded", pad_weight(drawn(6, 7)))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        multiply, *_ = self.ops
        return multiply(x, self.weight.t()), multiply(x, self.padded.t())


def saved(layer: Layer) -> Layer:
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, copy.copy, saved, lambda each: pickle.loads(pickle.dumps(each))], ids=range(4)
)
def test_a_module_that_holds_ops_a_tuned_kernel_and_padded_weights_is_copied_and_saved(copied):
    layer, x = Layer(), drawn(3, 7)
    other = copied(layer)
    assert all(mine is its for mine, its in zip(layer.ops, other.ops, strict=True))
    for found, expected in zip(other(x), layer(x), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_kernel_under_heuristics_is_copied_and_one_that_cannot_be_imported_is_not_pickled():
    wrapped = triton.heuristics({"BLOCK": lambda _: 64})(negate_odd)
    assert copy.deepcopy(wrapped).fn is negate_odd
    with pytest.raises(pickle.PicklingError, match="negate_odd"):
        pickle.dumps(tuner.tuned([triton.Config({"BLOCK": 64})], key=["count"])(negate_odd.fn))
