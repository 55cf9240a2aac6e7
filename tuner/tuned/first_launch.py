"""The launch of a call whose key is new: what is zeroed before it, and the first config that the device can run."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from tuner.errors import first_line
from tuner.launch import compat
from tuner.launch.binaries import NotShippedError
from tuner.launch.failure import is_no_fault
from tuner.problem import Problem
from tuner.tuned.arguments import memory_of

_log = logging.getLogger("tuner.tuned.tuned_kernel")  # the name under which people silence or keep it


class OncePerKey:
    """Says of which keys the arguments of `reset_to_zero` are still to be zeroed, as Triton does once it measured.

    In a graph's capture, where Triton cannot measure, they never are: every replay would repeat the zeroing.
    """

    def __init__(self) -> None:
        self._done: set[Hashable] = set()

    def is_due(self, key: Hashable) -> bool:
        """Return whether this is the first call of a key, and take it to be zeroed from here on."""
        import torch

        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return False
        is_first = key not in self._done
        self._done.add(key)
        return is_first


class Zeroing:
    """Zeroes the arguments of `reset_to_zero` before the first launch of a key.

    Triton does so once for each of its keys, which do not distinguish alignments.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """Take the names of the arguments."""
        self._names = names
        self._keys = OncePerKey()

    def zero(self, problem: Problem, named: Mapping[str, Any]) -> None:
        """Zero a call's arguments, given by name, unless that was done for its key."""
        if not self._names:
            return
        import torch

        extras = tuple(pair for pair in problem.extras if not pair[0].endswith((".aligned", ".one")))
        if self._keys.is_due((problem.a_dtype, extras)):
            with torch.no_grad():  # an argument may be a parameter
                for name in self._names:
                    if (memory := memory_of(named.get(name))) is not None:
                        memory.zero_()


def launch_first_that_runs(
    launch: Callable[..., Any], op: str, named: Mapping[str, Any], order: Sequence[Any]
) -> tuple[Any, Any, NotShippedError | None]:
    """Launch by the first config that can run, because an untuned one may need too many resources.

    Args:
        launch: launches, or only compiles, given a config's parameters by name.
        op: the kernel's name.
        named: the call's arguments by name.
        order: the `triton.Config`s to try.

    Returns:
        The config, what the launch returned, and why the first config without a shipped binary was passed over.

    Raises:
        NotShippedError: the process is strict, and no binary of any config ships for these arguments.
    """
    failures = failures_of_a_config()
    failed: Exception | None = None
    missing: NotShippedError | None = None
    for config in order:
        meta = config.all_kwargs()
        try:
            if config.pre_hook is not None:
                config.pre_hook({**named, **meta})
            result = launch(**meta)
        except NotShippedError as e:
            missing = missing or e
            continue
        except failures as e:
            if is_no_fault(e):
                raise
            failed = failed or e
            continue
        if failed is not None:
            _log.warning("%s cannot be launched by %s (%s): using %s", op, order[0], first_line(failed), config)
        return config, result, missing
    last = failed or missing
    assert last is not None
    raise last


@functools.cache
def failures_of_a_config() -> tuple[type[Exception], ...]:
    """Return what Triton raises before anything ran: missing resources, errors of compilers, MLIR and the driver."""
    return compat.OutOfResources, compat.PTXASError, compat.CompilationError, RuntimeError
