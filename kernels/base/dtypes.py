"""Which dtypes a product's operands and output may have."""

from __future__ import annotations

FLOATS = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
DTYPES = (*FLOATS, "int8")
"""The dtypes that operands may have."""


def outputs(a_dtype: str, scaling: str) -> tuple[str, ...]:
    """The output dtypes that a product of these operands may have; sums of int8 are int32 unless they are scaled."""
    if a_dtype == "int8":
        return ("int32",) if scaling == "none" else FLOATS[:3]
    return FLOATS
