"""What a function that a user gave raised, and at which line of theirs."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from typing import Any

from tuner.errors import in_short


def said(function: Callable[..., Any], error: BaseException) -> str:
    """Return an error's class and first line, and the last line that was running of the function's file."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if code is not None and frame.filename == code.co_filename]
    where = f" ({code.co_filename}, line {lines[-1]})" if code is not None and lines else ""
    return f"{in_short(error)[:300]}{where}"
