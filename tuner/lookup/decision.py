"""What a lookup answers, and what the answer rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tuner.kernel.config import Config
from tuner.lookup.device_winners import DeviceWinners
from tuner.lookup.row import Row


@dataclass(frozen=True, slots=True)
class Match:
    """A lookup's answer.

    Attributes:
        kernel: the kernel's name; `tuner.kernel.registry.find(problem.op, kernel)` is its spec.
        config: its meta-parameters.
        rule: the match rule: "exact", "near_m" (tuned at an M within a factor of 2), "near_shape" (tuned for another
            shape nearby), "same_arch" (tuned on another GPU of the architecture), "near_key" (tuned for the nearest
            key, where an op has a key of its own), or "default" (the kernel's formula).
        source: where the row came from; "formula" for the default.
        grade: "exact" (measured under this Triton), "compatible" (under another), "none" for the default.
        regret: how many times as long such an answer takes as a tuned one, by `tuner verify --regret` on problems held
            out of that table; None for "exact", and where nobody measured it.
    """

    kernel: str
    config: Config
    rule: str
    source: str
    grade: str
    regret: float | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row that a match rule offered and that may not be used."""

    source: str
    rule: str
    row: Row
    reason: str


@dataclass(frozen=True, slots=True)
class Offer:
    """A neighbour's row, weighed against the formula.

    Attributes:
        rule: the match rule that offers it.
        winners: what it comes from.
        row: the row of a nearby problem, or of another device.
        distance: see `tuner.problem.distance.apart`; another family or device adds to it.
        promise: how many times as fast as the formula's config it is expected to be. A rule's best offer is taken if it
            promises 1 or more.
    """

    rule: str
    winners: DeviceWinners
    row: Row
    distance: float
    promise: float


@dataclass(frozen=True, slots=True)
class Decision:
    """A match and what it rests on.

    Attributes:
        match: the answer.
        row: the row that the answer came from; None for the default.
        refused: rows that may not be used.
        offers: what was weighed against the formula, match rule by match rule, the most promising first.
        lost: the configs, of rows or of formulas, that this process could not launch for the problem, and why.
    """

    match: Match
    row: Row | None
    refused: tuple[Refusal, ...]
    offers: tuple[Offer, ...] = ()
    lost: Mapping[Config, str] = field(default_factory=dict)
