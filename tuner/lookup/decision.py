"""What a lookup answers, and what the answer rests on."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from tuner.kernel.config import Config
from tuner.lookup.row import Row
from tuner.problem.batches import Batches
from tuner.problem.family import Range

TUNED = ("exact", "family")
"""Match rules whose answer is no miss: what was tuned for this very M, or for a range that holds it."""


class Match(NamedTuple):
    """A lookup's answer.

    Attributes:
        kernel: the kernel's name; `tuner.kernel.registry.find(problem.op, kernel)` is its spec.
        config: its meta-parameters.
        rule: the match rule: "exact", "family" (tuned for a range of M that contains this one), "same_arch" (either, on
            another GPU model of the architecture), "near_key" (tuned for the nearest key, for an op with a key of its
            own), or "default" (the kernel's default formula).
        source: where the row came from; "formula" for the default.
        grade: "exact" (measured under this Triton), "compatible" (under another), "none" for the default.
        regret: for the rule "family", the served config's time over that of a race at the same M: the geometric mean
            over the random Ms at which it was measured when the family was tuned. None if there were none, and for
            other rules.
    """

    kernel: str
    config: Config
    rule: str
    source: str
    grade: str
    regret: float | None = None


class Refusal(NamedTuple):
    """A row that a match rule offered and that may not be used."""

    source: str
    rule: str
    row: Row
    reason: str


class Decision(NamedTuple):
    """A match and what it rests on.

    Attributes:
        match: the answer.
        row: the row that the answer came from; None for the default.
        refused: rows that may not be used.
        ms: the first and the last M for which the answer is this one too, unless a row is exact there.
        untuned: of the default, the first of the Ms, and of the batches, around this one that no range of the family
            holds; None for what the op has not.
        range: the range of the family that holds M; None but for an answer of a family.
        batches: where that family serves a range of batches, the first and the last.
        fallen: ranges that hold M and whose own config cannot serve them, in words.
        failed: the configs, of rows or of formulas, that this process could not launch for the problem, and why.
        measured_on: the slug of the device that the row was measured on; "" for the default.
    """

    match: Match
    row: Row | None
    refused: tuple[Refusal, ...]
    ms: tuple[int, int]
    untuned: tuple[int | None, int | None] = (None, None)
    range: Range | None = None
    batches: Batches | None = None
    fallen: tuple[str, ...] = ()
    failed: Mapping[Config, str] = MappingProxyType({})
    measured_on: str = ""
