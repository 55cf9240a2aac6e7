"""The messages between the parent and a GPU's worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.errors import first_line
from tuner.hardware.device import Device, Environment
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.store.records import Outcome


@dataclass(frozen=True, slots=True)
class SetProblem:
    """To the worker: make inputs and the reference of a problem. Answered by `Ready` or `Refused`."""

    problem: Problem


@dataclass(frozen=True, slots=True)
class ClearProblem:
    """To the worker: free the memory of the problem that was set. Answered by `ProblemCleared`."""


@dataclass(frozen=True, slots=True)
class Measure:
    """To the worker: measure configs of the problem in rotation, with the `drop` of a `tuner.sweep.search.Strategy`.

    Answered by a `Result` for each, then `Idle`.
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
    rounds: int | None = None
    """How many rounds all play; None for as many as the protocol says."""


@dataclass(frozen=True, slots=True)
class CompareRows:
    """To the worker: compare the rows of an invariant problem with those of its family's smaller Ms bit for bit.

    Answered by `RowsCompared`, or by `Refused`.
    """

    problem: Problem
    configs: tuple[tuple[int, Config], ...]


@dataclass(frozen=True, slots=True)
class Imported:
    """From a worker that may not open its device at once: it has imported torch and waits for `Child.open`."""


@dataclass(frozen=True, slots=True)
class Importing:
    """From the worker, before `Hello`: its device is open, and it imports the kernels of these references."""

    kernels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hello:
    """From the worker, once: the device and versions it works with; the GPU's UUID, None where there is none."""

    device: Device
    environment: Environment
    gpu_uuid: str | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """From the worker: it is about to use the device for this config, or for several configs together (None)."""

    config: Config | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """From the worker: others use the GPU, for which it waits."""


@dataclass(frozen=True, slots=True)
class Ready:
    """From the worker: the problem's inputs and reference are ready; how much of the GPU's memory they took."""

    nbytes: int


@dataclass(frozen=True, slots=True)
class ProblemCleared:
    """From the worker: it holds no problem's memory."""


@dataclass(frozen=True, slots=True)
class Refused:
    """From the worker: the request cannot be carried out on this device, and why; whether memory was short."""

    message: str
    no_memory: bool = False


def too_large(error: BaseException) -> Refused:
    """Refuse a problem that does not fit into memory."""
    return Refused(f"operands and reference do not fit into memory: {first_line(error)}", no_memory=True)


@dataclass(frozen=True, slots=True)
class Result:
    """From the worker: a config's outcome."""

    config: Config
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Idle:
    """From the worker: the request is done. With `context_lost`, its CUDA context is lost and the worker ends."""

    context_lost: bool = False


@dataclass(frozen=True, slots=True)
class FinalsPlayed:
    """From the worker: what the finals measured.

    Attributes:
        times: microseconds a call for each finalist, by the config's digest, and for "vendor" where it can run.
        rejected: reasons by digest, for finalists that failed or whose result was wrong.
    """

    times: dict[str, list[float]]
    rejected: dict[str, str]


@dataclass(frozen=True, slots=True)
class RowsCompared:
    """From the worker: by M, how many rows have other bits than as rows of the largest problem."""

    changed: Mapping[int, int]


Request = SetProblem | ClearProblem | Measure | PlayFinals | CompareRows
Reply = (
    Imported
    | Importing
    | Hello
    | Heartbeat
    | Waiting
    | Ready
    | ProblemCleared
    | Refused
    | Result
    | Idle
    | FinalsPlayed
    | RowsCompared
)
