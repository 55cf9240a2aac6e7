"""The table of a list's products, which `grouped.jit.listed_kernel` reads. It is made once for each list."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from tuner.kernels.base.operands import placement
from tuner.kernels.grouped import jit as grouped_kernel
from tuner.kernels.grouped.operands import ListedOperands
from tuner.launch import launch as launching
from tuner.launch.launch import Launch

COLUMNS = grouped_kernel.COLUMNS.value
Row = tuple[int, ...]
"""The addresses of A, B and C; M, N, K; row and column strides of A, B and C."""


def rows_of(operands: ListedOperands) -> tuple[Row, ...]:
    """The table's rows, one for each product."""
    return tuple(
        (
            *(a.data_ptr(), b.data_ptr(), out.data_ptr()),
            *(out.shape[0], out.shape[1], a.shape[1]),
            *(*a.stride(), *b.stride(), *out.stride()),
        )
        for a, b, out in zip(operands.a, operands.b, operands.out, strict=True)
    )


def table_of(rows: tuple[Row, ...], device: torch.device) -> tuple[torch.Tensor, tuple[Launch, ...]]:
    """The table, int64 [products, COLUMNS], and the launches that fill it, on the device's current stream.

    Tables are cached, for lists that come again, as those of weights and of activations in reused memory do. A captured
    graph gets its own table, in its own memory, which launches fill at every replay: a copy from the host is not
    possible, since the host's memory may have been freed by then.
    """
    if device.type == "meta":
        return torch.empty(len(rows), COLUMNS, dtype=torch.int64, device=device), ()
    if device.type != "cuda":
        return torch.tensor(rows, dtype=torch.int64, device="cpu"), ()
    if not torch.cuda.is_current_stream_capturing():
        return _kept(rows, device, torch.cuda.current_stream(device).cuda_stream), ()
    table = torch.empty(len(rows), COLUMNS, dtype=torch.int64, device=device)
    return table, tuple(_writing(table, index, row) for index, row in enumerate(rows))


@functools.lru_cache(maxsize=256)
def _kept(rows: tuple[Row, ...], device: torch.device, stream: int) -> torch.Tensor:  # noqa: ARG001  part of the key
    # Each stream has its own table: a launch on another stream would not wait for this copy.
    table = torch.tensor(rows, dtype=torch.int64, device="cpu").pin_memory().to(device, non_blocking=True)
    # Triton's own loading may be refused in a capture, so the kernel that fills tables is loaded here.
    launching.run((_writing(table, 0, rows[0]),))
    return table


def _writing(table: torch.Tensor, index: int, row: Row) -> Launch:
    options = {"num_warps": 1, "enable_fp_fusion": True}
    return Launch(grouped_kernel.write_row, (1,), (table, index, *row), {}, options)


def stored(matrices: Sequence[torch.Tensor]) -> tuple[str, int]:
    """How matrices are stored, and the elements that divide their leading strides and contiguous extents.

    It is "n" if all have contiguous rows, "t" if all have contiguous columns, else "" with 1 element.
    """
    filled = [matrix for matrix in matrices if matrix.numel()]
    rows = all(matrix.stride(1) == 1 for matrix in filled)
    if not rows and not all(matrix.stride(0) == 1 for matrix in filled):
        return "", 1
    widest = 16 // matrices[0].element_size()
    if rows:
        return "n", min((_along(matrix) for matrix in filled), default=widest)
    return "t", min((_along(matrix.t()) for matrix in filled), default=widest)


def _along(matrix: torch.Tensor) -> int:
    """`Placement.vector` of a matrix along contiguous rows, even if its columns are contiguous too."""
    found = placement(matrix)
    return 1 if found.transposed else found.vector
