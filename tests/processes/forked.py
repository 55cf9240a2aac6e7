"""Worker processes of commands that a test runs in its own process, forked where torch was imported once.

A spawned worker imports torch for two seconds, and the tests start a hundred. What a test starts as a program of its
own spawns its workers as ever.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing import context, forkserver, popen_forkserver
from types import FunctionType, SimpleNamespace
from typing import Any

_get_context = multiprocessing.get_context
SERVER = forkserver.ForkServer()
"""Not the one that a compile pool forks its children from: that has imported Triton, and what a worker sets in its
environment is read then; and a pool's children would find a server that has not."""
SERVER.set_forkserver_preload(["torch"])


class Popen(popen_forkserver.Popen):
    """Asks that server."""

    _launch = FunctionType(
        popen_forkserver.Popen._launch.__code__,
        {
            **vars(popen_forkserver),
            "forkserver": SimpleNamespace(
                connect_to_new_process=SERVER.connect_to_new_process, read_signed=forkserver.read_signed
            ),
        },
    )


class ForkedProcess(context.ForkServerProcess):
    _Popen = staticmethod(Popen)


class ForkingContext(context.ForkServerContext):
    """Makes processes that have this process's environment, as spawned ones do, and not the fork server's."""

    def Process(self, target: Callable[..., Any], args: tuple[Any, ...], **options: Any) -> ForkedProcess:  # noqa: N802
        return ForkedProcess(target=begin, args=(dict(os.environ), target, args), **options)


def begin(environ: dict[str, str], target: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.environ.clear()
    os.environ.update(environ)
    target(*args)


def get_context(method: str | None = None) -> context.BaseContext:
    """As multiprocessing.get_context, but a process to be spawned is forked."""
    return ForkingContext() if method == "spawn" else _get_context(method)
