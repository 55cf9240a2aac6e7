"""Replaces the forward of blocks of experts that compute what `fused_experts` does: which blocks, and by what."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from tuner.kernels.base.activations import activated
from tuner.launch.call_cache import PLAIN_TENSORS
from tuner.models.class_patch import CHOICE, PatchedLayer, original_class, original_forward, patch_class
from tuner.models.obstacles import class_obstacle, device_obstacle, table_obstacle
from tuner.models.snapshot import Attributes, Children, attributes_of, children_of, children_unchanged, is_unchanged
from tuner.models.trial import run_on_cpu
from tuner.problem.gemm_fields import ACTIVATIONS

_WEIGHTS = ("gate_up_proj", "down_proj")
_FLAGS = {"has_gate": True, "has_bias": False, "is_transposed": False}
"""The flags that transformers sets on a class of experts, with the values that `fused_experts` computes."""
_RARE_FLAGS = ("has_post_expert_norm", "_is_expert_parallel")
"""Flags that older releases of transformers lack: a norm of each expert; experts that several GPUs share."""
_IMPLEMENTATIONS = (None, "eager", "grouped_mm", "batched_mm")
"""What a config may ask for that `fused_experts` may stand in for; any other is a kernel that somebody chose."""


class ExpertsChoice(NamedTuple):
    """How a patched block is served.

    Attributes:
        is_auto: Whether its own forward runs where no table says that `fused_experts` is no slower.
        activation: Its activation, by `fused_experts`'s name.
        attributes: Its attributes when its gate was tried.
        children: Its children then.
    """

    is_auto: bool
    activation: str
    attributes: Attributes
    children: Children


class TunedExperts(PatchedLayer):
    """A block of experts that runs on tuned kernels where its choice says so, and by its own forward elsewhere."""

    PREFIX = "Tuned"

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Compute the weighted sum of each token's experts.

        Args:
            args: The tokens [M, K], each token's experts [M, top_k] and their shares [M, top_k].
            kwargs: Nothing, or what the block's own forward takes.

        Returns:
            [M, K].
        """
        choice: ExpertsChoice | None = self.__dict__.get(CHOICE)
        gate_up, down = (self._parameters.get(name) for name in _WEIGHTS)
        if choice is not None and gate_up is not None and down is not None and len(args) == 3 and not kwargs:
            from tuner.kernels.ops.experts_by_evidence import experts_by_evidence  # see patch_experts

            x, experts, shares = args
            if _is_unchanged(self, choice):
                summed = experts_by_evidence(x, gate_up, down, experts, shares, choice.activation, choice.is_auto)
                if summed is not None:
                    return summed
        result: torch.Tensor = original_forward(TunedExperts, self)(*args, **kwargs)
        return result


def _is_unchanged(block: Any, choice: ExpertsChoice) -> bool:
    """Whether a block still computes what it did when its gate was tried."""
    if not (is_unchanged(block, choice.attributes) and children_unchanged(block, choice.children, in_training=True)):
        return False
    return not any(getattr(block, name, False) for name in _RARE_FLAGS)


def holds_experts(block: nn.Module) -> bool:
    """Whether a module has a matrix for each expert, as far as its class's name and its parameters tell."""
    is_named = "expert" in original_class(block).__name__.lower()
    return is_named and any(each.dim() == 3 for each in block._parameters.values() if each is not None)


def patch_experts(block: nn.Module, backend: str) -> str | None:
    """Replace the forward of a block of experts, or say why it is left on torch."""
    from tuner.kernels.ops.experts_by_evidence import problem  # not at import: most models have no experts

    if why := obstacle(block):
        return why
    down, top_k = block._parameters["down_proj"], top_k_of(block)
    assert down is not None
    if why := device_obstacle(down.device):
        return why
    activation = activation_of(block)
    assert activation is not None
    if backend == "auto" and top_k is not None:
        experts, k, n = down.shape
        family = problem((1, n, k, experts, top_k), down.dtype, activation)
        if why := table_obstacle(family, down.device.index):
            return why
    children = children_of(block._modules.items())
    patch_class(block, TunedExperts, ExpertsChoice(backend == "auto", activation, attributes_of(block), children))
    return None


def obstacle(block: nn.Module) -> str | None:
    """Why a block of experts is left on torch on any device, or None."""
    kind = original_class(block).__name__
    if why := class_obstacle(block):
        return why
    weights = [block._parameters.get(name) for name in _WEIGHTS]
    flags = {name: getattr(block, name, None) for name in _FLAGS}
    is_plain = all(type(each) in PLAIN_TENSORS for each in weights)
    if flags != _FLAGS or getattr(block, _RARE_FLAGS[0], False) or not is_plain:
        return f"no kernel computes {kind} yet"
    if _has_own_forward(original_class(block)):
        return f"{kind} defines its own forward"
    if (asked := getattr(getattr(block, "config", None), "_experts_implementation", None)) not in _IMPLEMENTATIONS:
        return f"the model's config asks for experts_implementation={asked!r}"
    if activation_of(block) is None:
        return f"the gate of {kind} is not a known activation times up"
    return None


def _has_own_forward(kind: Any) -> bool:
    """Whether a class's forward is neither one that transformers wraps nor one of the class that defines its gate."""
    owner = next(each for each in kind.__mro__ if "forward" in vars(each))
    return not (hasattr(kind.forward, "__wrapped__") or "_apply_gate" in vars(owner))


def top_k_of(block: nn.Module) -> int | None:
    """To how many experts the block's config sends a token; None where it does not say so by the usual name."""
    top_k = getattr(getattr(block, "config", None), "num_experts_per_tok", None)
    return top_k if isinstance(top_k, int) else None


def activation_of(block: nn.Module) -> str | None:
    """The activation of a block whose gate is activation(first half) * second half; None of any other gate.

    Its own gate is tried with random numbers on the CPU.
    """
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(0), device="cpu")
    x = torch.cat((x, 30 * x))  # a gate that clamps its values shows in the larger ones
    gate, up = x.chunk(2, dim=-1)
    result = run_on_cpu(lambda: original_class(block)._apply_gate(block, x))
    if not isinstance(result, torch.Tensor) or (result.shape, result.dtype) != (gate.shape, gate.dtype):
        return None
    return next((name for name in ACTIVATIONS if torch.allclose(result, activated(gate, name) * up)), None)
