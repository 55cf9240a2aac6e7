"""Call operators over the stub as programs of torch.compile do, and say which calls torch's dispatcher saw."""

from __future__ import annotations

import stub_driver
import stub_matmul
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tuner import kernels
from tuner.hardware import device
from tuner.kernels.ops import gated_by_evidence, gated_linear, linear, matmul_operator

stub_matmul.activate()
device.current = lambda _index: device.KNOWN["sm_90"]
ops = torch.ops.triton_tuner
x, alike, longer = (stub_matmul.half(rows, 64) for rows in (8, 8, 9))
bias = torch.randn(96).half()
weight, up, joined = (stub_matmul.half(rows, 64, shift=shift) for rows, shift in ((96, 0), (96, 1), (192, 2)))
NO_OPTIONS = (None, None, None, "none", None, None, None)
CALLS = {
    "linear": (linear, "linear", lambda x: ops.linear.default(x, weight, None, False)),
    "linear with a bias": (linear, "linear", lambda x: ops.linear.default(x, weight, bias, False)),
    "gated": (
        gated_by_evidence,
        "gated",
        lambda x: ops.gated_by_evidence.default(x, [weight, up], False, "silu", False),
    ),
    "gated, joined": (
        gated_by_evidence,
        "gated",
        lambda x: ops.gated_by_evidence.default(x, [joined], True, "silu", False),
    ),
    "gated_linear": (gated_linear, "gated_linear", lambda x: ops.gated_linear.default(x, weight, up, "silu")),
    "matmul": (matmul_operator, "MatmulOptions", lambda x: ops.matmul.default(x, weight.t(), *NO_OPTIONS)),
    "matmul with a bias": (
        matmul_operator,
        "MatmulOptions",
        lambda x: ops.matmul.default(x, weight.t(), bias, *NO_OPTIONS[1:]),
    ),
    "matmul, every option": (
        matmul_operator,
        "MatmulOptions",
        lambda x: ops.matmul.default(x, weight.t(), None, None, None, "relu", torch.float32, None, None, True),
    ),
}
dispatched: list[int] = []


def counted(module, name):
    """Note each call of what an operator calls where it has no plan."""
    run = getattr(module, name)
    if not hasattr(run, "counts"):

        def count(*given, **named):
            dispatched.append(1)
            return run(*given, **named)

        count.counts = True
        setattr(module, name, count)


class Seeing(TorchDispatchMode):
    """Notes the operators that torch's dispatcher sees."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.name())
        return func(*args, **(kwargs or {}))


class Overlooked(Seeing):
    """A mode that torch's guards do not see, as those of torch's own that record operators."""

    @classmethod
    def ignore_compile_internals(cls):
        return True


class Overriding(TorchFunctionMode):
    """Notes the functions and operators that are called."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.name() if isinstance(func, torch._ops.OpOverload) else "")
        return func(*args, **(kwargs or {}))


def took_the_long_way(call, *given):
    before = len(dispatched)
    kept.append(call(*given))
    return len(dispatched) > before


def traced(call):
    """The operators that make_fx records of a call."""
    return [node.target.name() for node in make_fx(call)(x).graph.nodes if node.op == "call_function"]


told, kept = {}, []
for name, (module, function, call) in CALLS.items():
    counted(module, function)
    with torch.inference_mode():
        calls = [took_the_long_way(call, each) for each in (x, x, alike, longer)]
        seen = {}
        for kind in (Seeing, Overlooked, Overriding):
            with kind() as mode:
                kept.append(call(x))
            seen[kind.__name__] = mode.seen
        seen["make_fx"] = traced(call)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = took_the_long_way(call, x)
        known = not took_the_long_way(call, x)
    with torch.no_grad():
        told[name] = {
            "long": calls,
            "without gradients": [took_the_long_way(call, x) for _ in range(2)],
            "seen": seen,
            "autocast": cast,
            "known after all": known,
        }

asking = stub_matmul.half(8, 64).requires_grad_()
with torch.inference_mode():
    told["asking"] = [took_the_long_way(CALLS["matmul"][2], asking) for _ in range(2)]
told["gradient"] = CALLS["matmul"][2](asking).requires_grad
named = {"x": x, "weight": weight, "bias": None, "is_auto": False}
with torch.inference_mode():
    told["by position"] = took_the_long_way(ops.linear.default, *named.values())
    told["by name"] = took_the_long_way(lambda: ops.linear.default(**named))

eager = {
    "matmul": lambda x: kernels.matmul(x, weight.t()),
    "gated_linear": lambda x: kernels.gated_linear(x, weight, up),
}
told["eager"] = {}
for name, call in eager.items():
    with torch.no_grad():
        kept.extend(call(x) for _ in range(2))
        told["eager"][name] = traced(call)
errors = []
for given in ((x, weight), (x, weight, None, False, 1), (x, "weight", None, False)):
    try:
        ops.linear.default(*given)
    except Exception as e:  # noqa: BLE001  whatever torch raises
        errors.append(f"{type(e).__name__}: {e}".splitlines()[0])
stub_driver.tell(calls=told, errors=errors)
