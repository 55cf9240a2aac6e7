"""Has the last linear layer of attention and of an MLP add the residual, where a step has one row.

Then the residual is a bias, so the kernels of any layer with a bias serve it, and the addition takes no launch. A
layer's blocks run as they are; its own forward runs wherever anything else than one row is asked for.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tuner.kernels.ops import arguments, autocast, dispatch
from tuner.kernels.ops.linear import LinearPreference, linear, linear_preference, problem
from tuner.kernels.ops.merged_by_evidence import has_few_rows
from tuner.launch import compat
from tuner.launch.call_cache import is_tracing
from tuner.lookup import evidence
from tuner.models import accelerate_norm
from tuner.models.accelerate_linear import HandedLinear, TunedLinear
from tuner.models.accelerate_mlp import TunedMlp
from tuner.models.class_patch import CHOICE, PatchedLayer, original_forward, patch_class
from tuner.models.obstacles import class_obstacle
from tuner.models.residual_form import ResidualForm, residual_forms
from tuner.models.snapshot import Attributes, attributes_of, is_unchanged
from tuner.models.trial import Trials

_GLOBAL_HOOKS = (compat.global_forward_hooks, compat.global_forward_pre_hooks)


class Residual:
    """What the last linear layer of a block is to add to its product while the block runs; each thread has its own."""

    def __init__(self) -> None:
        """Have nothing to add."""
        self._traced: torch.Tensor | None = None
        self._by_thread: dict[int, torch.Tensor] = {}

    def give(self, residual: torch.Tensor) -> None:
        """Have the layer add a residual at its next call."""
        if is_tracing():  # one thread at a time traces
            self._traced = residual
        else:
            self._by_thread[threading.get_ident()] = residual

    def take(self) -> torch.Tensor | None:
        """What the layer is to add; None after that, and where nothing was given."""
        if is_tracing():
            residual = self._traced
            if residual is not None:  # torch.export warns of each change
                self._traced = None
            return residual
        return self._by_thread.pop(threading.get_ident(), None)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class AddingPreference(LinearPreference):
    """Who serves a layer that may add a residual to its product.

    Attributes:
        adding: Who serves it where it does.
        residual: What it is to add.
    """

    adding: LinearPreference
    residual: Residual

    def __reduce__(self) -> tuple[object, ...]:
        """Copies and pickles of a block share the preferences of their process, and have a residual of their own."""
        return adding_preference, (self.options, self.residual)


def adding_preference(options: tuple[bool, int, int, bool], residual: Residual) -> AddingPreference:
    """The preference that `linear_preference` gives for some options, of a layer without a bias that may add."""
    is_auto, n, k, has_bias = options
    left_to_torch = linear_preference(*options).left_to_torch
    adding = linear_preference(is_auto, n, k, True)
    assert not has_bias
    return AddingPreference(
        is_auto=is_auto, options=options, left_to_torch=left_to_torch, adding=adding, residual=residual
    )


class AddingLinear(TunedLinear):
    """A layer without a bias that adds the residual that its block was given; else it is a `TunedLinear`."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  torch's name, by which callers may pass it
        """Compute what nn.Linear does, plus a residual of one row if there is one."""
        choice = self.__dict__.get(CHOICE)
        if isinstance(choice, AddingPreference) and (residual := choice.residual.take()) is not None:
            return linear(input, self._parameters["weight"], residual.reshape(-1), choice.adding)
        return TunedLinear.forward(self, input)


@dataclass(frozen=True, eq=False, slots=True)
class ServedStep:
    """How a part of a layer is computed, x + block(norm(x)).

    Attributes:
        norm, block: The names of the layer's children.
        last: The name of the block's last linear layer.
        residual: What that layer is to add; None where the step itself adds.
        is_first: Whether what is added is the first of the block's results.
        is_fused: Whether torch.compile is to have the norm as one operator.
        parameter: By which name the block is given the normalized x; None for its first place.
        passed: Which of the layer's arguments the block is given: its name for it, the layer's, and the default.
        passes_rest: Whether the block is also given those that the layer has no name for.
    """

    norm: str
    block: str
    last: str | None
    residual: Residual | None
    is_first: bool
    is_fused: bool
    parameter: str | None
    passed: tuple[tuple[str, str, object], ...]
    passes_rest: bool


@dataclass(frozen=True, eq=False, slots=True)
class ResidualChoice:
    """How a patched layer is served.

    Attributes:
        steps: Its parts, in order.
        named: The layer's arguments beside its input.
        required: Those of them that have no default.
        has_rest: Whether it takes arguments of any other name.
        attributes: The layer's attributes when it was tried.
    """

    steps: tuple[ServedStep, ...]
    named: frozenset[str]
    required: frozenset[str]
    has_rest: bool
    attributes: Attributes


class AddingLayer(PatchedLayer):
    """A layer whose blocks add the residual by themselves where one row is asked for; else its own forward runs."""

    PREFIX = "Tuned"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute what the layer's own forward does, with the same arguments."""
        choice: ResidualChoice | None = self.__dict__.get(CHOICE)
        if choice is None or len(args) != 1 or not _is_served(self, choice, args[0], kwargs):
            return original_forward(AddingLayer, self)(*args, **kwargs)
        (x,) = args
        for step in choice.steps:
            x = _sum(self._modules, step, x, _arguments(choice, step, kwargs))
        return x


def _sum(modules: Mapping[str, Any], step: ServedStep, x: torch.Tensor, given: dict[str, object]) -> torch.Tensor:
    """The residual x plus what a block gives, which is given the normalized x and some arguments by name."""
    norm, residual = modules[step.norm], step.residual
    normalized = accelerate_norm.as_operator(norm, x) if step.is_fused and is_tracing() else norm(x)
    if step.parameter is not None:
        given[step.parameter] = normalized
    positional = (normalized,) if step.parameter is None else ()
    if residual is None:
        result = modules[step.block](*positional, **given)
        added: torch.Tensor = x + (result[0] if step.is_first else result)
        return added
    residual.give(x)
    is_added = False
    try:
        result = modules[step.block](*positional, **given)
    finally:
        is_added = residual.take() is None
    result = result[0] if step.is_first else result
    return result if is_added else x + result


def _arguments(choice: ResidualChoice, step: ServedStep, given: Mapping[str, object]) -> dict[str, object]:
    """What a step's block is given by name besides its input."""
    found = {name: given.get(own, default) for name, own, default in step.passed}
    if step.passes_rest and not given.keys() <= choice.named:
        found.update({name: value for name, value in given.items() if name not in choice.named})
    return found


def _is_served(layer: nn.Module, choice: ResidualChoice, x: Any, given: Mapping[str, object]) -> bool:
    """Whether a call has one row, and the layer is still what it was when it was tried."""
    if not isinstance(x, torch.Tensor) or not has_few_rows(x, 1) or not x.numel() or layer.training:
        return False
    if not (choice.has_rest or given.keys() <= choice.named) or not choice.required <= given.keys():
        return False
    if _GLOBAL_HOOKS[0] or _GLOBAL_HOOKS[1] or not is_unchanged(layer, choice.attributes):
        return False
    asked = [x]
    for step in choice.steps:
        if step.residual is not None:
            weight = _weight_of(layer, step)
            if weight is None or weight.dtype != x.dtype:
                return False
            asked.append(weight)
    return not (autocast.is_on(x) or arguments.ask_derivatives(*asked))


def _weight_of(layer: nn.Module, step: ServedStep) -> torch.Tensor | None:
    """The weight of the layer that adds in a step; None where it was replaced, or somebody would see that it adds."""
    block = layer._modules.get(step.block)
    last = None if block is None or step.last is None else block._modules.get(step.last)
    if block is None or last is None or type(last).forward is not AddingLinear.forward:
        return None
    state, its_state = last.__dict__, block.__dict__
    if "forward" in state or "forward" in its_state or state["_forward_hooks"] or state["_forward_pre_hooks"]:
        return None
    preferred, parameters = state.get(CHOICE), state["_parameters"]
    is_ours = isinstance(preferred, AddingPreference) and preferred.residual is step.residual
    if not is_ours or its_state["_forward_hooks"] or its_state["_forward_pre_hooks"]:
        return None
    weight: torch.Tensor | None = parameters.get("weight")
    return weight if parameters.get("bias", weight) is None else None


def forms() -> Trials[ResidualForm | None]:
    """What the layers of one model were found to add."""
    return residual_forms(lambda block: isinstance(block, TunedMlp))


def patch_residuals(
    layer: nn.Module, backend: str, changed: Container[int], tried: Trials[ResidualForm | None]
) -> bool:
    """Have the blocks of a layer add the residual, if `patch_linear` replaced the forward of their last layers before.

    Args:
        layer: A layer of a model.
        backend: See `accelerate`.
        changed: The ids of the linear layers that may add.
        tried: What layers were found to add.

    Returns:
        Whether any block does.
    """
    blocks = [each for each in layer._modules.values() if each is not None]
    linears = [last for block in blocks for last in block._modules.values() if id(last) in changed]
    if class_obstacle(layer) or not any(_may_add(each, is_auto=backend == "auto") for each in linears):
        return False
    form = tried.of(layer, None, ())
    if form is None:
        return False
    lasts = [_last_of(layer, step.block, step.ending.last) for step in form.steps]
    is_taken = [
        last is not None and id(last) in changed and _may_add(last, is_auto=backend == "auto") for last in lasts
    ]
    if not any(is_taken):
        return False
    residuals = [Residual() if each else None for each in is_taken]
    for last, residual in zip(lasts, residuals, strict=True):
        if last is not None and residual is not None:
            patch_class(last, AddingLinear, adding_preference(last.__dict__[CHOICE].options, residual))
    patch_class(layer, AddingLayer, _choice_of(layer, form, residuals))
    return True


def _choice_of(layer: nn.Module, form: ResidualForm, residuals: Sequence[Residual | None]) -> ResidualChoice:
    defaults = dict(form.defaults)
    steps = tuple(
        ServedStep(
            norm=step.norm,
            block=step.block,
            last=step.ending.last,
            residual=residual,
            is_first=step.ending.others is not None,
            is_fused=accelerate_norm.is_fused_for_one_row(layer._modules[step.norm]),
            parameter=step.parameter,
            passed=tuple((name, own, defaults[own]) for name, own in step.passed),
            passes_rest=step.passes_rest,
        )
        for step, residual in zip(form.steps, residuals, strict=True)
    )
    required = frozenset(name for name, default in form.defaults if default is inspect.Parameter.empty)
    return ResidualChoice(steps, frozenset(defaults), required, form.has_rest, attributes_of(layer))


def _last_of(layer: nn.Module, block: str, last: str | None) -> nn.Module | None:
    return None if last is None else layer._modules[block]._modules.get(last)


def _may_add(linear_layer: nn.Module | None, *, is_auto: bool) -> bool:
    """Whether a linear layer was patched, has no bias, and is to be served with one for one row."""
    preferred = None if linear_layer is None else linear_layer.__dict__.get(CHOICE)
    if not isinstance(linear_layer, TunedLinear) or isinstance(linear_layer, HandedLinear):
        return False
    if not isinstance(preferred, LinearPreference) or linear_layer._parameters.get("bias") is not None:
        return False
    weight = linear_layer._parameters["weight"]
    if not is_auto:
        return True
    n, k = weight.shape
    described = problem(1, n, k, weight.dtype, True)
    return evidence.beats_vendor(described, dispatch.device_of(weight.device.index))
