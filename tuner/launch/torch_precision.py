"""torch's own float32 setting: read as torch.matmul reads it, and set for the duration of a call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


def torch_precision() -> str:
    """How torch would multiply float32 matrices now: "tf32" or "ieee".

    Reads the per-backend setting, which reflects the older switches too (`allow_tf32`,
    `set_float32_matmul_precision`). Reading those raises as soon as somebody used the newer one.
    """
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"


@contextlib.contextmanager
def torch_precision_set(precision: str) -> Iterator[None]:
    """Make torch multiply float32 matrices by "tf32" or "ieee" inside the block; its setting is put back after it."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = precision
    try:
        yield
    finally:
        matmul.fp32_precision = before
