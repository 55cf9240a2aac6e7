"""Finds how a layer adds what its blocks give to its input, by trying its own forward on the CPU.

Layers of most models compute x + attention(norm(x)), then x + mlp(norm(x)) of that sum. What a block gives is often the
result of its last linear layer, as it is.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from tuner.models.accelerate_mlp import DOWN
from tuner.models.class_patch import original_class
from tuner.models.trial import Trials, run_on_cpu

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_SHAPE = (1, 2, 8)
"""The input that a layer is tried with; its blocks are replaced, so that its columns need not be the layer's."""
_UNREAD = ("_parameters", "layer_idx")
"""What layers of one kind differ in, and what they add does not depend on: weights, and their place in the model."""
_HEAD_SIZE, _POSITIONS = "head_dim", "position_embeddings"


class Ending(NamedTuple):
    """What a block returns.

    Attributes:
        last: The name of its linear layer whose result it returns as it is; None where that is not known.
        others: How many other results follow; None where it returns that one alone.
    """

    last: str | None
    others: int | None


@dataclass(frozen=True, slots=True)
class ResidualStep:
    """A part of a layer, which computes x + block(norm(x)).

    Attributes:
        norm, block: The names of children.
        ending: What the block returns.
        parameter: By which name the block is given the normalized x; None for its first place.
        passed: By names, which of the layer's arguments the block is given besides.
        passes_rest: Whether it is also given those that the layer has no name for.
    """

    norm: str
    block: str
    ending: Ending
    parameter: str | None
    passed: tuple[tuple[str, str], ...]
    passes_rest: bool


@dataclass(frozen=True, slots=True)
class ResidualForm:
    """A layer that adds what one block after the other gives.

    Attributes:
        steps: Its parts, in order.
        defaults: The layer's arguments beside its input, by name, and what they are where they are not given.
        has_rest: Whether it takes arguments of any other name.
    """

    steps: tuple[ResidualStep, ...]
    defaults: tuple[tuple[str, object], ...]
    has_rest: bool


def residual_forms(is_mlp: Callable[[nn.Module], bool]) -> Trials[ResidualForm | None]:
    """What `residual_form` finds of the layers of one model."""
    return Trials(functools.partial(residual_form, is_mlp=is_mlp), _UNREAD)


def residual_form(layer: nn.Module, is_mlp: Callable[[nn.Module], bool]) -> ResidualForm | None:
    """How a layer adds what its blocks give; None where it computes something else, as far as a trial tells.

    Args:
        layer: What to try; it is not training.
        is_mlp: Whether a block returns what its `down_proj` gives.
    """
    if layer.training or not may_add(layer):
        return None
    original = original_class(layer)
    _, first, *others = inspect.signature(original.forward).parameters.values()
    has_rest = any(each.kind is each.VAR_KEYWORD for each in others)
    named = [each for each in others if each.kind in _BY_NAME]
    if first.kind is not first.POSITIONAL_OR_KEYWORD or len(named) + has_rest != len(others):
        return None
    # A name that no layer has stands for all others.
    given = {each.name: _Argument() for each in named} | ({_Argument.__name__: _Argument()} if has_rest else {})
    trial = _LayerTrial(layer, is_mlp, given)
    tried = original.__new__(original)
    tried.__dict__.update(layer.__dict__)
    tried.__dict__["_modules"] = {
        name: each if each is None or _is_left_out(each) else _Called(name, trial.call)
        for name, each in layer._modules.items()
    }
    found = run_on_cpu(functools.partial(original.forward, tried, trial.x, **given))
    if not trial.ends_with(found):
        return None
    return ResidualForm(tuple(trial.steps), tuple((each.name, each.default) for each in named), has_rest)


def may_add(layer: nn.Module) -> bool:
    """Whether a module has two blocks with linear layers, or one, and something before each, as far as names tell."""
    children = [each for each in layer._modules.values() if each is not None]
    blocks = sum(any(isinstance(each, nn.Linear) for each in child._modules.values()) for child in children)
    norms = sum("norm" in name for name in layer._modules)
    return 0 < blocks <= 2 <= norms


def _is_left_out(child: nn.Module) -> bool:
    """Whether a child gives what it is given where it is not training."""
    return isinstance(child, (nn.Dropout, nn.Identity))


class _Argument:
    """Stands for an argument of a layer, which is to hand it on unread."""

    def __bool__(self) -> bool:
        """Raise, as all other uses do."""
        raise TypeError("an argument was read")


class _Called(nn.Module):  # type: ignore[misc]  # torch is not checked
    """Stands for a child of a module that is tried."""

    def __init__(self, name: str, call: Callable[..., object]) -> None:
        super().__init__()
        self._name, self._call = name, call

    def forward(self, *args: object, **kwargs: object) -> object:
        return self._call(self._name, *args, **kwargs)


class _LayerTrial:
    """Calls of a layer's children, which are to be a norm of the sum so far and a block of what that gave, in turns."""

    def __init__(self, layer: nn.Module, is_mlp: Callable[[nn.Module], bool], given: Mapping[str, object]) -> None:
        self._generator = torch.Generator().manual_seed(0)
        self.x, self.steps = self._drawn(), list[ResidualStep]()
        self._before, self._sum = self.x.clone(), self.x
        self._layer, self._is_mlp, self._given = layer, is_mlp, given
        self._norm, self._normalized = "", None

    def _drawn(self) -> torch.Tensor:
        return torch.randn(_SHAPE, generator=self._generator, device="cpu")

    def call(self, name: str, *args: Any, **kwargs: Any) -> object:
        """Note a call of a child, and give what stands for its result.

        Raises:
            RuntimeError: It is no call of such a layer.
        """
        if self._normalized is None:
            if len(args) != 1 or kwargs or not torch.equal(args[0], self._sum):
                raise RuntimeError(f"{name} is given something else")
            self._norm, self._normalized = name, self._drawn()
            return self._normalized
        block, normalized = self._layer._modules[name], self._normalized
        parameter = next((key for key, value in kwargs.items() if value is normalized), None)
        if len(args) != (parameter is None) or (args and args[0] is not normalized):
            raise RuntimeError(f"{name} is given something else")
        passed = tuple(self._passed({key: value for key, value in kwargs.items() if key != parameter}))
        rest = _Argument.__name__
        named = tuple(each for each in passed if rest not in each)
        assert block is not None
        ending = Ending(DOWN, None) if self._is_mlp(block) else ending_of(block)
        self.steps.append(ResidualStep(self._norm, name, ending, parameter, named, len(named) < len(passed)))
        added, self._normalized = self._drawn(), None
        self._sum = self._sum + added
        return added if ending.others is None else (added, *[None] * ending.others)

    def _passed(self, kwargs: Mapping[str, object]) -> Sequence[tuple[str, str]]:
        names = {id(value): name for name, value in self._given.items()}
        return [(name, names[id(value)]) for name, value in kwargs.items()]

    def ends_with(self, found: object) -> bool:
        """Whether a layer that gave this adds up what its blocks give, and nothing else."""
        is_sum = isinstance(found, torch.Tensor) and torch.equal(found, self._sum)
        return bool(self.steps) and is_sum and torch.equal(self.x, self._before)


def ending_of(block: nn.Module) -> Ending:
    """What a block of attention returns, by a trial on the CPU with linear layers that give zeros."""
    linears = {name: each for name, each in block._modules.items() if isinstance(each, nn.Linear)}
    unknown = Ending(None, None)
    if not linears:
        return unknown
    results: dict[str, torch.Tensor] = {}

    def call(name: str, given: Any, *_: object, **__: object) -> Any:
        if name not in linears:
            return given
        results[name] = given.new_zeros(*given.shape[:-1], linears[name].out_features)
        return results[name]

    original = original_class(block)
    _, first, *others = inspect.signature(original.forward).parameters.values()
    size = getattr(block, _HEAD_SIZE, None)
    known = {_POSITIONS: (torch.ones(1, 2, size, device="cpu"),) * 2} if isinstance(size, int) else {}
    needed = {each.name: None for each in others if each.kind in _BY_NAME and each.default is each.empty}
    given = {**needed, **{name: value for name, value in known.items() if name in {each.name for each in others}}}
    tried = original.__new__(original)
    tried.__dict__.update(block.__dict__, training=False)
    if "config" in tried.__dict__:
        tried.__dict__["config"] = _EagerConfig(tried.__dict__["config"])
    tried.__dict__["_modules"] = {
        name: None if each is None else _Called(name, call) for name, each in block._modules.items()
    }
    x = torch.zeros(1, 2, next(iter(linears.values())).in_features, device="cpu")
    found = run_on_cpu(functools.partial(original.forward, tried, **{first.name: x}, **given))
    if not isinstance(found, (torch.Tensor, tuple)) or not len(found):
        return unknown
    first_result = found if isinstance(found, torch.Tensor) else found[0]
    last = next((name for name, each in results.items() if each is first_result), None)
    return Ending(last, None if isinstance(found, torch.Tensor) else len(found) - 1)


class _EagerConfig:
    """A model's config, by which attention is computed with torch's own operators, which run on a CPU."""

    _attn_implementation = "eager"

    def __init__(self, config: object) -> None:
        self._config = config

    def __getattr__(self, name: str) -> object:
        """What the config has."""
        return getattr(self._config, name)
