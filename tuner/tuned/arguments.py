"""The arguments of one call of a kernel, as a user's `make_inputs` returns them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

NO_ARGUMENTS = ("grid", "warmup")
"""Keyword arguments of a launch that are none of the kernel's. Triton gives them to pruning and to hooks as well."""
Grid = Sequence[int] | Callable[[Mapping[str, Any]], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Arguments:
    """One call of a kernel, `kernel[grid](*args, **kwargs)`, and which of its arguments the kernel writes.

    Attributes:
        grid: programs along one to three axes, or a function of the meta-parameters that returns them.
        args: arguments by position, as the call passes them, without those that a config sets.
        kwargs: arguments by name.
        outputs: what the kernel writes and what is compared: names of arguments that are tensors or descriptors of
            tensors, `outs.0` for the first of a tuple `outs`, or tensors that are no arguments but whose addresses a
            tensor holds. By default, the arguments of `reset_to_zero` and `restore_value`. An output that is also read
            must be in one of these, because every other output is filled with NaN before a check.
        held: objects by name that must live as long as the call without being passed, for instance operands whose
            addresses a tensor holds. A reference receives them together with the arguments.
    """

    grid: Grid
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    outputs: Sequence[str | torch.Tensor] = ()
    held: Mapping[str, Any] = field(default_factory=dict)

    def launch_kwargs(self, *, warmup: bool = False) -> dict[str, Any]:
        """Return the keyword arguments as Triton's `run`, pruning and hooks get them."""
        return {"grid": self.grid, "warmup": warmup, **self.kwargs}


def of_the_kernel(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return those keyword arguments of a launch that are the kernel's."""
    return {name: value for name, value in kwargs.items() if name not in NO_ARGUMENTS}


def memory_of(argument: Any) -> Any:
    """Return the tensor that an argument is or describes, None where it is neither."""
    if hasattr(argument, "data_ptr"):
        return argument
    base = getattr(argument, "base", None)
    return base if hasattr(base, "data_ptr") else None


def tensors_of(named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors that arguments are, describe or hold in tuples, by name: `x`, or `outs.0` within a tuple."""

    def found(name: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, (tuple, list)):
            for place, each in enumerate(value):
                yield from found(f"{name}.{place}", each)
        elif (memory := memory_of(value)) is not None:
            yield name, memory

    return dict(pair for name, value in named.items() for pair in found(name, value))


def with_tensors(argument: Any, replace: Callable[[Any], Any]) -> Any:
    """Return an argument with other tensors in the place of those that it is, describes or holds in tuples."""
    if isinstance(argument, (tuple, list)):
        parts = [with_tensors(each, replace) for each in argument]
        if all(part is each for part, each in zip(parts, argument, strict=True)):
            return argument
        return type(argument)(*parts) if hasattr(argument, "_fields") else type(argument)(parts)
    memory = memory_of(argument)
    if memory is None:
        return argument
    return replace(memory) if argument is memory else dataclasses.replace(argument, base=replace(memory))


def is_same(one: Any, other: Any) -> bool:
    """Return whether two tensors hold the same bytes, NaN for NaN."""
    import torch

    parts = (each.detach().reshape(-1).contiguous().view(torch.uint8) for each in (one, other))
    return bool(torch.equal(*parts))


def are_addresses(values: Sequence[Any]) -> bool:
    """Return whether integers are addresses: no length and no index is as large as all of them.

    What memory holds before it is written may be of any size, but hardly all of it within the range of addresses.
    """
    found = [value for value in values if value]
    return bool(found) and all(2**32 <= value < 2**57 for value in found)
