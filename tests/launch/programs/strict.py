"""Call ops, or kernels under `tuner.tuned`, in a process that compiles nothing; prints what served each call."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import stub_driver
import stub_matmul
import torch
from decorated import scale, shift

import tuner
from tuner.hardware import device
from tuner.kernels import bmm, fused_experts, gated_linear, grouped_mm, matmul, rms_norm, softmax, vector_add
from tuner.launch import compile_cache

compiles = stub_matmul.activate(late=True)
device.current = lambda _index=None: device.KNOWN["sm_90"]
tuner.use(sys.argv[2])
log = Path(os.environ["CUDA_STUB_LOG"])
told: list[dict[str, Any]] = []
keep: list[Any] = []


def served(function: Callable[..., Any], *given: Any, expected: Any = None, **options: Any) -> None:
    """One call: how many launches reached the driver, and whether the result is the expected one (nothing runs)."""
    before, error, right = len(launched()), "", None
    try:
        result = function(*given, **options)
        if expected is not None:
            right = bool(torch.equal(result, expected))
        keep.append((given, options, result))
    except tuner.TunerError as e:
        error = str(e)
    told.append({"launches": launched()[before:], "right": right, "error": error})


def launched() -> list[str]:
    return [line for line in log.read_text().splitlines() if '"launch"' in line]


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Whole numbers, of which every sum is exact."""
    return torch.randint(-4, 5, shape).to(dtype)


def ops() -> None:
    """What ships is launched, and what does not is computed by torch."""
    a, b = drawn(256, 256, dtype=torch.float16), drawn(256, 256, dtype=torch.float16)
    served(matmul, a, b)
    served(matmul, a, b)
    served(matmul, drawn(127, 131, dtype=torch.float16), drawn(131, 129, dtype=torch.float16))
    for m in (64, 64, 32):
        one, other = drawn(m, 256, dtype=torch.bfloat16), drawn(256, 256, dtype=torch.bfloat16)
        served(matmul, one, other, expected=one @ other)


def every_op() -> None:
    """No binary of any of these ships."""
    x, w, bias = drawn(6, 32), drawn(32, 48), drawn(48)
    full = x @ w + bias
    served(matmul, x, w, bias=bias, activation="relu", expected=full.relu())
    served(matmul, x.view(2, 3, 32), w, out=torch.empty(2, 3, 48), expected=(x @ w).view(2, 3, 48))
    served(matmul, x, w, bias=bias.half(), precision="tf32x3", out_dtype="bfloat16", expected=full.bfloat16())
    served(matmul, x.int().to(torch.int8), w.int().to(torch.int8), expected=(x @ w).int())
    leaf = w.clone().requires_grad_()
    served(lambda: (matmul(x, leaf).sum().backward(), leaf.grad)[1], expected=x.sum(0)[:, None].expand(32, 48))
    served(bmm, x.view(2, 3, 32), w.expand(2, 32, 48), bias=bias, expected=full.view(2, 3, 48))
    ends, weights, out = torch.tensor([2, 2, 5], dtype=torch.int32), drawn(3, 32, 48), torch.full((6, 48), -1.0)
    rows = [x[:2] @ weights[0], x[2:5] @ weights[2], out[5:].clone()]
    served(grouped_mm, x, weights, ends, out=out, expected=torch.cat(rows))
    served(lambda: torch.cat(grouped_mm([x, x[:1]], [w, w])), expected=torch.cat([x @ w, x[:1] @ w]))
    served(softmax, x, expected=x.softmax(1))
    in_place = x.clone()
    served(softmax, in_place, out=in_place, expected=x.softmax(1))
    served(vector_add, x[0], x[1], expected=x[0] + x[1])
    served(rms_norm, x, x[0], 1e-6, expected=torch.nn.functional.rms_norm(x, (32,), x[0], 1e-6))
    for offset in (1.0, 0.5, 1.0):
        expected = torch.nn.functional.rms_norm(x, (32,), x[0] + offset, 1e-6)
        served(rms_norm, x, x[0], 1e-6, offset=offset, expected=expected)
    gate = w.t().contiguous()
    for activation, expected in (("none", (x @ w).square()), ("relu", (x @ w).relu().square())):
        served(gated_linear, x, gate, gate, activation=activation, expected=expected)
    # Two experts, whose second product changes nothing; of two tokens one choice is no expert's, of one both are not.
    tokens, gate_up = (torch.randint(-1, 2, shape).bfloat16() for shape in ((4, 8), (2, 16, 8)))
    moe = tokens, gate_up, torch.eye(8).expand(2, 8, 8).bfloat16().contiguous()
    chosen, shares = torch.tensor([[0, 1], [-1, 1], [0, 2], [-1, 2]]), torch.full((4, 2), 0.5)
    gate, up = (tokens @ gate_up.mT).chunk(2, dim=-1)
    of_first, of_second = gate.relu() * up * 0.5
    rows = torch.stack([of_first[0] + of_second[0], of_second[1], of_first[2], torch.zeros(8)]).bfloat16()
    served(fused_experts, *moe, chosen, shares, activation="relu", expected=rows)
    served(fused_experts, *moe, chosen, shares, activation="relu", expected=rows)
    for kind in (torch.float32, torch.float16):  # one expert after the other
        given = [each.to(kind) for each in moe]
        served(fused_experts, *given, chosen, shares, activation="relu", expected=rows.to(kind))
    eight = x.to(torch.float8_e4m3fn)
    served(matmul, eight, eight.t())
    halves = [drawn(3, 32, dtype=torch.int8), drawn(3, 32, 48, dtype=torch.int8)]
    served(grouped_mm, *halves, ends.clamp(max=3))


def switched() -> None:
    """On, off and on again."""
    a, b = drawn(64, 64, dtype=torch.float16), drawn(64, 64, dtype=torch.float16)
    for on in (True, False, True):
        tuner.strict(on)
        served(matmul, a, b, expected=a @ b if on else None)


def warm() -> None:
    """What a repeated call of what ships costs: calls of Python functions, counted."""
    a, b = drawn(256, 256, dtype=torch.float16), drawn(256, 256, dtype=torch.float16)
    x, y = torch.empty(2048), torch.empty(2048)
    for call in (lambda: matmul(a, b), lambda: scale[(8,)](x, y, 1, 1000, 2.5)):
        count = [0]
        call(), call()

        def counting(_frame: Any, event: str, _argument: Any, count: list[int] = count) -> None:
            count[0] += event in ("call", "c_call")

        sys.setprofile(counting)
        call()
        sys.setprofile(None)
        told.append({"calls": count[0]})


def decorated() -> None:
    x, y = torch.empty(2052), torch.empty(2052)
    run = scale[(8,)]
    served(run, x, y, 1, 1000, 2.5)  # its own binary
    served(run, x, y, 1, 1008, 2.5)  # of a number that 16 divides, by the binary for any
    served(run, x, y, 1, 1, 2.5)  # a number that Triton compiles in, by the binary for any
    served(run, x, y, 2, 1000, 2.5)  # a stride that it was not compiled for
    served(run, x[1:], y, 1, 1000, 2.5)  # an address that it was not compiled for
    served(run, x, y, 1, 500, 2.5)  # its config does not ship, its neighbour's does
    served(run, x, y, 1, 500, 2.5)
    compile_cache.install(shift.fn)  # as what compiles offline does, in the process that then serves
    move = shift[(8,)]
    for count in (1024, 1001, 1001, 1024, 2048):  # of one key, whose config ships for multiples of 16 alone
        served(move, x, y, count, 0)


globals()[sys.argv[1]]()
if os.environ.get("TUNER_MISSES"):
    tuner.flush_misses()
stub_driver.tell(calls=told, compiled=compiles.compiled, from_cache=compiles.from_cache)
