"""Replaces the forward of gated MLPs, blocks that compute down(activation(gate(x)) * up(x)): which, and by what.

One launch of `gated_linear` computes gate, up, the activation and the product. The block's own `down_proj` follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from tuner.kernels.base.activations import activated
from tuner.kernels.ops.gated_by_evidence import GatedPreference, Weights, gated, gated_preference, problem
from tuner.kernels.ops.linear import DTYPES
from tuner.models.accelerate_linear import TunedLinear
from tuner.models.class_patch import CHOICE, PatchedLayer, original_class, original_forward, patch_class
from tuner.models.obstacles import class_obstacle, device_obstacle, table_obstacle, tensor_obstacle
from tuner.models.snapshot import (
    GLOBAL_HOOKS,
    Attributes,
    Children,
    attributes_of,
    children_of,
    children_unchanged,
    is_unchanged,
)
from tuner.models.trial import Trials, copy_with, run_on_cpu
from tuner.problem import dtype as dtypes
from tuner.problem.gemm_fields import ACTIVATIONS

DOWN = "down_proj"
_SEPARATE, _JOINED = ("gate_proj", "up_proj"), ("gate_up_proj",)
_FORWARDS = (nn.Linear.forward, TunedLinear.forward)
_COMPUTED: Any = object()
_ACTIVATIONS = tuple(name for name in ACTIVATIONS if name != "none")
_TRIED_SIZES = (8, 16)
"""K and N of the layers that a block is tried with."""
_SCALES = (1.0, 30.0)
"""Factors of the inputs that a block is tried with. With the second, few blocks that clamp give an MLP's numbers."""
_TOLERANCE = 1e-5
"""The relative error of a result that counts as rounding, in float32."""


class Gate(NamedTuple):
    """What a block does with the products of gate and up.

    Attributes:
        layers: The names of the layers that compute gate and up: two, or one that computes both.
        activation: The gate's activation, by `gated_linear`'s name.
        up_first: Whether the rows of up come first in a layer of both.
        in_training: Whether the block computes the same while it trains: it has no dropout.
    """

    layers: tuple[str, ...]
    activation: str
    up_first: bool = False
    in_training: bool = True


class MlpChoice(NamedTuple):
    """How a patched block is served.

    Attributes:
        gate: What it does with the products of gate and up.
        preferred: Who serves these.
        children: Its other children when it was tried.
        attributes: Its attributes then.
    """

    gate: Gate
    preferred: GatedPreference
    children: Children
    attributes: Attributes


class TunedMlp(PatchedLayer):
    """A gated MLP whose gate and up are one launch where its choice says so; elsewhere its own forward runs."""

    PREFIX = "Tuned"

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Compute down(activation(gate(x)) * up(x)).

        Args:
            args: x [..., K].
            kwargs: Nothing, or what the block's own forward takes.

        Returns:
            What `down_proj` gives.
        """
        choice: MlpChoice | None = self.__dict__.get(CHOICE)
        if choice is not None and len(args) == 1 and not kwargs:
            weights = _weights(self, choice)
            hidden = None if weights is None else gated(args[0], weights, choice.preferred)
            if hidden is not None:
                return self._modules[DOWN](hidden)
        result: torch.Tensor = original_forward(TunedMlp, self)(*args, **kwargs)
        return result


def _weights(block: nn.Module, choice: MlpChoice) -> Weights | None:
    """The weights of gate and up; None where the block now does more than the kernel: layers changed, or have hooks."""
    modules, gate = block._modules, choice.gate
    if GLOBAL_HOOKS[0] or GLOBAL_HOOKS[1] or (block.training and not gate.in_training):
        return None
    if not is_unchanged(block, choice.attributes):
        return None
    if not children_unchanged(block, choice.children, in_training=gate.in_training):
        return None
    weights = []
    for name in gate.layers:
        weight = _weight(modules.get(name))
        if weight is None:
            return None
        weights.append(weight)
    return tuple(weights)


def _weight(layer: Any) -> torch.Tensor | None:
    """The weight of a layer whose forward is the product with it and nothing else; None of any other."""
    if type(layer).forward not in _FORWARDS or layer._forward_hooks or layer._forward_pre_hooks:
        return None
    parameters = layer._parameters
    if "forward" in layer.__dict__ or parameters.get("bias", _COMPUTED) is not None:
        return None
    weight: torch.Tensor | None = parameters.get("weight")
    return weight


def holds_mlp(block: nn.Module) -> bool:
    """Whether a module has the layers of a gated MLP, as far as their names tell."""
    return _layers(block) is not None


def _layers(block: nn.Module) -> tuple[str, ...] | None:
    modules = block._modules
    if modules.get(DOWN) is None:
        return None
    named = [each for each in (_SEPARATE, _JOINED) if all(isinstance(modules.get(name), nn.Linear) for name in each)]
    return named[0] if len(named) == 1 else None


def gates() -> Trials[Gate | None]:
    """What `gate_of` finds of the blocks of one model."""
    return Trials(gate_of)


def gate_by(tried: Trials[Gate | None], block: nn.Module) -> Gate | None:
    """What a block that `holds_mlp` does with the products of gate and up, by the blocks that were tried before."""
    layers = _layers(block) or ()
    weight = _weight(block._modules[layers[0]]) if layers else None
    return None if weight is None else tried.of(block, weight.dtype, (*layers, DOWN))


def patch_mlp(block: nn.Module, backend: str, tried: Trials[Gate | None]) -> str | None:
    """Replace the forward of a gated MLP, or say why it is left on torch."""
    why, choice = _choice_of(block, tried, is_auto=backend == "auto")
    if choice is None:
        return f"gates of MLPs: {why}"
    patch_class(block, TunedMlp, choice)
    return None


def _choice_of(block: nn.Module, tried: Trials[Gate | None], *, is_auto: bool) -> tuple[str, MlpChoice | None]:
    """How a block is to be served, or why it is left on torch."""
    if why := class_obstacle(block):
        return why, None
    layers = _layers(block) or ()
    weights = [_weight(block._modules[name]) for name in layers]
    first = weights[0]
    if (why := _obstacle(weights)) or first is None:
        return str(why), None
    shape = (first.shape[0] // (3 - len(weights)), first.shape[1])
    gate = gate_by(tried, block)
    if gate is None:
        return f"{original_class(block).__name__} computes something else", None
    # Only this family is looked for: to learn that there is no other takes every table to the end.
    if is_auto and (why := _untuned(shape, first, gate.activation)):
        return why, None
    preferred = gated_preference(gate.activation, is_auto, gate.up_first, shape)
    return "", MlpChoice(gate, preferred, children_of(_others(block)), attributes_of(block))


def _untuned(shape: tuple[int, int], weight: torch.Tensor, activation: str) -> str | None:
    return table_obstacle(problem((1, *shape), weight.dtype, activation), weight.device.index)


def _obstacle(weights: Sequence[torch.Tensor | None]) -> str | None:  # noqa: PLR0911  one return for each reason
    """Why no kernel takes the weights of gate and up as they are, or None."""
    plain = [each for each in weights if each is not None]
    if len(plain) < len(weights):
        return "gate or up does more than multiply by a weight: it has a bias, a hook or its own forward"
    if why := tensor_obstacle(plain):
        return why
    first = plain[0]
    if any(each.dim() != 2 or not each.numel() for each in plain):
        return f"the weights have shapes {', '.join(str(list(each.shape)) for each in plain)}"
    if odd := {dtypes.name_of(each.dtype) for each in plain if each.dtype not in DTYPES}:
        return f"the weights are {', '.join(sorted(odd))}"
    if any((each.dtype, each.shape, each.layout) != (first.dtype, first.shape, torch.strided) for each in plain):
        return "gate and up have weights of different kinds"
    if any(each.device != first.device for each in plain):
        return "gate and up are on different devices"
    return device_obstacle(first.device)


def gate_of(block: nn.Module) -> Gate | None:
    """What a block does with the products of its gate and up; None where that is no activation of one times the other.

    Its own forward is tried on the CPU with small linear layers of random weights in place of its own.
    """
    layers, others = _layers(block), dict(_others(block))
    modules = [each for each in others.values() if each is not None]
    if layers is None or any(each._modules or each._parameters or each._buffers for each in modules):
        return None
    weight = _weight(block._modules[layers[0]])
    if weight is None or weight.dtype not in DTYPES:
        return None
    trial = _Trial(block, layers, others)
    exact = dict(trial.exact())
    for dtype in dict.fromkeys((torch.float32, weight.dtype)):
        result = trial.run(dtype, training=False)
        exact = {kind: each for kind, each in exact.items() if _is_close(result, each, dtype)}
    if len(exact) != 1:
        return None
    ((activation, up_first), expected) = exact.popitem()
    state = torch.random.get_rng_state()
    try:
        result = trial.run(torch.float32, training=True)
        is_random = not torch.equal(torch.random.get_rng_state(), state)
    finally:
        torch.random.set_rng_state(state)
    in_training = not is_random and _is_close(result, expected, torch.float32)
    return Gate(layers, activation, up_first, in_training)


def _others(block: nn.Module) -> Iterator[tuple[str, nn.Module | None]]:
    """A block's children but the layers of a gated MLP."""
    for name, each in block._modules.items():
        if name not in (*_SEPARATE, *_JOINED, DOWN):
            yield name, each


class _Trial:
    """A block's own forward with small linear layers of random weights in place of its own."""

    def __init__(self, block: nn.Module, layers: tuple[str, ...], others: Mapping[str, nn.Module | None]) -> None:
        (k, n), generator = _TRIED_SIZES, torch.Generator().manual_seed(0)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")

        self.block, self.layers, self.others = block, layers, others
        self.gate, self.up, self.down = random(n, k) / k**0.5, random(n, k) / k**0.5, random(k, n) / n**0.5
        self.x = random(len(_SCALES), 3, k) * torch.tensor(_SCALES, device="cpu")[:, None, None]

    def exact(self) -> Iterator[tuple[tuple[str, bool], torch.Tensor]]:
        """What a gated MLP gives, by its activation and whether up comes first."""
        products = [self.x @ self.gate.t(), self.x @ self.up.t()]
        for up_first in (False, True) if self.layers == _JOINED else (False,):
            gate, up = products[:: -1 if up_first else 1]
            for name in _ACTIVATIONS:
                yield (name, up_first), (activated(gate, name) * up) @ self.down.t()

    def run(self, dtype: torch.dtype, *, training: bool) -> object:
        """What the block gives; None where it cannot be run like this."""
        weights = [self.gate, self.up] if self.layers == _SEPARATE else [torch.cat((self.gate, self.up))]
        modules: dict[str, nn.Module | None] = {
            name: None if each is None else _unhooked(each, training) for name, each in self.others.items()
        }
        for name, weight in zip((*self.layers, DOWN), (*weights, self.down), strict=True):
            modules[name] = _linear(weight.to(dtype))
        tried = copy_with(self.block, modules, training=training)
        return run_on_cpu(type(tried).forward, tried, self.x.to(dtype))


def _linear(weight: torch.Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return layer


def _unhooked(module: nn.Module, training: bool) -> nn.Module:
    """A copy of a module that has no children; it shares everything but the hooks."""
    kind: Any = type(module)
    copied: nn.Module = kind.__new__(kind)
    copied.__dict__.update(module.__dict__, _forward_hooks={}, _forward_pre_hooks={}, training=training)
    return copied


def _is_close(result: object, exact: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether a result has a dtype and, for each factor of the inputs, differs by no more than rounding."""
    if not isinstance(result, torch.Tensor) or (result.dtype, result.shape) != (dtype, exact.shape):
        return False
    tolerance = _TOLERANCE if dtype == torch.float32 else 8 * torch.finfo(dtype).eps
    errors, sizes = (each.flatten(1).norm(dim=1) for each in (result.double() - exact, exact))
    return bool((errors <= tolerance * sizes).all())
