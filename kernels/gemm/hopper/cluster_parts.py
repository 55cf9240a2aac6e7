"""Exchanges parts of a tile's sum between the blocks of a cluster through distributed shared memory. In Gluon.

Each block has sums of the whole tile over its own range of K. The tile's columns are assigned in pairs to owners. An
owner receives its columns from all blocks and adds them in the order of the blocks' ranks, so that results are
deterministic. A store to another block's memory signals its bytes to a barrier there (PTX ISA, st.async), so that an
owner waits only for its own parts, and blocks that own none may end.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tuner.kernels.gemm.hopper.cluster import publish_barriers

LARGEST_ROOM = 48 * 1024
"""The most shared memory that a kernel may reserve statically, in bytes (CUDA C++ Programming Guide)."""
_ALIGNMENT = 1024
"""Keeps the ring of stages, which lies behind the parts, aligned as TMA's swizzle needs it."""
_PAIR = 2 * 4
_PADDING_ROWS = 8
"""Padding after each pair of columns, without which a warp's stores to four pairs would conflict in the same banks."""


@gluon.constexpr_function
def owners_of(columns, ctas):  # noqa: ANN201  jit bodies take no annotation
    """How many blocks, the first of the cluster, own columns of a tile. Each owns at least two."""
    return min(ctas, columns // 2)


@gluon.constexpr_function
def pitch(rows):  # noqa: ANN201
    """Bytes from one pair of columns to the next."""
    return (rows + _PADDING_ROWS) * _PAIR


@gluon.constexpr_function
def part_bytes(rows, columns, ctas):  # noqa: ANN201
    """Bytes of one block's sums that an owner receives."""
    return columns // owners_of(columns, ctas) // 2 * pitch(rows)


@gluon.constexpr_function
def room_bytes(rows, columns, ctas):  # noqa: ANN201
    """Bytes of shared memory that a block reserves for the parts of all blocks and the barrier that counts them."""
    needed = ctas * part_bytes(rows, columns, ctas) + 8
    return -(-needed // _ALIGNMENT) * _ALIGNMENT


@gluon.constexpr_function
def reservation(rows, columns, ctas):  # noqa: ANN201
    """PTX that reserves a block's memory for parts and returns its address."""
    room = room_bytes(rows, columns, ctas)
    return f"{{ .shared .align {_ALIGNMENT} .b8 parts[{room}]; mov.u32 $0, parts; }}"


@gluon.constexpr_function
def dealt_out(ctas, owners):  # noqa: ANN201
    """The `cga_layout` of a tile whose columns lie with their owners; other blocks are declared as copies of owners."""
    return [[0, 1 << bit] if 1 << bit < owners else [0, 0] for bit in range(ctas.bit_length() - 1)]


@gluon.jit
def make_room(ROWS: gl.constexpr, COLUMNS: gl.constexpr, CTAS: gl.constexpr):  # noqa: ANN201
    """Reserve memory for parts, set its barrier to expect them all, and arrive at the cluster's barrier.

    `send` waits until all blocks have done so.

    Returns:
        The addresses of the memory and of its barrier.
    """
    parts = gl.inline_asm_elementwise(reservation(ROWS, COLUMNS, CTAS), "=r", [], gl.int32, is_pure=False, pack=1)
    arrived = parts + CTAS * part_bytes(ROWS, COLUMNS, CTAS)
    expected: gl.constexpr = CTAS * ROWS * COLUMNS // owners_of(COLUMNS, CTAS) * 4
    gl.inline_asm_elementwise(
        """{
            .reg .pred first; .reg .u32 thread;
            mov.u32 thread, %tid.x;
            setp.eq.u32 first, thread, 0;
            @first mbarrier.init.shared::cta.b64 [$1], 1;
            @first mbarrier.arrive.expect_tx.shared::cta.b64 _, [$1], $2;
            mov.u32 $0, 0;
        }""",
        *("=r,r,r", [arrived, gl.to_tensor(expected)], gl.int32),
        is_pure=False,
        pack=1,
    )
    publish_barriers()
    gl.inline_asm_elementwise(
        "{ barrier.cluster.arrive.relaxed.aligned; mov.u32 $0, 0; }", "=r", [], gl.int32, is_pure=False, pack=1
    )
    return parts, arrived


@gluon.jit
def send(sums, parts, arrived, rank, CTAS: gl.constexpr):  # noqa: ANN201
    """Send every column of a block's sums to its owner, once all blocks of the cluster have made room."""
    ROWS: gl.constexpr = sums.shape[0]
    COLUMNS: gl.constexpr = sums.shape[1]
    EACH: gl.constexpr = COLUMNS // owners_of(COLUMNS, CTAS)
    rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, sums.type.layout)).expand_dims(1)
    columns = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, sums.type.layout)).expand_dims(0)
    own = parts + rank * part_bytes(ROWS, COLUMNS, CTAS)
    at = own + columns % EACH // 2 * pitch(ROWS) + rows * 8 + columns % 2 * 4
    owner = columns // EACH + gl.zeros_like(rows)
    gl.inline_asm_elementwise(
        "{ barrier.cluster.wait.acquire.aligned; mov.u32 $0, 0; }", "=r", [], gl.int32, is_pure=False, pack=1
    )
    send_pairs(sums, at, owner, arrived)


@gluon.jit
def send_pairs(sums, at, owner, arrived):  # noqa: ANN201
    """Send sums, two neighbours of a row at a time as a thread holds them, to the memory of their owners.

    Args:
        sums: a tensor whose columns are an even number, float32.
        at: the address of each in the owner's memory, as if it were this block's; two neighbours lie side by side.
        owner: the rank of the block that owns it; the barrier at `arrived` there counts the bytes.
        arrived: the address of that barrier.
    """
    gl.inline_asm_elementwise(
        """{
            .reg .u32 there, told;
            mapa.shared::cluster.u32 there, $2, $4;
            mapa.shared::cluster.u32 told, $6, $4;
            st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [there], {$8, $9}, [told];
            mov.u32 $0, 0;
            mov.u32 $1, 0;
        }""",
        *("=r,=r,r,r,r,r,r,r,f,f", [at, owner, arrived + gl.zeros_like(owner), sums], gl.int32),
        is_pure=False,
        pack=2,
    )


@gluon.jit
def await_parts(arrived):  # noqa: ANN201
    """Wait until all parts of a block's columns have arrived."""
    gl.inline_asm_elementwise(
        """{
            .reg .pred done;
            again:
            mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [$1], 0;
            @!done bra.uni again;
            mov.u32 $0, 0;
        }""",
        *("=r,r", [arrived], gl.int32),
        is_pure=False,
        pack=1,
    )


@gluon.jit
def collect(parts, ROWS: gl.constexpr, COLUMNS: gl.constexpr, CTAS: gl.constexpr):  # noqa: ANN201
    """Add up the parts: the tile's sums [ROWS, COLUMNS] in float32, of which each block has its own columns."""
    OWNERS: gl.constexpr = owners_of(COLUMNS, CTAS)
    EACH: gl.constexpr = COLUMNS // OWNERS
    LAYOUT: gl.constexpr = gl.BlockedLayout(
        [2, 2], [32, 1], [1, gl.num_warps()], [1, 0], cga_layout=dealt_out(CTAS, OWNERS)
    )
    # Threads keep their values, but the order of this layout allows stores of two rows at a time.
    BY_ROWS: gl.constexpr = gl.BlockedLayout(
        [2, 2], [32, 1], [1, gl.num_warps()], [0, 1], cga_layout=dealt_out(CTAS, OWNERS)
    )
    rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT)).expand_dims(1)
    columns = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, LAYOUT)).expand_dims(0)
    at = parts + columns % EACH // 2 * pitch(ROWS) + rows * 8 + columns % 2 * 4
    total = gl.zeros((ROWS, COLUMNS), gl.float32, LAYOUT)
    for block in gl.static_range(CTAS):
        total += gl.inline_asm_elementwise(
            "ld.shared.v4.f32 {$0, $1, $2, $3}, [$4];",
            "=f,=f,=f,=f,r,r,r,r",
            [at + block * part_bytes(ROWS, COLUMNS, CTAS)],
            gl.float32,
            is_pure=False,
            pack=4,
        )
    return gl.convert_layout(total, BY_ROWS, assert_trivial=True)
