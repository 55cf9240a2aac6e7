"""Parts of a tile's sum that blocks of a cluster send each other through distributed shared memory. In Gluon.

Each block has sums of the whole tile, over its own range of K. The tile's columns are dealt out in pairs: their owner
gets them from all blocks and adds them in the order of the blocks' ranks, so that the bits are always the same. A store
to another block's memory tells a barrier there how many bytes it brought (PTX ISA, st.async): an owner waits for its
parts and for nothing else, and the others may end.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tuner.kernels.gemm.hopper.cluster import publish_barriers

LARGEST_ROOM = 48 * 1024
"""What a kernel may reserve statically of shared memory (CUDA C++ Programming Guide)."""
_ALIGNMENT = 1024
"""The ring of stages lies behind: so it stays where the swizzle of TMA has it."""
_PAIR = 2 * 4
_PADDING_ROWS = 8
"""After each pair of columns: without them a warp's stores, of four pairs, would meet in the same banks."""


@gluon.constexpr_function
def owners_of(columns, ctas):  # noqa: ANN201  jit bodies take no annotation
    """Blocks that own columns of a tile, the cluster's first ones: two columns are the fewest."""
    return min(ctas, columns // 2)


@gluon.constexpr_function
def pitch(rows):  # noqa: ANN201
    """Bytes from one pair of columns to the next."""
    return (rows + _PADDING_ROWS) * _PAIR


@gluon.constexpr_function
def part_bytes(rows, columns, ctas):  # noqa: ANN201
    """What an owner keeps of one block's sums."""
    return columns // owners_of(columns, ctas) // 2 * pitch(rows)


@gluon.constexpr_function
def room_bytes(rows, columns, ctas):  # noqa: ANN201
    """Shared memory that a block reserves: parts of all blocks, and the barrier that counts their bytes."""
    needed = ctas * part_bytes(rows, columns, ctas) + 8
    return -(-needed // _ALIGNMENT) * _ALIGNMENT


@gluon.constexpr_function
def reservation(rows, columns, ctas):  # noqa: ANN201
    """PTX that reserves a block's room and gives its address."""
    room = room_bytes(rows, columns, ctas)
    return f"{{ .shared .align {_ALIGNMENT} .b8 parts[{room}]; mov.u32 $0, parts; }}"


@gluon.constexpr_function
def dealt_out(ctas, owners):  # noqa: ANN201
    """The `cga_layout` of a tile whose columns lie with their owners; the other blocks count as copies of these."""
    return [[0, 1 << bit] if 1 << bit < owners else [0, 0] for bit in range(ctas.bit_length() - 1)]


@gluon.jit
def make_room(ROWS: gl.constexpr, COLUMNS: gl.constexpr, CTAS: gl.constexpr):  # noqa: ANN201
    """Reserve a block's room, let its barrier expect all parts, and say so; `send` waits until all blocks have.

    Returns:
        The room's address, and its barrier's.
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
    # Two neighbours of a row at a time, as a thread holds them.
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
    """Wait until all parts of a block's columns are there."""
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
    """The tile's sums, [ROWS, COLUMNS] float32: a block has its own columns of them."""
    OWNERS: gl.constexpr = owners_of(COLUMNS, CTAS)
    EACH: gl.constexpr = COLUMNS // OWNERS
    LAYOUT: gl.constexpr = gl.BlockedLayout(
        [2, 2], [32, 1], [1, gl.num_warps()], [1, 0], cga_layout=dealt_out(CTAS, OWNERS)
    )
    # The same values in the same threads, for stores of two rows at a time.
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
