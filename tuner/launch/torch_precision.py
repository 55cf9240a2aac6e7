"""torch's own float32 setting: read as torch.matmul reads it, and set for the duration of a call."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import torch

_lock = threading.RLock()


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603  another thread may have held it at the fork
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def torch_precision() -> str:
    """How torch would multiply float32 matrices now: "tf32" or "ieee".

    Reads the per-backend setting, which reflects the older switches too (`allow_tf32`,
    `set_float32_matmul_precision`). Reading those raises as soon as somebody used the newer one.
    """
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"


def precision_of(dtype: torch.dtype) -> str:
    """How torch would multiply matrices of a dtype now, as the precision of a problem."""
    return torch_precision() if dtype == torch.float32 else "default"


@contextlib.contextmanager
def torch_precision_set(precision: str) -> Iterator[None]:
    """Make torch multiply float32 matrices by "tf32" or "ieee" inside the block; its setting is put back after it.

    The setting is the whole process's: one thread at a time is inside, and what others multiply by torch meanwhile is
    multiplied so, too.
    """
    matmul = torch.backends.cuda.matmul
    with _lock:
        before = matmul.fp32_precision
        if before == precision:
            yield
            return
        matmul.fp32_precision = precision
        try:
            yield
        finally:
            matmul.fp32_precision = "none"  # as `torch.backends` has it; a name would keep its later changes out
            if matmul.fp32_precision != before:
                matmul.fp32_precision = before
