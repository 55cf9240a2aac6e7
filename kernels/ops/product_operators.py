"""What the operators of `bmm` and `grouped_mm` share: their options, the dtype that these give, and their FLOPs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from tuner.kernels.ops import arguments
from tuner.problem import dtype as dtypes

SIGNATURE = "Tensor? bias, str activation, ScalarType? out_dtype, str? precision"


class ProductOptions(NamedTuple):
    """The options of such a call, as an operator takes them."""

    activation: str
    out_dtype: torch.dtype | None
    precision: str | None


def options_of(activation: str | None, out_dtype: torch.dtype | str | None, precision: str | None) -> ProductOptions:
    """The options of an op's call.

    Raises:
        InputError: one has no such value.
    """
    dtype = dtypes.to_torch(dtypes.canonical(out_dtype)) if isinstance(out_dtype, str) else out_dtype
    return ProductOptions(arguments.activation_of(activation), dtype, precision)


def dtype_of(a: torch.Tensor, bias: torch.Tensor | None, options: tuple[Any, ...]) -> torch.dtype:
    """The result's dtype.

    Raises:
        InputError: the options do not fit a's dtype.
    """
    activation, out_dtype, precision = ProductOptions._make(options)
    dtype = arguments.out_dtype_of(a, None, out_dtype)
    arguments.precision_of(a, precision)
    arguments.check_epilogue(dtype, bias, activation)
    return dtype


def count_flops(a: torch.Tensor, b: torch.Tensor, *_: object, **__: object) -> int:
    """The floating-point operations of products of all rows of a with a matrix of b [., K, N]."""
    return 2 * int(a.numel()) * int(b.shape[2])
