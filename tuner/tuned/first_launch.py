"""The launch of a call whose key is new: by the first config that the device can run."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.launch import compat
from tuner.launch.binaries import NotShippedError
from tuner.launch.failure import is_no_fault

_log = logging.getLogger("tuner.tuned.tuned_kernel")  # the name under which people silence or keep it


@dataclass(frozen=True, slots=True)
class Call:
    """One call: its positional and keyword arguments, and its grid."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    grid: Any


def launch_first_that_runs(
    fn: Any, op: str, named: Mapping[str, Any], order: Sequence[Any], call: Call, *, warmup: bool
) -> tuple[Any, Any, NotShippedError | None]:
    """Launch by the first config that can run, because an untuned one may need too many resources.

    Args:
        fn: the jit function.
        op: the kernel's name.
        named: the call's arguments by name.
        order: the `triton.Config`s to try.
        call: the call.
        warmup: whether to compile only.

    Returns:
        The config, what the launch returned, and why the first config without a shipped binary was passed over.

    Raises:
        NotShippedError: the process is strict, and no binary of any config ships for these arguments.
    """
    failures = _failures()
    failed: Exception | None = None
    missing: NotShippedError | None = None
    for config in order:
        meta = config.all_kwargs()
        try:
            if config.pre_hook is not None:
                config.pre_hook({**named, **meta})
            result = fn.run(*call.args, grid=call.grid, warmup=warmup, **call.kwargs, **meta)
        except NotShippedError as e:
            missing = missing or e
            continue
        except failures as e:
            if is_no_fault(e):
                raise
            failed = failed or e
            continue
        if failed is not None:
            reason = (str(failed).strip().splitlines() or [type(failed).__name__])[0][:300]
            _log.warning("%s cannot be launched by %s (%s): using %s", op, order[0], reason, config)
        return config, result, missing
    last = failed or missing
    assert last is not None
    raise last


@functools.cache
def _failures() -> tuple[type[Exception], ...]:
    """Return what Triton raises before anything ran: missing resources, errors of compilers, MLIR and the driver."""
    return compat.OutOfResources, compat.PTXASError, compat.CompilationError, RuntimeError
