"""Serves calls of `matmul` by torch's library: with "auto" if it was measured to be faster, and always with "vendor".

The decision for a kind of call is kept, so that further calls cost one dict access more than torch itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

import torch

from tuner.bounded import make_room
from tuner.errors import InputError
from tuner.hardware import device as devices
from tuner.kernels.base.operands import Operands
from tuner.kernels.gemm.vendor import activate_in_place, vendor
from tuner.launch.torch_precision import torch_precision
from tuner.lookup import lookup
from tuner.problem import Problem

BACKENDS = ("triton", "auto", "vendor")
NOISE = 0.01
"""The fraction by which the library must have been faster. Tables hold no intervals, and 0.5% is a tie."""
_MOST = 8192
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)

Run = Callable[[torch.Tensor, torch.Tensor, "torch.Tensor | None"], torch.Tensor]
"""A function that computes the result of a, b and bias in new memory."""
_runs: dict[Hashable, Run | None] = {}
"""How torch serves a kind of call; None if one of our kernels does."""
lookup.on_change(_runs.clear)


class BackendRequest(NamedTuple):
    """A call that torch's library may serve.

    Attributes:
        backend: "auto" or "vendor".
        kind: The key of the decision; None for calls with scales or an output, whose decision is not kept.
    """

    backend: str
    kind: Hashable

    def serves(self, operands: Operands) -> bool:
        """Write the output by torch and return True, or write nothing and return False if torch is not chosen.

        Raises:
            InputError: the backend is "vendor", and torch has no such product.
        """
        sources = lookup.resolver()
        done = self._is_faster(operands) and self._run(operands)
        if self.kind is not None:
            make_room(_runs, _MOST)
            _runs[self.kind] = _repeat(operands.problem, operands.out.dtype) if done else None
            if lookup.resolver() is not sources:
                _runs.pop(self.kind, None)
        return done

    def _is_faster(self, operands: Operands) -> bool:
        if self.backend == "vendor":
            return True
        row = lookup.row_of(operands.problem, devices.current(operands.a.device.index))
        return row is not None and row.vs_vendor is not None and row.vs_vendor < 1 - NOISE

    def _run(self, operands: Operands) -> bool:
        try:
            if operands.bias is not None and operands.bias.dtype != operands.out.dtype:
                raise NotImplementedError("torch adds a bias of the output's dtype")
            vendor(operands)
        except NotImplementedError as e:
            if self.backend == "vendor":
                raise InputError(f"backend 'vendor': {e}: use 'auto' or 'triton'") from e
            return False
        return True


def check(backend: str) -> None:
    """Check the name of a backend.

    Raises:
        InputError: there is no such backend.
    """
    if backend not in BACKENDS:
        raise InputError(f"unknown backend {backend!r}: expected one of {', '.join(BACKENDS)}")


def decision_key(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, options: Hashable) -> Hashable:
    """The key of the decision for a call without scales and without `out`."""
    float32_setting = torch_precision() if a.dtype is torch.float32 else None
    return *map(_tensor_key, (a, b, bias)), options, float32_setting


def decision(kind: Hashable) -> tuple[bool, Run | None]:
    """Whether a kind of call is decided, and how torch serves it, which is None if one of our kernels does."""
    run = _runs.get(kind)
    return run is not None or kind in _runs, run


def _repeat(problem: Problem, dtype: torch.dtype) -> Run:
    floats = problem.a_dtype == problem.out_dtype and dtype in _FLOATS
    if not floats or (dtype is torch.float32 and problem.precision != torch_precision()):
        return _by_rule(problem, dtype)
    activation = problem.activation

    def run(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if bias is None:
            result = torch.matmul(a, b)
        else:
            result = torch.addmm(bias, a.reshape(problem.m, problem.k), b).view(*a.shape[:-1], problem.n)
        if activation != "none":
            activate_in_place(result, activation)
        return result

    return run


def _by_rule(problem: Problem, dtype: torch.dtype) -> Run:
    """Make the function for a product for which torch has a special function or a setting."""

    def run(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        result = torch.empty((*a.shape[:-1], problem.n), dtype=dtype, device=a.device)
        out = result.view(problem.m, problem.n)
        vendor(Operands(a.reshape(problem.m, problem.k), b, out, bias, problem, out))
        return result

    return run


def _tensor_key(tensor: torch.Tensor | None) -> Hashable:
    if tensor is None:
        return None
    at = tensor.data_ptr() & 15
    return tensor.__class__, tensor.shape, tensor.stride(), tensor.dtype, tensor.device, at
