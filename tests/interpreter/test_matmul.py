"""matmul is right for every shape, layout, dtype and epilogue, judged by the rule of docs/numerics.md."""

from __future__ import annotations

import math
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode

from tuner import Problem
from tuner.errors import InputError
from tuner.kernels import matmul
from tuner.kernels.base.activations import activated, saturated
from tuner.kernels.base.numerics import tolerance
from tuner.launch.torch_precision import torch_precision
from tuner.problem.dtype import name_of
from tuner.sweep import verify

RAGGED = [(1, 1, 1), (1, 129, 17), (7, 16, 127), (16, 7, 1), (17, 17, 17), (127, 1, 129), (129, 127, 7)]
DTYPES = ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]


def drawn(*shape: int, dtype: str = "float16", seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(getattr(torch, dtype))


def assert_right(out: torch.Tensor, a, b, *, bias=None, activation="none") -> None:
    k = b.shape[0]
    reference = a.double().reshape(-1, k) @ b.double()
    if bias is not None:
        reference += bias.double()
    out_dtype = name_of(out.dtype)
    reference = saturated(activated(reference, activation), out_dtype)
    assert out.shape == (*a.shape[:-1], b.shape[1])
    problem = Problem(*reference.shape, k, a_dtype=name_of(a.dtype), b_dtype=name_of(b.dtype), out_dtype=out_dtype)
    assert verify.error(out.reshape(reference.shape), reference, k) <= tolerance(problem)


@pytest.mark.parametrize("shape", RAGGED, ids=str)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_ragged_shapes_in_every_layout(shape, layout):
    m, n, k = shape
    a = drawn(m, k) if layout[0] == "n" else drawn(k, m).t()
    b = drawn(k, n) if layout[1] == "n" else drawn(n, k).t()
    assert_right(matmul(a, b), a, b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_gives_the_dtype_torch_would(dtype):
    a, b = drawn(33, 70, dtype=dtype), drawn(70, 48, dtype=dtype)
    out = matmul(a, b)
    assert out.dtype == (torch.bfloat16 if dtype.startswith("float8") else a.dtype)
    assert_right(out, a, b)


@pytest.mark.parametrize("out_dtype", DTYPES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_every_output_dtype(dtype, out_dtype):
    a, b = drawn(17, 64, dtype=dtype), drawn(64, 31, dtype=dtype)
    out = matmul(a, b, out_dtype=getattr(torch, out_dtype))
    assert out.dtype == getattr(torch, out_dtype)
    assert_right(out, a, b)


def test_the_two_8_bit_floats_multiply_each_other():
    a, b = drawn(17, 64, dtype="float8_e4m3fn"), drawn(64, 31, dtype="float8_e5m2")
    assert_right(matmul(a, b), a, b)


def test_an_8_bit_output_saturates():
    a = torch.full((16, 64), 4.0, dtype=torch.float16)
    assert (matmul(a, a.t(), out_dtype=torch.float8_e4m3fn).float() == 448.0).all()
    assert (matmul(a, -a.t(), out_dtype=torch.float8_e4m3fn).float() == -448.0).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("activation", ["none", "relu", "leaky_relu", "gelu", "silu"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_epilogues(dtype, activation, with_bias):
    a, b = drawn(17, 40, dtype=dtype), drawn(40, 33, dtype=dtype)
    bias = drawn(33, dtype=dtype) if with_bias else None
    assert_right(matmul(a, b, bias=bias, activation=activation), a, b, bias=bias, activation=activation)


@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "gelu", "silu"])
def test_activations_far_out_and_at_nan(activation):
    far = torch.tensor([[-1e30], [-200.0], [-1e-30], [0.0], [200.0], [1e30], [math.nan]])
    out = matmul(far, torch.ones(1, 1), activation=activation)
    torch.testing.assert_close(out, activated(far, activation), equal_nan=True)


def test_a_bias_may_be_of_another_dtype_than_the_operands():
    a, b, bias = drawn(8, 16, dtype="bfloat16"), drawn(16, 24, dtype="bfloat16"), drawn(24, dtype="float32")
    assert_right(matmul(a, b, bias=bias), a, b, bias=bias)


def test_slices_and_steps():
    store = drawn(80, 200)
    a, b = store[3:50:2, 5:100:3], drawn(90, 77)[::2, 1:65][:32]
    assert a.stride(1) == 3
    assert_right(matmul(a, b), a, b)


def test_expanded_operands_with_a_stride_of_zero():
    a, b = drawn(1, 48).expand(20, 48), drawn(1, 1).expand(48, 33)
    assert (a.stride(), b.stride()) == ((0, 1), (0, 0))
    assert_right(matmul(a, b), a, b)


@pytest.mark.parametrize("shape", [(2, 3, 5, 48), (0, 5, 48), (4, 1, 48)], ids=str)
def test_leading_dimensions_are_flattened(shape):
    a, b = drawn(*shape), drawn(48, 20)
    out = matmul(a, b)
    assert out.shape == (*shape[:-1], 20)
    if out.numel():
        assert_right(out, a, b)


def test_leading_dimensions_that_cannot_be_flattened_in_place():
    a, b = drawn(3, 7, 48).transpose(0, 1), drawn(48, 20)
    assert_right(matmul(a, b), a, b)
    out = torch.empty(3, 7, 20, dtype=torch.float16).transpose(0, 1)
    assert matmul(a, b, out=out) is out
    assert_right(out, a, b)


@pytest.mark.parametrize("shape", [(0, 4, 8), (4, 0, 8), (0, 0, 0), (4, 5, 0)], ids=str)
def test_sizes_of_zero_give_what_torch_gives(shape):
    m, n, k = shape
    a, b = drawn(m, k, dtype="float32"), drawn(k, n, dtype="float32")
    torch.testing.assert_close(matmul(a, b), torch.mm(a, b))


def test_no_products_leave_the_activation_of_the_bias():
    bias = drawn(5, dtype="float32")
    out = matmul(torch.empty(3, 0), torch.empty(0, 5), bias=bias, activation="relu")
    torch.testing.assert_close(out, torch.relu(bias).expand(3, 5))


def negated(*shape: int) -> torch.Tensor:
    """A tensor whose memory holds the values of the other sign."""
    tensor = torch.complex(torch.zeros(shape), drawn(*shape, dtype="float32")).conj().imag
    assert tensor.is_neg()
    return tensor


def test_operands_with_torchs_negative_bit_keep_their_sign():
    a, b, bias = negated(17, 40), negated(40, 33), negated(33)
    plain_a, plain_b = a.resolve_neg(), b.resolve_neg()
    assert_right(matmul(a, plain_b), plain_a, plain_b)
    assert_right(matmul(plain_a, b), plain_a, plain_b)
    assert_right(matmul(a, b, bias=bias), plain_a, plain_b, bias=bias)


@pytest.mark.parametrize("name", ["float32", "torch.float32", "fp32"])
def test_an_output_dtype_may_be_a_name(name):
    a, b = drawn(17, 48), drawn(48, 33)
    assert matmul(a, b, out_dtype=name).dtype == torch.float32


def test_out_is_written_in_place_whatever_its_strides():
    a, b = drawn(17, 48), drawn(48, 33)
    buffer = torch.full((17, 80), 7.0, dtype=torch.float16)
    for out in (torch.empty(17, 33).half(), torch.empty(33, 17).half().t(), buffer[:, 10:43]):
        assert matmul(a, b, out=out) is out
        assert_right(out, a, b)
    assert (buffer[:, :10] == 7).all()
    assert (buffer[:, 43:] == 7).all()


def test_out_of_another_dtype_when_it_is_asked_for():
    a, b = drawn(17, 48), drawn(48, 33)
    out = torch.empty(17, 33)
    assert_right(matmul(a, b, out=out, out_dtype=torch.float32), a, b)


def test_float32_follows_torchs_own_setting():
    a, b = drawn(8, 16, dtype="float32"), drawn(16, 8, dtype="float32")
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        for setting in ("ieee", "tf32"):
            torch.backends.cuda.matmul.fp32_precision = setting
            assert torch_precision() == setting
            assert_right(matmul(a, b), a, b)
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert_right(matmul(a, b, precision="tf32x3"), a, b)


def ok(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float16)


def csr() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, once a process: CSR tensors are in beta
        return ok(4, 4).to_sparse_csr()


def nested(layout: torch.layout = torch.strided) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, once a process: nested tensors are a prototype
        return torch.nested.nested_tensor([ok(3, 4), ok(5, 4)], layout=layout)


def quantized() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own: they are to go
        return torch.quantize_per_tensor(torch.ones(4, 4), 0.1, 0, torch.qint8)


def inferred() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(4, 4)


SHARED = torch.ones(8, 8, dtype=torch.float16)


def asking(*shape: int) -> torch.Tensor:
    return torch.ones(shape, requires_grad=True)


ERRORS = {
    "a is of type list: expected a torch.Tensor": lambda: matmul([[1.0]], ok(4, 4)),
    "a is None": lambda: matmul(None, ok(4, 4)),
    "a is of type ndarray": lambda: matmul(np.ones((4, 4)), ok(4, 4)),
    "b is of type list": lambda: matmul(ok(4, 4), [[1.0]]),
    "b is None": lambda: matmul(ok(4, 4), None),
    "b is of type ndarray": lambda: matmul(ok(4, 4), np.ones((4, 4))),
    "bias is of type list": lambda: matmul(ok(4, 4), ok(4, 4), bias=[1.0] * 4),
    "out is of type list": lambda: matmul(ok(4, 4), ok(4, 4), out=[1.0]),
    "a is sparse_coo: expected a dense tensor; use a.to_dense()": lambda: matmul(ok(4, 4).to_sparse(), ok(4, 4)),
    "b is sparse_csr": lambda: matmul(ok(4, 4), csr()),
    "bias is sparse_coo": lambda: matmul(ok(4, 4), ok(4, 4), bias=ok(4).to_sparse()),
    "out is sparse_csr": lambda: matmul(ok(4, 4), ok(4, 4), out=csr()),
    "a is sparse_csr": lambda: matmul(csr(), ok(4, 4), backend="auto"),
    "a is a nested tensor: expected a dense tensor": lambda: matmul(nested(), ok(4, 4)),
    "b is a nested tensor": lambda: matmul(ok(4, 4), nested(torch.jagged)),
    "bias is a nested tensor": lambda: matmul(ok(4, 4), ok(4, 4), bias=nested()),
    "use torch.nested.to_padded_tensor(a, 0.0)": lambda: matmul(nested(), ok(4, 4), backend="vendor"),
    "out is a nested tensor: expected a dense tensor; leave out= away": lambda: matmul(
        ok(4, 4), ok(4, 4), out=nested(torch.jagged)
    ),
    "a is quantized, qint8: expected a dense tensor; use a.dequantize()": lambda: matmul(quantized(), quantized()),
    "b is quantized": lambda: matmul(ok(4, 4), quantized()),
    "a was made under torch.inference_mode()": lambda: matmul(inferred(), asking(4, 4)),
    "a is on meta, without values": lambda: matmul(ok(4, 4).to("meta"), ok(4, 4).to("meta")),
    "a is complex64": lambda: matmul(ok(4, 4).to(torch.complex64), ok(4, 4).to(torch.complex64)),
    "a has shape [4]": lambda: matmul(ok(4), ok(4, 4)),
    "b has shape [2, 4, 4]": lambda: matmul(ok(4, 4), ok(2, 4, 4)),
    "a [4, 5] and b [4, 6] do not fit": lambda: matmul(ok(4, 5), ok(4, 6)),
    "a is int32: expected one of float32": lambda: matmul(ok(4, 4).int(), ok(4, 4).int()),
    "a is float16 and b float32: expected one dtype": lambda: matmul(ok(4, 4), ok(4, 4).float()),
    "b is on meta, without values": lambda: matmul(ok(4, 4), ok(4, 4).to("meta")),
    "bias has shape [3]: expected [4]": lambda: matmul(ok(4, 4), ok(4, 4), bias=ok(3)),
    "bias is int64": lambda: matmul(ok(4, 4), ok(4, 4), bias=torch.ones(4, dtype=torch.int64)),
    "bias is on meta and a on cpu": lambda: matmul(ok(4, 4), ok(4, 4), bias=ok(4).to("meta")),
    "bias is not contiguous": lambda: matmul(ok(4, 4), ok(4, 4), bias=ok(8)[::2]),
    "activation is 'tanh'": lambda: matmul(ok(4, 4), ok(4, 4), activation="tanh"),
    "precision is 'fast'": lambda: matmul(ok(4, 4), ok(4, 4), precision="fast"),
    "precision 'tf32' is for float32": lambda: matmul(ok(4, 4), ok(4, 4), precision="tf32"),
    "out_dtype is int8": lambda: matmul(ok(4, 4), ok(4, 4), out_dtype=torch.int8),
    "out_dtype is int32": lambda: matmul(ok(4, 4), ok(4, 4), out_dtype="int32"),
    "out_dtype is 'tiny': expected one of float32": lambda: matmul(ok(4, 4), ok(4, 4), out_dtype="tiny"),
    "out_dtype is <class 'float'>": lambda: matmul(ok(4, 4), ok(4, 4), out_dtype=float),
    "out has torch's negative bit": lambda: matmul(ok(4, 4).float(), ok(4, 4).float(), out=negated(4, 4)),
    "out has shape [4, 5]: expected [4, 4]": lambda: matmul(ok(4, 4), ok(4, 4), out=ok(4, 5)),
    "add out_dtype=torch.float32": lambda: matmul(ok(4, 4), ok(4, 4), out=ok(4, 4).float()),
    "give one of them": lambda: matmul(ok(4, 4), ok(4, 4), out=ok(4, 4), out_dtype=torch.float32),
    "out is on meta": lambda: matmul(ok(4, 4), ok(4, 4), out=ok(4, 4).to("meta")),
    "out has elements that share memory": lambda: matmul(ok(4, 4), ok(4, 4), out=ok(1, 4).expand(4, 4)),
    "out shares memory with an operand": lambda: matmul(SHARED, ok(8, 8), out=SHARED),
    "out is given and a tensor requires a gradient": lambda: matmul(asking(4, 4), asking(4, 4), out=ok(4, 4).float()),
    "scales are given and a tensor requires a gradient": lambda: matmul(
        ok(4, 4).to(torch.int8), ok(4, 4).to(torch.int8), scale_a=asking(1), scale_b=asking(1)
    ),
    "out_dtype is float8_e5m2 and a tensor requires a gradient": lambda: matmul(
        asking(4, 4), asking(4, 4), out_dtype="e5m2"
    ),
}


@pytest.mark.parametrize("message", list(ERRORS))
def test_what_does_not_fit_is_one_clear_error(message, refused):
    refused(ERRORS[message], message)


def test_operands_that_require_gradients_pass_under_no_grad():
    with torch.no_grad():
        assert matmul(torch.ones(4, 4, requires_grad=True), torch.ones(4, 4)).sum() == 64


def test_out_beside_an_operand_in_one_buffer_is_accepted():
    buffer = torch.ones(8, 16, dtype=torch.float16)
    matmul(buffer[:, :8], ok(8, 8), out=buffer[:, 8:])
    assert (buffer[:, 8:] == 8).all()


def learnt(*shape: int, dtype: str = "float32", seed: int = 0) -> torch.Tensor:
    return drawn(*shape, dtype=dtype, seed=seed).requires_grad_()


@pytest.mark.parametrize("options", [{}, {"bias": (4,)}, {"out": (4, 4)}], ids=str)
def test_a_fake_tensor_is_an_operators_without_a_warning(options):
    torch.set_warn_always(True)
    try:
        with FakeTensorMode(), warnings.catch_warnings():
            warnings.simplefilter("error")
            given = {name: torch.empty(shape) for name, shape in options.items()}
            assert matmul(torch.empty(4, 8), torch.empty(8, 4), **given).shape == (4, 4)
    finally:
        torch.set_warn_always(False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "tf32", "dtype": torch.float16}, "precision"),
        ({"fast_accum": True}, "fast_accum is for fp8 operands"),
        ({"precision": "tf32x3", "invariant": True}, "has no invariant form"),
        ({"out": (5, 4)}, r"out has shape \[5, 4\]: expected \[4, 4\]"),
    ],
    ids=str,
)
def test_a_fake_call_refuses_what_a_call_refuses(options, message):
    """Exports and shape propagation would otherwise meet the error at run time alone."""
    with FakeTensorMode():
        dtype = options.pop("dtype", torch.float32)
        given = {name: torch.empty(value) if name == "out" else value for name, value in options.items()}
        with pytest.raises(InputError, match=message):
            matmul(torch.empty(4, 8, dtype=dtype), torch.empty(8, 4, dtype=dtype), **given)


@pytest.mark.parametrize("leading", [(4,), (2, 3)], ids=str)
def test_no_products_with_scales_of_blocks_are_zeros(leading):
    a, b = torch.empty(*leading, 0).to(torch.float8_e4m3fn), torch.empty(0, 256).to(torch.float8_e4m3fn)
    out = matmul(a, b, scale_a=torch.ones(*leading, 0), scale_b=torch.ones(0, 2))
    assert out.shape == (*leading, 256)
    assert not out.any()


@pytest.mark.parametrize("place", ["expanded rows", "columns of batches", "every other row"])
def test_an_out_that_reaches_into_an_operand_is_refused(place):
    memory, b = torch.ones(2, 20, 30), torch.ones(20, 20)
    a, b, out = {
        "expanded rows": (torch.ones(20, 20), memory.view(60, 20)[3:4].expand(20, 20), memory.view(60, 20)[:20]),
        "columns of batches": (memory[:, :, :20], b, memory[:, :, 10:]),
        "every other row": (memory.view(40, 30)[::2, :20], b, memory.view(60, 20)[10:30]),
    }[place]
    with pytest.raises(InputError, match="out shares memory with an operand"):
        matmul(a, b, out=out)


def test_torch_compile_keeps_a_call_as_one_operator_and_its_gradients():
    graphs = []

    def counted(graph, example):
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph

    def layer(x, weight, bias):
        return matmul(x * 2, weight.t(), bias=bias, activation="relu").sum()

    x, weight, bias = learnt(4, 5, 16), learnt(24, 16, seed=1), learnt(24, seed=2)
    expected = torch.autograd.grad(layer(x, weight, bias), (x, weight, bias))
    torch._dynamo.reset()
    assert torch.compile(layer, backend=counted, fullgraph=True)(x, weight, bias).isfinite()
    assert [name for name in graphs[0] if "matmul" in name] == ["triton_tuner.matmul"]
    for backend in ("eager", "aot_eager"):
        torch._dynamo.reset()
        compiled = torch.compile(layer, backend=backend, fullgraph=True)
        found = torch.autograd.grad(compiled(x, weight, bias), (x, weight, bias))
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_torch_compile_writes_into_out_and_follows_other_sizes():
    def into(x, b, out):
        return matmul(x, b, out=out) + 1

    torch._dynamo.reset()
    compiled = torch.compile(into, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (3, 5, 8):
        x, b = drawn(rows, 16, dtype="float32"), drawn(16, 8, dtype="float32")
        out = torch.full((rows, 8), torch.nan)
        torch.testing.assert_close(compiled(x, b, out), x @ b + 1, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(out, x @ b, rtol=1e-4, atol=1e-4)


def test_the_operator_keeps_torchs_rules_for_operators():
    a, b, bias = learnt(4, 16), learnt(16, 8), learnt(8)
    given = (a, b, bias, None, None, "none", None, None, None)
    torch.library.opcheck(torch.ops.triton_tuner.matmul.default, given)
    plain = [tensor.detach() for tensor in (a, b)]
    given = (*plain, torch.empty(4, 8), None, None, None, "relu", None, None, None)
    torch.library.opcheck(torch.ops.triton_tuner.matmul_out.default, given)


def test_threads_that_multiply_at_once_get_their_own_products():
    b = drawn(64, 256, dtype="float32")
    rows = [drawn(40 + 70 * number, 64, dtype="float32") for number in range(4)]
    with ThreadPoolExecutor(len(rows)) as pool:
        products = [*pool.map(lambda a: matmul(a, b), rows * 5)]
    for a, out in zip(rows * 5, products, strict=True):
        assert_right(out, a, b)
