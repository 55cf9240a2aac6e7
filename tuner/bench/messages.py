"""What the parent and the contest's child say to each other, besides `Hello`, `Refused` and `Beat`."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.kernel.config import Config
from tuner.problem import Problem


@dataclass(frozen=True, slots=True)
class Play:
    """To the child: play one problem. Answered by a `Begun` a contestant, then `Played`; or by `Refused`.

    Attributes:
        problem: what to compute.
        config: ours.
        contestants: names, ours among them.
        rounds: paired rounds; None for as many as the device's timer asks for.
    """

    problem: Problem
    config: Config
    contestants: tuple[str, ...]
    rounds: int | None


@dataclass(frozen=True, slots=True)
class Begun:
    """From the child: it is about to touch the device for this contestant."""

    contestant: str


@dataclass(frozen=True, slots=True)
class Played:
    """From the child: how it went.

    Attributes:
        times: microseconds a call of each contestant that played, the i-th of all from one round.
        reasons: of each that did not, why.
        tuning_s: of each that tuned itself, seconds.
        poisoned_by: the contestant that lost the CUDA context; nothing was played, and the child ends now.
    """

    times: dict[str, list[float]]
    reasons: dict[str, str]
    tuning_s: dict[str, float]
    poisoned_by: str | None = None
