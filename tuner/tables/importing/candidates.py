"""Configs that others chose, as candidates: worth trying, and nothing is known of them.

A file of candidates is no table: it holds no figure, no environment and no kernel's version, and a lookup refuses it.
Only a trial of ours makes one of them a row that can win.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner import files
from tuner.errors import TableError, TunerError
from tuner.kernel.config import Config
from tuner.problem import Problem

FORMAT = "triton-tuner candidates"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Candidate:
    """A config that somebody else chose for a problem.

    Attributes:
        problem, config: what for what; whether a device can run it is for its kernel's search space to say.
        device_name: the GPU it was chosen on, as its source spells it.
        source: the file it comes from.
    """

    problem: Problem
    config: Config
    device_name: str
    source: str


def dumps(candidates: Iterable[Candidate]) -> str:
    """The text of a file of candidates: one a line, sorted, each once."""
    rows = sorted({json.dumps(_fields(candidate), sort_keys=True) for candidate in candidates})
    head = [f'  "format": "{FORMAT}",', f'  "version": {VERSION},', '  "verified": false,', '  "candidates": [']
    return "\n".join(["{", *head, ",\n".join(f"    {row}" for row in rows), "  ]", "}", ""])


def load(path: Path) -> list[Candidate]:
    """Read a file of candidates."""
    document = files.read_json(path, "file of candidates", "import it again with `tuner import`", error=TableError)
    found = (document.get("format"), document.get("version")) if isinstance(document, dict) else None
    if found != (FORMAT, VERSION):
        raise TableError(f'{path}: expected "format": "{FORMAT}" and "version": {VERSION}: import it again')
    try:
        return [_candidate(fields) for fields in document["candidates"]]
    except (TunerError, LookupError, TypeError, AttributeError) as e:
        raise TableError(f"{path}: a candidate cannot be read ({e}): import it again with `tuner import`") from e


def _fields(candidate: Candidate) -> dict[str, Any]:
    return {
        "problem": candidate.problem.fields(),
        "kernel": candidate.config.kernel,
        "config": dict(candidate.config),
        "device_name": candidate.device_name,
        "source": candidate.source,
    }


def _candidate(fields: dict[str, Any]) -> Candidate:
    config = Config(fields["kernel"], **fields["config"])
    return Candidate(Problem.from_fields(fields["problem"]), config, fields["device_name"], fields["source"])
