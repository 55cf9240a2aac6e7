"""The arguments of one call of a kernel, as a user's `make_inputs` gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Grid = Sequence[int] | Callable[[Mapping[str, Any]], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Arguments:
    """One call of a kernel, `kernel[grid](*args, **kwargs)`, and which of its arguments it writes.

    Attributes:
        grid: programs along one to three axes, or a function of the meta-parameters that gives them.
        args: by position, as the call passes them; nothing that a config gives.
        kwargs: by name.
        outputs: what the kernel writes and is compared: names of arguments, tensors or descriptors of some; or tensors
            that are no arguments, whose addresses a tensor holds. Left out, those of `reset_to_zero` and
            `restore_value`. One that is read too must be in either: every other one is filled with NaN before a check.
        held: what must live as long as the call without being passed, by name: operands whose addresses a tensor holds,
            for instance. A reference gets it with the arguments.
    """

    grid: Grid
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    outputs: Sequence[str | torch.Tensor] = ()
    held: Mapping[str, Any] = field(default_factory=dict)


def memory_of(argument: Any) -> Any:
    """The tensor that an argument is or describes, None where it is none."""
    if hasattr(argument, "data_ptr"):
        return argument
    base = getattr(argument, "base", None)
    return base if hasattr(base, "data_ptr") else None
