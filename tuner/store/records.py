"""Trials and winners as values: what the sweep finds, the store keeps and the exports ship."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum

from tuner.hardware.device import Device, Environment
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.problem.family import Family

PROTOCOL = 1
"""The number of the measuring protocol (docs/protocol.md). Figures of two protocols are never compared."""


def now() -> str:
    """The time as the database and other files hold it: UTC, ISO 8601, to the second."""
    return as_text(datetime.now(timezone.utc))


def as_text(utc: datetime) -> str:
    """A time of UTC as the database holds it."""
    return utc.strftime("%Y-%m-%dT%H:%M:%SZ")


class State(str, Enum):
    """How a trial ended. A failed trial is data."""

    COMPLETE = "COMPLETE"
    INVALID = "INVALID"
    COMPILE_ERROR = "COMPILE_ERROR"
    OUT_OF_RESOURCES = "OUT_OF_RESOURCES"
    RUNTIME_ERROR = "RUNTIME_ERROR"
    WRONG_RESULT = "WRONG_RESULT"
    TIMEOUT = "TIMEOUT"
    CRASHED = "CRASHED"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Resources:
    """What a compiled config takes of a device; None where it was not read.

    Attributes:
        compile_ms: wall time of the compile; 0 when it came from Triton's cache.
        registers: per thread.
        spill_bytes: stack a thread spills to, bytes.
        shared_bytes: shared memory of a block, bytes.
    """

    compile_ms: float | None = None
    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """One trial's end: a state and figures.

    Attributes:
        state: how it ended.
        message: the reason when it failed, else "".
        median_us, p20_us, p80_us: quantiles over single graph replays, microseconds a call.
        samples: how many replays.
        error: against the float64 reference, as docs/numerics.md defines it.
        resources: what the compiled config takes.
        sm_clock_mhz, power_w, throttle: the card's clock, power and throttle bits while measuring (NVML).
        gpu_uuid: the card of the worker that had the config; None under the interpreter and before schema 0005.
    """

    state: State
    message: str = ""
    median_us: float | None = None
    p20_us: float | None = None
    p80_us: float | None = None
    samples: int = 0
    error: float | None = None
    resources: Resources = Resources()
    sm_clock_mhz: int | None = None
    power_w: float | None = None
    throttle: int | None = None
    gpu_uuid: str | None = None


@dataclass(frozen=True, slots=True)
class KernelVersion:
    """A kernel as timings know it: another version makes old timings stale; source_hash notices a silent change."""

    op: str
    name: str
    version: int
    source_hash: str


_OF_DRIVER = r"\w+: (?:CUDA error|Triton Error \[\w+\]): "
_NO_MEMORY = re.compile(rf"OutOfMemoryError:|{_OF_DRIVER}out of memory")
_OF_MACHINE = re.compile(
    rf"\w+: \[Errno \d+\] |MemoryError:|\w+: .*can't allocate memory|{_OF_DRIVER}.*(?:busy or unavailable|ECC error)"
)
"""An error of the operating system, of the host's memory, or of a card that another program has or that fails."""


def ran_out_of_memory(message: str) -> bool:
    """Whether this message of an outcome says that the GPU had too little memory: perhaps another program had it."""
    return _NO_MEMORY.match(message) is not None


def is_of_machine(message: str) -> bool:
    """Whether this message of an outcome tells of the machine, which may be in order again, and not of the config."""
    return ran_out_of_memory(message) or _OF_MACHINE.match(message) is not None


@dataclass(frozen=True, slots=True)
class Trial:
    """One config measured on one problem."""

    problem: Problem
    config: Config
    kernel: KernelVersion
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a problem's finals: what becomes the winner.

    Attributes:
        config: the winner.
        median_us: the winner's time over the paired rounds, microseconds a call.
        default_us, vendor_us: the times of the default config and of torch's library, derived from the paired ratios;
            None where they were not measured.
        ties: the configs within 0.5% of the fastest, the winner among them, in order of simplicity.
    """

    config: Config
    median_us: float
    default_us: float | None
    vendor_us: float | None
    ties: tuple[Config, ...]


@dataclass(frozen=True, slots=True)
class Winner:
    """The config chosen for a problem on a device under an environment, with its evidence.

    Attributes:
        device, environment, problem, config: what was chosen for what.
        kernel_version: the version of the config's kernel that was measured.
        protocol: the measuring protocol's number.
        tool_version: the version of triton-tuner that decided it.
        decided_at: UTC, ISO 8601, to the second ("2026-01-31T12:00:00Z").
        median_us, default_us, vendor_us: see Verdict.
        ties: how many configs were within 0.5% of the fastest, the winner counted.
        tied: these configs.
        run_id: the id of the run that decided it, in this database.
    """

    device: Device
    environment: Environment
    problem: Problem
    config: Config
    kernel_version: int
    protocol: int
    tool_version: str
    decided_at: str
    median_us: float
    default_us: float | None
    vendor_us: float | None
    ties: int
    tied: tuple[Config, ...] = ()
    run_id: int = 0

    @property
    def vs_default(self) -> float | None:
        """The default config's time over the winner's: 1.2 means that the winner is 1.2 times as fast."""
        return self.default_us / self.median_us if self.default_us else None

    @property
    def vs_vendor(self) -> float | None:
        """The time of torch's library over the winner's."""
        return self.vendor_us / self.median_us if self.vendor_us else None

    @property
    def tflops(self) -> float:
        """The winner's rate, 10^12 floating-point operations a second."""
        return self.problem.flops / self.median_us * 1e-6


@dataclass(frozen=True, slots=True)
class DecidedFamily:
    """A family's ranges on a device under an environment.

    Attributes:
        device, environment: where the ladder was tuned.
        family: which range of Ms each winner serves.
        decided_at: UTC, ISO 8601, to the second.
        run_id: the id of the run that tuned it, in this database.
    """

    device: Device
    environment: Environment
    family: Family
    decided_at: str
    run_id: int = 0
