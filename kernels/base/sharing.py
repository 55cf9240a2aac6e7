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

    Slices of one matrix are compared exactly, and so is a tensor without gaps with any other whose strides nest. Other
    interleaved views count only if they start at the same address, as in torch.
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
    if first_dense or second_dense:
        return _has_element_in(operand, first) if first_dense else _has_element_in(out, second)
    return _cross(_as_matrix(out), _as_matrix(operand))


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
    is_dense = elements == tensor.numel() and not overlaps_itself(tensor)
    return range(tensor.data_ptr(), tensor.data_ptr() + elements * size), is_dense


def _has_element_in(tensor: torch.Tensor, addresses: range) -> bool:
    """Whether an element of a tensor lies in a range of addresses; exact where each stride steps over the smaller."""
    size = tensor.element_size()
    left = (addresses.stop - 1 - tensor.data_ptr()) // size
    if left < 0:
        return False
    offset = 0  # of the last element that begins before the range's end
    for stride, count in sorted(zip(tensor.stride(), tensor.shape, strict=True), reverse=True):
        if stride:
            steps = min((left - offset) // stride, count - 1)
            offset += steps * stride
    return bool(tensor.data_ptr() + (offset + 1) * size > addresses.start)


def _as_matrix(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with its leading dimensions as one, where a view can have them so."""
    try:
        return tensor if tensor.dim() < 3 else tensor.view(-1, tensor.shape[-1])
    except RuntimeError:
        return tensor


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
