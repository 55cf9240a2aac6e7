"""The smaller operand of products in TF32 of which neither runs along K, copied before the launch so that it does.

wgmma reads 32-bit operands in shared memory along K alone, and registers can feed one of the two.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from tuner.kernels.base.operands import Operands, padded_extent
from tuner.kernels.base.workspace import scratch
from tuner.kernels.batched import along_k_jit
from tuner.kernels.batched.operands import placement
from tuner.kernels.batched.warp_specialized_space import computed, copied
from tuner.launch.launch import Launch

_TILE = {"BLOCK_ROWS": 64, "BLOCK_COLUMNS": 64}
"""Of a program: see `k_major.copy`, whose copies have the same tiles."""
_OPTIONS = {"num_warps": 8, "num_stages": 1, "enable_fp_fusion": True}


def along_k(operands: Operands) -> tuple[Operands, tuple[Launch, ...]]:
    """Operands of which at most one does not run along K, and the launch that fills the copy, if there is one.

    The copy's memory comes from torch's allocator, which reuses it in the order of the current stream, or of the graph
    that is being captured.
    """
    in_a, in_b = copied(operands.problem)
    if not (in_a or in_b):
        return operands, ()
    copy, launch = _copy(operands.a if in_a else operands.b.mT)
    problem = computed(operands.problem)
    if in_a:
        return replace(operands, a=copy, problem=problem), (launch,)
    return replace(operands, b=copy.mT, problem=problem), (launch,)


def _copy(batch: torch.Tensor) -> tuple[torch.Tensor, Launch]:
    """A copy of a batch [B, extent, K] whose extents are contiguous, and the launch that fills it.

    Of a batch that repeats one matrix, that one is copied.
    """
    stored = (batch if batch.stride(0) else batch[:1]).mT
    count, rows, columns = stored.shape
    lead = padded_extent(rows, stored.element_size())
    room = scratch(count * columns * lead * stored.element_size(), stored.device)
    target = room.view(stored.dtype).view(count, columns, lead)
    constants = {"VECTOR": placement(batch).vector, **_TILE}
    tiles = -(-rows // _TILE["BLOCK_ROWS"]) * -(-columns // _TILE["BLOCK_COLUMNS"])
    arguments = (stored, target, rows, columns, *stored.stride()[:2], lead)
    launch = Launch(along_k_jit.copy_kernel, (count * tiles,), arguments, constants, _OPTIONS)
    return target[:, :, :rows].expand(batch.shape), launch
