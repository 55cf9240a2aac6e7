"""The fields of a GEMM's problem: their valid values and their defaults. Anything invalid is a ProblemError."""

from __future__ import annotations

import operator
import re
from typing import SupportsIndex

from tuner.errors import ProblemError
from tuner.problem import dtype
from tuner.problem.generic_key import Extra

LAYOUTS = ("nn", "nt", "tn", "tt")
"""Row-major storage of A, then B; `t` means transposed (`nt`: B is stored [N, K], as nn.Linear weights are)."""
ACTIVATIONS = ("none", "relu", "leaky_relu", "gelu", "silu")
PRECISIONS = ("default", "ieee", "tf32", "tf32x3")
"""How float32 operands are multiplied; every other dtype has only `default`."""
SCALINGS = ("none", "scalar", "row", "block")
"""Scales of 8-bit operands: none; one for each operand; one for each row of A and column of B; one for each 1x128 block
of A and 128x128 block of B."""
COARSE_SUMS = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
"""Output dtypes too coarse to show what Hopper's fp8 accumulators lose; fast accumulation is their default."""
TRUTHS = ("aligned", "fast_accum", "b_padded", "invariant", "listed")
"""What is true or false, and no other value: a word such as "no" would be true."""
MAX_SIZE = 2**31 - 1
"""M, N and K are 32-bit run-time arguments of the kernels."""
_SMALLEST_EPS, _LARGEST_EPS = 1.2e-38, 3.4e38
_SIZE = r"(-?\d{1,20})"  # Python reads no number of more than 4300 digits
_SHAPE = re.compile(rf"{_SIZE}[x,*]{_SIZE}[x,*]{_SIZE}", re.IGNORECASE)


def check_size(name: str, size: SupportsIndex) -> int:
    """Return a size, of any type of integer, as an int; it must fit into a kernel's run-time arguments."""
    try:
        whole = operator.index(size)
    except TypeError:
        whole = None
    if whole is None or isinstance(size, bool):
        raise ProblemError(f"{name} must be an integer, got {size!r}")
    if not 1 <= whole <= MAX_SIZE:
        raise ProblemError(f"{name} must be from 1 to {MAX_SIZE}, got {whole}")
    return whole


def parse_shape(text: str) -> tuple[int, int, int]:
    """Read "MxNxK".

    Raises:
        ProblemError: the text is no shape, or a size is below 1 or beyond 2^31 - 1.
    """
    found = _SHAPE.fullmatch(text.strip())
    if not found:
        first, _, one = text.strip().partition("-")
        if first.isdecimal() and _SHAPE.fullmatch(one):
            raise ProblemError(f"{text!r:.60} has a range of Ms, which is for tuner run: expected one M, such as {one}")
        raise ProblemError(f"not a shape: {text!r:.60}: expected MxNxK, for instance 4096x4096x1024")
    m, n, k = (int(part) for part in found.groups())
    for name, size in (("M", m), ("N", n), ("K", k)):
        check_size(name, size)
    return m, n, k


def check_extra(op: str, name: str, value: object) -> Extra:
    """Return a value of a problem's extras as JSON holds it; numpy's numbers and booleans become Python's."""
    found = getattr(value, "tolist", str)() if type(value).__module__ == "numpy" else value
    if name in TRUTHS:
        if isinstance(found, (bool, int)) and found in (0, 1):
            return bool(found)
        raise ProblemError(f"{op}: {name} must be True or False, got {value!r:.60}")
    if isinstance(found, (bool, int, float, str)):
        return found
    raise ProblemError(f"{op}: {name} must be a number, a boolean or a string, got {value!r:.60}")


def check_epilogue(epilogue: str) -> str:
    """Return the canonical spelling of an epilogue."""
    parts = str(epilogue).split("+")
    activation = parts[-1] if parts[0] == "bias" else parts[0]
    known = activation in ACTIVATIONS or parts == ["bias"]
    if not known or len(parts) > 2 or (len(parts) == 2 and parts[0] != "bias"):
        raise ProblemError(
            f"unknown epilogue {epilogue!r}: expected none, bias, {', '.join(ACTIVATIONS[1:])}, or bias+ one of these"
        )
    return "bias" if parts[0] == "bias" and activation in ("none", "bias") else epilogue


def check_precision(precision: str | None, a_dtype: str) -> str:
    """Return the precision for operands of a dtype, with the default filled in."""
    if precision is not None and precision not in PRECISIONS:
        raise ProblemError(f"unknown precision {precision!r}: expected one of {', '.join(PRECISIONS)}")
    if a_dtype != "float32":
        if precision not in (None, "default"):
            raise ProblemError(f"precision {precision!r} is for float32 operands, these are {a_dtype}")
        return "default"
    return "ieee" if precision in (None, "default") else str(precision)


def check_scaling(op: str, extras: dict[str, Extra], a_dtype: str) -> None:
    """Check the keys of a GEMM's scales, and drop "none" in place, of any op, because no key means the same."""
    scaling, fast_accum = extras.get("scaling", "none"), extras.get("fast_accum")
    if scaling == "none":
        extras.pop("scaling", None)
    if op != "matmul":
        return
    if scaling not in SCALINGS:
        raise ProblemError(f"unknown scaling {scaling!r}: expected one of {', '.join(SCALINGS)}")
    if scaling != "none" and a_dtype != "int8" and not dtype.is_fp8(a_dtype):
        raise ProblemError(f"scaling {scaling!r} is for fp8 and int8 operands, these are {a_dtype}: leave it out")
    if scaling == "block" and a_dtype == "int8":
        raise ProblemError("scaling 'block' is for fp8 operands, these are int8: use scaling 'row'")
    if fast_accum is not None and not dtype.is_fp8(a_dtype):
        raise ProblemError(f"fast_accum is for fp8 operands, these are {a_dtype}: leave it out")
    if fast_accum and scaling == "block":
        raise ProblemError("fast_accum cannot be with scaling 'block', which sums 128 products at a time: leave it out")
    if scaling == "block":
        extras.pop("fast_accum", None)


def check_invariant(op: str, extras: dict[str, Extra], precision: str) -> None:
    """Check the key of a batch-invariant problem, and drop False in place, because no key means the same."""
    if op != "matmul":
        if extras.get("invariant") is True:
            raise ProblemError(f"{op} has no invariant form, matmul alone has: leave invariant out")
    elif not extras.get("invariant"):
        extras.pop("invariant", None)
    elif precision == "tf32x3":
        raise ProblemError("precision 'tf32x3' has no invariant form: use 'ieee' or 'tf32'")


def is_eps(given: object) -> bool:
    """Whether `rms_norm` can add a number to the mean of the squares: a positive one, and normal in float32."""
    return isinstance(given, (int, float)) and given is not True and _SMALLEST_EPS <= given <= _LARGEST_EPS


def check_eps(given: object) -> float:
    """Return a number for which `is_eps` holds as a float."""
    if not is_eps(given):
        found = "missing" if given is None else f"{given!r:.60}"
        raise ProblemError(f"eps is {found}: expected a number from {_SMALLEST_EPS} to {_LARGEST_EPS}, as 1e-6")
    return float(given)  # type: ignore[arg-type]


def gains_by_padding(n: int, k: int, b_dtype: str, layout: str) -> bool:
    """Return whether only the first of B's contiguous rows or columns can be aligned."""
    rows, extent = (k, n) if layout[1] == "n" else (n, k)
    return rows > 1 and extent * dtype.ITEMSIZE[b_dtype] % 16 != 0


def contiguous_aligned(op: str, shape: tuple[int, int, int], dtype_names: tuple[str, str, str], layout: str) -> bool:
    """Return what `aligned` is for contiguous operands."""
    m, n, k = shape
    extents = (k if layout[0] == "n" else m, n if layout[1] == "n" else k, n)
    if op == "vector_add":
        return True  # for every length, since only the last block is partial
    if op in ("softmax", "rms_norm"):
        extents = (n if layout[0] == "n" else m, n, n)
    return all(extent * dtype.ITEMSIZE[name] % 16 == 0 for extent, name in zip(extents, dtype_names, strict=True))
