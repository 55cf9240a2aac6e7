"""Compiles launches in threads, on all of the host's cores, and loads their binaries."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from tuner.launch import compile_cache
from tuner.launch.failure import failures
from tuner.launch.launch import Launch, compile_launches


def load(launches: Iterable[Launch], index: int | None) -> None:
    """Compile and load what launches need; what fails here is left to the call that launches it.

    Args:
        launches: one for each binary. While later ones are made, earlier ones compile.
        index: the index of the current device, which a new thread does not know; None where there is one alone.
    """

    def compiled(launch: Launch) -> Any:
        guard = contextlib.nullcontext() if index is None else torch.cuda.device(index)
        with contextlib.suppress(OSError, *failures()), guard:
            return compile_launches((launch,))

    with contextlib.suppress(RuntimeError), ThreadPoolExecutor() as threads:  # none start where the process ends
        for kernel in list(threads.map(compiled, _bound(launches))):
            with contextlib.suppress(*failures()):
                _ = kernel and kernel.run  # Triton loads a binary where this is read first


def _bound(launches: Iterable[Launch]) -> Iterator[Launch]:
    for launch in launches:
        compile_cache.bind(launch.function)
        yield launch
