"""Checks results: poisoned outputs, guard bands, and one measure of error against a float64 reference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tuner.kernel import Inputs

if TYPE_CHECKING:
    import torch

POISON = 0xFF
"""Every byte of an output before a launch; it makes a NaN in each float dtype that a GEMM writes."""
_CHUNK = 1 << 26


@runtime_checkable
class SelfChecked(Protocol):
    """Inputs that poison and compare their outputs themselves, because these are not one GEMM's output.

    Attributes:
        if_unwritten: what may be the reason where elements seem unwritten, and what to do; "" for nothing to say.
    """

    if_unwritten: str

    def poison(self) -> None:
        """Fill the outputs so that an element that is never written can be told."""
        ...

    def error_ratios(self, expected: Any) -> Mapping[str, float]:
        """Return each output's error by its name, as a share of the accepted error.

        `expected` is what the reference returned.
        """
        ...


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of comparing what a launch wrote with what it should have written.

    Attributes:
        error: largest |out - reference| over sqrt(K) + 1, or the largest of `SelfChecked.error_ratios`; infinite where
            an element is NaN or was never written.
        stray: whether a byte outside the output changed.
        tolerance: the largest error accepted.
        changed: how many elements have other bits than the witness of their family's order of sums.
        output: the name of the output with the largest error, where inputs have several.
        if_unwritten: see `SelfChecked`.
    """

    error: float
    stray: bool
    tolerance: float
    changed: int = 0
    output: str = ""
    if_unwritten: str = ""

    @property
    def failure(self) -> str | None:
        """The reason why the result is wrong, or None when it is right."""
        if self.stray:
            return "wrote outside its output"
        if math.isinf(self.error):
            where = f" of {self.output}" if self.output else ""
            return f"left elements{where} unwritten, or wrote NaN or infinity{self.if_unwritten}"
        if self.error > self.tolerance and self.output:
            return f"{self.output} is off by {self.error / self.tolerance:.3g} times what is accepted"
        if self.error > self.tolerance:
            return f"error {self.error:.3g} against float64, at most {self.tolerance:.3g} is right"
        if self.changed:
            return f"{self.changed} elements have other bits than every config of an invariant family must write"
        return None


def poison(inputs: Inputs) -> None:
    """Fill the output and its guard bands with NaN bytes, so that an element that is never written can be told."""
    if isinstance(inputs, SelfChecked):
        inputs.poison()
    else:
        import torch

        inputs.buffer.view(-1).view(torch.uint8).fill_(POISON)


def check(
    inputs: Inputs, reference: torch.Tensor, k: int, tolerance: float, witness: torch.Tensor | None = None
) -> Comparison:
    """Compare the output with its float64 reference and look at the guard bands.

    Args:
        inputs: a set whose poisoned output a launch has written.
        reference: float64, of the output's shape.
        k: length of the sums; a sum of k products of N(0, 1) values has a spread of sqrt(k).
        tolerance: the largest error accepted.
        witness: what must be written bit for bit; None where only the error counts.
    """
    if isinstance(inputs, SelfChecked):
        ratios = inputs.error_ratios(reference)
        worst = max(ratios, key=ratios.__getitem__)
        return Comparison(ratios[worst], False, tolerance, output=worst, if_unwritten=inputs.if_unwritten)
    changed = 0 if witness is None else int(differs(inputs.output, witness).sum())
    return Comparison(error(inputs.output, reference, k), _stray(inputs), tolerance, changed=changed)


def differs(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return which elements of two outputs of one shape and dtype differ in any bit."""
    import torch

    word = {1: torch.int8, 2: torch.int16, 4: torch.int32}[one.element_size()]
    return one.contiguous().view(word) != other.contiguous().view(word)


def error(output: torch.Tensor, reference: torch.Tensor, k: int) -> float:
    """Return the largest |output - float64 reference| over sqrt(k) + 1; infinite when any element is not finite."""
    worst = 0.0
    rows = max(1, _CHUNK * len(output) // max(1, output.numel()))
    for out, ref in zip(output.split(rows), reference.split(rows), strict=True):
        difference = out.double().sub_(ref).abs_()
        worst = max(worst, float(difference.nan_to_num_(nan=math.inf, posinf=math.inf).max()))
    return worst / (math.sqrt(k) + 1)


def _stray(inputs: Inputs) -> bool:
    import torch

    output = inputs.output
    # As an integer of any width, poison is -1: all bits are set.
    word = {1: torch.int8, 2: torch.int16, 4: torch.int32}[output.element_size()]
    around = inputs.buffer.view(-1).view(word).clone()
    offset = (output.data_ptr() - inputs.buffer.data_ptr()) // output.element_size()
    around.as_strided(output.shape, output.stride(), offset).fill_(-1)
    return bool((around != -1).any())
