"""The op `matmul`: checks, the lookup of a config, one launch."""

from __future__ import annotations

import contextlib
import functools
import math
from typing import Any

import torch
from triton import knobs

from tuner import device as devices
from tuner import dtype as dtypes
from tuner import registry
from tuner.device import Device
from tuner.errors import InputError, ProblemError
from tuner.kernels.epilogue import activated, saturated
from tuner.kernels.operands import Operands, is_aligned, overlaps_itself, placement, share_memory
from tuner.kernels.pointer_space import DTYPES
from tuner.kernels.precision import torch_precision
from tuner.problem import ACTIVATIONS, PRECISIONS, Problem
from tuner.runtime.lookup import lookup

_problems: dict[tuple[Any, ...], Problem] = {}
_MOST_PROBLEMS = 8192
"""Above this the memo starts anew: a process that sees so many shapes must not grow for ever."""


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | str | None = None,
    precision: str | None = None,
) -> torch.Tensor:
    """activation(a @ b + bias) by a tuned Triton kernel, summed in float32, on a's device and current stream.

    The config comes from `tuner.lookup`; nothing is measured and nothing written. Sizes of 0 give what torch gives.

    Args:
        a: [..., M, K] with any strides; leading dimensions are flattened into M (copied only where torch must).
        b: [K, N] with any strides; a `weight.t()` is as good as a contiguous matrix.
        bias: [N], float32, float16 or bfloat16.
        activation: relu, leaky_relu (slope 0.01), gelu (tanh form), silu; None or "none" for none.
        out: [..., M, N] to write into, any strides without overlap.
        out_dtype: of the result, or its name; torch's choice unless given (bfloat16 for 8-bit operands).
        precision: of float32 operands, "ieee", "tf32" or "tf32x3"; torch's own setting unless given.

    Returns:
        `out`, or a new tensor [..., M, N].

    Raises:
        InputError: arguments that are no dense tensors, shapes, dtypes, devices or options that do not fit, or operands
            that ask for a gradient.
        KernelError: no installed kernel serves the problem on this device.
    """
    _check_tensors(a, b, bias, out)
    # A kernel reads memory, where what torch only marks as negated (x.conj().imag) has the other sign.
    a, b = a.resolve_neg(), b.resolve_neg()
    bias = None if bias is None else bias.resolve_neg()
    _check_operands(a, b, bias)
    shape = (*a.shape[:-1], b.shape[1])
    dtype = _out_dtype(a, out, out_dtype)
    precision = _precision(a, precision)
    activation = _activation(activation)
    if out is None:
        result = torch.empty(shape, dtype=dtype, device=a.device)
    else:
        _check_out(out, shape, (a, b, bias))
        result = out
    _check_gradients(a, b, bias, out)
    rows = math.prod(shape[:-1])
    a2, result2 = a, result
    if a.dim() != 2:
        a2 = a.reshape(rows, a.shape[-1])
        # An output whose leading dimensions cannot be flattened in place is filled by a copy below.
        result2 = _flat(result, rows)
    if result2.numel() == 0:
        return result
    if a2.shape[1] == 0:
        result2.copy_(_of_nothing(result2, bias, activation))
    else:
        _launch(a2, b, result2, bias, activation=activation, precision=precision)
    if out is not None and result2.data_ptr() != out.data_ptr():
        out.copy_(result2.view(shape))
    return result


def _launch(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    activation: str,
    precision: str,
) -> None:
    problem = _problem(a, b, out, has_bias=bias is not None, activation=activation, precision=precision)
    index = a.device.index if a.device.type == "cuda" else None
    match = lookup(problem, _device(index))
    spec = registry.find("matmul", match.kernel)
    # Triton launches on the current device, which may be another one than the operands'.
    guard = contextlib.nullcontext() if index is None else torch.cuda.device(index)
    with guard:
        spec.launch(Operands(a, b, out, bias, problem, out), match.config)


def _problem(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *, has_bias: bool, activation: str, precision: str
) -> Problem:
    tensors = (a, b, out)
    key = (
        *((t.shape, t.stride(), t.dtype, t.data_ptr() % 16 == 0) for t in tensors),
        has_bias,
        activation,
        precision,
    )
    problem = _problems.get(key)
    if problem is None:
        parts = [*(["bias"] if has_bias else []), *([activation] if activation != "none" else [])]
        problem = Problem(
            a.shape[0],
            b.shape[1],
            a.shape[1],
            a_dtype=dtypes.name_of(a.dtype),
            b_dtype=dtypes.name_of(b.dtype),
            out_dtype=dtypes.name_of(out.dtype),
            layout="".join("t" if placement(t).transposed else "n" for t in (a, b)),
            # A transposed output is written element by element, whatever its address.
            aligned=is_aligned(*tensors) and out.stride(1) == 1,
            epilogue="+".join(parts) or "none",
            precision=precision,
        )
        if len(_problems) >= _MOST_PROBLEMS:
            _problems.clear()
        _problems[key] = problem
    return problem


@functools.cache
def _device(index: int | None) -> Device:
    return devices.current(index)


def _check_tensors(a: object, b: object, bias: object, out: object) -> None:
    for name, tensor in (("a", a), ("b", b), ("bias", bias), ("out", out)):
        if isinstance(tensor, torch.Tensor):
            if tensor.layout != torch.strided:
                found = str(tensor.layout).removeprefix("torch.")
                raise InputError(f"{name} is {found}: expected a dense tensor; use {name}.to_dense()")
        elif tensor is not None or name in ("a", "b"):
            found = "None" if tensor is None else f"of type {type(tensor).__name__}"
            remedy = "leave out= away" if name == "out" else f"use torch.as_tensor({name}, device=...)"
            raise InputError(f"{name} is {found}: expected a torch.Tensor; {remedy}")


def _check_operands(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> None:
    if a.dim() < 2:
        raise InputError(f"a has shape {_shown(a)}: expected [..., M, K]; for one row use a.unsqueeze(0)")
    if b.dim() != 2:
        raise InputError(f"b has shape {_shown(b)}: expected [K, N]; call matmul once for each matrix of a batch")
    if a.shape[-1] != b.shape[0]:
        raise InputError(
            f"a {_shown(a)} and b {_shown(b)} do not fit: a's last size must be b's first; "
            "a weight stored [N, K] goes in as weight.t()"
        )
    if (name := dtypes.name_of(a.dtype)) not in DTYPES:
        raise InputError(f"a is {name}: expected one of {', '.join(DTYPES)}; convert it with a.to(...)")
    if a.dtype != b.dtype and not (dtypes.is_fp8(name) and dtypes.is_fp8(dtypes.name_of(b.dtype))):
        raise InputError(f"a is {name} and b {dtypes.name_of(b.dtype)}: expected one dtype; use b.to(a.dtype)")
    if a.device != b.device:
        raise InputError(f"a is on {a.device} and b on {b.device}: expected one device; use b.to(a.device)")
    if a.device.type == "meta":
        raise InputError('a is on meta, without values: expected a GPU; make it there with device="cuda"')
    if a.device.type != "cuda" and not knobs.runtime.interpret:
        raise InputError(
            f"a is on {a.device}: expected a GPU; use a.cuda(), or set TRITON_INTERPRET=1 before importing triton"
        )
    if bias is not None:
        _check_bias(bias, a, b)


def _check_bias(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    if bias.shape != b.shape[1:]:
        raise InputError(f"bias has shape {_shown(bias)}: expected [{b.shape[1]}], one value for each column of b")
    if bias.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        name = dtypes.name_of(bias.dtype)
        raise InputError(f"bias is {name}: expected float32, float16 or bfloat16; use bias.to(...)")
    if bias.device != a.device:
        raise InputError(f"bias is on {bias.device} and a on {a.device}: expected one device; use bias.to(a.device)")
    if bias.stride(0) != 1 and bias.numel() > 1:
        raise InputError("bias is not contiguous: expected stride 1; use bias.contiguous()")


def _out_dtype(a: torch.Tensor, out: torch.Tensor | None, given: torch.dtype | str | None) -> torch.dtype:
    asked = _named(given) if isinstance(given, str) else given
    if asked is not None and not isinstance(asked, torch.dtype):
        raise InputError(f"out_dtype is {asked!r}: expected a torch dtype or its name, one of {', '.join(DTYPES)}")
    if out is not None and asked is not None and out.dtype != asked:
        raise InputError(f"out is {dtypes.name_of(out.dtype)} and out_dtype {dtypes.name_of(asked)}: give one of them")
    usual = dtypes.to_torch(dtypes.default_out(dtypes.name_of(a.dtype)))
    dtype = asked or usual
    # As torch has it: an output of another dtype than the operation's is a mistake unless the dtype was asked for.
    if out is not None and out.dtype != dtype:
        found, expected = dtypes.name_of(out.dtype), dtypes.name_of(dtype)
        raise InputError(f"out is {found}: expected {expected}; to have {found}, add out_dtype=torch.{found}")
    if dtypes.name_of(dtype) not in DTYPES:
        raise InputError(f"out_dtype is {dtypes.name_of(dtype)}: expected one of {', '.join(DTYPES)}")
    return dtype


def _named(dtype: str) -> torch.dtype:
    try:
        return dtypes.to_torch(dtypes.canonical(dtype))
    except ProblemError:
        raise InputError(f"out_dtype is {dtype!r}: expected one of {', '.join(DTYPES)}") from None


def _precision(a: torch.Tensor, asked: str | None) -> str:
    if asked is not None and asked not in PRECISIONS:
        raise InputError(f"precision is {asked!r}: expected one of {', '.join(PRECISIONS)}")
    if a.dtype != torch.float32:
        if asked not in (None, "default"):
            raise InputError(f"precision {asked!r} is for float32, a is {dtypes.name_of(a.dtype)}: leave it out")
        return "default"
    return torch_precision() if asked in (None, "default") else str(asked)


def _activation(asked: str | None) -> str:
    if asked is not None and asked not in ACTIVATIONS:
        raise InputError(f"activation is {asked!r}: expected one of {', '.join(ACTIVATIONS)}")
    return asked or "none"


def _check_out(out: torch.Tensor, shape: tuple[int, ...], operands: tuple[torch.Tensor | None, ...]) -> None:
    a = operands[0]
    assert a is not None
    if out.shape != shape:
        raise InputError(f"out has shape {_shown(out)}: expected {list(shape)}")
    if out.device != a.device:
        raise InputError(f"out is on {out.device} and a on {a.device}: expected one device; use torch.empty_like")
    if out.is_neg():
        raise InputError("out has torch's negative bit (x.conj().imag?): expected plain memory; leave out= away")
    if overlaps_itself(out):
        raise InputError("out has elements that share memory (an expanded tensor?): expected one of its own for each")
    if any(operand is not None and share_memory(out, operand) for operand in operands):
        raise InputError("out shares memory with an operand: expected memory of its own; leave out= away")


def _check_gradients(*tensors: torch.Tensor | None) -> None:
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors):
        raise InputError(
            "an operand requires a gradient, and matmul has none: call it under torch.no_grad() or use .detach()"
        )


def _flat(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    try:
        return tensor.view(rows, tensor.shape[-1])
    except RuntimeError:
        return torch.empty(rows, tensor.shape[-1], dtype=tensor.dtype, device=tensor.device)


def _of_nothing(like: torch.Tensor, bias: torch.Tensor | None, activation: str) -> torch.Tensor:
    """The result of a sum over no products: activation(bias), or of 0."""
    row = torch.zeros(like.shape[1], device=like.device) if bias is None else bias.float()
    return saturated(activated(row, activation), dtypes.name_of(like.dtype)).to(like.dtype).expand(like.shape)


def _shown(tensor: torch.Tensor) -> str:
    return str(list(tensor.shape))
