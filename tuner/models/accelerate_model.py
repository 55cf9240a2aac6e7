"""Run the linear layers of a model on tuned kernels and its norms on fused ones, and give them back.

A layer is exchanged by its class, which becomes a subclass of its own. So its parameters, buffers, hooks and names stay
as they are, `isinstance` holds, and copies and pickles of the model are exchanged too (docs/decisions.md, 84).
"""

from __future__ import annotations

import fnmatch
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tuner.errors import InputError
from tuner.hardware import device as devices
from tuner.kernels.ops import arguments
from tuner.kernels.ops.linear import DTYPES, preference, problem
from tuner.lookup import evidence
from tuner.models.accelerate_linear import TunedLinear
from tuner.models.accelerate_norm import FusedNorm, epsilon_of, is_norm
from tuner.models.exchange import exchange, give_back, is_exchanged, own_class
from tuner.problem import dtype as dtypes

BACKENDS = ("auto", "tuner", "torch")
_SHOWN = 3
_COMPUTED: Any = object()
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Acceleration:
    """What `accelerate` did; as text, one line.

    Attributes:
        backend: Who was to serve the layers: "auto", "tuner" or "torch".
        exchanged: The names of the layers that may run on tuned kernels.
        left: By the reason why torch keeps them, the names of layers and of blocks of experts.
        norms: The names of the RMSNorms that run on one kernel of torch's each.
    """

    backend: str
    exchanged: tuple[str, ...]
    left: Mapping[str, tuple[str, ...]]
    norms: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Say how many layers were exchanged, and for each reason which were not."""
        done = [f"on tuned kernels (backend {self.backend!r}): {_counted(self.exchanged)}"]
        if self.norms:
            done.append(f"on one kernel of torch's each: {_counted(self.norms, 'norm')}")
        return "; ".join([*done, *(f"left on torch, {why}: {_counted(names)}" for why, names in self.left.items())])


def accelerate(model: nn.Module, *, backend: str = "auto", only: str | Iterable[str] | None = None) -> Acceleration:
    """Run the linear layers of a model on tuned kernels and its RMSNorms on fused ones; `restore` undoes it.

    Args:
        model: Any model on a GPU, or on the CPU under Triton's interpreter. It is changed in place.
        backend: "auto" for torch wherever no table says that a tuned kernel is no slower, and wherever a gradient is
            asked for; "tuner" for the kernels always; "torch" for torch always, which is `restore`.
        only: Patterns of names, as "*.mlp.*"; layers and norms of other names stay as they are.

    Returns:
        What was exchanged and what was left, which is logged too.

    Raises:
        InputError: `model` is no module, there is no such backend, or `only` names no linear layer and no norm.
    """
    _check(model)
    if backend not in BACKENDS:
        raise InputError(f"unknown backend {backend!r}: expected one of {', '.join(BACKENDS)}")
    exchanged: list[str] = []
    norms: list[str] = []
    left: dict[str, list[str]] = {}
    has_table = functools.cache(_has_table)
    for name, layer in _named(model, only):
        if isinstance(layer, nn.Linear):
            why, done = _exchange_linear(layer, backend, has_table), exchanged
        else:
            why, done = _exchange_norm(layer, backend), norms
        if why is None:
            done.append(name)
        else:
            give_back(layer)
            left.setdefault(why, []).append(name)
    for name, block in model.named_modules():
        if _holds_experts(block):
            left.setdefault(f"experts in one tensor ({type(block).__name__}) have no kernel yet", []).append(name)
    found = Acceleration(backend, tuple(exchanged), {why: tuple(names) for why, names in left.items()}, tuple(norms))
    _logger.log(logging.INFO if exchanged or norms or backend == "torch" else logging.WARNING, "%s", found)
    return found


def restore(model: nn.Module) -> int:
    """Give all layers that `accelerate` exchanged their own class back.

    Returns:
        How many there were.

    Raises:
        InputError: `model` is no module.
    """
    _check(model)
    return sum(give_back(layer) for layer in model.modules())


def _check(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}: expected a torch.nn.Module")


def _named(model: nn.Module, only: str | Iterable[str] | None) -> Iterator[tuple[str, nn.Module]]:
    """Yield the linear layers and the norms of a model that `only` names, each once."""
    layers = [each for each in model.named_modules() if isinstance(each[1], nn.Linear) or is_norm(each[1])]
    if only is None:
        yield from layers
        return
    patterns = (only,) if isinstance(only, str) else tuple(only) if isinstance(only, Iterable) else ()
    if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise InputError(f"only is {only!r:.60}: expected a pattern of names, or several: only='*.mlp.*'")
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name, _ in layers):
            raise InputError(
                f"only: {pattern!r} names no linear layer and no norm: expected a pattern of names of the model's "
                f"{_counted([name for name, _ in layers])}"
            )
    yield from (each for each in layers if any(fnmatch.fnmatchcase(each[0], pattern) for pattern in patterns))


def _exchange_linear(layer: nn.Linear, backend: str, has_table: Callable[..., str | None]) -> str | None:
    """Exchange a linear layer, or say why torch keeps it."""
    if why := _obstacle(layer, backend) or _without_table(layer, backend, has_table):
        return why
    n, k = layer.weight.shape
    exchange(layer, TunedLinear, preference(backend == "auto", n, k, layer.bias is not None))
    return None


def _exchange_norm(layer: nn.Module, backend: str) -> str | None:
    """Exchange a norm, or say why it keeps its own forward."""
    if backend == "torch":
        return "as asked"
    if "forward" in vars(layer):
        return "whose forward somebody replaced"
    weight = layer._parameters["weight"]
    if type(weight) not in (torch.Tensor, nn.Parameter):
        return f"with weights of class {type(weight).__name__}"
    if not arguments.has_kernels(weight.device):
        return f"on {weight.device.type} (move the model to a GPU first)"
    if (epsilon := epsilon_of(layer)) is None:
        return f"norms that are no RMSNorm of their weight ({own_class(layer).__name__})"
    exchange(layer, FusedNorm, epsilon)
    return None


def _obstacle(layer: nn.Linear, backend: str) -> str | None:  # noqa: PLR0911  one return for each reason
    """Why torch keeps a layer, or None."""
    if backend == "torch":
        return "as asked"
    if "forward" in vars(layer):
        return "whose forward somebody replaced"
    if type(layer).forward not in (nn.Linear.forward, TunedLinear.forward):
        return f"with a forward of its own ({own_class(layer).__name__})"
    if isinstance(layer, TunedLinear) and not is_exchanged(layer):
        return f"whose class was made of an exchanged one since ({type(layer).__name__})"
    weight, bias = (layer._parameters.get(name, _COMPUTED) for name in ("weight", "bias"))
    if weight is None or weight is _COMPUTED or bias is _COMPUTED:
        return "whose weight or bias is computed at each call"
    given = (weight,) if bias is None else (weight, bias)
    if odd := {type(each).__name__ for each in given if type(each) not in (torch.Tensor, nn.Parameter)}:
        return f"with weights of class {', '.join(sorted(odd))}"
    if weight.is_nested or weight.layout != torch.strided:
        return "whose weight is nested" if weight.is_nested else f"whose weight is {weight.layout}"
    if weight.dtype not in DTYPES:
        return f"whose weight is {dtypes.name_of(weight.dtype)}"
    if not arguments.has_kernels(weight.device):
        return f"on {weight.device.type} (move the model to a GPU first)"
    return None


def _without_table(layer: nn.Linear, backend: str, has_table: Callable[..., str | None]) -> str | None:
    """That no table has the family of a layer on its device, which it needs to be served by "auto"; or None."""
    n, k = layer.weight.shape
    if backend == "tuner" or not (n and k):
        return None
    return has_table(n, k, layer.weight.dtype, layer.bias is not None, layer.weight.device.index)


def _has_table(n: int, k: int, dtype: torch.dtype, has_bias: bool, index: int | None) -> str | None:
    device = devices.current(index)
    if evidence.is_tuned(problem(1, n, k, dtype, has_bias), device):
        return None
    return f"of families that no table of {device.slug} has (`tuner model` lists what to tune)"


def _holds_experts(block: nn.Module) -> bool:
    """Whether a module multiplies by a matrix of its own for each expert, by the names that models give them."""
    is_named = "expert" in type(block).__name__.lower()
    return is_named and any(each.dim() == 3 for each in block._parameters.values() if each is not None)


def _counted(names: Sequence[str], noun: str = "layer") -> str:
    """How many layers there are, and the first few of their names."""
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    return f"{len(names)} {noun}{'' if len(names) == 1 else 's'}" + (f" ({shown})" if any(names) else "")
