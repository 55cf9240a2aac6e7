"""Computes a mixture of experts in four launches: tokens by expert, gate and up, down, and the sum over the experts.

A token that is sent to `TOP_K` experts takes as many slots: slot t * TOP_K + j is token t's j-th expert. Rows are slots
sorted by expert; an expert's rows lie one behind the other and are a group of `grouped.jit`.
"""

from __future__ import annotations

import triton.language as tl

from tuner.kernels.base.blocks import any_size, await_predecessor, count_blocks, known_multiple
from tuner.kernels.base.epilogue import activate
from tuner.kernels.grouped.jit import last_tiles, place


@any_size
def route_kernel(  # noqa: ANN201, PLR0917  jit bodies take no such annotation
    experts_ptr, order_ptr, ends_ptr, M, TOP_K: tl.constexpr, BLOCK_SIZE: tl.constexpr, PDL: tl.constexpr
):
    """Sort slots by expert, each expert's in ascending order; one program for each expert.

    Args:
        experts_ptr: [M * TOP_K], the expert of each slot; slots of no expert have a number below 0 or beyond the last.
        order_ptr: int32 [M * TOP_K], the slot of each row; rows beyond the last expert's are not written.
        ends_ptr: int32 [number of experts], one past each expert's last row.
        M: number of tokens.
        TOP_K: experts of a token.
        BLOCK_SIZE: slots that are read at a time.
        PDL: see `await_predecessor`.
    """
    await_predecessor(PDL)
    expert = tl.program_id(0)
    slots = M * TOP_K
    lanes = tl.arange(0, BLOCK_SIZE)
    before = tl.zeros((BLOCK_SIZE,), dtype=tl.int32)
    for start in range(0, slots, BLOCK_SIZE):
        found = tl.load(experts_ptr + start + lanes, mask=lanes < slots - start, other=-1)
        before += ((found >= 0) & (found < expert)).to(tl.int32)
    row = tl.sum(before, axis=0)
    for start in range(0, slots, BLOCK_SIZE):
        found = tl.load(experts_ptr + start + lanes, mask=lanes < slots - start, other=-1)
        mine = (found == expert).to(tl.int32)
        tl.store(order_ptr + row + tl.cumsum(mine, axis=0) - 1, start + lanes, mask=mine > 0)
        row += tl.sum(mine, axis=0)
    tl.store(ends_ptr + expert, row)


@any_size
def gate_up_kernel(  # noqa: ANN201, PLR0917
    x_ptr,
    weight_ptr,
    hidden_ptr,
    order_ptr,
    ends_ptr,
    M,
    N,
    K,
    GROUPS,
    stride_am,
    stride_bg,
    stride_bn,
    GROUP_SIZE_M,
    TOP_K: tl.constexpr,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    VECTOR_N: tl.constexpr,
    VECTOR_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute rows of activation(x @ gate.T) * (x @ up.T) for each row's token and expert, both products at once.

    Args:
        x_ptr: [M, K], contiguous rows.
        weight_ptr: [GROUPS, 2 * N, K], contiguous rows: gate, then up.
        hidden_ptr: [M * TOP_K, N], contiguous.
        order_ptr, ends_ptr: see `route_kernel`.
        M, N, K, GROUPS: tokens, columns of gate, columns of x, experts.
        stride_am, stride_bg, stride_bn: elements from row to row of x, and from expert to expert and row to row of the
            weight.
        GROUP_SIZE_M: rows of tiles of one expert that share columns of its weight.
        TOP_K: experts of a token.
        BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K: rows and columns of a tile, and the step along K. Half of the columns
            are gate's, the others up's.
        BLOCK_GROUPS: a power of two that is at least GROUPS.
        VECTOR_N, VECTOR_K: powers of two that divide N, and K with all strides.
        EVEN_K: whether BLOCK_SIZE_K divides K.
        ACTIVATION, PRECISION: see `epilogue.activate` and `tl.dot`.
        PDL: see `await_predecessor`.
    """
    HALF: tl.constexpr = BLOCK_SIZE_N // 2
    await_predecessor(PDL)
    tiles_n = count_blocks(N, HALF)
    beyond = last_tiles(ends_ptr, GROUPS, M * TOP_K, tiles_n, BLOCK_SIZE_M, BLOCK_GROUPS)
    tile = tl.program_id(0)
    if tile < tl.max(beyond, axis=0):
        group, start, end, pid_m, pid_n = place(
            tile, beyond, ends_ptr, GROUPS, M * TOP_K, tiles_n, GROUP_SIZE_M, BLOCK_SIZE_M
        )
        rows = start + pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
        columns = pid_n * HALF + tl.arange(0, HALF)
        steps = tl.arange(0, BLOCK_SIZE_K)
        in_m = rows < end
        N = known_multiple(N, VECTOR_N)
        in_n = columns < N
        tokens = tl.load(order_ptr + rows, mask=in_m, other=0).to(tl.int64) // TOP_K
        a_tile = x_ptr + tokens[:, None] * known_multiple(stride_am, VECTOR_K) + steps[None, :]
        stride_bn = known_multiple(stride_bn, VECTOR_K)
        gate_tile = weight_ptr + group.to(tl.int64) * known_multiple(stride_bg, VECTOR_K)
        gate_tile += columns.to(tl.int64)[None, :] * stride_bn + steps[:, None]
        up_tile = gate_tile + tl.cast(N, tl.int64) * stride_bn
        K = known_multiple(K, VECTOR_K)
        gate = tl.zeros((BLOCK_SIZE_M, HALF), dtype=tl.float32)
        up = tl.zeros((BLOCK_SIZE_M, HALF), dtype=tl.float32)
        for step in range(0, K, BLOCK_SIZE_K):
            if EVEN_K:
                a = tl.load(a_tile + step, mask=in_m[:, None], other=0.0)
                b = tl.load(gate_tile + step, mask=in_n[None, :], other=0.0)
                c = tl.load(up_tile + step, mask=in_n[None, :], other=0.0)
            else:
                in_k = steps < K - step
                a = tl.load(a_tile + step, mask=in_m[:, None] & in_k[None, :], other=0.0)
                b = tl.load(gate_tile + step, mask=in_k[:, None] & in_n[None, :], other=0.0)
                c = tl.load(up_tile + step, mask=in_k[:, None] & in_n[None, :], other=0.0)
            gate = tl.dot(a, b, gate, input_precision=PRECISION)
            up = tl.dot(a, c, up, input_precision=PRECISION)
        values = (activate(gate, ACTIVATION) * up).to(hidden_ptr.dtype.element_ty)
        hidden_tile = hidden_ptr + rows.to(tl.int64)[:, None] * N + columns[None, :]
        tl.store(hidden_tile, values, mask=in_m[:, None] & in_n[None, :])


@any_size
def down_kernel(  # noqa: ANN201, PLR0917
    hidden_ptr,
    weight_ptr,
    slots_ptr,
    shares_ptr,
    order_ptr,
    ends_ptr,
    M,
    N,
    K,
    GROUPS,
    stride_bg,
    stride_bn,
    GROUP_SIZE_M,
    TOP_K: tl.constexpr,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    VECTOR_N: tl.constexpr,
    VECTOR_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute rows of hidden @ down.T times each slot's share, and write them where their slots lie.

    Args:
        hidden_ptr: [M * TOP_K, K], contiguous.
        weight_ptr: [GROUPS, N, K], contiguous rows.
        slots_ptr: [M * TOP_K, N], contiguous; slots of no expert are not written.
        shares_ptr: [M * TOP_K], the factor of each slot.
        M, N, K, GROUPS: tokens, columns of the result, columns of hidden, experts.
        others: see `gate_up_kernel`; VECTOR_K divides K and the strides, VECTOR_N divides N.
    """
    await_predecessor(PDL)
    tiles_n = count_blocks(N, BLOCK_SIZE_N)
    beyond = last_tiles(ends_ptr, GROUPS, M * TOP_K, tiles_n, BLOCK_SIZE_M, BLOCK_GROUPS)
    tile = tl.program_id(0)
    if tile < tl.max(beyond, axis=0):
        group, start, end, pid_m, pid_n = place(
            tile, beyond, ends_ptr, GROUPS, M * TOP_K, tiles_n, GROUP_SIZE_M, BLOCK_SIZE_M
        )
        rows = start + pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
        columns = pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
        steps = tl.arange(0, BLOCK_SIZE_K)
        in_m = rows < end
        N = known_multiple(N, VECTOR_N)
        in_n = columns < N
        K = known_multiple(K, VECTOR_K)
        a_tile = hidden_ptr + rows.to(tl.int64)[:, None] * K + steps[None, :]
        b_tile = weight_ptr + group.to(tl.int64) * known_multiple(stride_bg, VECTOR_K)
        b_tile += columns.to(tl.int64)[None, :] * known_multiple(stride_bn, VECTOR_K) + steps[:, None]
        sums = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
        for step in range(0, K, BLOCK_SIZE_K):
            if EVEN_K:
                a = tl.load(a_tile + step, mask=in_m[:, None], other=0.0)
                b = tl.load(b_tile + step, mask=in_n[None, :], other=0.0)
            else:
                in_k = steps < K - step
                a = tl.load(a_tile + step, mask=in_m[:, None] & in_k[None, :], other=0.0)
                b = tl.load(b_tile + step, mask=in_k[:, None] & in_n[None, :], other=0.0)
            sums = tl.dot(a, b, sums, input_precision=PRECISION)
        slots = tl.load(order_ptr + rows, mask=in_m, other=0).to(tl.int64)
        shares = tl.load(shares_ptr + slots, mask=in_m, other=0.0).to(tl.float32)
        values = (sums * shares[:, None]).to(slots_ptr.dtype.element_ty)
        slots_tile = slots_ptr + slots[:, None] * N + columns[None, :]
        tl.store(slots_tile, values, mask=in_m[:, None] & in_n[None, :])


@any_size
def combine_kernel(  # noqa: ANN201, PLR0917
    slots_ptr,
    experts_ptr,
    out_ptr,
    N,
    GROUPS,
    stride_om,
    TOP_K: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    VECTOR_N: tl.constexpr,
    PDL: tl.constexpr,
):
    """Sum each token's slots in float32, in their order; slots of no expert count as zero.

    Args:
        slots_ptr: [M * TOP_K, N], contiguous.
        experts_ptr: [M * TOP_K], see `route_kernel`.
        out_ptr: [M, N], contiguous rows.
        N, GROUPS: columns of the result, experts.
        stride_om: elements from row to row of the result.
        TOP_K: experts of a token.
        BLOCK_SIZE: columns of a program.
        VECTOR_N: a power of two that divides N and stride_om.
        PDL: see `await_predecessor`.
    """
    await_predecessor(PDL)
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    N = known_multiple(N, VECTOR_N)
    inside = columns < N
    sums = tl.zeros((BLOCK_SIZE,), dtype=tl.float32)
    for choice in tl.static_range(TOP_K):
        slot = token * TOP_K + choice
        expert = tl.load(experts_ptr + slot)
        served = (expert >= 0) & (expert < GROUPS)
        sums += tl.load(slots_ptr + slot * N + columns, mask=inside & served, other=0.0).to(tl.float32)
    out_tile = out_ptr + token * known_multiple(stride_om, VECTOR_N) + columns
    tl.store(out_tile, sums.to(out_ptr.dtype.element_ty), mask=inside)
