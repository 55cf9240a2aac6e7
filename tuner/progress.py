"""Tells how long the work on a long list will take, by how long its first items took."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

SAMPLE_S = 1.0
"""How long the first items are timed before the estimate."""
LONG_S = 5.0
"""Work that takes less needs no estimate."""
_log = logging.getLogger(__name__)


def with_estimate(items: Sequence[T], noun: str) -> Iterator[T]:
    """Yield items for the caller to work on; where all will take long, one warning says about how long."""
    begun, is_told = time.monotonic(), False
    for done, item in enumerate(items):
        spent_s = time.monotonic() - begun
        if not is_told and done and spent_s > SAMPLE_S:
            is_told, total_s = True, spent_s * len(items) / done
            if total_s > LONG_S:
                _log.warning("%d %s take about %.0f s", len(items), noun, total_s)
        yield item
