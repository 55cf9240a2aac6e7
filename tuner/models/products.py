"""Describes matrix products that reach torch's dispatcher, as far as a problem depends on them.

This module imports only the standard library: `tuner capture` loads it into programs in whose environment triton-tuner
is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

_VECTOR_BYTES = 16
SCALE_BLOCK = 128
"""Elements along each side of a block that shares a scale."""


class Product(NamedTuple):
    """A matrix product without its M. Its fields have the names and values of a suite's columns.

    Attributes:
        op: "matmul", "bmm" or "grouped_mm"; "fused_experts" for both products of experts and what lies between,
            "gated_linear" for those of gate and up and what follows, and "rms_norm" for a norm of rows of n elements.
        device: the type of the operands' device, such as "cuda".
        n, k: sizes in elements.
        a_dtype, b_dtype, out_dtype, layout, aligned, epilogue, precision, scaling: see `tuner.Problem`.
        number: how many products in a batch, or how many groups; 0 for a single product.
    """

    op: str
    device: str
    n: int
    k: int
    a_dtype: str
    b_dtype: str
    out_dtype: str
    layout: str
    aligned: bool
    epilogue: str = "none"
    precision: str = "default"
    scaling: str = "none"
    number: int = 0


Call = tuple[Product, int]
"""A product and its M."""


def describe(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any, *, tf32: bool = False) -> Call | None:
    """Say which product a call of one of `OPERATORS` was; None for one that no problem describes.

    Args:
        name: the operator's name without its overload.
        args, kwargs: its arguments.
        out: what it returned.
        tf32: whether float32 operands are multiplied as tf32.
    """
    return OPERATORS[name](args, kwargs, out, tf32)


def _mm(args: Sequence[Any], _: Mapping[str, Any], out: Any, tf32: bool) -> Call | None:
    return _call("matmul", args[0], args[1], out, tf32)


def _addmm(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any, tf32: bool) -> Call | None:
    added, a, b = args[:3]
    is_row = added.shape[-1:] == b.shape[-1:] and (added.dim() == 1 or added.stride(0) == 0)
    is_bias = is_row and kwargs.get("alpha", 1) == 1 and kwargs.get("beta", 1) == 1
    return _call("matmul", a, b, out, tf32, epilogue="bias" if is_bias else "none")


def _addmm_activation(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any, tf32: bool) -> Call | None:
    call = _addmm(args, kwargs, out, tf32)
    if call is None:
        return None
    product, m = call
    activation = "gelu" if kwargs.get("use_gelu") else "relu"
    return product._replace(epilogue=activation if product.epilogue == "none" else f"bias+{activation}"), m


def _bmm(args: Sequence[Any], _: Mapping[str, Any], out: Any, tf32: bool) -> Call | None:
    return _call("bmm", args[0], args[1], out, tf32, number=args[0].shape[0])


def _baddbmm(args: Sequence[Any], _: Mapping[str, Any], out: Any, tf32: bool) -> Call | None:
    return _call("bmm", args[1], args[2], out, tf32, number=args[1].shape[0])


def _scaled_mm(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any, _: bool) -> Call | None:
    named = {**dict(zip(("a", "b", "scale_a", "scale_b", "bias"), args, strict=False)), **kwargs}
    return _scaled(named["a"], named["b"], (named["scale_a"], named["scale_b"]), named.get("bias"), out)


def _scaled_mm_v2(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any, _: bool) -> Call | None:
    a, b, scales_a, _, _, scales_b = args[:6]
    if len(scales_a) != 1 or len(scales_b) != 1:
        return None
    return _scaled(a, b, (scales_a[0], scales_b[0]), args[8] if len(args) > 8 else kwargs.get("bias"), out)


def _scaled(a: Any, b: Any, scales: tuple[Any, Any], bias: Any, out: Any) -> Call | None:
    (m, k), n = a.shape, b.shape[1]
    blocks_n, blocks_k = -(-n // SCALE_BLOCK), -(-k // SCALE_BLOCK)
    by_sizes = {(m * blocks_k, blocks_k * blocks_n): "block", (m, n): "row", (1, 1): "scalar"}
    scaling = by_sizes.get((scales[0].numel(), scales[1].numel()))
    if scaling is None:
        return None
    return _call("matmul", a, b, out, False, epilogue="none" if bias is None else "bias", scaling=scaling)


def _grouped_mm(args: Sequence[Any], _: Mapping[str, Any], out: Any, tf32: bool) -> Call | None:
    a, b = args[:2]
    if a.dim() == b.dim() == 3:
        return _call("bmm", a, b, out, tf32, number=a.shape[0])
    if a.dim() != 2 or b.dim() != 3:
        return None  # groups along N or K, as in a backward pass: no op of ours computes them
    return _call("grouped_mm", a, b, out, tf32, number=b.shape[0])


def _call(op: str, a: Any, b: Any, out: Any, tf32: bool, **named: Any) -> Call | None:
    m, k = a.shape[-2:]
    n = b.shape[-1]
    dtypes = [str(each.dtype).removeprefix("torch.") for each in (a, b, out)]
    if 0 in (m, n, k) or not _DTYPES.issuperset(dtypes):
        return None
    (a_letter, a_aligned), (b_letter, b_aligned), (_, out_aligned) = _placed(a), _placed(b), _placed(out)
    product = Product(
        op=op,
        device=a.device.type,
        n=n,
        k=k,
        a_dtype=dtypes[0],
        b_dtype=dtypes[1],
        out_dtype=dtypes[2],
        layout=a_letter + b_letter,
        aligned=a_aligned and b_aligned and out_aligned and out.stride(-1) == 1,
        precision="default" if dtypes[0] != "float32" else "tf32" if tf32 else "ieee",
        **named,
    )
    return product, m


def _placed(tensor: Any) -> tuple[str, bool]:
    """The layout's letter for a matrix or a batch, and whether it is aligned, as `tuner.kernels` determines them."""
    (rows, columns), (row_stride, column_stride) = tensor.shape[-2:], tensor.stride()[-2:]
    transposed = column_stride != 1 and row_stride == 1
    if (column_stride != 1 and not transposed) or tensor.data_ptr() % _VECTOR_BYTES:
        return "t" if transposed else "n", False
    lead, extent, others = (column_stride, rows, columns) if transposed else (row_stride, columns, rows)
    # torch may give a dimension of one element any stride, and no kernel uses it.
    steps = [extent, lead if others > 1 else 0]
    steps += [tensor.stride(0)] if tensor.dim() == 3 and tensor.shape[0] > 1 else []
    return "t" if transposed else "n", all(step * tensor.element_size() % _VECTOR_BYTES == 0 for step in steps)


_DTYPES = frozenset(("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "int32"))
OPERATORS: dict[str, Callable[[Sequence[Any], Mapping[str, Any], Any, bool], Call | None]] = {
    "mm": _mm,
    "addmm": _addmm,
    "_addmm_activation": _addmm_activation,
    "bmm": _bmm,
    "baddbmm": _baddbmm,
    "_int_mm": _mm,
    "_scaled_mm": _scaled_mm,
    "_scaled_mm_v2": _scaled_mm_v2,
    "_grouped_mm": _grouped_mm,
}
"""The operators of `aten` that are matrix products, by their names without overloads."""
