"""The blocks of experts that `accelerate` exchanges: which compute what `fused_experts` does, and their forward."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tuner.kernels.base.activations import activated
from tuner.kernels.ops import arguments, autocast, dispatch
from tuner.kernels.ops.linear import DTYPES
from tuner.launch.call_cache import PLAIN_TENSORS
from tuner.lookup import evidence, lookup
from tuner.models.as_tried import Children, Held, are_as_tried, children, held, holds
from tuner.models.exchange import GIVEN, Exchanged, exchange, own_class, without_table
from tuner.problem import Problem
from tuner.problem import dtype as dtypes
from tuner.problem.gemm_fields import ACTIVATIONS

_WEIGHTS = ("gate_up_proj", "down_proj")
_SAID = {"has_gate": True, "has_bias": False, "is_transposed": False}
"""What transformers says of a class of experts, and what `fused_experts` computes."""
_RARE = ("has_post_expert_norm", "_is_expert_parallel")
"""What few have, and older releases of transformers do not say: a norm of each expert; experts of several GPUs."""
_IMPLEMENTATIONS = (None, "eager", "grouped_mm", "batched_mm")
"""What a config may ask for that computes the same; others are somebody's choice of a kernel."""


@dataclass(frozen=True, slots=True)
class ExpertsChoice:
    """What an exchanged block is served by.

    Attributes:
        is_auto: Whether its own forward runs where no table says that `fused_experts` is no slower.
        activation: Its activation, by `fused_experts`'s name.
        held: The values that it held as its gate was tried.
        others: Its children then.
    """

    is_auto: bool
    activation: str
    held: Held
    others: Children


class TunedExperts(Exchanged):
    """A block of experts that runs on tuned kernels, by its choice; its own forward in everything else."""

    PREFIX = "Tuned"

    def forward(self, *given: Any, **named: Any) -> torch.Tensor:
        """Compute the weighted sum of each token's experts.

        Args:
            given: The tokens [M, K], each token's experts [M, top_k] and their shares [M, top_k].
            named: Nothing, or what the block's own forward takes.

        Returns:
            [M, K].
        """
        choice, weights = self.__dict__.get(GIVEN), [self._parameters.get(name) for name in _WEIGHTS]
        if choice is None or named or len(given) != 3 or not _is_served(self, (*given, *weights), choice):
            # Without a choice the block may be restored, and somebody keeps this method.
            own = super().forward if isinstance(self, TunedExperts) else self.forward
            result: torch.Tensor = own(*given, **named)
            return result
        from tuner.kernels.ops.fused_experts import fused_experts  # not at import: most models have no experts

        x, experts, shares = given
        gate_up, down = weights
        assert gate_up is not None
        assert down is not None
        return fused_experts(x, gate_up, down, experts, shares, activation=choice.activation)


def _is_served(block: Any, tensors: tuple[Any, ...], choice: ExpertsChoice) -> bool:
    """Whether `fused_experts` computes what the block would, and is to."""
    if torch.compiler.is_compiling() or not all(type(each) in PLAIN_TENSORS for each in tensors):
        return False
    if not (holds(block, choice.held) and are_as_tried(block, choice.others, in_training=True)):
        return False
    if any(getattr(block, name, False) for name in _RARE) or not _fit(*tensors) or _is_followed(tensors):
        return False
    x, experts, _, _, down = tensors
    sizes = (len(x), down.shape[2], down.shape[1], len(down), experts.shape[1])
    return not choice.is_auto or _is_faster(lookup.resolver(), sizes, x.dtype, choice.activation, x.device.index)


def _fit(
    x: torch.Tensor, experts: torch.Tensor, shares: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
) -> bool:
    """Whether `fused_experts` takes these tensors; a block's own forward says what is wrong with others."""
    shapes = (
        x.dim() == experts.dim() == 2 and gate_up.dim() == down.dim() == 3,
        x.shape[1:] == gate_up.shape[2:] == down.shape[1:2],
        len(gate_up) == len(down) and gate_up.shape[1] == 2 * down.shape[-1],
        experts.shape == shares.shape and len(experts) == len(x) and 0 < experts.shape[-1] <= len(down),
    )
    kinds = (
        x.dtype == gate_up.dtype == down.dtype and x.dtype in DTYPES,
        experts.dtype in (torch.int64, torch.int32) and shares.dtype in (x.dtype, torch.float32),
        all(each.device == x.device for each in (experts, shares, gate_up, down)),
    )
    return all(shapes) and all(kinds) and all(each.is_contiguous() for each in (x, gate_up, down))


def _is_followed(tensors: tuple[torch.Tensor, ...]) -> bool:
    """Whether something needs torch's own operators: a gradient, autocast, a tracer; or has no memory to give."""
    if autocast.is_on(tensors[0]) or arguments.is_recorded() or arguments.ask_derivatives(*tensors):
        return True
    return not (arguments.has_kernels(tensors[0].device) and all(map(arguments.has_memory, tensors)))


@functools.lru_cache(maxsize=8192)
def _is_faster(
    _of: object, sizes: tuple[int, int, int, int, int], dtype: torch.dtype, activation: str, index: int | None
) -> bool:
    """Whether a table says that the kernels are no slower than torch; asked once for the tables that are named."""
    return sizes[0] > 0 and evidence.beats_vendor(problem(sizes, dtype, activation), dispatch.device_of(index))


lookup.on_change(_is_faster.cache_clear)


def holds_experts(block: nn.Module) -> bool:
    """Whether a module multiplies by a matrix of its own for each expert, by the names that models give them."""
    is_named = "expert" in own_class(block).__name__.lower()
    return is_named and any(each.dim() == 3 for each in block._parameters.values() if each is not None)


def exchange_experts(block: nn.Module, backend: str) -> str | None:
    """Exchange a block of experts, or say why it keeps its own forward."""
    if backend == "torch":
        return "as asked"
    if why := obstacle(block):
        return why
    down, top_k = block._parameters["down_proj"], top_k_of(block)
    assert down is not None
    if not arguments.has_kernels(down.device):
        return f"on {down.device.type} (move the model to a GPU first)"
    activation = activation_of(block)
    assert activation is not None
    if backend == "auto" and top_k is not None:
        experts, k, n = down.shape
        family = problem((1, n, k, experts, top_k), down.dtype, activation)
        if why := without_table(family, down.device.index):
            return why
    others = children(block._modules.items())
    exchange(block, TunedExperts, ExpertsChoice(backend == "auto", activation, held(block), others))
    return None


def problem(sizes: tuple[int, int, int, int, int], dtype: torch.dtype, activation: str) -> Problem:
    """The problem of a block whose tensors are contiguous, by M, N, K, the number of experts and top_k."""
    *shape, experts, top_k = sizes
    extras, name = {"groups": experts, "top_k": top_k}, dtypes.name_of(dtype)
    return Problem(*shape, dtype=name, layout="nt", op="fused_experts", epilogue=activation, extras=extras)


def obstacle(block: nn.Module) -> str | None:
    """Why a block of experts keeps its own forward wherever it runs, or None."""
    kind = own_class(block).__name__
    if "forward" in vars(block):
        return "experts whose forward somebody replaced"
    weights = [block._parameters.get(name) for name in _WEIGHTS]
    said = {name: getattr(block, name, None) for name in _SAID}
    if (
        said != _SAID
        or getattr(block, _RARE[0], False)
        or any(type(each) not in (torch.Tensor, nn.Parameter) for each in weights)
    ):
        return f"experts in one tensor ({kind}) that no kernel computes yet"
    if _has_own_forward(own_class(block)):
        return f"experts with a forward of their own ({kind})"
    if (asked := getattr(getattr(block, "config", None), "_experts_implementation", None)) not in _IMPLEMENTATIONS:
        return f"experts that are computed by {asked}, as the model's config says"
    if activation_of(block) is None:
        return f"experts with a gate of their own ({kind})"
    return None


def _has_own_forward(kind: Any) -> bool:
    """Whether a class computes experts otherwise than transformers' own, which it wraps, or the class of their gate."""
    owner = next(each for each in kind.__mro__ if "forward" in vars(each))
    return not (hasattr(kind.forward, "__wrapped__") or "_apply_gate" in vars(owner))


def top_k_of(block: nn.Module) -> int | None:
    """To how many experts the block's config sends a token; None where it does not say so by the usual name."""
    found = getattr(getattr(block, "config", None), "num_experts_per_tok", None)
    return found if isinstance(found, int) else None


def activation_of(block: nn.Module) -> str | None:
    """The activation of a block whose gate is activation(first half) * second half; None of any other gate.

    Its own gate is tried with random numbers on the CPU.
    """
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(0), device="cpu")
    x = torch.cat((x, 30 * x))  # of the second half few gates that clamp their values give the same
    gate, up = x.chunk(2, dim=-1)
    try:
        with torch.no_grad(), torch.device("cpu"):
            found = own_class(block)._apply_gate(block, x)
    except Exception:  # noqa: BLE001  a model's own code may raise anything: then torch keeps it
        return None
    if getattr(found, "shape", None) != gate.shape:
        return None
    return next((name for name in ACTIVATIONS if torch.allclose(found, activated(gate, name) * up)), None)
