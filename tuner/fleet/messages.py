"""What the driver and the nodes tell each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tuner.hardware.device import Device, Environment
from tuner.problem import Problem
from tuner.problem.family import Family, Ladder
from tuner.sweep.report import ProblemReport

Item = Problem | Ladder
"""What is leased to one node as a whole."""


@dataclass(frozen=True, slots=True)
class Hello:
    """From a node, once its workers have opened their devices.

    Attributes:
        gpus: how many GPUs, all of one model; 1 for the interpreter.
        version: of triton-tuner.
        kernels: versions and source hashes of the kernels of the job's ops, by op and name.
        warnings: what was logged meanwhile.
    """

    host: str
    gpus: int
    device: Device
    environment: Environment
    version: str
    kernels: dict[str, str]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """To a node: what a method of the store returned, or what it raised."""

    value: Any = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Orders:
    """To a node.

    Attributes:
        items: work that it is leased.
        unknown: what of it the database knows nothing of.
        give_back: work that it should give back, unless that has begun.
        answer: to its question.
        closing: nothing more will come.
        stop: finish the trials under way and begin nothing.
    """

    items: tuple[Item, ...] = ()
    unknown: frozenset[Item] = frozenset()
    give_back: tuple[Item, ...] = ()
    answer: Answer | None = None
    closing: bool = False
    stop: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """How a node's sweep ended.

    Attributes:
        error: what ended it; "" where nothing more was to be done.
        start_s, compiled, compile_s: as in `tuner.sweep.report.Report`.
    """

    error: str = ""
    start_s: float = 0.0
    compiled: int = 0
    compile_s: float = 0.0


@dataclass(slots=True)
class Delivery:
    """From a node: what happened since the last one.

    Attributes:
        writes: methods of the store with their arguments after the run, in their order.
        question: a method of the store whose result the node waits for; it comes after the writes.
        begun, ended, returned: work by what became of it.
        trials: how many ended.
        problems, families: what ended, for the report.
        warnings: what was logged.
        end: set once the node's sweep has ended.
    """

    writes: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    question: tuple[str, tuple[Any, ...], dict[str, Any]] | None = None
    begun: list[Item] = field(default_factory=list)
    ended: list[Item] = field(default_factory=list)
    returned: list[Item] = field(default_factory=list)
    trials: int = 0
    problems: list[ProblemReport] = field(default_factory=list)
    families: list[Family] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    end: End | None = None
