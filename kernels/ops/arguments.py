"""Checks of the ops' arguments: each error says what was found, what was expected and what to type."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from tuner.errors import InputError, ProblemError
from tuner.hardware import triton_settings
from tuner.kernels.base.dtypes import DTYPES, outputs
from tuner.kernels.base.operands import SCALE_GROUP
from tuner.kernels.base.sharing import overlaps_itself, share_memory
from tuner.launch import compat
from tuner.launch.torch_precision import torch_precision
from tuner.problem import dtype as dtypes
from tuner.problem.gemm_fields import ACTIVATIONS, PRECISIONS

_is_wrapped = compat.is_functorch_wrapped_tensor
_NEEDED = ("a", "b", "weight", "x", "y", "gate", "up", "gate_up", "down", "experts", "shares")


def check_tensors(**tensors: object) -> None:
    """Check that each argument is a dense tensor; those not in `_NEEDED` may be None."""
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor):
            check_dense(name, tensor)
        elif tensor is not None or name in _NEEDED:
            found = "None" if tensor is None else f"of type {type(tensor).__name__}"
            remedy = "leave out= away" if name == "out" else f"use torch.as_tensor({name}, device=...)"
            raise InputError(f"{name} is {found}: expected a torch.Tensor; {remedy}")


def check_dense(name: str, tensor: torch.Tensor) -> None:
    """Check that a tensor is neither nested nor sparse nor quantized."""
    if tensor.is_nested:
        found, remedy = "a nested tensor", f"use torch.nested.to_padded_tensor({name}, 0.0) or each of {name}.unbind()"
    elif tensor.layout != torch.strided:
        found, remedy = str(tensor.layout).removeprefix("torch."), f"use {name}.to_dense()"
    elif tensor.is_quantized:
        found, remedy = f"quantized, {dtypes.name_of(tensor.dtype)}", f"use {name}.dequantize()"
    else:
        return
    raise InputError(f"{name} is {found}: expected a dense tensor; {'leave out= away' if name == 'out' else remedy}")


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor's values lie in its own memory, unlike those of FakeTensors, torch.func's wrappers and DTensors.

    Given a tensor without memory, a kernel would read and write at address 0.
    """
    by_torch = type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    return by_torch and not _is_wrapped(tensor)


def needs_operator(*tensors: torch.Tensor | None) -> bool:
    """Whether torch needs an operator: something is to see it, or a tensor belongs to torch.func or a wrapper."""
    return is_followed() or any(isinstance(each, torch.Tensor) and not has_memory(each) for each in tensors)


def in_memory(**named: Any) -> list[Any]:
    """Tensors whose values lie in memory as kernels read them; torch only marks negated tensors and some zeros.

    Args:
        named: tensors or None, by the argument's name.

    Raises:
        InputError: the memory of one was freed.
    """

    def read(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if compat.is_zerotensor(tensor):
            return torch.zeros_like(tensor)
        check_allocated(name, tensor, "use it before its storage is resized to 0")
        return tensor.resolve_neg()  # x.conj().imag, for instance

    return [None if tensor is None else read(name, tensor) for name, tensor in named.items()]


def check_allocated(name: str, tensor: torch.Tensor, remedy: str) -> None:
    """Check that a tensor has memory at all: a kernel would read and write at address 0."""
    if tensor.numel() and tensor.device.type != "meta" and tensor.data_ptr() == 0:
        raise InputError(f"{name} has no memory (its storage was freed): expected {tensor.numel()} elements; {remedy}")


def is_followed() -> bool:
    """Whether a compiler traces this call, or something observes its operators."""
    return torch.compiler.is_compiling() or is_observed()


def is_observed() -> bool:
    """Whether something sees the operators of this call: what records them, or a mode of torch, as FlopCounterMode.

    A launch is no operator.
    """
    # Within torch's own `no_dispatch` an operator would run the op, which would call the operator, without end.
    has_modes = compat.count_dispatch_modes() and compat.dispatch_modes()  # the count takes less time
    return is_recorded() or (bool(has_modes) and not compat.is_key_excluded(compat.python_key))


def is_recorded() -> bool:
    """Whether torch.jit.trace, make_fx or a FakeTensorMode records the operators of this call."""
    modes = (compat.proxy_mode_key, compat.fake_mode_key)
    return torch.jit.is_tracing() or any(compat.get_dispatch_mode(key) is not None for key in modes)


def check_memory(**tensors: torch.Tensor | None) -> None:
    """Check that each tensor has memory of its own, and that nobody records operators in place of their values."""
    if is_recorded() and all(tensor is None or has_memory(tensor) for tensor in tensors.values()):
        raise InputError(
            "torch.jit.trace, make_fx or a FakeTensorMode records this call, which is no operator with out= or lists: "
            "expected neither; leave out= away, and use torch's own op for lists"
        )
    for name, tensor in tensors.items():
        if tensor is not None and not has_memory(tensor):
            raise InputError(
                f"{name} is a {type(tensor).__name__} without memory of its own: expected a plain tensor; what is "
                "traced, wrapped or transformed by torch.func goes into `matmul` and `gated_linear` alone"
            )


def check_operands(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Check that a [..., M, K], b [K, N] and `bias` fit each other in shape, dtype and device."""
    check_shapes(a, b)
    check_kinds(a, b)
    if bias is not None:
        check_bias(bias, a, b)


def check_shapes(a: torch.Tensor, b: torch.Tensor) -> None:
    """Check that a [..., M, K] and b [K, N] can be multiplied."""
    if a.dim() < 2:
        remedy = "use matmul(a.unsqueeze(0), b).squeeze(0)" if a.dim() else "multiply by a number with *"
        raise InputError(f"a has shape {shown(a)}: expected [..., M, K]; {remedy}")
    if b.dim() != 2:
        raise InputError(f"b has shape {shown(b)}: expected [K, N]; {_instead_of(a, b)}")
    if a.shape[-1] != b.shape[0]:
        raise InputError(
            f"a {shown(a)} and b {shown(b)} do not fit: a's last size must be b's first; "
            "a weight stored [N, K] goes in as weight.t()"
        )


def _instead_of(a: torch.Tensor, b: torch.Tensor) -> str:
    """What to type for a product by a b that is no matrix, whose result is torch.matmul's."""
    if b.dim() < 2:
        return "use matmul(a, b.unsqueeze(1)).squeeze(-1)" if b.dim() else "multiply by a number with *"
    if a.dim() == b.dim() == 3 and a.shape[0] == b.shape[0]:
        return "use bmm(a, b)"
    try:
        lead = ", ".join(map(str, torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])))
    except RuntimeError:
        return f"its leading dimensions do not fit those of a {shown(a)} either"
    one, other = (f"{name}.expand({lead}, -1, -1).flatten(0, -3)" for name in "ab")
    return f"use bmm({one}, {other}).unflatten(0, ({lead},))"


def check_kinds(a: torch.Tensor, b: torch.Tensor) -> None:
    """Check that a and b have dtypes that can be multiplied, and are on one device on which kernels run."""
    check_dtypes(a, b)
    if b.device.type != "meta" and a.device != b.device and a.device.type != "meta":
        raise InputError(f"a is on {a.device} and b on {b.device}: expected one device; use b.to(a.device)")
    check_device("a", a)
    check_device("b", b)


def check_dtypes(a: torch.Tensor, b: torch.Tensor) -> None:
    """Check that a and b have dtypes that can be multiplied."""
    if (dtype := dtypes.name_of(a.dtype)) not in DTYPES:
        raise InputError(f"a is {dtype}: expected one of {', '.join(DTYPES)}; convert it with a.to(...)")
    if a.dtype != b.dtype and not (dtypes.is_fp8(dtype) and dtypes.is_fp8(dtypes.name_of(b.dtype))):
        raise InputError(f"a is {dtype} and b {dtypes.name_of(b.dtype)}: expected one dtype; use b.to(a.dtype)")


def check_together(**tensors: torch.Tensor | None) -> None:
    """Check that no tensor with values is beside one on meta, where torch would give a result that nobody wrote."""
    on_meta = [name for name, tensor in tensors.items() if tensor is not None and tensor.device.type == "meta"]
    others = [name for name, tensor in tensors.items() if tensor is not None and tensor.device.type != "meta"]
    if on_meta and others:
        raise InputError(f"{on_meta[0]} is on meta, without values, and {others[0]} is not: expected one device")


def has_kernels(device: torch.device) -> bool:
    """Whether kernels run on a device: a GPU, or the CPU under Triton's interpreter."""
    return device.type == "cuda" or (device.type == "cpu" and triton_settings.can_interpret())


def check_device(name: str, tensor: torch.Tensor) -> None:
    """Check that a tensor is on a GPU, or on the CPU under Triton's interpreter."""
    if tensor.device.type == "meta":
        raise InputError(f'{name} is on meta, without values: expected a GPU; make it there with device="cuda"')
    if not has_kernels(tensor.device):
        raise InputError(
            f"{name} is on {tensor.device}: expected a GPU; use {name}.cuda(), or set TRITON_INTERPRET=1 before "
            "importing triton"
        )


def check_bias(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """Check that a bias is [N], contiguous, and of a dtype that epilogues support."""
    if bias.shape != b.shape[-1:]:
        raise InputError(f"bias has shape {shown(bias)}: expected [{b.shape[-1]}], one value for each column of b")
    check_bias_kind(bias, a)
    if bias.stride(0) != 1 and bias.numel() > 1:
        raise InputError("bias is not contiguous: expected stride 1; use bias.contiguous()")


def check_bias_kind(bias: torch.Tensor, a: torch.Tensor) -> None:
    """Check that a bias has a dtype that epilogues support, and is on a's device."""
    if bias.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        name = dtypes.name_of(bias.dtype)
        raise InputError(f"bias is {name}: expected float32, float16 or bfloat16; use bias.to(...)")
    if bias.device != a.device:
        raise InputError(f"bias is on {bias.device} and a on {a.device}: expected one device; use bias.to(a.device)")


def out_dtype_of(
    a: torch.Tensor, out: torch.Tensor | None, given: torch.dtype | str | None, scaling: str = "none"
) -> torch.dtype:
    """The output's dtype: `out`'s, the requested one, or torch's choice for a's dtype."""
    requested = _named(given) if isinstance(given, str) else given
    known = outputs(dtypes.name_of(a.dtype), scaling)
    if requested is not None and not isinstance(requested, torch.dtype):
        raise InputError(f"out_dtype is {requested!r}: expected a torch dtype or its name, one of {', '.join(known)}")
    if out is not None and requested is not None and out.dtype != requested:
        found, other = dtypes.name_of(out.dtype), dtypes.name_of(requested)
        raise InputError(f"out is {found} and out_dtype {other}: give one of them")
    usual = dtypes.to_torch(dtypes.default_out(dtypes.name_of(a.dtype), scaled=scaling != "none"))
    dtype = requested or usual
    # As in torch, an `out` whose dtype is not the operation's is an error unless `out_dtype` requests it.
    if out is not None and out.dtype != dtype:
        found, expected = dtypes.name_of(out.dtype), dtypes.name_of(dtype)
        if found not in known:
            raise InputError(f"out is {found}: expected {_one_of(known)}; leave out= away and use .to(torch.{found})")
        raise InputError(f"out is {found}: expected {expected}; to have {found}, add out_dtype=torch.{found}")
    if (found := dtypes.name_of(dtype)) not in known:
        remedy = f"; leave out_dtype= away and use .to(torch.{found})" if requested is not None else ""
        raise InputError(f"out_dtype is {found}: expected {_one_of(known)}{remedy}")
    return dtype


def _named(dtype: str) -> torch.dtype:
    try:
        return dtypes.to_torch(dtypes.canonical(dtype))
    except ProblemError:
        raise InputError(f"out_dtype is {dtype!r}: expected one of {', '.join(dtypes.ITEMSIZE)}") from None


def _one_of(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"one of {', '.join(names)}"


def precision_of(a: torch.Tensor, precision: str | None) -> str:
    """How a's values are multiplied: the requested precision, or torch's own setting."""
    if precision is not None and precision not in PRECISIONS:
        raise InputError(f"precision is {precision!r}: expected one of {', '.join(PRECISIONS)}")
    if a.dtype != torch.float32:
        if precision not in (None, "default"):
            raise InputError(f"precision {precision!r} is for float32, a is {dtypes.name_of(a.dtype)}: leave it out")
        return "default"
    return torch_precision() if precision in (None, "default") else str(precision)


def activation_of(activation: str | None) -> str:
    """The requested activation, "none" for None."""
    if activation is not None and activation not in ACTIVATIONS:
        raise InputError(f"activation is {activation!r}: expected one of {', '.join(ACTIVATIONS)}")
    return activation or "none"


def scales_of(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor | None, scale_b: torch.Tensor | None
) -> tuple[str, torch.Tensor | None, torch.Tensor | None]:
    """The kind of scaling (`gemm_fields.SCALINGS`), and both scales in the form of `Operands.scale_a`."""
    if scale_a is None or scale_b is None:
        if scale_a is not scale_b:
            missing, given = ("scale_a", "scale_b") if scale_a is None else ("scale_b", "scale_a")
            raise InputError(
                f"{given} is given without {missing}: expected both; {missing} may be torch.ones(1, device=a.device)"
            )
        return "none", None, None
    name = dtypes.name_of(a.dtype)
    if name != "int8" and not dtypes.is_fp8(name):
        raise InputError(f"scale_a is given and a is {name}: expected fp8 or int8 operands; leave the scales out")
    for which, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
        if scale.dtype != torch.float32:
            found = dtypes.name_of(scale.dtype)
            raise InputError(f"{which} is {found}: expected float32; use {which}.float()")
        if scale.device != a.device:
            raise InputError(f"{which} is on {scale.device} and a on {a.device}: use {which}.to(a.device)")
    kind = _scaling_kind(a, b, scale_a, scale_b)
    if kind == "block":
        if name == "int8":
            raise InputError("block scales are for fp8, a is int8: expected row scales, [M, 1] and [1, N]")
        return kind, scale_a.reshape(math.prod(a.shape[:-1]), scale_a.shape[-1]), scale_b
    scale_a, scale_b = scale_a.reshape(-1), scale_b.reshape(-1)
    for which, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
        if scale.numel() > 1 and scale.stride(0) != 1:
            raise InputError(f"{which} is not contiguous: expected stride 1; use {which}.contiguous()")
    return kind, scale_a, scale_b


def _scaling_kind(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> str:
    leading, (k, n) = tuple(a.shape[:-1]), b.shape
    rows, blocks_k, blocks_n = math.prod(leading), -(-k // SCALE_GROUP), -(-n // SCALE_GROUP)
    if scale_a.numel() == scale_b.numel() == 1:
        return "scalar"
    by_row = tuple(scale_a.shape) in ((rows,), (rows, 1), leading, (*leading, 1))
    if by_row and tuple(scale_b.shape) in ((n,), (1, n)):
        return "row"
    if tuple(scale_a.shape) in ((rows, blocks_k), (*leading, blocks_k)) and scale_b.shape == (blocks_k, blocks_n):
        return "block"
    raise InputError(
        f"scale_a has shape {shown(scale_a)} and scale_b {shown(scale_b)}: expected one element each, [{rows}, 1] and "
        f"[1, {n}], or [{rows}, {blocks_k}] and [{blocks_k}, {blocks_n}]; one scale for all rows goes in as "
        "scale.expand(rows, 1).contiguous()"
    )


def fast_accum_of(a: torch.Tensor, fast_accum: bool | None, scaling: str) -> bool | None:
    """Whether fast accumulation is requested; None leaves it to the output's dtype."""
    if fast_accum is None:
        return None
    if not isinstance(fast_accum, bool):
        raise InputError(f"fast_accum is {fast_accum!r}: expected True, False or None")
    if not dtypes.is_fp8(name := dtypes.name_of(a.dtype)):
        raise InputError(f"fast_accum is for fp8 operands, a is {name}: leave it out")
    if fast_accum and scaling == "block":
        raise InputError("fast_accum cannot be with block scales, which sum 128 products at a time: leave it out")
    return fast_accum


def check_invariant(precision: str, invariant: object) -> None:
    """Check that a product has an invariant form, where it is asked for."""
    if not isinstance(invariant, bool):
        raise InputError(f"invariant is {invariant!r:.60}: expected True or False")
    if invariant and precision == "tf32x3":
        raise InputError("precision 'tf32x3' has no invariant form: use 'ieee' or 'tf32'")


def check_epilogue(dtype: torch.dtype, bias: torch.Tensor | None, activation: str) -> None:
    """Check that an int32 result has neither bias nor activation."""
    if dtype == torch.int32 and (bias is not None or activation != "none"):
        found = "bias" if bias is not None else "activation"
        raise InputError(f"{found} is given and the result is int32: leave it out, or use matmul with scales")


def check_out(
    out: torch.Tensor, shape: tuple[int, ...], operands: tuple[torch.Tensor | None, ...], name: str = "a"
) -> None:
    """Check the shape and device of `out`, and that its elements share no memory with each other or with an operand.

    `name` is the first operand's.
    """
    first = operands[0]
    assert first is not None
    check_out_shape(out, shape)
    if out.device != first.device:
        devices = f"out is on {out.device} and {name} on {first.device}"
        raise InputError(f"{devices}: expected one device; use torch.empty_like")
    check_written(out)
    if any(operand is not None and share_memory(out, operand) for operand in operands):
        raise InputError("out shares memory with an operand: expected memory of its own; leave out= away")


def check_out_shape(out: torch.Tensor, shape: Sequence[int]) -> None:
    """Check the shape of `out`."""
    if out.shape != tuple(shape):
        raise InputError(f"out has shape {shown(out)}: expected {list(shape)}")


def check_written(out: torch.Tensor) -> None:
    """Check that `out` is not marked as negated, and that each of its elements has memory of its own."""
    if compat.is_zerotensor(out):
        raise InputError("out is one of torch's zeros without memory: expected plain memory; leave out= away")
    check_allocated("out", out, "leave out= away")
    if out.is_neg():
        raise InputError("out has torch's negative bit (x.conj().imag?): expected plain memory; leave out= away")
    if overlaps_itself(out):
        raise InputError("out has elements that share memory (expanded?): expected its own for each; leave out= away")


def ask_derivatives(*tensors: torch.Tensor | None) -> bool:
    """Whether one of the tensors requires a gradient or has a tangent."""
    if torch.is_grad_enabled():
        for tensor in tensors:  # takes half as long as `any`
            if tensor is not None and tensor.requires_grad:
                return True
    if not takes_tangents():
        return False
    return any(tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


def takes_tangents() -> bool:
    """Whether tangents are propagated: in a dual level, but not in an autograd.Function, which has its own rule."""
    return bool(compat.forward_ad_state()[compat.FORWARD_LEVEL] >= 0 and compat.is_fwd_grad_enabled())


def check_gradients(*tensors: torch.Tensor | None) -> None:
    """Check that no tensor requires a gradient."""
    if ask_derivatives(*tensors):
        raise InputError(
            "an operand requires a gradient, and there is none: call it under torch.no_grad() or use .detach()"
        )


def shown(tensor: torch.Tensor) -> str:
    """A tensor's shape as text for a message."""
    return str(list(tensor.shape))
