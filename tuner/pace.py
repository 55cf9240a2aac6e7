"""Says how long a long list will take, once its first items have shown it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

SAMPLE_S = 1.0
"""How long items are watched before the estimate."""
LONG_S = 5.0
"""Whatever ends sooner needs no estimate."""
_log = logging.getLogger(__name__)


def announced(items: Sequence[T], noun: str) -> Iterator[T]:
    """Yield items that the caller works on; a list that takes long is one warning, with an estimate."""
    begun, told = time.monotonic(), False
    for done, item in enumerate(items):
        spent = time.monotonic() - begun
        if not told and done and spent > SAMPLE_S:
            told, whole = True, spent * len(items) / done
            if whole > LONG_S:
                _log.warning("%d %s take about %.0f s", len(items), noun, whole)
        yield item
