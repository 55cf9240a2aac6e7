"""Patience with a kernel's module that this process imports: a notice, then an end."""

from __future__ import annotations

import contextlib
import importlib
import signal
import threading
from collections.abc import Iterator

import click

from tuner.errors import KernelError

NOTICE_S = 10.0
LIMIT_S = 60.0
"""As long as a worker may take: `tuner.sweep.child.IMPORT_LIMIT_S`."""


@contextlib.contextmanager
def limited_import(name: str) -> Iterator[None]:
    """Say that an import takes long, and raise KernelError inside it when it takes too long."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals
        return
    for heavy in ("torch", "triton"):  # from a cold disk these take long without hanging
        importlib.import_module(heavy)
    told = False

    def ring(_number: int, _frame: object) -> None:
        nonlocal told
        if told:
            raise KernelError(
                f"the import of {name} did not end within {LIMIT_S:g} s: put what it waits for into a function"
            )
        told = True
        click.echo(f"{name} is still being imported; it is given up after {LIMIT_S:g} s", err=True)

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, NOTICE_S, LIMIT_S - NOTICE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
