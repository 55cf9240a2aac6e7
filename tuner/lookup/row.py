"""A row: a winner as tables and databases hold it. Reading one from JSON checks its every part, or raises BAD_VALUE."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from tuner.errors import TunerError, one_line
from tuner.hardware.device import Environment
from tuner.kernel.config import Config
from tuner.problem import Problem

BAD_VALUE = (TunerError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""The errors that a value of the wrong kind raises while a problem, a config or a rule is made of it."""
PROBLEM = tuple(field.name for field in fields(Problem) if field.compare and field.name != "op")
"""The parts of a row's problem in the order of a file, `extras` last, without the op, which a file names once."""
RESULT = ("kernel", "config", "median_us", "vs_default", "vs_vendor", "ties", "environment")
"""The other parts of a row in the order of a file."""

_LEAST, _MOST = 1e-12, 1e15
"""No time in microseconds and no ratio of two lies beyond: a damaged one would make figures infinite."""
_LONGEST = 300  # characters of a reason


@dataclass(frozen=True, slots=True)
class Provenance:
    """How a row was made: under which versions, by which protocol, and which triton-tuner decided the winner."""

    environment: Environment
    protocol: int
    tool_version: str

    def fields(self) -> dict[str, Any]:
        """Every part by name, as JSON holds it."""
        return asdict(self.environment) | {"protocol": self.protocol, "tool_version": self.tool_version}

    @staticmethod
    def from_fields(fields: Mapping[str, Any]) -> Provenance:
        """What `fields` described."""
        versions = {name: str(fields[name]) for name in ("triton", "torch", "backend", "driver", "python")}
        return Provenance(Environment(**versions), int(fields["protocol"]), str(fields["tool_version"]))


@dataclass(frozen=True, slots=True)
class Row:
    """A winner as it ships.

    Attributes:
        problem, config: what was chosen for what.
        kernel_version: the version of the config's kernel that was measured.
        made: how the row was made.
        median_us: microseconds a call.
        vs_default, vs_vendor: the default config's and torch's time over the winner's; None where not measured.
        ties: how many configs were within 0.5% of the fastest, the winner counted.
        source_hash: the hash of the kernel's source, which databases hold; "" in a row of a table.
    """

    problem: Problem
    config: Config
    kernel_version: int
    made: Provenance
    median_us: float
    vs_default: float | None
    vs_vendor: float | None
    ties: int
    source_hash: str = field(default="", compare=False)

    def fields(self, environment: int) -> dict[str, Any]:
        """Every part by name, as a table's file holds it, in its order.

        Args:
            environment: the place of `made` among the file's.
        """
        problem = self.problem.fields()
        return {name: problem[name] for name in PROBLEM} | {
            "kernel": self.config.kernel,
            "config": dict(self.config),
            "median_us": _rounded(self.median_us),
            "vs_default": None if self.vs_default is None else _rounded(self.vs_default),
            "vs_vendor": None if self.vs_vendor is None else _rounded(self.vs_vendor),
            "ties": self.ties,
            "environment": environment,
        }

    @staticmethod
    def from_fields(
        raw: Mapping[str, Any], op: str, kernels: Mapping[str, Any], made: Sequence[Provenance | str]
    ) -> Row:
        """The row that `fields` described.

        Args:
            raw: the row in its file.
            op, kernels, made: what the file says of all its rows: the op, versions by kernel, how they were made (or,
                of an entry that cannot be read, why).
        """
        problem = problem_of({"op": op} | {name: raw[name] for name in raw if name not in RESULT})
        kernel = raw["kernel"]
        if kernel not in kernels:
            raise ValueError(f"kernel {kernel!r} has no version in this file's kernels")
        median_us = positive(raw["median_us"], "median_us")
        assert median_us is not None
        return Row(
            problem=problem,
            config=Config(kernel, **raw["config"]),
            kernel_version=int(kernels[kernel]),
            made=_named(raw["environment"], made),
            median_us=median_us,
            vs_default=positive(raw.get("vs_default"), "vs_default", optional=True),
            vs_vendor=positive(raw.get("vs_vendor"), "vs_vendor", optional=True),
            ties=int(raw.get("ties", 1)),
        )


def problem_of(fields: Mapping[str, Any]) -> Problem:
    """Make a problem whose every part is named: a part left out must not become a default that nobody measured."""
    problem = Problem.from_fields(fields)
    if missing := problem.fields().keys() - fields.keys():
        raise ValueError(f"{', '.join(sorted(missing))} missing")
    if not isinstance(fields["aligned"], bool):
        raise ValueError(f"aligned must be true or false, got {fields['aligned']!r}")
    return problem


def positive(value: Any, name: str, *, optional: bool = False) -> float | None:
    """A figure as a float; None stays None where it is optional.

    Raises:
        ValueError: it is no positive number, or none that was measured.
    """
    if value is None and optional:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} must be a positive number, got {value!r:.60}")
    if not _LEAST <= value <= _MOST:
        raise ValueError(f"{name} must be from {_LEAST:g} to {_MOST:g}, got {value!r:.60}")
    return float(value)


def _rounded(figure: float) -> float:
    """A figure with four digits behind the point; a smaller one, as of the interpreter, with two digits of its own."""
    return round(figure, 4) or float(f"{figure:.2g}")


def reason(e: Exception) -> str:
    """What an error of `BAD_VALUE` says, in one line that a log can bear: a mangled value may have any length."""
    text = f"{e.args[0]!r} is missing" if isinstance(e, KeyError) and e.args else one_line(e)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"


def _named(place: Any, made: Sequence[Provenance | str]) -> Provenance:
    found = made[_index(place, len(made))]
    if isinstance(found, str):
        raise ValueError(f"its environment, {place} of the file's, cannot be read: {found}")
    return found


def _index(value: Any, count: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
        raise ValueError(f"environment {value!r} is not one of the file's {count}")
    return value
