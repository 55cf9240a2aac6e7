"""Has attention multiply its input by the weights of q, k and v in one launch, for one or two rows.

A block's own forward runs as it is. Before it the block multiplies, and hands the products to its own layers, which
return them where they are called with that very input: so whatever the forward does besides stays.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from tuner.kernels.ops.linear import DTYPES, LinearPreference
from tuner.kernels.ops.merged_by_evidence import MergedPreference, has_few_rows, merged, merged_preference, problem
from tuner.models.accelerate_linear import HandedLinear, HandedPreference, Handover, handed_preference
from tuner.models.class_patch import CHOICE, PatchedLayer, original_class, original_forward, patch_class
from tuner.models.obstacles import class_obstacle, table_obstacle
from tuner.models.snapshot import GLOBAL_HOOKS
from tuner.models.trial import Called, Unread, copy_with, run_on_cpu

_GROUPS = (("q_proj", "k_proj", "v_proj"), ("q_a_proj", "kv_a_proj_with_mqa"), ("q_proj", "kv_a_proj_with_mqa"))
"""Names of layers that multiply one input; of those that a block has, the first group is tried."""
_COMPUTED: Any = object()
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class MergedInput(NamedTuple):
    """Layers that multiply the input of their block.

    Attributes:
        layers: Their names.
        parameter: The name of the input in the block's forward.
    """

    layers: tuple[str, ...]
    parameter: str


class AttentionChoice(NamedTuple):
    """How a patched block is served.

    Attributes:
        input: Which layers multiply its input.
        preferred: Who serves these layers together.
        handover: Where their products lie while its forward runs.
    """

    input: MergedInput
    preferred: MergedPreference
    handover: Handover


class TunedAttention(PatchedLayer):
    """Attention whose q, k and v are one launch where its choice says so; its own forward runs in any case."""

    PREFIX = "Tuned"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute what the block's own forward does, with the same arguments."""
        own = original_forward(TunedAttention, self)
        choice: AttentionChoice | None = self.__dict__.get(CHOICE)
        if choice is None:
            return own(*args, **kwargs)
        x = args[0] if args else kwargs.get(choice.input.parameter)
        given = _weights(self, choice) if isinstance(x, torch.Tensor) and has_few_rows(x) else None
        products = None if given is None else merged(x, *given, choice.preferred)
        if products is None:
            return own(*args, **kwargs)
        handover = choice.handover
        handover.given = x, [*products]
        try:
            return own(*args, **kwargs)
        finally:
            handover.given = None


def _weights(block: nn.Module, choice: AttentionChoice) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]] | None:
    """The weights and biases of the layers that wait for their products.

    None where one of the layers was replaced, or has a hook, which may change the input that the others are given.
    """
    if GLOBAL_HOOKS[0] or GLOBAL_HOOKS[1]:
        return None
    weights, biases = [], []
    for name in choice.input.layers:
        layer = block._modules.get(name)
        if layer is None or type(layer).forward is not HandedLinear.forward:
            return None
        if layer._forward_pre_hooks or layer._forward_hooks:
            return None
        parameters, handed = layer._parameters, layer.__dict__.get(CHOICE)
        weight, bias = parameters.get("weight"), parameters.get("bias", _COMPUTED)
        if not isinstance(handed, HandedPreference) or handed.handover is not choice.handover or weight is None:
            return None
        if (bias is not None) is not choice.preferred.has_bias or bias is _COMPUTED:
            return None
        weights.append(weight)
        if bias is not None:
            biases.append(bias)
    return weights, biases


def attention_layers(block: nn.Module) -> tuple[str, ...] | None:
    """The names of layers of a module that may multiply one input, as far as names tell; None where it has none."""
    modules = block._modules
    return next((names for names in _GROUPS if all(isinstance(modules.get(each), nn.Linear) for each in names)), None)


def patch_attention(block: nn.Module, backend: str) -> bool:
    """Have a block multiply its input once, if `patch_linear` replaced the forward of its layers before.

    Returns:
        Whether it does.
    """
    found = None if class_obstacle(block) else merged_input(block)
    if found is None:
        return False
    linears = [block._modules[name] for name in found.layers]
    preferences = [each.__dict__.get(CHOICE) for each in linears]
    weights = [each._parameters.get("weight") for each in linears]
    have_bias = {each._parameters.get("bias") is not None for each in linears}
    if not all(isinstance(each, LinearPreference) for each in preferences) or not _fit(weights) or len(have_bias) > 1:
        return False
    first, widths, has_bias, is_auto = weights[0], tuple(map(len, weights)), have_bias.pop(), backend == "auto"
    if is_auto and table_obstacle(problem(1, first.shape[1], widths, has_bias, first.dtype), first.device.index):
        return False
    handover = Handover()
    for place, (layer, preferred) in enumerate(zip(linears, preferences, strict=True)):
        patch_class(layer, HandedLinear, handed_preference(preferred.options, handover, place))
    patch_class(block, TunedAttention, AttentionChoice(found, merged_preference(is_auto, widths, has_bias), handover))
    return True


def _fit(weights: Sequence[torch.Tensor]) -> bool:
    """Whether the kernel takes weights together."""
    first = weights[0]
    return first.dtype in DTYPES and all(
        each.numel() and (each.dtype, each.device, each.shape[1]) == (first.dtype, first.device, first.shape[1])
        for each in weights
    )


def merged_input(block: nn.Module) -> MergedInput | None:
    """What a block hands to its layers as it is; None where that is not its input.

    Its own forward is tried on the CPU, up to where the last of these layers is called: they and its other children
    are replaced by some that note what they are called with. It draws on no argument but its input before that.
    """
    layers = attention_layers(block)
    if layers is None:
        return None
    _, *others = inspect.signature(original_class(block).forward).parameters.values()
    if not others or others[0].kind is not others[0].POSITIONAL_OR_KEYWORD:
        return None
    needed = [each.name for each in others[1:] if each.default is each.empty and each.kind not in _VARIADIC]
    trial = _Trial(block, layers)
    children = {name: None if each is None else Called(name, trial.call) for name, each in block._modules.items()}
    tried = copy_with(block, children)
    run_on_cpu(functools.partial(type(tried).forward, tried, trial.x, **dict.fromkeys(needed, Unread())))
    return None if trial.waits_for else MergedInput(layers, others[0].name)


class _Trial:
    """The input of a block that is tried, and the layers that are still to be called with it."""

    def __init__(self, block: nn.Module, layers: Sequence[str]) -> None:
        self._block, columns = block, block._modules[layers[0]].in_features
        self.x = torch.randn(1, 2, columns, generator=torch.Generator().manual_seed(0), device="cpu")
        self.waits_for = [*layers]
        self._before = self.x.clone()

    def call(self, name: str, given: Any, *_: object, **__: object) -> Any:
        """Note a call of a child: a linear layer's result is zeros, any other's what it is given.

        Raises:
            RuntimeError: The trial is over.
        """
        if name in self.waits_for:
            if given is not self.x or not torch.equal(self.x, self._before):
                raise RuntimeError(f"{name} is given something else")
            self.waits_for.remove(name)
            if not self.waits_for:
                raise RuntimeError("all were called")
        child = self._block._modules[name]
        return given.new_zeros(*given.shape[:-1], child.out_features) if isinstance(child, nn.Linear) else given
