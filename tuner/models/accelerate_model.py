"""Runs a model's linear layers, gated MLPs and experts on tuned kernels and its norms on fused ones, and undoes it.

To replace its forward, a layer is given a subclass of its own class. So its parameters, buffers, hooks and names stay
as they are, `isinstance` holds, and copies and pickles of the model have the new forward too (docs/decisions.md, 84).
"""

from __future__ import annotations

import fnmatch
import logging
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from torch import nn

from tuner.errors import InputError
from tuner.models.accelerate_attention import attention_layers, patch_attention
from tuner.models.accelerate_experts import holds_experts, patch_experts
from tuner.models.accelerate_linear import NOT_TRANSPOSED, is_conv1d, patch_linear
from tuner.models.accelerate_mlp import gates, holds_mlp, patch_mlp
from tuner.models.accelerate_norm import forms, is_norm, patch_norm
from tuner.models.accelerate_residual import AddingLayer, linear_layers, patch_residuals
from tuner.models.class_patch import restore_class
from tuner.models.residual_form import forms_by_layer, may_add
from tuner.models.trial import one_thread

BACKENDS = ("auto", "tuner", "torch")
_SHOWN = 3
_log = logging.getLogger(__name__)


class Acceleration(NamedTuple):
    """What `accelerate` did; its text is one line.

    Attributes:
        backend: The backend that was asked for: "auto", "tuner" or "torch".
        exchanged: The names of the linear layers that may run on tuned kernels.
        left: The names of layers, norms, gated MLPs and blocks of experts left on torch, by the reason for that.
        norms: The names of the RMSNorms that run as one kernel each, a tuned one or torch's. Those that add one to
            their weight run on the tuned one or by their own forward.
        experts: The names of the blocks of experts that may run on tuned kernels.
        mlps: The names of the gated MLPs whose gate and up may run in one launch.
        attentions: The names of the attention blocks whose q, k and v may run in one launch.
        residuals: The names of the layers whose last products may add the residual, for one row.
    """

    backend: str
    exchanged: tuple[str, ...]
    left: Mapping[str, tuple[str, ...]]
    norms: tuple[str, ...] = ()
    experts: tuple[str, ...] = ()
    mlps: tuple[str, ...] = ()
    attentions: tuple[str, ...] = ()
    residuals: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Say how many layers may run on tuned kernels, and for each reason how many are left on torch."""
        done = [f"on tuned kernels (backend {self.backend!r}): {_counted(self.exchanged)}"]
        kinds = (
            ("gate and up in one launch", self.mlps, "block"),
            ("q, k and v in one launch", self.attentions, "block"),
            ("residual added by products", self.residuals, "layer"),
            ("experts on tuned kernels", self.experts, "block"),
            ("on one kernel each, tuned or torch's", self.norms, "norm"),
        )
        done += [f"{how}: {_counted(names, noun)}" for how, names, noun in kinds if names]
        return "; ".join([*done, *(f"left on torch ({why}): {_counted(names)}" for why, names in self.left.items())])


@one_thread()
def accelerate(model: nn.Module, *, backend: str = "auto", only: str | Iterable[str] | None = None) -> Acceleration:
    """Run a model's linear layers, gated MLPs and experts on tuned kernels, its RMSNorms on fused ones; see `restore`.

    Args:
        model: Any model on a GPU, or on the CPU under Triton's interpreter. It is changed in place.
        backend: "auto": the kernels where a table says that they are no slower, torch elsewhere and where a gradient is
            needed; "tuner": the kernels in every call that they can serve; "torch": torch, the same as `restore`.
        only: Patterns of names, such as "*.mlp.*"; layers, norms, MLPs and experts of other names stay as they are.

    Returns:
        An `Acceleration`: the layers whose forward was replaced, and those left on torch. It is logged too.

    Raises:
        InputError: `model` is no module, there is no such backend, or `only` names none of these layers.
    """
    _check(model)
    if backend not in BACKENDS:
        raise InputError(f"unknown backend {backend!r}: expected one of {', '.join(BACKENDS)}")
    done: dict[str, list[str]] = {"exchanged": [], "norms": [], "experts": [], "mlps": []}
    left: dict[str, list[str]] = {}
    why: str | None
    tried_mlps, tried_norms = gates(), forms()
    named = [*_named(model, only)]
    for name, layer in named:
        if backend == "torch":
            why, kind = 'backend="torch"', ""
        elif isinstance(layer, nn.Linear):
            why, kind = patch_linear(layer, backend), "exchanged"
        elif is_conv1d(layer):
            why, kind = NOT_TRANSPOSED, ""
        elif holds_experts(layer):
            why, kind = patch_experts(layer, backend), "experts"
        elif holds_mlp(layer):
            why, kind = patch_mlp(layer, backend, tried_mlps), "mlps"
        else:
            why, kind = patch_norm(layer, backend, tried_norms), "norms"
        if why is None:
            done[kind].append(name)
        else:
            restore_class(layer)
            left.setdefault(why, []).append(name)
    changed = {id(layer) for _, layer in named}
    done["attentions"] = [*_merge_attention(model, changed, backend)]
    done["residuals"] = [*_add_residuals(model, changed, backend)]
    result = Acceleration(backend, left=_as_tuples(left), **_as_tuples(done))
    _log.log(logging.INFO if any(done.values()) or backend == "torch" else logging.WARNING, "%s", result)
    return result


def _merge_attention(model: nn.Module, changed: Container[int], backend: str) -> Iterator[str]:
    """Yield the names of attention blocks that multiply their input once from now on, of those with a layer changed."""
    for name, block in model.named_modules():
        if not any(id(block._modules[each]) in changed for each in attention_layers(block) or ()):
            continue
        if backend != "torch" and patch_attention(block, backend):
            yield name
        else:
            restore_class(block)


def _add_residuals(model: nn.Module, changed: Container[int], backend: str) -> Iterator[str]:
    """Yield the names of layers whose blocks add the residual from now on, of those with a linear layer changed."""
    form_of = forms_by_layer()
    for name, layer in model.named_modules():
        if not may_add(layer) or not any(id(each) in changed for each in linear_layers(layer)):
            continue
        if backend != "torch" and patch_residuals(layer, backend, form_of):
            yield name
        elif isinstance(layer, AddingLayer):
            restore_class(layer)


def _as_tuples(names: Mapping[str, list[str]]) -> dict[str, tuple[str, ...]]:
    return {key: tuple(each) for key, each in names.items()}


def restore(model: nn.Module) -> int:
    """Give the layers whose forward `accelerate` replaced their original class back.

    Returns:
        The number of these layers.

    Raises:
        InputError: `model` is no module.
    """
    _check(model)
    return sum(restore_class(layer) for layer in model.modules())


def _check(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"model is of type {type(model).__name__}: expected a torch.nn.Module")


def _named(model: nn.Module, only: str | Iterable[str] | None) -> Iterator[tuple[str, nn.Module]]:
    """Yield the linear layers, norms, gated MLPs and blocks of experts of a model that `only` names, each once."""
    layers = [
        (name, layer)
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear)
        or is_conv1d(layer)
        or is_norm(layer)
        or holds_mlp(layer)
        or holds_experts(layer)
    ]
    if only is None:
        yield from layers
        return
    patterns = (only,) if isinstance(only, str) else tuple(only) if isinstance(only, Iterable) else ()
    if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise InputError(f"only is {only!r:.60}: expected a pattern of names, or several: only='*.mlp.*'")
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name, _ in layers):
            raise InputError(
                f"only: {pattern!r} names no linear layer, norm, MLP or experts: expected a pattern of names of the "
                f"model's {_counted([name for name, _ in layers])}"
            )
    yield from (each for each in layers if any(fnmatch.fnmatchcase(each[0], pattern) for pattern in patterns))


def _counted(names: Sequence[str], noun: str = "layer") -> str:
    """How many layers there are, and the first few of their names."""
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    return f"{len(names)} {noun}{'' if len(names) == 1 else 's'}" + (f" ({shown})" if any(names) else "")
