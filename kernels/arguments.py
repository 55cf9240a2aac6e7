"""Arguments of the ops: what does not fit is one InputError that says what was found, expected, and what to type."""

from __future__ import annotations

import torch
from triton import knobs

from tuner import dtype as dtypes
from tuner.errors import InputError, ProblemError
from tuner.kernels.operands import overlaps_itself, share_memory
from tuner.kernels.pointer_space import DTYPES
from tuner.kernels.precision import torch_precision
from tuner.problem import ACTIVATIONS, PRECISIONS


def check_tensors(a: object, b: object, bias: object, out: object) -> None:
    """Each argument is a dense tensor; `bias` and `out` may be None."""
    for name, tensor in (("a", a), ("b", b), ("bias", bias), ("out", out)):
        if isinstance(tensor, torch.Tensor):
            if tensor.layout != torch.strided:
                found = str(tensor.layout).removeprefix("torch.")
                raise InputError(f"{name} is {found}: expected a dense tensor; use {name}.to_dense()")
        elif tensor is not None or name in ("a", "b"):
            found = "None" if tensor is None else f"of type {type(tensor).__name__}"
            remedy = "leave out= away" if name == "out" else f"use torch.as_tensor({name}, device=...)"
            raise InputError(f"{name} is {found}: expected a torch.Tensor; {remedy}")


def check_operands(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> None:
    """a [..., M, K] and b [K, N] fit each other, in dtype and device too, and `bias` fits both."""
    if a.dim() < 2:
        raise InputError(f"a has shape {shown(a)}: expected [..., M, K]; for one row use a.unsqueeze(0)")
    if b.dim() != 2:
        raise InputError(f"b has shape {shown(b)}: expected [K, N]; call matmul once for each matrix of a batch")
    if a.shape[-1] != b.shape[0]:
        raise InputError(
            f"a {shown(a)} and b {shown(b)} do not fit: a's last size must be b's first; "
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
        check_bias(bias, a, b)


def check_bias(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """A bias is [N], contiguous, of a dtype that an epilogue adds."""
    if bias.shape != b.shape[1:]:
        raise InputError(f"bias has shape {shown(bias)}: expected [{b.shape[1]}], one value for each column of b")
    if bias.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        name = dtypes.name_of(bias.dtype)
        raise InputError(f"bias is {name}: expected float32, float16 or bfloat16; use bias.to(...)")
    if bias.device != a.device:
        raise InputError(f"bias is on {bias.device} and a on {a.device}: expected one device; use bias.to(a.device)")
    if bias.stride(0) != 1 and bias.numel() > 1:
        raise InputError("bias is not contiguous: expected stride 1; use bias.contiguous()")


def out_dtype_of(a: torch.Tensor, out: torch.Tensor | None, given: torch.dtype | str | None) -> torch.dtype:
    """The output's dtype: `out`'s, the one asked for, or torch's choice for a's dtype."""
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


def precision_of(a: torch.Tensor, asked: str | None) -> str:
    """How a's values are multiplied: the precision asked for, or torch's own setting."""
    if asked is not None and asked not in PRECISIONS:
        raise InputError(f"precision is {asked!r}: expected one of {', '.join(PRECISIONS)}")
    if a.dtype != torch.float32:
        if asked not in (None, "default"):
            raise InputError(f"precision {asked!r} is for float32, a is {dtypes.name_of(a.dtype)}: leave it out")
        return "default"
    return torch_precision() if asked in (None, "default") else str(asked)


def activation_of(asked: str | None) -> str:
    """The activation asked for, "none" for None."""
    if asked is not None and asked not in ACTIVATIONS:
        raise InputError(f"activation is {asked!r}: expected one of {', '.join(ACTIVATIONS)}")
    return asked or "none"


def check_out(out: torch.Tensor, shape: tuple[int, ...], operands: tuple[torch.Tensor | None, ...]) -> None:
    """`out` has the result's shape, on its device, and memory that neither itself nor an operand shares."""
    a = operands[0]
    assert a is not None
    if out.shape != shape:
        raise InputError(f"out has shape {shown(out)}: expected {list(shape)}")
    if out.device != a.device:
        raise InputError(f"out is on {out.device} and a on {a.device}: expected one device; use torch.empty_like")
    if out.is_neg():
        raise InputError("out has torch's negative bit (x.conj().imag?): expected plain memory; leave out= away")
    if overlaps_itself(out):
        raise InputError("out has elements that share memory (an expanded tensor?): expected one of its own for each")
    if any(operand is not None and share_memory(out, operand) for operand in operands):
        raise InputError("out shares memory with an operand: expected memory of its own; leave out= away")


def check_gradients(*tensors: torch.Tensor | None) -> None:
    """No tensor asks for a gradient."""
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors):
        raise InputError(
            "an operand requires a gradient, and matmul has none: call it under torch.no_grad() or use .detach()"
        )


def shown(tensor: torch.Tensor) -> str:
    """A tensor's shape as messages have it."""
    return str(list(tensor.shape))
