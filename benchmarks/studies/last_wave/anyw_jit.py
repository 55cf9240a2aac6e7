"""A persistent, warp-specialized GEMM (bf16, nt, Hopper, Gluon) whose tiles have any width that is a multiple of 16.

Gluon's tensors have powers of two columns, so the sums of a tile are a tuple of tensors [64, CHUNK], and one wgmma of
all W columns is written in PTX: its registers are those of the chunks one after the other (PTX ISA, the D fragment of
wgmma .m64nNk16), and its operands are addressed by matrix descriptors made from Triton's symbol of the dynamic shared
memory and the offsets at which its allocator put the ring (checked on the host, `offsets_of`).

STREAM: each program has a whole number of tiles and a share of the remaining steps (stream-K with at most two programs
a tile): it computes the head of the tile that it leaves to its successor first, and finishes its predecessor's last.
"""

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from tuner.kernels.base.blocks import await_predecessor, count_blocks, grouped, moved_within
from tuner.kernels.gemm.hopper import cluster

async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
async_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@dataclass(frozen=True)
class Fixed:
    BLOCK_M: int
    W: int
    CHUNK: int  # columns of one tensor of sums: 16 or 32
    WARPGROUPS: int
    STAGES: int
    A_BOX: int
    TURNS: int
    A_OFFSET: int
    B_OFFSET: int
    CTAS: int
    SHARE_B: bool
    MOVE_N: bool
    STREAM: bool
    PDL: bool

    @property
    def SUBS(self):  # 64-row wgmmas of a warpgroup
        return self.BLOCK_M // self.WARPGROUPS // 64

    @property
    def CHUNKS(self):
        return self.W // self.CHUNK


@gluon.constexpr_function
def fixed(*constants):
    return Fixed(*constants)


@gluon.constexpr_function
def get(FIXED, name):
    return getattr(FIXED, name)


@gluon.constexpr_function
def floats(count):
    return (gl.float32,) * count


@gluon.constexpr_function
def tied(count):
    return ",".join(["=f"] * count + [str(i) for i in range(count)])


@gluon.constexpr_function
def tied_and_two(count, pack):
    return ",".join(["=f"] * count + [str(i) for i in range(count)] + ["l"] * (2 * pack))


@gluon.constexpr_function
def step_ptx(width, pack, waits):
    """PTX of one step of 64 along K: four wgmmas, and the wait for the step before if `waits`."""
    count = width // 2
    sums = ", ".join(f"${i}" for i in range(count))
    lines = [
        "{ .reg .b64 da, db;",
        f"mov.b64 da, ${2 * count};",
        f"mov.b64 db, ${2 * count + pack};",
        "wgmma.fence.sync.aligned;",
    ]
    for part in range(4):
        if part:
            lines += ["add.s64 da, da, 2;", "add.s64 db, db, 2;"]
        lines.append(f"wgmma.mma_async.sync.aligned.m64n{width}k16.f32.bf16.bf16 {{{sums}}}, da, db, 1, 1, 1, 0, 0;")
    lines.append("wgmma.commit_group.sync.aligned;")
    if waits:
        lines.append(f"wgmma.wait_group.sync.aligned {waits};")
    return "\n".join([*lines, "}"])


@gluon.jit
def following(stage, phase, STAGES: gl.constexpr):
    last = stage == STAGES - 1
    return gl.where(last, 0, stage + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def corner_of(tile, tiles_m, tiles_n, extents, FIXED: gl.constexpr):
    M, N, _, GROUP_SIZE_M = extents
    row, column = grouped(tile, tiles_m, tiles_n, GROUP_SIZE_M)
    if FIXED.SHARE_B:
        row = row * FIXED.CTAS + cluster.rank_of(FIXED.CTAS)
    else:
        column = column * FIXED.CTAS + cluster.rank_of(FIXED.CTAS)
    start_m = moved_within(row * FIXED.BLOCK_M, M, FIXED.BLOCK_M)
    start_n = column * FIXED.W
    if FIXED.MOVE_N:
        start_n = moved_within(start_n, N, FIXED.W)
    return start_m, start_n


@gluon.jit
def tiles_of(M, N, FIXED: gl.constexpr):
    DOWN: gl.constexpr = FIXED.CTAS if FIXED.SHARE_B else 1
    ACROSS: gl.constexpr = 1 if FIXED.SHARE_B else FIXED.CTAS
    return count_blocks(M, FIXED.BLOCK_M * DOWN), count_blocks(N, FIXED.W * ACROSS)


@gluon.jit
def segments_of(tiles, FIXED: gl.constexpr):
    """How many segments a program has: whole tiles, and with STREAM a head, a possible whole tile, and a tail."""
    if FIXED.STREAM:
        count = max(tiles // gl.num_programs(0) - 1, 0) + 4
    else:
        count = (tiles - gl.program_id(0) + gl.num_programs(0) - 1) // gl.num_programs(0)
    return count


@gluon.jit
def segment(index, tiles, steps, FIXED: gl.constexpr):
    """A segment's tile, and its range of steps, which may be empty."""
    program = gl.program_id(0)
    programs = gl.num_programs(0)
    if FIXED.STREAM:
        whole = max(tiles // programs - 1, 0)
        shared = tiles - whole * programs
        begin = (shared * steps * program) // programs
        end = (shared * steps * (program + 1)) // programs
        a = begin // steps
        b = end // steps
        a_from = begin - a * steps
        b_to = end - b * steps
        middle = a + (a_from > 0).to(gl.int32)
        # The order is: head, whole tiles, up to two whole tiles among the shared ones, tail.
        tile = shared + (index - 1) * programs + program
        first = 0
        beyond = steps
        among = (index == whole + 1) | (index == whole + 2)
        tail = index == whole + 3
        tile = gl.where(index == 0, b, gl.where(among, middle + index - whole - 1, gl.where(tail, a, tile)))
        first = gl.where(tail, gl.where(a_from > 0, a_from, steps), first)
        beyond = gl.where(index == 0, b_to, gl.where(among & (tile >= b), 0, beyond))
    else:
        tile = program + index * programs
        first = 0
        beyond = steps
    return tile, first, beyond


@gluon.jit
def load_box(b_desc, start_n, step, barrier, b_buffers, stage, BOX: gl.constexpr, FIXED: gl.constexpr):
    """Load one of the boxes of B's rows: those of W's binary digits lie one after the other, the largest first."""
    if (FIXED.W & BOX) > 0:
        BEFORE: gl.constexpr = FIXED.W & ~(2 * BOX - 1)
        at = [start_n + BEFORE, step * 64]
        buffer = b_buffers.index(stage * (FIXED.W // 16) + BEFORE // 16)
        box = buffer._reinterpret(gl.bfloat16, [BOX, 64], b_desc.layout)
        if FIXED.CTAS > 1 and FIXED.SHARE_B:
            async_load(b_desc, at, barrier, box, multicast=True)
        else:
            async_load(b_desc, at, barrier, box)


@gluon.jit
def fill(extents, a_buffers, b_buffers, barriers, a_desc, b_descs, FIXED: gl.constexpr):
    """The loading warp."""
    M, N, K, _ = extents
    ready, free = barriers
    STAGE_BYTES: gl.constexpr = (FIXED.BLOCK_M + FIXED.W) * 64 * 2
    A_PARTS: gl.constexpr = FIXED.BLOCK_M // FIXED.A_BOX
    B_PARTS: gl.constexpr = FIXED.W // 16
    A_SHARED: gl.constexpr = FIXED.CTAS > 1 and not FIXED.SHARE_B
    B_SHARED: gl.constexpr = FIXED.CTAS > 1 and FIXED.SHARE_B
    tiles_m, tiles_n = tiles_of(M, N, FIXED)
    tiles = tiles_m * tiles_n
    steps = count_blocks(K, 64)
    if FIXED.CTAS > 1:
        cluster.meet()
    await_predecessor(FIXED.PDL)
    stage = 0
    phase = 1
    for index in range(segments_of(tiles, FIXED)):
        tile, first, beyond = segment(index, tiles, steps, FIXED)
        start_m, start_n = corner_of(tile, tiles_m, tiles_n, extents, FIXED)
        for step in range(first, beyond):
            barrier = ready.index(stage)
            cluster.await_free(free, stage, phase, FIXED.CTAS)
            mbarrier.expect(barrier, STAGE_BYTES)
            for part in gl.static_range(A_PARTS):
                at = [start_m + part * FIXED.A_BOX, step * 64]
                if A_SHARED:
                    async_load(a_desc, at, barrier, a_buffers.index(stage * A_PARTS + part), multicast=True)
                else:
                    async_load(a_desc, at, barrier, a_buffers.index(stage * A_PARTS + part))
            for bit in gl.static_range(5):
                load_box(b_descs[bit], start_n, step, barrier, b_buffers, stage, 256 >> bit, FIXED)
            stage, phase = following(stage, phase, FIXED.STAGES)
    if FIXED.CTAS > 1:
        for _ in range(FIXED.STAGES):
            cluster.await_free(free, stage, phase, FIXED.CTAS)
            stage, phase = following(stage, phase, FIXED.STAGES)


@gluon.constexpr_function
def sums_layout(columns, ctas):
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16], cluster.everywhere(ctas))


@gluon.jit
def shared_address(OFFSET: gl.constexpr):
    base = gl.inline_asm_elementwise("mov.u32 $0, global_smem;", "=r", [], gl.int32, is_pure=True, pack=1)
    return base + OFFSET


@gluon.jit
def descriptor_of(address):
    """wgmma's matrix descriptor of a tile with rows of 128 bytes, swizzled: 1,024 bytes between groups of eight rows."""
    FLAGS: gl.constexpr = (1 << 62) | (64 << 32)
    return ((address >> 4) & 0x3FFF).to(gl.int64) | FLAGS


@gluon.jit
def two_joined(left, right, LAYOUT: gl.constexpr):
    ROWS: gl.constexpr = left.shape[0]
    COLUMNS: gl.constexpr = left.shape[1] * 2
    both = gl.join(left, right).permute([0, 2, 1]).reshape([ROWS, COLUMNS])
    return gl.convert_layout(both, LAYOUT, assert_trivial=True)


@gluon.jit
def sixty_four(sums, first: gl.constexpr, FIXED: gl.constexpr):
    """64 columns of the sums as one tensor."""
    LAYOUT: gl.constexpr = sums_layout(64, FIXED.CTAS)
    if FIXED.CHUNK == 32:
        joined = two_joined(sums[first], sums[first + 1], LAYOUT)
    else:
        HALF: gl.constexpr = sums_layout(32, FIXED.CTAS)
        joined = two_joined(
            two_joined(sums[first], sums[first + 1], HALF), two_joined(sums[first + 2], sums[first + 3], HALF), LAYOUT
        )
    return joined


PLACE = gl.constexpr(
    "mov.u32 thread, %tid.x; and.b32 thread, thread, 127; mul.wide.u32 at, thread, 16; add.s64 at, at, "
)
"""A thread's own 16 bytes of each 2,048 of its warpgroup's part. The same thread of another program reads them."""


@gluon.constexpr_function
def storing(count):
    lines = ["{ .reg .u32 thread; .reg .u64 at;", f"{PLACE.value}${2 * count};"]
    for quad in range(count // 4):
        four = ", ".join(f"${count + 4 * quad + i}" for i in range(4))
        lines.append(f"st.global.v4.f32 [at+{2048 * quad}], {{{four}}};")
    return "\n".join([*lines, *(f"mov.u32 ${i}, 0;" for i in range(count)), "}"])


@gluon.constexpr_function
def stored(count):
    return ",".join(["=r"] * count + ["f"] * count + ["l"] * count)


@gluon.constexpr_function
def adding(count):
    lines = ["{ .reg .u32 thread; .reg .u64 at;", f".reg .f32 x<{count}>;", f"{PLACE.value}${2 * count};"]
    for quad in range(count // 4):
        four = ", ".join(f"x{4 * quad + i}" for i in range(4))
        lines.append(f"ld.global.cg.v4.f32 {{{four}}}, [at+{2048 * quad}];")
    return "\n".join([*lines, *(f"add.f32 ${i}, ${i}, x{i};" for i in range(count)), "}"])


@gluon.constexpr_function
def added(count):
    return ",".join(["=f"] * count + [str(i) for i in range(count)] + ["l"] * count)


@gluon.jit
def store_parts(sums, room, FIXED: gl.constexpr):
    """Store a warpgroup's 64 rows of sums (gl.store would do so in a cluster's first block alone)."""
    PACK: gl.constexpr = FIXED.CHUNK // 2
    for chunk in gl.static_range(FIXED.W // FIXED.CHUNK):
        at = (room + chunk * 64 * FIXED.CHUNK).to(gl.int64)
        gl.inline_asm_elementwise(storing(PACK), stored(PACK), [sums[chunk], at], gl.int32, is_pure=False, pack=PACK)


@gluon.jit
def with_parts(sums, room, FIXED: gl.constexpr):
    """The sums of another program added to this one's."""
    PACK: gl.constexpr = FIXED.CHUNK // 2
    total = ()
    for chunk in gl.static_range(FIXED.W // FIXED.CHUNK):
        at = (room + chunk * 64 * FIXED.CHUNK).to(gl.int64)
        both = gl.inline_asm_elementwise(
            adding(PACK), added(PACK), [sums[chunk], at], gl.float32, is_pure=False, pack=PACK
        )
        total = total + (both,)
    return total


@gluon.jit
def await_flag(flag):
    gl.inline_asm_elementwise(
        """{
            .reg .pred missing; .reg .u32 found;
            again:
            ld.acquire.gpu.global.u32 found, [$1];
            setp.eq.u32 missing, found, 0;
            @missing bra again;
            mov.u32 $0, 0;
        }""",
        *("=r,l", [flag.to(gl.int64)], gl.int32),
        is_pure=False,
        pack=1,
    )


@gluon.jit
def signal_flag(flag, value):
    """One thread of the warpgroup stores the flag, after all have stored their parts."""
    gl.barrier()
    gl.inline_asm_elementwise(
        """{
            .reg .pred first; .reg .u32 thread;
            mov.u32 thread, %tid.x;
            and.b32 thread, thread, 127;
            setp.eq.u32 first, thread, 0;
            @first st.release.gpu.global.u32 [$1], $2;
            mov.u32 $0, 0;
        }""",
        *("=r,l,r", [flag.to(gl.int64), gl.to_tensor(value)], gl.int32),
        is_pure=False,
        pack=1,
    )


@gluon.jit
def multiply(extents, barriers, c_desc, rest_desc, out_buffers, parts, WARPGROUP: gl.constexpr, FIXED: gl.constexpr):
    """A multiplying warpgroup."""
    M, N, K, _ = extents
    ready, free = barriers
    W: gl.constexpr = FIXED.W
    SUBS: gl.constexpr = get(FIXED, "SUBS")
    CHUNKS: gl.constexpr = get(FIXED, "CHUNKS")
    CHUNK: gl.constexpr = FIXED.CHUNK
    PACK: gl.constexpr = CHUNK // 2
    LAYOUT: gl.constexpr = sums_layout(CHUNK, FIXED.CTAS)
    FIRST: gl.constexpr = WARPGROUP * SUBS * 64
    WIDE: gl.constexpr = W // 64  # blocks of 64 columns; the rest is stored chunk by chunk
    DTYPES: gl.constexpr = floats(CHUNKS)
    tiles_m, tiles_n = tiles_of(M, N, FIXED)
    tiles = tiles_m * tiles_n
    steps = count_blocks(K, 64)
    if FIXED.CTAS > 1:
        cluster.meet()
    a_base = shared_address(FIXED.A_OFFSET + FIRST * 128)
    b_base = shared_address(FIXED.B_OFFSET)
    stage = 0
    phase = 0
    for index in range(segments_of(tiles, FIXED)):
        tile, first, beyond = segment(index, tiles, steps, FIXED)
        start_m, start_n = corner_of(tile, tiles_m, tiles_n, extents, FIXED)
        start_m += FIRST
        zeros = gl.zeros((64, CHUNK), gl.float32, LAYOUT)
        sums = (zeros,) * CHUNKS
        more = sums
        for step in range(first, beyond):
            mbarrier.wait(ready.index(stage), phase)
            a = descriptor_of(a_base + stage * (FIXED.BLOCK_M * 128))
            b = descriptor_of(b_base + stage * (W * 128))
            if SUBS == 1:
                sums = gl.inline_asm_elementwise(
                    step_ptx(W, PACK, 1), tied_and_two(W // 2, PACK), sums + (a, b), DTYPES, is_pure=False, pack=PACK
                )
            else:
                sums = gl.inline_asm_elementwise(
                    step_ptx(W, PACK, 0), tied_and_two(W // 2, PACK), sums + (a, b), DTYPES, is_pure=False, pack=PACK
                )
                more = gl.inline_asm_elementwise(
                    step_ptx(W, PACK, 2),
                    tied_and_two(W // 2, PACK),
                    more + (a + 512, b),
                    DTYPES,
                    is_pure=False,
                    pack=PACK,
                )
            cluster.release(free, gl.where(stage == 0, FIXED.STAGES - 1, stage - 1), FIXED.CTAS, pred=step > first)
            stage, phase = following(stage, phase, FIXED.STAGES)
        if SUBS == 1:
            sums = gl.inline_asm_elementwise(
                "wgmma.wait_group.sync.aligned 0;", tied(W // 2), sums, DTYPES, is_pure=False, pack=PACK
            )
        else:
            sums = gl.inline_asm_elementwise(
                "wgmma.wait_group.sync.aligned 0;", tied(W // 2), sums, DTYPES, is_pure=False, pack=PACK
            )
            more = gl.inline_asm_elementwise(
                "wgmma.wait_group.sync.aligned 0;", tied(W // 2), more, DTYPES, is_pure=False, pack=PACK
            )
        cluster.release(free, gl.where(stage == 0, FIXED.STAGES - 1, stage - 1), FIXED.CTAS, pred=beyond > first)
        if FIXED.STREAM:
            workspace, flags = parts
            mine = gl.program_id(0) * FIXED.CTAS + cluster.rank_of(FIXED.CTAS)
            ROOM: gl.constexpr = FIXED.BLOCK_M * W
            if (beyond > first) & (beyond < steps):
                room = workspace + mine.to(gl.int64) * ROOM + FIRST * W
                store_parts(sums, room, FIXED)
                if SUBS == 2:
                    store_parts(more, room + 64 * W, FIXED)
                signal_flag(flags + mine * FIXED.WARPGROUPS + WARPGROUP, 1)
            if (beyond == steps) & (beyond > first):
                if first > 0:
                    theirs = mine - FIXED.CTAS
                    room = workspace + theirs.to(gl.int64) * ROOM + FIRST * W
                    await_flag(flags + theirs * FIXED.WARPGROUPS + WARPGROUP)
                    sums = with_parts(sums, room, FIXED)
                    if SUBS == 2:
                        more = with_parts(more, room + 64 * W, FIXED)
                    signal_flag(flags + theirs * FIXED.WARPGROUPS + WARPGROUP, 0)
                write(sums, more, c_desc, rest_desc, out_buffers, start_m, start_n, WARPGROUP, FIXED)
        else:
            write(sums, more, c_desc, rest_desc, out_buffers, start_m, start_n, WARPGROUP, FIXED)
    tma.store_wait(0)


@gluon.jit
def store_one(c, buffer, values, row, column, PENDING: gl.constexpr):
    tma.store_wait(PENDING)
    gl.barrier()
    buffer.store(values)
    fence_async_shared()
    gl.barrier()
    async_store(c, [row, column], buffer)


@gluon.jit
def write(sums, more, c_desc, rest_desc, out_buffers, start_m, start_n, WARPGROUP: gl.constexpr, FIXED: gl.constexpr):
    PIECES: gl.constexpr = pieces_of(FIXED)
    write_rows(sums, c_desc, rest_desc, out_buffers, start_m, start_n, WARPGROUP, 0, FIXED)
    if get(FIXED, "SUBS") == 2:
        write_rows(more, c_desc, rest_desc, out_buffers, start_m + 64, start_n, WARPGROUP, PIECES, FIXED)


@gluon.constexpr_function
def pieces_of(FIXED):
    """Stores of 64 rows: blocks of 64 columns, then chunks."""
    return FIXED.W // 64 + FIXED.W % 64 // FIXED.CHUNK


@gluon.constexpr_function
def pending_of(piece, FIXED):
    """How many stores may be under way before a piece's: an odd number of pieces ends on the buffer that begins."""
    odd = pieces_of(FIXED) * FIXED.SUBS % FIXED.TURNS
    return 0 if piece == 0 and odd else FIXED.TURNS - 1


@gluon.jit
def write_rows(
    sums,
    c_desc,
    rest_desc,
    out_buffers,
    start_m,
    start_n,
    WARPGROUP: gl.constexpr,
    BEFORE: gl.constexpr,
    FIXED: gl.constexpr,
):
    WIDE: gl.constexpr = FIXED.W // 64
    EACH: gl.constexpr = 64 // FIXED.CHUNK
    REST: gl.constexpr = (FIXED.W - WIDE * 64) // FIXED.CHUNK
    TURNS: gl.constexpr = FIXED.TURNS
    for part in gl.static_range(WIDE):
        values = sixty_four(sums, part * EACH, FIXED).to(gl.bfloat16)
        buffer = out_buffers.index(WARPGROUP * TURNS + (BEFORE + part) % TURNS)
        store_one(c_desc, buffer, values, start_m, start_n + part * 64, pending_of(BEFORE + part, FIXED))
    for part in gl.static_range(REST):
        values = sums[WIDE * EACH + part].to(gl.bfloat16)
        buffer = out_buffers.index(WARPGROUP * TURNS + (BEFORE + WIDE + part) % TURNS)
        buffer = buffer._reinterpret(gl.bfloat16, [64, FIXED.CHUNK], rest_desc.layout)
        at = start_n + WIDE * 64 + part * FIXED.CHUNK
        store_one(rest_desc, buffer, values, start_m, at, pending_of(BEFORE + WIDE + part, FIXED))


@gluon.jit(do_not_specialize=["M", "N", "K", "GROUP_SIZE_M"])
def anyw_kernel(
    a_desc,
    b256,
    b128,
    b64,
    b32,
    b16,
    c_desc,
    rest_desc,
    workspace,
    flags,
    M,
    N,
    K,
    GROUP_SIZE_M,
    BLOCK_M: gl.constexpr,
    W: gl.constexpr,
    CHUNK: gl.constexpr,
    WARPGROUPS: gl.constexpr,
    STAGES: gl.constexpr,
    A_BOX: gl.constexpr,
    TURNS: gl.constexpr,
    A_OFFSET: gl.constexpr,
    B_OFFSET: gl.constexpr,
    LOADER_REGISTERS: gl.constexpr,
    MULTIPLIER_REGISTERS: gl.constexpr,
    SHARE_B: gl.constexpr,
    MOVE_N: gl.constexpr,
    STREAM: gl.constexpr,
    PDL: gl.constexpr,
):
    CTAS: gl.constexpr = gl.num_ctas()
    IDLE: gl.constexpr = 0 if CTAS == 1 else 3
    a_buffers = gl.allocate_shared_memory(gl.bfloat16, [STAGES * (BLOCK_M // A_BOX), A_BOX, 64], a_desc.layout)
    b_buffers = gl.allocate_shared_memory(gl.bfloat16, [STAGES * (W // 16), 16, 64], a_desc.layout)
    out_buffers = gl.allocate_shared_memory(gl.bfloat16, [TURNS * WARPGROUPS, 64, 64], c_desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, CTAS], cluster.barriers_of(CTAS))
    if CTAS == 1:
        free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], cluster.barriers_of(CTAS))
    else:
        free = cluster.free_barriers(STAGES, WARPGROUPS, CTAS)
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        if CTAS == 1:
            mbarrier.init(free.index(stage), count=WARPGROUPS)
    if CTAS > 1:
        cluster.publish_barriers()
    fence_async_shared()
    FIXED: gl.constexpr = fixed(
        BLOCK_M, W, CHUNK, WARPGROUPS, STAGES, A_BOX, TURNS, A_OFFSET, B_OFFSET, CTAS, SHARE_B, MOVE_N, STREAM, PDL
    )
    extents = (M, N, K, GROUP_SIZE_M)
    barriers = (ready, free)
    parts = (workspace, flags)
    LOADERS: gl.constexpr = [LOADER_REGISTERS] * (1 + IDLE)
    if WARPGROUPS == 2:
        gl.warp_specialize(
            [
                (multiply, (extents, barriers, c_desc, rest_desc, out_buffers, parts, 0, FIXED)),
                (multiply, (extents, barriers, c_desc, rest_desc, out_buffers, parts, 1, FIXED)),
                (fill, (extents, a_buffers, b_buffers, barriers, a_desc, (b256, b128, b64, b32, b16), FIXED)),
            ]
            + [(cluster.idle, ())] * IDLE,
            [4, 1] + [1] * IDLE,
            [MULTIPLIER_REGISTERS] + LOADERS,
        )
    else:
        gl.warp_specialize(
            [
                (multiply, (extents, barriers, c_desc, rest_desc, out_buffers, parts, 0, FIXED)),
                (multiply, (extents, barriers, c_desc, rest_desc, out_buffers, parts, 1, FIXED)),
                (multiply, (extents, barriers, c_desc, rest_desc, out_buffers, parts, 2, FIXED)),
                (fill, (extents, a_buffers, b_buffers, barriers, a_desc, (b256, b128, b64, b32, b16), FIXED)),
            ]
            + [(cluster.idle, ())] * IDLE,
            [4, 4, 1] + [1] * IDLE,
            [MULTIPLIER_REGISTERS, MULTIPLIER_REGISTERS] + LOADERS,
        )
