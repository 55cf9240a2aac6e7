"""Has the last linear layer of attention and of an MLP add the residual, where a step has one row.

Then the residual is a bias, so the kernels of any layer with a bias serve it, and the addition takes no launch. A
layer's blocks run as they are; its own forward runs wherever anything else than one row is asked for.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from tuner.kernels.ops import arguments, autocast, dispatch
from tuner.kernels.ops.linear import LinearPreference, linear, linear_preference, problem
from tuner.kernels.ops.merged_by_evidence import has_few_rows
from tuner.launch.call_cache import is_tracing
from tuner.lookup import evidence
from tuner.models import accelerate_norm
from tuner.models.accelerate_linear import HandedLinear, TunedLinear
from tuner.models.class_patch import CHOICE, PatchedLayer, original_class, original_forward, patch_class
from tuner.models.obstacles import class_obstacle
from tuner.models.residual_form import UNREAD, ResidualForm, ResidualStep
from tuner.models.snapshot import (
    GLOBAL_HOOKS,
    Attributes,
    Children,
    attributes_of,
    children_of,
    children_unchanged,
    is_unchanged,
)

_COMPUTED: Any = object()


class Residual:
    """What the last linear layer of a block is to add to its product while the block runs; each thread has its own."""

    def __init__(self) -> None:
        """Have nothing to add."""
        self._traced: torch.Tensor | None = None  # one thread at a time traces
        self._by_thread: dict[int, torch.Tensor] = {}

    def give(self, residual: torch.Tensor | None) -> torch.Tensor | None:
        """Have the layer add a residual at its next call, or None; return what it was to add before."""
        before = self.take()
        if residual is None:
            return before
        if is_tracing():
            self._traced = residual
        else:
            self._by_thread[threading.get_ident()] = residual
        return before

    def take(self) -> torch.Tensor | None:
        """What the layer is to add; None after that, and where nothing was given."""
        residual = self._traced
        if residual is not None:  # also in a call that torch.compile leaves to Python; torch.export warns of changes
            self._traced = None
            return residual
        return None if is_tracing() else self._by_thread.pop(threading.get_ident(), None)


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
    is_auto, n, k, _ = options
    left_to_torch = linear_preference(*options).left_to_torch
    adding = linear_preference(is_auto, n, k, True)
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


class ServedStep(NamedTuple):
    """How a part of a layer is computed, x + block(norm(x)).

    Attributes:
        form: What was found of it.
        residual: What the block's last linear layer is to add; None where the step itself adds.
        is_fused: Whether torch.compile is to have the norm as one operator.
        defaults: Which of the layer's arguments the block is given: its name for it, the layer's, and the default.
        kind: The block's class, but for what `accelerate` made of it.
    """

    form: ResidualStep
    residual: Residual | None
    is_fused: bool
    defaults: tuple[tuple[str, str, object], ...]
    kind: type


class ResidualChoice(NamedTuple):
    """How a patched layer is served.

    Attributes:
        steps: Its parts, in order.
        named: The layer's arguments beside its input.
        required: Those of them that have no default.
        has_rest: Whether it takes arguments of any other name.
        children: The layer's blocks, and what is skipped, when it was tried.
        attributes: The layer's attributes then.
    """

    steps: tuple[ServedStep, ...]
    named: frozenset[str]
    required: frozenset[str]
    has_rest: bool
    children: Children
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
            given = {name: kwargs.get(own, default) for name, own, default in step.defaults}
            if step.form.passes_rest:
                given.update({name: value for name, value in kwargs.items() if name not in choice.named})
            x = _sum(self._modules, step, x, given)
        return x


def _sum(modules: Mapping[str, Any], step: ServedStep, x: torch.Tensor, given: dict[str, object]) -> torch.Tensor:
    """The residual x plus what a block gives, which is given the normalized x and some arguments by name."""
    form, residual = step.form, step.residual
    norm, block = modules[form.norm], modules[form.block]
    normalized = accelerate_norm.as_operator(norm, x) if step.is_fused and is_tracing() else norm(x)
    if form.parameter is not None:
        given[form.parameter] = normalized
    positional = (normalized,) if form.parameter is None else ()
    before = None if residual is None else residual.give(x)
    is_added = False
    try:
        result = block(*positional, **given)
    finally:
        if residual is not None:
            is_added = residual.give(before) is None
    result = result if form.ending.others is None else result[0]
    result = result if result.shape == x.shape else result.view(x.shape)
    return result if is_added else x + result


def _is_served(layer: nn.Module, choice: ResidualChoice, x: Any, given: Mapping[str, object]) -> bool:
    """Whether a call has one row, and the layer is still what it was when it was tried."""
    if layer.training or not _is_plain_row(x):
        return False
    # One name at a time: torch.compile of torch 2.11 knows no comparison of sets.
    if not choice.has_rest and not all(name in choice.named for name in given):
        return False
    if not all(name in given for name in choice.required):
        return False
    if not is_unchanged(layer, choice.attributes):
        return False
    if GLOBAL_HOOKS[0] or GLOBAL_HOOKS[1] or not children_unchanged(layer, choice.children, in_training=False):
        return False
    return all(_adds(layer._modules[step.form.block], step, x.dtype) for step in choice.steps)


def _is_plain_row(x: Any) -> bool:
    """Whether x is one row, of which nothing but the result is asked."""
    # torch.jit.trace would keep the one row, and the operators of norms have no gradient.
    if torch.jit.is_tracing() or torch.is_grad_enabled():
        return False
    if not isinstance(x, torch.Tensor) or not has_few_rows(x, 1) or not x.numel():
        return False
    return not (arguments.takes_tangents() or autocast.is_on(x))


def _adds(block: Any, step: ServedStep, dtype: torch.dtype) -> bool:
    """Whether a block's last linear layer adds where it is to, and nobody would see that it does."""
    if original_class(block) is not step.kind:
        return False
    if step.residual is None:
        return True
    last = block._modules.get(step.form.ending.last)
    if last is None or type(last).forward is not AddingLinear.forward:
        return False
    state = last.__dict__
    if "forward" in state or state["_forward_hooks"] or state["_forward_pre_hooks"]:
        return False
    preferred, parameters = state.get(CHOICE), state["_parameters"]
    if not isinstance(preferred, AddingPreference) or preferred.residual is not step.residual:
        return False
    weight = parameters.get("weight")
    return weight is not None and weight.dtype == dtype and parameters.get("bias", _COMPUTED) is None


def patch_residuals(layer: nn.Module, backend: str, form_of: Callable[[nn.Module], ResidualForm | None]) -> bool:
    """Have the blocks of a layer add the residual, if `patch_linear` replaced the forward of their last layers before.

    Args:
        layer: A layer of a model.
        backend: See `accelerate`.
        form_of: What layers were found to add.

    Returns:
        Whether any block does.
    """
    is_auto = backend == "auto"
    # One that may is enough to try the layer, which tells whose sums are added: only these are looked up below.
    is_tried = not class_obstacle(layer) and any(_may_add(each, is_auto=is_auto) for each in linear_layers(layer))
    form = form_of(layer) if is_tried else None
    if form is None:
        return False
    residuals: list[Residual | None] = []
    for step in form.steps:
        last = layer._modules[step.block]._modules.get(step.ending.last) if step.ending.last else None
        residuals.append(Residual() if last is not None and _may_add(last, is_auto=is_auto) else None)
        if last is not None and residuals[-1] is not None:
            patch_class(last, AddingLinear, adding_preference(last.__dict__[CHOICE].options, residuals[-1]))
    if any(residuals):
        patch_class(layer, AddingLayer, _choice_of(layer, form, residuals))
    return any(residuals)


def linear_layers(layer: nn.Module) -> Iterator[nn.Linear]:
    """The linear layers of a layer's blocks."""
    for block in layer._modules.values():
        if block is not None:
            yield from (each for each in block._modules.values() if isinstance(each, nn.Linear))


def _choice_of(layer: nn.Module, form: ResidualForm, residuals: Sequence[Residual | None]) -> ResidualChoice:
    defaults, modules = dict(form.defaults), layer._modules
    steps = tuple(
        ServedStep(
            step,
            residual,
            accelerate_norm.is_fused_for_one_row(modules[step.norm]),
            tuple((name, own, defaults[own]) for name, own in step.passed),
            original_class(modules[step.block]),
        )
        for step, residual in zip(form.steps, residuals, strict=True)
    )
    required = frozenset(name for name, default in form.defaults if default is inspect.Parameter.empty)
    names = (*(step.block for step in form.steps), *form.skipped)
    # torch.compile would make a program for each index of a layer that is compared.
    children = children_of(((name, modules[name]) for name in names), UNREAD)
    return ResidualChoice(steps, frozenset(defaults), required, form.has_rest, children, attributes_of(layer, UNREAD))


def _may_add(layer: nn.Linear, *, is_auto: bool) -> bool:
    """Whether a linear layer was patched, has no bias, and is to be served with one for one row."""
    preferred = layer.__dict__.get(CHOICE)
    if not isinstance(layer, TunedLinear) or isinstance(layer, HandedLinear):
        return False
    if not isinstance(preferred, LinearPreference) or layer._parameters.get("bias") is not None:
        return False
    if not is_auto:
        return True
    weight = layer._parameters["weight"]
    n, k = weight.shape
    return evidence.beats_vendor(problem(1, n, k, weight.dtype, True), dispatch.device_of(weight.device.index))
