"""Log lines are written in one style, which CONTRIBUTING.md describes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import tuner

PLACES = [Path(tuner.__file__).parent, Path(tuner.__file__).parents[1] / "kernels"]
LEVELS = {"debug": 0, "info": 0, "warning": 0, "error": 0, "exception": 0, "critical": 0, "log": 1}
"""By method of a logger, where its text stands among the arguments."""


def log_calls() -> Iterator[tuple[str, ast.Call]]:
    for path in sorted(path for place in PLACES for path in place.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and is_of_a_logger(node.func):
                yield f"{path}:{node.lineno}", node


def is_of_a_logger(called: ast.expr) -> bool:
    named = isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name)
    return named and called.attr in LEVELS and "log" in called.value.id.lower()


def test_a_log_line_is_one_sentence_whose_values_are_arguments():
    calls = dict(log_calls())
    assert len(calls) > 50
    for place, call in calls.items():
        assert call.func.value.id == "_log", place
        text = call.args[LEVELS[call.func.attr]]
        assert isinstance(text, ast.Constant), place
        assert ". " not in f"{text.value} ", f"{place}: one sentence, without a full stop"
        assert text.value.count("%") == len(call.args) - LEVELS[call.func.attr] - 1, f"{place}: one argument a value"
