"""Under torch.autocast the ops give what torch's own give: dtypes, values, and gradients in each parameter's dtype."""

from __future__ import annotations

import warnings

import pytest
import torch

from tuner.errors import InputError
from tuner.kernels import bmm, fused_experts, gated_linear, grouped_mm, matmul, rms_norm, softmax, vector_add

HALF, FULL = torch.bfloat16, torch.float32
DTYPES = [(HALF, HALF), (HALF, FULL), (FULL, HALF), (FULL, FULL), (torch.float16, FULL)]


def drawn(*shape: int, dtype: torch.dtype = FULL, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def autocast(dtype: torch.dtype = HALF) -> torch.autocast:
    return torch.autocast("cpu", dtype=dtype)


def assert_torchs(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("backend", [None, "auto", "vendor"])
@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
def test_matmul_casts_as_torch_does_and_not_once_autocast_ends(dtypes, backend):
    a, b = drawn(6, 32, dtype=dtypes[0]), drawn(32, 8, dtype=dtypes[1])
    bias = drawn(8)
    for low in (HALF, torch.float16, HALF):
        with autocast(low):
            for _ in range(2):
                assert_torchs(matmul(a, b, backend=backend), a @ b)
                linear = torch.nn.functional.linear(a, b.t(), bias)
                assert_torchs(matmul(a, b, bias=bias, activation="relu", backend=backend), linear.relu())
        if dtypes == (FULL, FULL):
            for _ in range(2):
                assert matmul(a, b, backend=backend).dtype == FULL
                torch.testing.assert_close(matmul(a, b, backend=backend), a @ b)


def gated(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    linear = torch.nn.functional.linear
    return torch.nn.functional.silu(linear(x, gate)) * linear(x, up)


def test_the_other_ops_cast_as_torchs_do():
    a, b, x, y = drawn(2, 6, 32), drawn(2, 32, 8, dtype=HALF), drawn(40), drawn(40, dtype=HALF, seed=1)
    rows, ends = drawn(4, 16, dtype=HALF), torch.tensor([1, 4], dtype=torch.int32)
    for _ in range(2):
        with autocast():
            assert_torchs(bmm(a, b), torch.bmm(a, b))
            assert_torchs(bmm(a, a.mT), torch.bmm(a, a.mT))
            assert_torchs(bmm(a, b, bias=drawn(8)), torch.baddbmm(drawn(8).expand(2, 6, 8), a, b))
            assert_torchs(vector_add(x, y), x + y)
            assert_torchs(vector_add(y, y), y + y)
            assert_torchs(softmax(rows), rows.softmax(-1))
            for x_norm in (rows, rows.float()):
                weight = x_norm[0].clone()
                theirs = torch.nn.functional.rms_norm(x_norm, (16,), weight, 1e-6)
                assert_torchs(rms_norm(x_norm, weight, 1e-6), theirs)
            for kind in (HALF, FULL):
                layer = drawn(6, 32, dtype=kind), drawn(8, 32), drawn(8, 32, dtype=HALF, seed=1)
                assert_torchs(gated_linear(*layer), gated(*layer))
            moe = rows.float(), drawn(2, 8, 16), drawn(2, 16, 4), torch.tensor([[0], [1], [1], [-1]]), torch.ones(4, 1)
            assert fused_experts(*moe).dtype == FULL  # as grouped_mm
            assert grouped_mm(rows.float(), a[:, :3, :16].mT, ends).dtype == FULL  # torch's own is not cast either
        torch.testing.assert_close(bmm(a, a.mT), torch.bmm(a, a.mT))
        with pytest.raises(InputError, match="x is float32 and y bfloat16"):
            vector_add(x, y)


def test_what_says_its_dtype_itself_is_left_alone():
    a, b, out = drawn(6, 32), drawn(32, 8), torch.empty(6, 8)
    small = [each.to(torch.float8_e4m3fn) for each in (a, b)]
    whole = [(each * 9).to(torch.int8) for each in (a, b)]
    scale = torch.ones(1)
    with autocast():
        for _ in range(2):
            assert torch.mm(a, b, out=out) is out  # torch's own rule
            torch.testing.assert_close(matmul(a, b, out=torch.empty(6, 8)), out)
            torch.testing.assert_close(matmul(a, b, precision="ieee"), out)
            weight = b.t().contiguous()
            given = gated_linear(a, weight, weight, activation="none", out=torch.empty(6, 8))
            torch.testing.assert_close(given, out * out)
            torch.testing.assert_close(matmul(a, b, out_dtype=FULL, backend="vendor"), out)
            torch.testing.assert_close(bmm(a[None], b[None], out_dtype=FULL), out[None])
            assert matmul(*small).dtype == HALF
            assert matmul(*small, out_dtype=FULL, scale_a=scale, scale_b=scale).dtype == FULL
            assert matmul(*whole).dtype == torch.int32
        with pytest.raises(InputError, match="a is float64"):
            matmul(a.double(), b)


@pytest.mark.parametrize("backward_inside", [False, True])
@pytest.mark.parametrize("compiled", [None, "eager", "aot_eager"])
def test_a_training_step_is_torchs_with_gradients_in_the_parameters_dtypes(compiled, backward_inside):
    def ours(x, weight, bias):
        return matmul(matmul(x, weight.t(), bias=bias, activation="gelu"), weight)

    def theirs(x, weight, bias):
        gelu = torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias), approximate="tanh")
        return gelu @ weight

    given = [drawn(3, 5, 16), drawn(24, 16, seed=1), drawn(24, seed=2)]
    results = []
    for layer in (ours, theirs):
        torch._dynamo.reset()
        run = layer if compiled is None or layer is theirs else torch.compile(layer, backend=compiled, fullgraph=True)
        leaves = [each.clone().requires_grad_() for each in given]
        with autocast():
            out = run(*leaves)
            if backward_inside:
                out.float().square().sum().backward()
        if not backward_inside:
            out.float().square().sum().backward()
        results.append((out.detach(), *[leaf.grad for leaf in leaves]))
    for found, expected in zip(*results, strict=True):
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=5e-2, atol=0.05 * float(expected.abs().max()))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own use of it, for tangents
def test_a_function_transformed_by_torch_func_is_cast_too():
    x, y = drawn(2, 3, 16), drawn(16, 8, seed=1)

    def of(op):
        with autocast():
            return torch.func.vmap(op, in_dims=(0, None))(x, y), torch.func.jvp(op, (x[0], y), (x[1], y))[1]

    for found, expected in zip(of(matmul), of(torch.matmul), strict=True):
        assert_torchs(found, expected)


def test_a_gradient_of_full_precision_stays_so_when_backward_runs_under_autocast():
    a, b = drawn(4, 16).requires_grad_(), drawn(16, 8, seed=1).requires_grad_()
    out = matmul(a, b)
    with autocast():
        found = torch.autograd.grad(out, (a, b), torch.ones(4, 8))
    expected = torch.autograd.grad(a @ b, (a, b), torch.ones(4, 8))
    for ours, torchs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, torchs)


def test_autocast_of_another_device_changes_nothing():
    a, b = drawn(4, 16), drawn(16, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own where there is no GPU
        with torch.autocast("cuda", dtype=HALF):
            torch.testing.assert_close(matmul(a, b), a @ b)
