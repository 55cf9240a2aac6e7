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
        rule: "exact", "near_m" (tuned at an M within a factor of 2), "near_shape" (for another shape nearby),
            "same_arch" (on another GPU of the architecture), "near_key" (of an op with a key of its own, for the
            nearest), or "default" (the kernel's formula).
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
    """A row that a rule offered and that may not be used."""

    source: str
    rule: str
    row: Row
    reason: str


@dataclass(frozen=True, slots=True)
class Offer:
    """A neighbour's row, weighed against the formula.

    Attributes:
        rule, winners: which rule offers it, from where.
        row: of a problem nearby, or of another device.
        distance: see `tuner.problem.distance.apart`; other families and devices add to it.
        promise: how many times as fast as the formula's config it is expected to be, 1 for as fast. The best one of a
            rule is taken from 1 on.
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
        row: that it came from, None for the default.
        refused: rows that may not be used.
        offers: what was weighed against the formula, rule by rule, the most promising first.
        lost: configs that this process could not launch for the problem, and why: of rows and of formulas.
    """

    match: Match
    row: Row | None
    refused: tuple[Refusal, ...]
    offers: tuple[Offer, ...] = ()
    lost: Mapping[Config, str] = field(default_factory=dict)
