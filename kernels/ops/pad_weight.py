"""The op `pad_weight`: a weight laid out once in rows that TMA reads at full speed."""

from __future__ import annotations

import torch

from tuner.errors import InputError
from tuner.kernels.base.operands import ROW_BYTES, padded_extent, placement, row_alignment
from tuner.kernels.ops.arguments import check_memory, check_tensors, has_memory, in_memory
from tuner.launch import compat


def pad_weight(weight: torch.Tensor) -> torch.Tensor:
    """Pad a weight's rows once, so that `matmul(x, padded.t())` need not copy it at each call.

    This pays for weights whose rows are not a multiple of 128 bytes, for instance with odd in_features. Values and
    shape stay the same, and zeros lie between the rows. It costs the memory of a copy, unless no padding is needed. An
    operation that copies the tensor (`.to`, `.contiguous`, saving and loading a state dict) may drop the padding, so
    pad last.

    Args:
        weight: [N, K], as nn.Linear stores it; any strides, any device.

    Returns:
        A view [N, K] of a buffer whose rows are a multiple of 128 bytes long, detached; `weight` itself, detached,
        where its rows are already.

    Raises:
        InputError: the weight is not a dense tensor with two dimensions.
    """
    check_tensors(weight=weight)
    if weight.dim() != 2:
        raise InputError(f"weight has shape {list(weight.shape)}: expected [N, K]; pad the matrices of a batch singly")
    weight = weight.detach()
    if has_memory(weight):
        (weight,) = in_memory(weight=weight)
        if row_alignment(weight) == ROW_BYTES and not placement(weight).transposed:
            return weight
    elif compat.is_functorch_wrapped_tensor(weight):
        check_memory(weight=weight)
    rows, columns = weight.shape
    room = weight.new_zeros(rows, padded_extent(columns, weight.element_size()))
    padded = room[:, :columns]
    padded.copy_(weight)
    return padded
