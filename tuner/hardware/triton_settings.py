"""What a program has set for Triton, and its version, without importing Triton where nothing else has.

Importing Triton takes longer than all else that a process does before it serves its first call.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import sys
from typing import Any

_TRUE = ("1", "on", "true", "y", "yes")
"""What Triton takes for yes in the environment."""


def knobs() -> Any:
    """The module `triton.knobs`; None where this process has not imported Triton."""
    return getattr(sys.modules.get("triton"), "knobs", None)


def interprets() -> bool:
    """Whether Triton's interpreter is on."""
    found = knobs()
    return _is_set("TRITON_INTERPRET") if found is None else bool(found.runtime.interpret)


def can_interpret() -> bool:
    """Whether the interpreter is on and was when Triton was imported: if not, Triton's own functions are compiled."""
    loaded = sys.modules.get("triton")
    own = getattr(getattr(loaded, "language", None), "cdiv", None)
    return interprets() and not isinstance(own, getattr(loaded, "JITFunction", ()))


def is_instrumented() -> bool:
    """Whether Triton is to compile what it launches in another way: for debugging, or for a profiler or sanitizer."""
    found = knobs()
    if found is None:
        return _is_set("TRITON_DEBUG") or bool(os.environ.get("TRITON_INSTRUMENTATION_MODE"))
    return bool(found.runtime.debug or found.compilation.instrumentation_mode)


def hears_of_loads() -> bool:
    """Whether a hook of Triton's is to hear of each kernel that is loaded."""
    found = knobs()
    names = ("kernel_load_start_hook", "kernel_load_end_hook")
    hooks = [] if found is None else [getattr(found.runtime, name, None) for name in names]
    return any(getattr(hook, "calls", hook is not None) for hook in hooks)


def version() -> str:
    """The version of Triton; "" without Triton."""
    loaded = sys.modules.get("triton")
    return str(loaded.__version__) if hasattr(loaded, "__version__") else _installed()  # type: ignore[union-attr]


@functools.cache
def _installed() -> str:
    try:
        return importlib.metadata.version("triton").partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        pass
    try:
        import triton  # one that was installed under another name
    except ImportError:
        return ""
    return str(triton.__version__)


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in _TRUE
