"""wgmmas of any multiple of 8 columns, written in PTX: steps along K of a tile whose sums are a tuple of tensors.

Gluon's tensors have powers of two columns. So a tile's sums are a tuple of tensors of 8, 16 or 32 columns, and one
wgmma of all columns is written in PTX: its registers are those of the tensors one after the other (PTX ISA, the D
fragment of wgmma .m64nNk16). Its operands are addressed by matrix descriptors, made from the symbol of Triton's shared
memory.

FIXED: a kernel's constants, of which these functions read BLOCK_SIZE_N, WARPGROUPS, A_TRANSPOSED and B_TRANSPOSED.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

ROW_BYTES = gl.constexpr(128)
"""Bytes of one row of a stage along K, one swizzle of shared memory."""
WGMMAS = {"bf16": ("bf16", 16), "fp16": ("f16", 16), "fp8e4nv": ("e4m3", 32), "fp8e5": ("e5m2", 32)}
"""By dtype: its name in PTX, and elements of a wgmma along K."""


@gluon.constexpr_function
def chunk_of(width):  # noqa: ANN201
    """Columns of one tensor of sums."""
    return next(chunk for chunk in (32, 16, 8) if width % chunk == 0)


@gluon.constexpr_function
def several(item, count):  # noqa: ANN201
    """A tuple of equal items."""
    return (item,) * count


@gluon.constexpr_function
def tied(width, descriptors):  # noqa: ANN201
    """The constraints of PTX that changes sums in place and reads so many registers of 64 bits besides."""
    count = width // 2
    return ",".join(["=f"] * count + [str(i) for i in range(count)] + ["l"] * descriptors)


@gluon.constexpr_function
def wgmmas_of(FIXED):  # noqa: ANN201
    """Into how many wgmmas a tile's columns are divided.

    With three multiplying warpgroups a thread has 128 registers at launch, and ptxas refuses an instruction that needs
    more, whatever `setmaxnreg` adds later.
    """
    return 2 if FIXED.WARPGROUPS == 3 and FIXED.BLOCK_SIZE_N > 192 else 1


@gluon.constexpr_function
def majors_of(dtype, FIXED):  # noqa: ANN201
    """The operands of a wgmma that say whether A runs along M, and B along N: those of 8 bits always run along K."""
    along = (int(FIXED.A_TRANSPOSED), int(not FIXED.B_TRANSPOSED))
    return ", {}, {}".format(*along) if WGMMAS[str(dtype)][1] == 16 else ""


@gluon.constexpr_function
def part_units(across):  # noqa: ANN201
    """From one wgmma of a step to the next, in units of 16 bytes: 32 bytes along K, or 16 rows of a chunk."""
    return 16 * 8 if across else 2


@gluon.constexpr_function
def wait_ptx(pending):  # noqa: ANN201
    """PTX of a wait until so many steps are under way."""
    return f"wgmma.wait_group.sync.aligned {pending};"


@gluon.constexpr_function
def step_ptx(dtype, pack, pending, FIXED, anew=False):  # noqa: ANN201
    """PTX of a step of 128 bytes along K: wgmmas for 32 at a time, then a wait until `pending` steps are under way.

    The operands are the sums, then both descriptors, each `pack` times. pending: None not to wait. anew: whether the
    step's products take the sums' place.
    """
    wgmmas, count = wgmmas_of(FIXED), FIXED.BLOCK_SIZE_N // 2
    each = count // wgmmas
    name, length = WGMMAS[str(dtype)]
    lines = [
        "{ .reg .b64 a, b;" if wgmmas == 1 else "{ .reg .b64 a, b, c;",
        f"mov.b64 a, ${2 * count};",
        f"mov.b64 b, ${2 * count + pack};",
        "wgmma.fence.sync.aligned;",
    ]
    for part in range(4):
        if part:
            lines.append(f"add.s64 a, a, {part_units(FIXED.A_TRANSPOSED)};")
            lines.append(f"add.s64 b, b, {part_units(not FIXED.B_TRANSPOSED)};")
        for first in range(0, count, each):
            sums = ", ".join(f"${i}" for i in range(first, first + each))
            if first:
                lines.append(f"add.s64 c, b, {2 * first * 8};")  # a column's 128 bytes are eight such units
            operands = f"{{{sums}}}, a, {'c' if first else 'b'}"
            wgmma = f"wgmma.mma_async.sync.aligned.m64n{2 * each}k{length}.f32.{name}.{name}"
            lines.append(f"{wgmma} {operands}, {int(part > 0 or not anew)}, 1, 1{majors_of(dtype, FIXED)};")
    lines.append("wgmma.commit_group.sync.aligned;")
    if pending is not None:
        lines.append(wait_ptx(pending))
    return "\n".join([*lines, "}"])


@gluon.jit
def multiply_step(  # noqa: ANN201, PLR0917
    sums, a, b, dtype: gl.constexpr, PENDING: gl.constexpr, FIXED: gl.constexpr, ANEW: gl.constexpr = False
):
    """Add a stage's products to 64 rows of sums, or, ANEW, start them in place of what is there."""
    PACK: gl.constexpr = chunk_of(FIXED.BLOCK_SIZE_N) // 2
    return gl.inline_asm_elementwise(
        step_ptx(dtype, PACK, PENDING, FIXED, ANEW),
        tied(FIXED.BLOCK_SIZE_N, 2 * PACK),
        sums + (a, b),
        several(gl.float32, FIXED.BLOCK_SIZE_N // chunk_of(FIXED.BLOCK_SIZE_N)),
        is_pure=False,
        pack=PACK,
    )


@gluon.jit
def complete(sums, FIXED: gl.constexpr, PENDING: gl.constexpr = 0):  # noqa: ANN201
    """Wait for all products of 64 rows of sums, while so many later steps, of others, are under way."""
    return gl.inline_asm_elementwise(
        wait_ptx(PENDING),
        tied(FIXED.BLOCK_SIZE_N, 0),
        sums,
        several(gl.float32, FIXED.BLOCK_SIZE_N // chunk_of(FIXED.BLOCK_SIZE_N)),
        is_pure=False,
        pack=chunk_of(FIXED.BLOCK_SIZE_N) // 2,
    )


@gluon.jit
def ring_address():  # noqa: ANN201
    """The address of the ring, which lies where Triton's shared memory begins."""
    return gl.inline_asm_elementwise("mov.u32 $0, global_smem;", "=r", [], gl.int32, is_pure=True, pack=1)


@gluon.jit
def descriptor_of(address, CHUNKS: gl.constexpr):  # noqa: ANN201
    """wgmma's matrix descriptor of rows of 128 swizzled bytes: 1,024 bytes from one group of eight to the next.

    CHUNKS: whether the operand lies in chunks, 8,192 bytes from one to the next.
    """
    FLAGS: gl.constexpr = (1 << 62) | (64 << 32) | ((512 << 16) if CHUNKS else 0)
    return ((address >> 4) & 0x3FFF).to(gl.int64) | FLAGS
