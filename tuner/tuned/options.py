"""What `tuner.tuned` was given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Options:
    """The decorator's options, as `tuner.tuned` describes them, and the module in which it was applied."""

    name: str
    version: int
    key: tuple[str, ...]
    prune: Mapping[str, Any]
    reset_to_zero: tuple[str, ...] = ()
    restore_value: tuple[str, ...] = ()
    pre_hook: Callable[..., Any] | None = None
    post_hook: Callable[..., Any] | None = None
    do_bench: Callable[..., Any] | None = None
    default: Any = None
    tolerance: float | None = None
    module: str | None = None
