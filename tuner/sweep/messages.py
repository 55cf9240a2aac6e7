"""What the parent and a GPU's worker say to each other over their pipe."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.hardware.device import Device, Environment
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.store.records import Outcome


@dataclass(frozen=True, slots=True)
class SetProblem:
    """To the worker: make inputs and the reference of a problem. Answered by `Ready` or `Refused`."""

    problem: Problem


@dataclass(frozen=True, slots=True)
class Measure:
    """To the worker: measure configs of the problem, each in rotation. Answered by `Result`s, then `Idle`.

    Attributes:
        configs: what to measure.
        drop: see `tuner.sweep.search.Strategy`.
    """

    configs: tuple[Config, ...]
    drop: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PlayFinals:
    """To the worker: check finalists on fresh inputs and play the paired rounds.

    Answered by `FinalsPlayed`, or by `Refused`.
    """

    finalists: tuple[Config, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class Hello:
    """From the worker, once: what it works on."""

    device: Device
    environment: Environment


@dataclass(frozen=True, slots=True)
class Beat:
    """From the worker: it is about to touch the device for this config, None for the problem as a whole."""

    config: Config | None


@dataclass(frozen=True, slots=True)
class Ready:
    """From the worker: inputs and reference of the problem are there."""


@dataclass(frozen=True, slots=True)
class Refused:
    """From the worker: the request cannot be carried out on this device, and why."""

    message: str


@dataclass(frozen=True, slots=True)
class Result:
    """From the worker: how a config fared."""

    config: Config
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Idle:
    """From the worker: the request is done. When `poisoned`, its CUDA context is lost and it ends now."""

    poisoned: bool = False


@dataclass(frozen=True, slots=True)
class FinalsPlayed:
    """From the worker: the figures of the finals.

    Attributes:
        times: microseconds a call of each finalist (by the config's digest), "vendor" among them where there is one.
        rejected: digest to reason, for finalists whose result was wrong or that failed.
    """

    times: dict[str, list[float]]
    rejected: dict[str, str]


Request = SetProblem | Measure | PlayFinals
Reply = Hello | Beat | Ready | Refused | Result | Idle | FinalsPlayed
