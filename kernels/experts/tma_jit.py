"""The products of `experts.jit` with weights, and down's rows, loaded by the tensor memory accelerator.

Gate's and up's rows are gathered by pointers: they are those of tokens in any order. An expert's last tile also reads
rows of the next expert, whose products are not stored.
"""

from __future__ import annotations

import triton.language as tl

from tuner.kernels.base.blocks import any_size, await_predecessor, count_blocks, known_multiple
from tuner.kernels.base.epilogue import activate
from tuner.kernels.gemm.tma.tile import load_of, sum_products
from tuner.kernels.grouped.jit import last_tiles, place


@any_size
def gate_up_kernel(  # noqa: ANN201, PLR0917  jit bodies take no such annotation
    x_ptr,
    weight_desc,
    hidden_ptr,
    order_ptr,
    ends_ptr,
    M,
    N,
    K,
    GROUPS,
    stride_am,
    GROUP_SIZE_M,
    TOP_K: tl.constexpr,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    VECTOR: tl.constexpr,
    EVEN_K: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute what `experts.jit.gate_up_kernel` does, by a descriptor of the weights [GROUPS, 2 * N, K].

    VECTOR: a power of two that divides N, K and the row stride of x.
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
        steps = tl.arange(0, BLOCK_SIZE_K)
        in_m = rows < end
        tokens = tl.load(order_ptr + rows, mask=in_m, other=0).to(tl.int64) // TOP_K
        a_tile = x_ptr + tokens[:, None] * known_multiple(stride_am, VECTOR) + steps[None, :]
        start_n = pid_n * HALF
        N = known_multiple(N, VECTOR)
        K = known_multiple(K, VECTOR)
        gate = tl.zeros((BLOCK_SIZE_M, HALF), dtype=tl.float32)
        up = tl.zeros((BLOCK_SIZE_M, HALF), dtype=tl.float32)
        for step in range(0, K, BLOCK_SIZE_K):
            if EVEN_K:
                a = tl.load(a_tile + step, mask=in_m[:, None], other=0.0)
            else:
                a = tl.load(a_tile + step, mask=in_m[:, None] & (steps < K - step)[None, :], other=0.0)
            b = load_of(weight_desc, group, step, start_n, BLOCK_SIZE_K, HALF, True)
            c = load_of(weight_desc, group, step, N + start_n, BLOCK_SIZE_K, HALF, True)
            gate = tl.dot(a, b, gate)
            up = tl.dot(a, c, up)
        values = (activate(gate, ACTIVATION) * up).to(hidden_ptr.dtype.element_ty)
        columns = start_n + tl.arange(0, HALF)
        hidden_tile = hidden_ptr + rows.to(tl.int64)[:, None] * N + columns[None, :]
        tl.store(hidden_tile, values, mask=in_m[:, None] & (columns < N)[None, :])


@any_size
def down_kernel(  # noqa: ANN201, PLR0917
    hidden_desc,
    weight_desc,
    slots_ptr,
    shares_ptr,
    order_ptr,
    ends_ptr,
    M,
    N,
    K,
    GROUPS,
    GROUP_SIZE_M,
    TOP_K: tl.constexpr,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    VECTOR: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute what `experts.jit.down_kernel` does, by descriptors of hidden [M * TOP_K, K] and weights [GROUPS, N, K].

    VECTOR: a power of two that divides N.
    """
    await_predecessor(PDL)
    tiles_n = count_blocks(N, BLOCK_SIZE_N)
    beyond = last_tiles(ends_ptr, GROUPS, M * TOP_K, tiles_n, BLOCK_SIZE_M, BLOCK_GROUPS)
    tile = tl.program_id(0)
    if tile < tl.max(beyond, axis=0):
        group, start, end, pid_m, pid_n = place(
            tile, beyond, ends_ptr, GROUPS, M * TOP_K, tiles_n, GROUP_SIZE_M, BLOCK_SIZE_M
        )
        start_m, start_n = start + pid_m * BLOCK_SIZE_M, pid_n * BLOCK_SIZE_N
        sums = sum_products(
            *(hidden_desc, weight_desc, start_m, start_n, 0, count_blocks(K, BLOCK_SIZE_K), BLOCK_SIZE_M, BLOCK_SIZE_N),
            *(BLOCK_SIZE_K, False, True, "ieee", None, None, group),
        )
        rows = start_m + tl.arange(0, BLOCK_SIZE_M)
        columns = start_n + tl.arange(0, BLOCK_SIZE_N)
        N = known_multiple(N, VECTOR)
        in_m = rows < end
        slots = tl.load(order_ptr + rows, mask=in_m, other=0).to(tl.int64)
        shares = tl.load(shares_ptr + slots, mask=in_m, other=0.0).to(tl.float32)
        values = (sums * shares[:, None]).to(slots_ptr.dtype.element_ty)
        slots_tile = slots_ptr + slots[:, None] * N + columns[None, :]
        tl.store(slots_tile, values, mask=in_m[:, None] & (columns < N)[None, :])
