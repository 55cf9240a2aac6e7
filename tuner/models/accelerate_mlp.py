"""The gated MLPs that `accelerate` exchanges: blocks that compute down(activation(gate(x)) * up(x)), and their forward.

Gate, up, the activation and the product of both are one launch of `gated_linear`. The block's own `down_proj` follows.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tuner.kernels.base.activations import activated
from tuner.kernels.ops import arguments
from tuner.kernels.ops.gated_by_evidence import Preference, Weights, gated, preference, problem
from tuner.kernels.ops.linear import DTYPES
from tuner.launch import compat
from tuner.launch.call_cache import PLAIN_TENSORS
from tuner.models.accelerate_linear import TunedLinear
from tuner.models.as_tried import Children, Held, are_as_tried, children, held, holds
from tuner.models.exchange import GIVEN, Exchanged, exchange, is_exchanged, own_class, without_table
from tuner.problem import dtype as dtypes
from tuner.problem.gemm_fields import ACTIVATIONS

_DOWN = "down_proj"
_APART, _JOINED = ("gate_proj", "up_proj"), ("gate_up_proj",)
_FORWARDS = (nn.Linear.forward, TunedLinear.forward)
_GLOBAL_HOOKS = (compat.global_forward_hooks, compat.global_forward_pre_hooks)
_COMPUTED: Any = object()
_ACTIVATIONS = tuple(name for name in ACTIVATIONS if name != "none")
_TRIED_SIZES = (8, 16)
"""K and N of the layers that a block is tried with."""
_SCALES = (1.0, 30.0)
"""Sizes of the inputs that a block is tried with: of the second, few blocks that clamp their values give the same."""
_CLOSE = 1e-5


@dataclass(frozen=True, slots=True)
class Gate:
    """What a block does with the products of gate and up.

    Attributes:
        layers: The names of the layers that compute these: two, or one that computes both.
        activation: The gate's activation, by `gated_linear`'s name.
        up_first: Whether the rows of up come first in a layer of both.
        in_training: Whether the block computes the same while it trains: it has no dropout.
    """

    layers: tuple[str, ...]
    activation: str
    up_first: bool = False
    in_training: bool = True


@dataclass(frozen=True, eq=False, slots=True)
class MlpChoice:
    """What an exchanged block is served by.

    Attributes:
        gate: What it does with the products of gate and up.
        preferred: Who serves these.
        others: Its other children, by name, with the values that they held as it was tried.
        held: The values that it held itself.
    """

    gate: Gate
    preferred: Preference
    others: Children
    held: Held


class TunedMlp(Exchanged):
    """A gated MLP whose gate and up are one launch, by its choice; its own forward in everything else."""

    PREFIX = "Tuned"

    def forward(self, *given: Any, **named: Any) -> torch.Tensor:
        """Compute down(activation(gate(x)) * up(x)).

        Args:
            given: x [..., K].
            named: Nothing, or what the block's own forward takes.

        Returns:
            What `down_proj` gives.
        """
        choice: MlpChoice | None = self.__dict__.get(GIVEN)
        if choice is not None and len(given) == 1 and not named:
            weights = _weights(self, choice)
            hidden = None if weights is None else gated(given[0], weights, choice.preferred)
            if hidden is not None:
                return self._modules[_DOWN](hidden)
        # Without a choice the block may be restored, and somebody keeps this method.
        own = super().forward if isinstance(self, TunedMlp) else self.forward
        result: torch.Tensor = own(*given, **named)
        return result


def _weights(block: nn.Module, choice: MlpChoice) -> Weights | None:
    """The weights of gate and up; None where the block does more than the kernel now: layers changed, or have hooks."""
    modules, gate = block._modules, choice.gate
    if _GLOBAL_HOOKS[0] or _GLOBAL_HOOKS[1] or (block.training and not gate.in_training):
        return None
    if not (holds(block, choice.held) and are_as_tried(block, choice.others, in_training=gate.in_training)):
        return None
    found = []
    for name in gate.layers:
        weight = _weight(modules.get(name))
        if weight is None:
            return None
        found.append(weight)
    return tuple(found)


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
    """Whether a module has the layers of a gated MLP, by the names that models give them."""
    return _layers(block) is not None


def _layers(block: nn.Module) -> tuple[str, ...] | None:
    modules = block._modules
    if modules.get(_DOWN) is None:
        return None
    named = [each for each in (_APART, _JOINED) if all(isinstance(modules.get(name), nn.Linear) for name in each)]
    return named[0] if len(named) == 1 else None


def exchange_mlp(block: nn.Module, backend: str) -> str | None:
    """Exchange a gated MLP, or say why it keeps its own forward."""
    if backend == "torch":
        return "as asked"
    why, choice = _choice_of(block, is_auto=backend == "auto")
    if choice is None:
        return f"the gates of MLPs {why}"
    exchange(block, TunedMlp, choice)
    return None


def _choice_of(block: nn.Module, *, is_auto: bool) -> tuple[str, MlpChoice | None]:
    """What is to serve a block, or why it keeps its own forward."""
    if "forward" in vars(block):
        return "whose forward somebody replaced", None
    if isinstance(block, TunedMlp) and not is_exchanged(block):
        return f"whose class was made of an exchanged one since ({type(block).__name__})", None
    weights = [_weight(block._modules[name]) for name in _layers(block) or ()]
    first = weights[0]
    if (why := _obstacle(weights)) or first is None:
        return str(why), None
    shape = (first.shape[0] // (3 - len(weights)), first.shape[1])
    # Tables first: to try a block takes milliseconds, and old mixtures have thousands.
    names = [name for name in _ACTIVATIONS if not is_auto or _untuned(shape, first, name) is None]
    gate = gate_of(block) if names else None
    if names and gate is None:
        return f"that compute something else ({own_class(block).__name__})", None
    if gate is None or gate.activation not in names:
        return str(_untuned(shape, first, _ACTIVATIONS[0])), None
    preferred = preference(gate.activation, is_auto, gate.up_first, shape)
    return "", MlpChoice(gate, preferred, children(_others(block)), held(block))


def _untuned(shape: tuple[int, int], weight: torch.Tensor, activation: str) -> str | None:
    return without_table(problem((1, *shape), weight.dtype, activation), weight.device.index)


def _obstacle(weights: Sequence[torch.Tensor | None]) -> str | None:
    """Why no kernel takes the weights of gate and up as they are, or None."""
    given = [each for each in weights if each is not None]
    if len(given) < len(weights):
        return "whose gate or up does more than multiply by a weight (a bias, a hook, a forward of its own)"
    if odd := {type(each).__name__ for each in given if type(each) not in PLAIN_TENSORS}:
        return f"with weights of class {', '.join(sorted(odd))}"
    first = given[0]
    if any(each.dim() != 2 or not each.numel() for each in given):
        return f"whose weights have shapes {', '.join(str(list(each.shape)) for each in given)}"
    if odd := {dtypes.name_of(each.dtype) for each in given if each.dtype not in DTYPES}:
        return f"whose weights are {', '.join(sorted(odd))}"
    if any((each.dtype, each.shape, each.layout) != (first.dtype, first.shape, torch.strided) for each in given):
        return "whose gate and up have weights of different kinds"
    away = [each.device for each in given if each.device != first.device or not arguments.has_kernels(each.device)]
    return f"on {away[0].type} (move the model to a GPU first)" if away else None


def gate_of(block: nn.Module) -> Gate | None:
    """What a block does with the products of its gate and up; None where that is no activation of one times the other.

    Its own forward is tried on the CPU with small linear layers of random weights in place of its own.
    """
    layers, others = _layers(block), dict(_others(block))
    held = [each for each in others.values() if each is not None]
    if layers is None or any(each._modules or each._parameters or each._buffers for each in held):
        return None
    weight = _weight(block._modules[layers[0]])
    if weight is None or weight.dtype not in DTYPES:
        return None
    tried = _Trial(block, layers, others)
    exact = dict(tried.exact())
    for dtype in dict.fromkeys((torch.float32, weight.dtype)):
        result = tried.run(dtype, training=False)
        exact = {kind: each for kind, each in exact.items() if _is_close(result, each, dtype)}
    if len(exact) != 1:
        return None
    ((activation, up_first), wanted) = exact.popitem()
    state = torch.random.get_rng_state()
    try:
        result = tried.run(torch.float32, training=True)
        draws = not torch.equal(torch.random.get_rng_state(), state)
    finally:
        torch.random.set_rng_state(state)
    in_training = not draws and _is_close(result, wanted, torch.float32)
    return Gate(layers, activation, up_first, in_training)


def _others(block: nn.Module) -> Iterator[tuple[str, nn.Module | None]]:
    """A block's children that are no layers of a gated MLP."""
    for name, each in block._modules.items():
        if name not in (*_APART, *_JOINED, _DOWN):
            yield name, each


class _Trial:
    """A block's own forward with small linear layers of random weights in place of its own."""

    def __init__(self, block: nn.Module, layers: tuple[str, ...], others: Mapping[str, nn.Module | None]) -> None:
        (k, n), generator = _TRIED_SIZES, torch.Generator().manual_seed(0)

        def drawn(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")

        self.block, self.layers, self.others = block, layers, others
        self.gate, self.up, self.down = drawn(n, k) / k**0.5, drawn(n, k) / k**0.5, drawn(k, n) / n**0.5
        self.x = drawn(len(_SCALES), 3, k) * torch.tensor(_SCALES, device="cpu")[:, None, None]

    def exact(self) -> Iterator[tuple[tuple[str, bool], torch.Tensor]]:
        """By each activation, and whether up comes first, what a gated MLP gives."""
        products = [self.x @ self.gate.t(), self.x @ self.up.t()]
        for up_first in (False, True) if self.layers == _JOINED else (False,):
            gate, up = products[:: -1 if up_first else 1]
            for name in _ACTIVATIONS:
                yield (name, up_first), (activated(gate, name) * up) @ self.down.t()

    def run(self, dtype: torch.dtype, *, training: bool) -> object:
        """What the block gives; None where it cannot be run like this."""
        own = own_class(self.block)
        tried = own.__new__(own)
        weights = [self.gate, self.up] if self.layers == _APART else [torch.cat((self.gate, self.up))]
        modules: dict[str, nn.Module | None] = {
            name: None if each is None else _unhooked(each, training) for name, each in self.others.items()
        }
        for name, weight in zip((*self.layers, _DOWN), (*weights, self.down), strict=True):
            modules[name] = _linear(weight.to(dtype))
        tried.__dict__.update({name: _apart(value) for name, value in self.block.__dict__.items()})
        tried.__dict__.update(_modules=modules, training=training)
        try:
            with torch.no_grad(), torch.autocast("cpu", enabled=False), torch.device("cpu"):
                return own.forward(tried, self.x.to(dtype))
        except Exception:  # noqa: BLE001  a forward that nobody here knows, with layers that it does not expect
            return None


def _apart(value: object) -> object:
    """A collection of its own, so that what a forward puts there goes with the trial."""
    return copy.copy(value) if isinstance(value, (list, dict, set)) else value


def _linear(weight: torch.Tensor) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    made.weight = nn.Parameter(weight, requires_grad=False)
    return made


def _unhooked(module: nn.Module, training: bool) -> nn.Module:
    """A copy of a module without children, that shares all but its hooks."""
    kind: Any = type(module)
    made: nn.Module = kind.__new__(kind)
    made.__dict__.update(module.__dict__, _forward_hooks={}, _forward_pre_hooks={}, training=training)
    return made


def _is_close(found: object, exact: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether a result has a dtype and, for each size of inputs, differs by no more than rounding."""
    if not isinstance(found, torch.Tensor) or found.dtype != dtype or found.shape != exact.shape:
        return False
    close = _CLOSE if dtype == torch.float32 else 8 * torch.finfo(dtype).eps
    errors, sizes = ((each.double() - zero).flatten(1).norm(dim=1) for each, zero in ((found, exact), (exact, 0.0)))
    return bool((errors <= close * sizes).all())
