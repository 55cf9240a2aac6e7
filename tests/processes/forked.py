"""Worker processes of commands that a test runs in its own process, forked where torch was imported once.

A spawned worker imports torch for two seconds, and the tests start a hundred. What a test starts as a program of its
own spawns its workers as ever.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing import context, forkserver
from typing import Any

TORCH = ["torch"]
_get_context = multiprocessing.get_context


class ForkingContext(context.ForkServerContext):
    """Makes processes that have this process's environment, as spawned ones do, and not the fork server's."""

    def Process(self, target: Callable[..., Any], args: tuple[Any, ...], **options: Any) -> context.ForkServerProcess:  # noqa: N802
        return super().Process(target=begin, args=(dict(os.environ), target, args), **options)


def begin(environ: dict[str, str], target: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.environ.clear()
    os.environ.update(environ)
    target(*args)


def get_context(method: str | None = None) -> context.BaseContext:
    """As multiprocessing.get_context, but a process to be spawned is forked, unless a compile pool started the server.

    That server has imported Triton, and what a worker sets in its environment is read then.
    """
    if method != "spawn" or forkserver._forkserver._preload_modules not in (["__main__"], TORCH):
        return _get_context(method)
    multiprocessing.set_forkserver_preload(TORCH)
    return ForkingContext()
