"""The lock under which sources are read and answers given."""

from __future__ import annotations

import os
import threading


def lookup_lock() -> threading.RLock:
    """The lock; ask for it each time, for a forked child gets another one.

    It is re-entrant, because a kernel's formula may itself look something up. No lookup holds it while the match rules
    decide: they import kernels, and an import may wait for another thread's, which may look something up.
    """
    return _lock


def _renew() -> None:
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()


_lock = threading.RLock()
if hasattr(os, "register_at_fork"):  # where processes fork
    # A child forked while another thread of the parent held the lock would wait for that thread for ever.
    os.register_at_fork(after_in_child=_renew)
