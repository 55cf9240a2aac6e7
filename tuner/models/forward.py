"""The matrix products of a model's forward pass on the meta device, each with the weight that it reads."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tuner.errors import ModelError, in_short
from tuner.launch import compat
from tuner.models.products import OPERATORS, Product, describe


@dataclass(frozen=True, slots=True)
class WeightProduct:
    """A matrix product of a forward pass.

    Attributes:
        product: what was computed.
        m: its M.
        weight: the name of the parameter that is its second operand; None where that is no parameter.
    """

    product: Product
    m: int
    weight: str | None


class _Recording(compat.TorchDispatchMode):  # type: ignore[misc]
    """Records every matrix product that reaches the dispatcher, and follows parameters through casts and copies."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.products: list[WeightProduct] = []
        # Keeping the storages prevents another one from getting the id of one that was freed.
        self._named: dict[int, tuple[str, Any]] = {}
        for name, parameter in _weights(model):
            self._name(parameter, name)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        namespace, _, rest = func.name().partition("::")
        name = rest.partition(".")[0]
        if name == "_local_scalar_dense" and args[0].dtype == torch.bool:
            return True  # models ask whether a mask has only ones, or whether positions are consecutive
        out = func(*args, **(kwargs or {}))
        if namespace == "aten" and name in OPERATORS:
            if (call := describe(name, args, kwargs or {}, out)) is not None:
                second = [each for each in args if isinstance(each, torch.Tensor)][2 if "add" in name else 1]
                self.products.append(WeightProduct(*call, self._named.get(id(second.untyped_storage()), (None,))[0]))
        elif isinstance(out, torch.Tensor):
            self._follow([each for each in args if isinstance(each, torch.Tensor)], out)
        return out

    def _follow(self, tensors: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        """Give a tensor that is computed from parameters alone the name of the first of them."""
        names = [self._named.get(id(each.untyped_storage())) for each in tensors]
        if names and all(names):
            assert names[0] is not None
            self._name(out, names[0][0])

    def _name(self, tensor: torch.Tensor, name: str) -> None:
        storage = tensor.untyped_storage()
        self._named.setdefault(id(storage), (name, storage))


def _weights(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """A model's parameters by name. One that an embedding shares is named for the layer that multiplies by it."""
    weights = [
        (isinstance(module, torch.nn.Embedding), f"{prefix}.{name}" if prefix else name, parameter)
        for prefix, module in model.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
    ]
    return [(name, parameter) for _, name, parameter in sorted(weights, key=lambda each: each[0])]


def uncalled(model: torch.nn.Module, called: Collection[str]) -> list[str]:
    """The names of linear layers whose weight is none of those by these names, which a forward multiplied by."""
    weights = dict(model.named_parameters(remove_duplicate=False))
    known = {id(weights[name]) for name in called}
    return [
        name
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear) and id(layer.weight) not in known
    ]


def products(model: Any, sequences: int, length: int) -> list[WeightProduct]:
    """Run a model's forward on the meta device and return its matrix products in order.

    Args:
        model: see `config.build`.
        sequences, length: how many sequences, and how many tokens each has.

    Raises:
        ModelError: it cannot be run without weights, or takes no tokens.
    """
    tokens = torch.zeros(sequences, length, dtype=torch.long, device="meta")
    main = model.main_input_name  # some models have several
    kwargs: dict[str, Any] = dict.fromkeys([main] if isinstance(main, str) else main, tokens)
    parameters = inspect.signature(model.forward).parameters
    if getattr(model.config, "is_encoder_decoder", False):
        kwargs["decoder_input_ids"] = tokens
    kwargs |= {name: value for name, value in (("use_cache", False), ("logits_to_keep", 1)) if name in parameters}
    recording = _Recording(model)
    try:
        with torch.no_grad(), recording:
            model(**kwargs)
    except Exception as e:
        raise ModelError(
            f"the forward of {type(model).__name__} cannot be run without weights ({in_short(e)}): expected a model of "
            "tokens whose products do not depend on its data: run it under tuner capture --out DIR -- COMMAND"
        ) from e
    return recording.products
