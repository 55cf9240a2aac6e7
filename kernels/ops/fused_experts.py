"""The op `fused_experts`: a repeated call runs its launch plan; any other is checked, looked up and launched.

torch.compile and torch.export see it as the operator `triton_tuner::fused_experts`, unless it is given `out`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, cast

import torch

from tuner.errors import InputError
from tuner.kernels.base.operands import is_aligned
from tuner.kernels.experts.operands import GROUPS, TOP_K, ExpertsOperands
from tuner.kernels.ops import arguments, operators
from tuner.kernels.ops.arguments import shown
from tuner.kernels.ops.dispatch import launch
from tuner.kernels.ops.operators import Planned, define, plan_first
from tuner.kernels.ops.problem import check_sizes, problem_of
from tuner.launch.call_cache import CallCache, is_tracing, untraced
from tuner.lookup.lookup import resolver
from tuner.problem import Problem
from tuner.problem import dtype as dtypes
from tuner.problem.gemm_fields import MAX_SIZE

CALL_CACHE = CallCache()
_SPLITTING = {
    "M": "call it for some of x's rows at a time",
    "N": "add up the results of parts, gate_up's rows n and N + n with down[..., n]",
    "K": "use torch's own ops",
}
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def fused_experts(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    experts: torch.Tensor,
    shares: torch.Tensor,
    *,
    activation: str = "silu",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute a mixture of experts with tuned Triton kernels: sort by expert, gate and up, down, weighted sum.

    Row t is the sum over j of shares[t, j] * ((activation(x[t] @ gate.T) * (x[t] @ up.T)) @ down[e].T), where e is
    experts[t, j], gate is gate_up[e, :N] and up is gate_up[e, N:]. Sums are float32; the values between both products
    and each expert's result are rounded to x's dtype. Nothing waits for the device, a captured CUDA graph replays with
    the experts and shares of its replay, and a row's bits do not depend on the order in which programs run. Source:
    Shazeer et al., arXiv:1701.06538, with gated MLPs as experts.

    The config comes from `tuner.lookup`; nothing is measured and nothing written.

    Args:
        x: [M, K], float32, float16 or bfloat16, contiguous rows.
        gate_up: [E, 2 * N, K], of x's dtype, contiguous rows.
        down: [E, K, N], of x's dtype, contiguous rows.
        experts: int32 or int64 [M, top_k]; a number outside of 0 to E - 1 leaves that choice out.
        shares: [M, top_k], float32 or of x's dtype: the routing weights.
        activation: silu, gelu (tanh form), relu, leaky_relu (slope 0.01) or none.
        out: [M, K] to write into, contiguous rows, apart from all operands.

    Returns:
        `out`, or a new tensor [M, K].

    Raises:
        InputError: an argument is not a dense tensor; shapes, dtypes or devices do not fit; or an operand requires a
            gradient.
        KernelError: no installed kernel serves the problem on this device.
    """
    found = CALL_CACHE.run((x, gate_up, down, experts, shares), (activation,), out)
    if found is not None:
        return found
    if out is None and arguments.is_followed():
        named = {"x": x, "gate_up": gate_up, "down": down, "experts": experts, "shares": shares}
        return operators.call("fused_experts", arguments.activation_of(activation), **named)
    if is_tracing():
        return cast(
            torch.Tensor, untraced(fused_experts)(x, gate_up, down, experts, shares, activation=activation, out=out)
        )
    return checked_call((x, gate_up, down, experts, shares), activation, out, cache=CALL_CACHE, options=(activation,))


Given = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""x, gate_up, down, experts and shares."""


def checked_call(
    given: Given,
    activation: str,
    out: torch.Tensor | None = None,
    *,
    cache: CallCache,
    options: tuple[Hashable, ...],
) -> torch.Tensor:
    """Run a call whose arguments must be checked, and store its plan under some options; else as `fused_experts`."""
    named = dict(zip(("x", "gate_up", "down", "experts", "shares"), given, strict=True))
    arguments.check_tensors(**named, out=out)
    arguments.check_memory(**named, out=out)
    x, gate_up, down, experts, shares = arguments.in_memory(**named)
    arguments.check_device("x", x)
    _check_kinds(x, gate_up=gate_up, down=down, experts=experts, shares=shares)
    _check_shapes(x, gate_up, down, experts, shares)
    kind = arguments.activation_of(activation)
    if out is None:
        result = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    else:
        result = _check_out(out, (x, gate_up, down, experts, shares))
    arguments.check_gradients(*given, out)
    if not experts.numel() or not down.numel():
        return result.zero_()
    if result.numel():
        sources = resolver()
        operands = operands_of((x, gate_up, down, experts, shares), kind, result)
        recording = launch(operands, operands.problem, x.device)
        if experts.is_contiguous() and shares.is_contiguous():
            float32_setting = operands.problem.precision if x.dtype == torch.float32 else None
            cache.remember(given, options, recording, result, sources, out=out, precision=float32_setting)
    return result


def operands_of(given: Given, activation: str, out: torch.Tensor) -> ExpertsOperands:
    """What the kernels take of tensors that fit each other, `out` and the activation's name."""
    x, gate_up, down, experts, shares = given
    problem = problem_of(_problem, (x, gate_up, down, out), experts.shape[1], activation)
    return ExpertsOperands(x, gate_up, down, out, experts.contiguous(), shares.contiguous(), problem, out)


def _problem(  # noqa: PLR0917
    x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, out: torch.Tensor, top_k: int, activation: str
) -> Problem:
    # `is_aligned` takes matrices, and the experts of a weight lie as far apart as their rows are long.
    matrices = (x, gate_up.flatten(0, 1), down.flatten(0, 1), out)
    return Problem(
        *(len(x), down.shape[2], down.shape[1]),
        dtype=dtypes.name_of(x.dtype),
        layout="nt",
        aligned=is_aligned(*matrices),
        epilogue=activation,
        precision=arguments.precision_of(x, None),
        op="fused_experts",
        extras={GROUPS: len(down), TOP_K: top_k},
    )


def _check_kinds(x: torch.Tensor, **others: torch.Tensor) -> None:
    if x.dtype not in _DTYPES:
        expected = ", ".join(map(dtypes.name_of, _DTYPES))
        raise InputError(f"x is {dtypes.name_of(x.dtype)}: expected one of {expected}; convert it with x.to(...)")
    allowed = {
        "experts": (torch.int64, torch.int32),
        "shares": (torch.float32, x.dtype),
    }
    for name, tensor in others.items():
        kinds = allowed.get(name, (x.dtype,))
        if tensor.dtype not in kinds:
            expected = " or ".join(dict.fromkeys(map(dtypes.name_of, kinds)))
            raise InputError(f"{name} is {dtypes.name_of(tensor.dtype)}: expected {expected}; use {name}.to(...)")
        if tensor.device != x.device:
            raise InputError(
                f"{name} is on {tensor.device} and x on {x.device}: expected one device; use {name}.to(x.device)"
            )


def _check_shapes(
    x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, experts: torch.Tensor, shares: torch.Tensor
) -> None:
    if x.dim() != 2 or gate_up.dim() != 3 or down.dim() != 3:
        raise InputError(
            f"x has shape {shown(x)}, gate_up {shown(gate_up)} and down {shown(down)}: expected [M, K], [E, 2 * N, K] "
            "and [E, K, N]"
        )
    number, k, n = down.shape
    if x.shape[1] != k or gate_up.shape != (number, 2 * n, k):
        raise InputError(
            f"x {shown(x)}, gate_up {shown(gate_up)} and down {shown(down)} do not fit: expected [M, {k}] and "
            f"[{number}, {2 * n}, {k}] beside this down"
        )
    if experts.dim() != 2 or len(experts) != len(x) or shares.shape != experts.shape:
        raise InputError(
            f"experts has shape {shown(experts)} and shares {shown(shares)}: expected [{len(x)}, top_k] both"
        )
    if experts.shape[1] > number:
        raise InputError(f"experts has shape {shown(experts)}: expected at most {number} choices of as many experts")
    check_sizes((len(x), n, k), _SPLITTING, MAX_SIZE // 2)
    for name, tensor in (("x", x), ("gate_up", gate_up), ("down", down)):
        if tensor.numel() and tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            raise InputError(f"{name}'s rows are not contiguous: use {name}.contiguous()")
    for name, tensor in (("gate_up", gate_up), ("down", down)):
        if tensor.numel() and number > 1 and tensor.stride(0) != tensor.shape[1] * tensor.stride(1):
            raise InputError(f"{name}'s experts do not lie one behind the other: use {name}.contiguous()")


def _check_out(out: torch.Tensor, operands: tuple[torch.Tensor, ...]) -> torch.Tensor:
    x = operands[0]
    arguments.check_out(out, tuple(x.shape), operands, "x")
    if out.dtype != x.dtype:
        raise InputError(f"out is {dtypes.name_of(out.dtype)}: expected {dtypes.name_of(x.dtype)}, as x is")
    if out.stride(-1) != 1 and out.shape[-1] > 1:
        raise InputError("out's rows are not contiguous: use torch.empty_like(x)")
    return out


def count_flops(
    _x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, experts: torch.Tensor, *_: object, **__: object
) -> int:
    """The floating-point operations of the products of each token's experts."""
    return 2 * int(experts.numel()) * int(gate_up[0].numel() + down[0].numel())


def _run(*given: Any) -> torch.Tensor:
    *tensors, activation = given
    return fused_experts(*tensors, activation=activation)


def _shaped(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    experts: torch.Tensor,
    shares: torch.Tensor,
    _activation: str,
) -> torch.Tensor:
    """The result's shape and dtype, as a tensor without values; the operands have none either."""
    named = {"gate_up": gate_up, "down": down, "experts": experts, "shares": shares}
    arguments.check_together(x=x, **named)
    _check_kinds(x, **named)
    _check_shapes(x, **named)
    return x.new_empty(x.shape)


def _planned(*given: Any) -> Planned:
    return given[:5], given[5:]


TENSORS = "Tensor x, Tensor gate_up, Tensor down, Tensor experts, Tensor shares"
define(f"fused_experts({TENSORS}, str activation) -> Tensor", _run, _shaped, count_flops)
plan_first("fused_experts", CALL_CACHE, _planned)
