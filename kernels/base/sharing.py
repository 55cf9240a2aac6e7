"""Finds tensors that share memory: the output of a kernel must not overlap its other tensors or itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements may share an address: each stride, in ascending order, must step over the smaller ones."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def share_memory(out: torch.Tensor, operand: torch.Tensor) -> bool:
    """Whether two tensors certainly share bytes.

    Slices of one matrix are compared exactly. Other interleaved views count only if they start at the same address, as
    in torch.
    """
    if (
        out.numel() == 0
        or operand.numel() == 0
        or (out.untyped_storage().data_ptr() != operand.untyped_storage().data_ptr())
    ):
        return False
    if out.data_ptr() == operand.data_ptr():
        return True
    (first, first_dense), (second, second_dense) = _extent(out), _extent(operand)
    if first.start >= second.stop or second.start >= first.stop:
        return False
    return (first_dense and second_dense) or _cross(out, operand)


def first_shared(tensors: Sequence[torch.Tensor]) -> tuple[int, int] | None:
    """Indices of two tensors that certainly share bytes (see `share_memory`), or None."""
    extents = {index: _extent(tensor)[0] for index, tensor in enumerate(tensors) if tensor.numel()}
    order = sorted(extents, key=lambda index: extents[index].start)
    for place, one in enumerate(order):
        for other in order[place + 1 :]:
            if extents[other].start >= extents[one].stop:
                break
            if share_memory(tensors[one], tensors[other]):
                return min(one, other), max(one, other)
    return None


def _extent(tensor: torch.Tensor) -> tuple[range, bool]:
    """The range of a tensor's addresses, and whether every address in it belongs to the tensor."""
    elements = 1 + sum(stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    size = tensor.element_size()
    return range(tensor.data_ptr(), tensor.data_ptr() + elements * size), elements == tensor.numel()


def _cross(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two slices of one matrix, without steps or overlapping rows, have an element in common."""
    if one.dim() != 2 or one.stride() != other.stride() or one.dtype.itemsize != other.dtype.itemsize:
        return False
    if one.stride(1) != 1:
        one, other = one.t(), other.t()
    pitch, (rows, columns), (other_rows, other_columns) = one.stride(0), one.shape, other.shape
    if one.stride(1) != 1 or max(columns, other_columns) > pitch:
        return False
    row, column = divmod((other.data_ptr() - one.data_ptr()) // one.dtype.itemsize, pitch)
    # Columns of the other slice beyond the pitch lie in the next row.
    places = ((row, column), (row + 1, column - pitch))
    return any(-other_rows < r < rows and -other_columns < c < columns for r, c in places)
