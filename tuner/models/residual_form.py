"""Finds how a layer adds what its blocks give to its input, by trying its own forward on the CPU.

Layers of most models compute x + attention(norm(x)), then x + mlp(norm(x)) of that sum. What a block gives is often the
result of its last linear layer, as it is.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from tuner.kernels.ops.linear import DTYPES
from tuner.models.class_patch import original_class
from tuner.models.trial import Called, Trials, Unread, copy_with, run_on_cpu

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_SHAPES = ((2, 2, 8), (1, 1, 8))
"""The inputs that a layer is tried with; its blocks are replaced, so that its columns need not be the layer's."""
_LARGE = 1e3
"""The size of the first input's elements, which no layer clamps that only adds."""
UNREAD = ("_parameters", "layer_idx")
"""What layers of one kind differ in, and what they add does not depend on: blocks' weights, and their own place."""
_REST = "any_other_argument"
"""Stands for all names that a layer does not have."""
_HEAD_SIZE, _POSITIONS = "head_dim", "position_embeddings"


class Ending(NamedTuple):
    """What a block returns.

    Attributes:
        last: The name of its linear layer whose result it returns as it is; None where that is not known.
        others: How many other results follow; None where it returns that one alone.
    """

    last: str | None
    others: int | None


class ResidualStep(NamedTuple):
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


class ResidualForm(NamedTuple):
    """A layer that adds what one block after the other gives.

    Attributes:
        steps: Its parts, in order.
        defaults: The layer's arguments beside its input, by name, and what they are where they are not given.
        has_rest: Whether it takes arguments of any other name.
        skipped: The names of children that give what they are given where they do not train.
    """

    steps: tuple[ResidualStep, ...]
    defaults: tuple[tuple[str, object], ...]
    has_rest: bool
    skipped: tuple[str, ...]


def forms_by_layer() -> Callable[[nn.Module], ResidualForm | None]:
    """A function that gives what `residual_form` finds of the layers of one model."""
    tried = Trials(residual_form, UNREAD)
    return lambda layer: tried.of(layer, _dtype_of(layer), ()) if may_add(layer) else None


def residual_form(layer: nn.Module) -> ResidualForm | None:
    """How a layer adds what its blocks give; None where it computes something else, as far as trials tell.

    It is tried twice: with arguments that it may hand on but not read, and with its defaults.

    Args:
        layer: What to try; it is not training.
    """
    parameters = list(inspect.signature(original_class(layer).forward).parameters.values())[1:]
    by_name = [each for each in parameters[1:] if each.kind in _BY_NAME]
    has_rest = any(each.kind is each.VAR_KEYWORD for each in parameters)
    is_tried = bool(parameters) and parameters[0].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    if layer.training or not is_tried or 1 + len(by_name) + has_rest < len(parameters) or not may_add(layer):
        return None
    unread = {name: Unread() for name in (*(each.name for each in by_name), *([_REST] if has_rest else []))}
    steps = _steps_of(layer, unread, torch.float32, _SHAPES[0], _LARGE)
    defaults = {each.name: unread[each.name] if each.default is each.empty else each.default for each in by_name}
    again = _steps_of(layer, defaults, _dtype_of(layer), _SHAPES[1], 1.0)
    # Which of the layer's arguments a block is given is not known of defaults that are one object.
    if not steps or again is None or [each[:4] for each in again] != [each[:4] for each in steps]:
        return None
    skipped = tuple(name for name, each in layer._modules.items() if _is_skipped(each))
    return ResidualForm(tuple(steps), tuple((each.name, each.default) for each in by_name), has_rest, skipped)


def _dtype_of(layer: nn.Module) -> torch.dtype:
    """The dtype of a layer's linear layers."""
    dtypes = [each.weight.dtype for each in layer.modules() if isinstance(each, nn.Linear)]
    return dtypes[0] if dtypes and dtypes[0] in DTYPES else torch.float32


def _steps_of(
    layer: nn.Module, given: Mapping[str, object], dtype: torch.dtype, shape: Sequence[int], size: float
) -> list[ResidualStep] | None:
    """The parts of a layer that is called with some arguments; None where it computes something else."""
    trial = _LayerTrial(layer, given, dtype, shape, size)
    children = {
        name: each if _is_skipped(each) or each is None else Called(name, trial.call)
        for name, each in layer._modules.items()
    }
    tried = copy_with(layer, children)
    found = run_on_cpu(functools.partial(type(tried).forward, tried, trial.x, **given))
    return trial.steps if trial.ends_with(found) else None


def may_add(layer: nn.Module) -> bool:
    """Whether a module has one or two blocks with linear layers and something before each, as far as names tell.

    A weight of its own may scale what it adds.
    """
    if any(each is not None for each in (*layer._parameters.values(), *layer._buffers.values())):
        return False
    children = {name: each for name, each in layer._modules.items() if each is not None}
    blocks = sum(any(isinstance(each, nn.Linear) for each in child._modules.values()) for child in children.values())
    return 0 < blocks <= 2 <= sum("norm" in name for name in children)


def _is_skipped(child: nn.Module | None) -> bool:
    """Whether a child gives what it is given where it does not train."""
    return type(child) in (nn.Dropout, nn.Identity)


class _LayerTrial:
    """Calls of a layer's children, which are to be a norm of the sum so far and a block of what that gave, in turns."""

    def __init__(
        self, layer: nn.Module, given: Mapping[str, object], dtype: torch.dtype, shape: Sequence[int], size: float
    ) -> None:
        self._generator, self._dtype, self._shape = torch.Generator().manual_seed(0), dtype, shape
        self.x, self.steps = self._drawn() * size, list[ResidualStep]()
        self._before, self._sum = self.x.clone(), self.x
        self._layer, self._given = layer, given
        self._norm, self._normalized = "", None

    def _drawn(self) -> torch.Tensor:
        drawn = torch.randn(self._shape, generator=self._generator, device="cpu")
        return drawn.to(self._dtype)

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
        normalized, self._normalized = self._normalized, None
        parameter = next((key for key, value in kwargs.items() if value is normalized), None)
        if len(args) != (parameter is None) or (args and args[0] is not normalized):
            raise RuntimeError(f"{name} is given something else")
        passed = tuple((key, self._name_of(key, value)) for key, value in kwargs.items() if key != parameter)
        named, block = tuple(each for each in passed if _REST not in each), self._layer._modules[name]
        ending = Ending(None, None) if block is None else ending_of(block)
        self.steps.append(ResidualStep(self._norm, name, ending, parameter, named, len(named) < len(passed)))
        added = self._drawn()
        self._sum = self._sum + added
        return added if ending.others is None else (added, *[None] * ending.others)

    def _name_of(self, key: str, value: object) -> str:
        """Which of the layer's arguments a block is given; of several that are one object, that of the same name."""
        names = [name for name, each in self._given.items() if each is value]
        return key if key in names else names[0]

    def ends_with(self, found: object) -> bool:
        """Whether a layer that gave this adds up what its blocks give, and nothing else."""
        if not isinstance(found, torch.Tensor) or found.dtype != self._dtype:
            return False
        return bool(self.steps) and torch.equal(found, self._sum) and torch.equal(self.x, self._before)


def ending_of(block: nn.Module) -> Ending:
    """What a block returns, by a trial on the CPU: linear layers give zeros, and attention is by torch's operators.

    Nothing is known of blocks that call a linear layer twice or change its result.
    """
    linears = {name: each for name, each in block._modules.items() if isinstance(each, nn.Linear)}
    unknown, results = Ending(None, None), dict[str, torch.Tensor]()
    parameters = list(inspect.signature(original_class(block).forward).parameters.values())[1:]
    if not linears or not parameters:
        return unknown

    def call(name: str, given: Any, *_: object, **__: object) -> Any:
        if name not in linears:
            return given.clone()  # so that what follows the last linear layer is seen
        if name in results:
            raise RuntimeError(f"{name} is called again, and would add again")
        results[name] = given.new_zeros(*given.shape[:-1], linears[name].out_features)
        return results[name]

    input_parameter, *others = parameters
    arguments = {each.name: None for each in others if each.kind in _BY_NAME and each.default is each.empty}
    size = getattr(block, _HEAD_SIZE, None)
    if isinstance(size, int) and any(each.name == _POSITIONS for each in others):
        arguments[_POSITIONS] = (torch.ones(1, 2, size, device="cpu"),) * 2  # type: ignore[assignment]
    children = {name: None if each is None else Called(name, call) for name, each in block._modules.items()}
    tried = copy_with(block, children, training=False)
    if "config" in tried.__dict__:
        tried.__dict__["config"] = _EagerConfig(tried.__dict__["config"])
    x = torch.zeros(1, 2, next(iter(linears.values())).in_features, device="cpu")
    returned = run_on_cpu(functools.partial(type(tried).forward, tried, **{input_parameter.name: x}, **arguments))
    if not isinstance(returned, (torch.Tensor, tuple)) or not len(returned):
        return unknown
    result = returned if isinstance(returned, torch.Tensor) else returned[0]
    # Its version counts changes in place.
    last = next((name for name, each in results.items() if each is result and each._version == 0), None)
    return Ending(last, None if isinstance(returned, torch.Tensor) else len(returned) - 1)


class _EagerConfig:
    """A model's config, by which attention is computed with torch's own operators, which run on a CPU."""

    _attn_implementation = "eager"

    def __init__(self, config: object) -> None:
        self._config = config

    def __getattr__(self, name: str) -> object:
        """What the config has."""
        return getattr(self._config, name)
