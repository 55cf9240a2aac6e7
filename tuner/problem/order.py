"""The order in which problems are listed."""

from __future__ import annotations

import json
from typing import Any

from tuner.problem import Problem


def problem_order(problem: Problem) -> tuple[Any, ...]:
    """What problems are sorted by: as they compare, but `extras` as text, since those of two ops may not compare."""
    fields = problem.fields()
    extras = json.dumps(fields.pop("extras"), sort_keys=True)
    return (*fields.values(), extras)
