"""Tuned configs."""

from bisect import bisect_left
from operator import index
from typing import Any

OP = "matmul"
DEVICE = ""
CONFIGS: tuple[dict[str, Any], ...] = ()
ROWS: dict[Any, dict[tuple[int, int], int]] = {}
RANGES: dict[Any, tuple[tuple[int, int, tuple[tuple[int, int, int], ...]], ...]] = {}
BYTES: dict[str, int] = {"float16": 2}
SHORT: dict[str, str] = {}
COARSE_SUMS: tuple[str, ...] = ()
SIZES: tuple[str, ...] = ("m", "n", "k")
VALUES: dict[str, tuple[Any, ...]] = dict.fromkeys(("layout", "aligned", "epilogue", "precision", "invariant"), ())


def config(m: int, n: int, k: int, dtype: Any = "float16", **given: Any) -> dict[str, Any] | None:
    """Return the kernel and its parameters for a product [m, k] @ [k, n]; None where nobody tuned it.

    The arguments, their names and their defaults are those of `tuner.Problem`: dtypes are torch's, their names or short
    ones; then a_dtype, b_dtype, out_dtype, layout, aligned, epilogue, precision, scaling, fast_accum, b_padded,
    invariant, and what an op has of its own, as batch. What Problem refuses is a ValueError, and an argument of another
    name is a TypeError.
    """
    *parts, batch = _key(m, n, k, dtype, **given)
    family = tuple(parts)
    place = ROWS.get(family, {}).get((m, batch))
    if place is None:
        for first, last, ranges in RANGES.get(family, ()):
            at = bisect_left(ranges, m, key=lambda each: each[1])
            if first <= batch <= last and at < len(ranges) and ranges[at][0] <= m:
                place = ranges[at][2]
    return None if place is None else dict(CONFIGS[place])


def _key(
    m: int,
    n: int,
    k: int,
    dtype: Any,
    *,
    a_dtype: Any = None,
    b_dtype: Any = None,
    out_dtype: Any = None,
    layout: str = "nn",
    aligned: bool | None = None,
    epilogue: str = "none",
    precision: str | None = None,
    **extras: Any,
) -> tuple[Any, ...]:
    """All that tells problems apart but M, with defaults filled in; the batch last, 0 where there is none."""
    a, b = _name(a_dtype or dtype), _name(b_dtype or dtype)
    extras = {name: value for name, value in extras.items() if value is not None}
    parts = {"layout": layout, "aligned": aligned, "epilogue": epilogue, "precision": precision}
    _check({"m": m, "n": n, "k": k, **parts, **extras}, a)
    if extras.get("scaling") == "none":
        del extras["scaling"]
    out = _name(out_dtype) if out_dtype else _default_out(a, is_scaled="scaling" in extras)
    fast = extras.pop("fast_accum", None)
    if fast is not None and bool(fast) != (out in COARSE_SUMS) and extras.get("scaling") != "block":
        extras["fast_accum"] = bool(fast)
    rows, extent = (k, n) if layout[1] == "n" else (n, k)
    if extras.pop("b_padded", None) and rows > 1 and extent * BYTES[b] % 16:
        extras["b_padded"] = True
    if not extras.get("invariant", True):
        del extras["invariant"]
    if aligned is None:
        by_rows = OP in ("softmax", "rms_norm")
        inner = (n if by_rows else k) if layout[0] == "n" else m
        sizes = ((inner, a), (n if by_rows else extent, b), (n, out))
        aligned = OP == "vector_add" or all(size * BYTES[name] % 16 == 0 for size, name in sizes)
    if precision is None or precision == "default":
        precision = "ieee" if a == "float32" else "default"
    batch = extras.pop("batch", 0)
    epilogue = "bias" if epilogue == "bias+none" else epilogue
    return n, k, a, b, out, layout, bool(aligned), epilogue, precision, tuple(sorted(extras.items())), batch


def _check(given: dict[str, Any], a: str) -> None:
    for name, value in given.items():
        if name in SIZES:
            if isinstance(value, bool) or not hasattr(value, "__index__") or not 1 <= index(value) < 2**31:
                raise ValueError(f"{name} must be an integer from 1 to {2**31 - 1}, got {value!r}")
        elif name not in VALUES:
            known = ", ".join(("a_dtype", "b_dtype", "out_dtype", *VALUES, *SIZES[3:]))
            raise TypeError(f"config() has no argument {name!r}: expected one of {known}")
        elif VALUES[name] and value not in VALUES[name]:
            raise ValueError(f"{name} is {value!r}: expected one of {VALUES[name]}")
    eps = given.get("eps")
    if OP == "rms_norm" and (
        isinstance(eps, bool) or not isinstance(eps, (int, float)) or not 1.2e-38 <= eps <= 3.4e38
    ):
        raise ValueError(f"eps is {eps!r}: expected a number from 1.2e-38 to 3.4e38, as 1e-6")
    precision, scaling, fast = given["precision"], given.get("scaling", "none"), given.get("fast_accum")
    is_fp8, is_block = a.startswith("float8"), scaling == "block"
    for wrong, said in (
        (a != "float32" and precision not in (None, "default"), "precision is for float32 operands"),
        (scaling != "none" and not is_fp8 and (is_block or a != "int8"), f"scaling {scaling!r} is for other operands"),
        (fast is not None and not is_fp8, "fast_accum is for fp8 operands"),
        (fast and is_block, "fast_accum cannot be with scaling 'block'"),
        (given.get("invariant") and precision == "tf32x3", "precision 'tf32x3' has no invariant form"),
    ):
        if wrong:
            raise ValueError(f"{said}, these are {a}: leave it out")


def _name(dtype: Any) -> str:
    plain = str(dtype).strip().lower().removeprefix("torch.")
    if SHORT.get(plain, plain) not in BYTES:
        raise ValueError(f"unknown dtype {dtype!r}: expected one of {', '.join((*BYTES, *SHORT))}")
    return SHORT.get(plain, plain)


def _default_out(a: str, *, is_scaled: bool) -> str:
    if a.startswith("float8") or (a == "int8" and is_scaled):
        return "bfloat16"
    return "int32" if a == "int8" else a
