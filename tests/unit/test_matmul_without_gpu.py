"""What matmul says where there is no GPU and no interpreter."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tuner.errors import InputError
from tuner.kernels import bmm, fused_experts, gated_linear, grouped_mm, matmul, rms_norm, softmax, vector_add
from tuner.kernels.ops.linear import linear_preference
from tuner.models import accelerate
from tuner.models.accelerate_linear import TunedLinear
from tuner.models.class_patch import patch_class


def test_a_cpu_tensor_outside_the_interpreter_is_one_clear_error():
    with pytest.raises(InputError, match=r"a is on cpu: expected a GPU; use a\.cuda\(\), or set TRITON_INTERPRET=1"):
        matmul(torch.ones(4, 4), torch.ones(4, 4))


def test_an_interpreter_that_is_turned_on_after_triton_was_imported_is_off(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    row = torch.ones(4)
    for call in (lambda: matmul(row[None], row[:, None]), lambda: softmax(row), lambda: vector_add(row, row)):
        with pytest.raises(InputError, match=r"is on cpu: .* set TRITON_INTERPRET=1 before importing triton"):
            call()


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_a_tensor_of_a_trace_gives_the_results_shape_by_operators_and_is_refused_elsewhere():
    with FakeTensorMode():
        row, a, batch = (
            torch.empty(shape, device="cuda", dtype=torch.float16) for shape in (32, (64, 32), (1, 64, 32))
        )
        ends, chosen = (torch.empty(shape, device="cuda", dtype=torch.int32) for shape in (1, (64, 1)))
        result = matmul(a, a.t(), activation="relu", out_dtype=torch.float32, backend="auto")
        gated = gated_linear(a, a, a)
        assert gated_linear(a, a, a, out=gated) is gated
    assert (type(result), result.shape, result.dtype) == (type(a), (64, 64), torch.float32)
    assert (type(gated), gated.shape, gated.dtype) == (type(a), (64, 64), torch.float16)
    others = [(bmm, batch, batch.mT), (grouped_mm, a, batch.mT, ends), (softmax, a), (vector_add, row, row)]
    others += [(fused_experts, a, batch, batch, chosen, chosen), (rms_norm, a, row, 1e-6)]
    for op, *given in [*others, (grouped_mm, [a], [a.t()])]:
        with pytest.raises(InputError, match=r"[ax] is a FakeTensor without memory of its own: expected a plain"):
            op(*given)


def on(device, *shapes, dtype=torch.float16):
    return [torch.empty(shape, device=device, dtype=dtype) for shape in shapes]


def test_a_trace_says_what_a_call_would_say_of_devices():
    with FakeTensorMode(), pytest.raises(InputError, match=r"a is on cpu: expected a GPU"):
        matmul(*on("cpu", (64, 32), (32, 64)))
    with FakeTensorMode(), pytest.raises(InputError, match=r"a is on cuda:0 and b on cpu: expected one device"):
        matmul(*on("cuda:0", (64, 32)), *on("cpu", (32, 64)))
    with FakeTensorMode(), pytest.raises(InputError, match=r"bias is on cpu and a on cuda:0: expected one device"):
        matmul(*on("cuda:0", (64, 32), (32, 64)), bias=torch.empty(64))
    with FakeTensorMode(), pytest.raises(InputError, match=r"x is on cpu: expected a GPU"):
        gated_linear(*on("cpu", (64, 32), (64, 32), (64, 32)))
    with FakeTensorMode(), pytest.raises(InputError, match=r"x is on cuda:0 and up on cpu: expected one device"):
        gated_linear(*on("cuda:0", (64, 32), (64, 32)), *on("cpu", (64, 32)))


def test_operators_refuse_a_tensor_without_values_beside_one_that_has_some():
    ops, given = torch.ops.triton_tuner, [None, None, None, "none", None, None, None]
    (real,), (a, b, out) = on("cpu", (4, 4)), on("meta", (4, 4), (4, 4), (4, 4))
    assert ops.matmul(a, b, *given).shape == ops.linear(a, b, None, False).shape == (4, 4)
    assert ops.gated_linear(a, b, b, "silu").shape == (4, 4)
    for call in (
        lambda: ops.matmul(real, b, *given),
        lambda: ops.matmul_out(real, real, out, *given),
        lambda: ops.linear(real, b, None, False),
        lambda: ops.gated_linear(a, b, real, "silu"),
        lambda: ops.gated_linear_out(real, real, real, out, "silu"),
    ):
        with pytest.raises(InputError, match=r"\w+ is on meta, without values, and \w+ is not: expected one device"):
            call()


def test_a_problem_that_was_made_for_another_m_is_the_one_that_its_tensors_stand_for():
    """Ms of few kinds of operands in random order, so that most problems are made of another M's."""
    module, draw = sys.modules[matmul.__module__], random.Random(16)
    kind = module._ProductOptions(False, "none", "default", "none", None)
    drawn = set()

    def matrix(rows: int, columns: int) -> torch.Tensor:
        shift, beyond = draw.choice((0, 0, 8, 1)), draw.choice((0, 0, 8, 3))
        if draw.random() < 0.2:
            return matrix(columns, rows).t()
        room = torch.empty(shift + rows * (columns + beyond), dtype=torch.float16)
        return room[shift:].view(rows, columns + beyond)[:, :columns]

    for _ in range(3000):
        m, (n, k) = draw.choice((1, 2, 8, 17, 64, 200)), draw.choice(((64, 32), (40, 72), (1, 8), (33, 1)))
        tensors = matrix(m, k), matrix(k, n), matrix(m, n)
        assert module._known_problem(*tensors, kind) == module._problem(*tensors, kind), [t.stride() for t in tensors]
        drawn.add(module._problem(*tensors, kind))
    assert len({each.family for each in drawn}) > 20


def test_a_room_imported_first_does_not_hide_what_bears_its_name():
    code = textwrap.dedent("""
        import importlib, tuner
        importlib.import_module("tuner.lookup.match_rules"), importlib.import_module("tuner.tuned.signature")
        assert tuner.lookup.__module__ == "tuner.lookup.lookup" and tuner.tuned.__module__ == "tuner.tuned.decorator"
        import tuner.kernels
        importlib.import_module("tuner.kernels.softmax.whole")
        module = importlib.import_module("tuner.kernels.ops.softmax")
        assert tuner.kernels.softmax is module.softmax
        importlib.import_module("tuner.kernels.rms_norm.whole")
        assert tuner.kernels.rms_norm is importlib.import_module("tuner.kernels.ops.rms_norm").rms_norm
        from tuner.kernels import *
        assert softmax is module.softmax and callable(bmm) and callable(pad_weight)
        assert {*tuner.kernels.__all__} <= {*dir(tuner.kernels)}
        assert not hasattr(tuner.kernels, "nothing")
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_what_serves_calls_is_imported_without_triton():
    code = (
        "import sys, tuner.kernels.ops.by_kernels, tuner.kernels.ops.fused_experts, tuner.kernels.ops.rms_norm; "
        "import tuner.kernels.ops.gated_linear; "
        "assert 'triton' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_operators_are_made_without_reading_any_source():
    """That looks at the files of all modules that the program has."""
    code = textwrap.dedent("""
        import inspect, torch
        def getmodule(*_):
            raise AssertionError("a source was looked for")
        inspect.getmodule = getmodule
        from tuner.models import accelerate
        assert torch.ops.triton_tuner.linear and torch.ops.triton_tuner.matmul
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("backend", ["auto", "tuner"])
def test_layers_on_the_cpu_stay_with_torch_and_so_do_patched_ones_that_came_there(backend):
    layer, x = torch.nn.Linear(8, 4).requires_grad_(False), torch.randn(3, 8)
    expected = layer(x)
    (left,) = accelerate(layer, backend=backend).left
    assert left == "on cpu: move the model to a GPU first"
    patch_class(layer, TunedLinear, linear_preference(backend == "auto", 4, 8, True))
    for call in (layer, torch.compile(layer, backend="aot_eager", fullgraph=True)):
        torch.testing.assert_close(call(x), expected)
