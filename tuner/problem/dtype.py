"""Names of dtypes. Torch's names are canonical and short ones are understood; torch itself is not needed.

A name that nobody knows is a ProblemError.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from tuner.errors import ProblemError

if TYPE_CHECKING:
    import torch

ITEMSIZE = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int32": 4,
    "int8": 1,
}
"""Bytes per element of every dtype a problem can name."""

SHORT = {
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "f32": "float32",
    "f16": "float16",
    "half": "float16",
    "float": "float32",
    "fp8e4m3": "float8_e4m3fn",
    "fp8e5m2": "float8_e5m2",
    "i8": "int8",
    "i32": "int32",
}


def canonical(name: str | torch.dtype, of: Collection[str] = tuple(ITEMSIZE)) -> str:
    """Return torch's name of a dtype.

    Args:
        name: a torch dtype, its name ("bfloat16", "torch.bfloat16") or a short one ("bf16", "e4m3").
        of: the canonical names of those that are taken.
    """
    plain = str(name).strip().lower().removeprefix("torch.")
    plain = SHORT.get(plain, plain)
    if plain not in of:
        short = (each for each in ("bf16", "fp16", "fp32", "e4m3", "e5m2", "i8") if SHORT[each] in of)
        known = ", ".join([*of, *short])
        raise ProblemError(f"unknown dtype {name!r}: expected one of {known}")
    return plain


def spelled(name: str | torch.dtype) -> str:
    """Return torch's name of any dtype, even one that no GEMM has ("int64"); short names are understood."""
    plain = str(name).strip().removeprefix("torch.")
    plain = SHORT.get(plain.lower(), plain)
    if not plain.isidentifier():
        raise ProblemError(
            f"unknown dtype {name!r}: expected torch's name or a short one, float16 or fp16 for instance"
        )
    return plain


def is_fp8(name: str) -> bool:
    """Return whether a canonical dtype name is one of the 8-bit floats."""
    return name.startswith("float8")


def default_out(name: str, *, scaled: bool = False) -> str:
    """Return the output dtype that torch gives a GEMM over operands of a dtype.

    It is bfloat16 for fp8, int32 for int8, and bfloat16 for scaled int8.
    """
    if is_fp8(name) or (name == "int8" and scaled):
        return "bfloat16"
    return "int32" if name == "int8" else name


def name_of(dtype: torch.dtype) -> str:
    """Return the canonical name of a torch dtype (`torch.float16` -> "float16")."""
    return str(dtype).removeprefix("torch.")


def to_torch(name: str) -> torch.dtype:
    """Return the torch dtype of a canonical name."""
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ProblemError(f"torch {torch.__version__} has no dtype {name!r}: expected float16 or fp16 for instance")
    return dtype
