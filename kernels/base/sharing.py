"""Which tensors share memory: what a kernel writes must be nobody else's."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements may share an address: strides, sorted, must step over all that lies below them."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def share_memory(out: torch.Tensor, operand: torch.Tensor) -> bool:
    """Whether both surely share bytes. Slices of one matrix are told apart; of other interleaved views, as in torch,
    only those that begin at one address are taken to share it.
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
    """Indices of two tensors that surely share bytes, see `share_memory`; None where there are none."""
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
    """Addresses from the first byte to the last, and whether every one between belongs to the tensor."""
    elements = 1 + sum(stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    size = tensor.element_size()
    return range(tensor.data_ptr(), tensor.data_ptr() + elements * size), elements == tensor.numel()


def _cross(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two slices of one matrix, neither with steps nor with overlapping rows, have an element in common."""
    if one.dim() != 2 or one.stride() != other.stride() or one.dtype.itemsize != other.dtype.itemsize:
        return False
    if one.stride(1) != 1:
        one, other = one.t(), other.t()
    pitch, (rows, columns), (other_rows, other_columns) = one.stride(0), one.shape, other.shape
    if one.stride(1) != 1 or max(columns, other_columns) > pitch:
        return False
    row, column = divmod((other.data_ptr() - one.data_ptr()) // one.dtype.itemsize, pitch)
    # What of the other is beyond the pitch lies in the next row.
    places = ((row, column), (row + 1, column - pitch))
    return any(-other_rows < r < rows and -other_columns < c < columns for r, c in places)
