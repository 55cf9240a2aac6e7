"""The variants by name, and how each is launched."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

ELEMENTS = {torch.float8_e4m3fn: gl.float8e4nv, torch.bfloat16: gl.bfloat16, torch.float32: gl.float32}


@dataclass(frozen=True)
class Variant:
    bm: int
    bn: int
    stages: int
    mode: str = "plain"
    warpgroups: int = 2
    ctas: int = 1
    share_b: bool = False
    swapped: bool = False
    store_n: int = 64
    turns: int = 1
    group: int = 16
    depth: int = 2
    resident: int = 1
    a_loaded: bool = False
    registers: tuple[int, int, int] = (168, 40, 232)


VARIANTS = {
    # Scales through the ring alone; then what turns, or a second set of products, add.
    "staged": Variant(128, 128, 6),
    "order": Variant(128, 128, 6, "order"),
    "double": Variant(128, 128, 6, "double", registers=(168, 40, 232)),
    "double4": Variant(128, 128, 6, "double", depth=4, registers=(168, 40, 232)),
    # Wider tiles: 25% less from the L2 a product.
    "wide": Variant(128, 256, 4, store_n=64),
    "wide_order": Variant(128, 256, 4, "order", store_n=64),
    "wide_loaded": Variant(128, 256, 4, "order", a_loaded=True),
    "tall_order": Variant(256, 128, 4, "order", store_n=64),
    # Pairs that share B's loads (rows next to each other), or A's.
    "pair": Variant(128, 128, 6, ctas=2, share_b=True),
    "pair_order": Variant(128, 128, 6, "order", ctas=2, share_b=True),
    "pair_double": Variant(128, 128, 6, "double", ctas=2, share_b=True, registers=(168, 40, 232)),
    "pair_double4": Variant(128, 128, 6, "double", depth=4, ctas=2, share_b=True, registers=(168, 40, 232)),
    "pair_a_double": Variant(128, 128, 6, "double", ctas=2, share_b=False, registers=(168, 40, 232)),
    "pair_wide_order": Variant(128, 256, 4, "order", ctas=2, share_b=True, store_n=64),
    # One stage less for a second buffer through which to store: matters where K is short.
    "order_stores": Variant(128, 128, 5, "order", turns=2),
    "double4_stores": Variant(128, 128, 5, "double", turns=2, depth=4),
    "pair_double4_stores": Variant(128, 128, 5, "double", turns=2, depth=4, ctas=2, share_b=True),
    # Upper bounds without scales, whose results are wrong.
    "bare": Variant(128, 128, 6, "bare"),
    "bare_wide": Variant(128, 256, 4, "bare"),
    "bare_pair": Variant(128, 128, 6, "bare", ctas=2, share_b=True),
}
SMALL = {
    64: {
        "rows": Variant(64, 64, 12, warpgroups=1, group=1, registers=(128, 40, 0)),
        "rows_double4": Variant(64, 64, 12, "double", warpgroups=1, group=1, depth=4, registers=(128, 40, 0)),
        "swap": Variant(64, 64, 12, warpgroups=1, swapped=True, store_n=64, group=1, registers=(128, 40, 0)),
        "swap_double": Variant(
            64, 64, 12, "double", warpgroups=1, swapped=True, store_n=64, group=1, registers=(128, 40, 0)
        ),
        "narrow": Variant(64, 32, 8, warpgroups=1, store_n=32, group=1, registers=(128, 40, 0), resident=2),
        "swap_bare": Variant(
            64, 64, 12, "bare", warpgroups=1, swapped=True, store_n=64, group=1, registers=(128, 40, 0)
        ),
        "swap_apart": Variant(64, 64, 11, "apart", swapped=True, store_n=64, group=1),
    },
    128: {
        "rows": Variant(128, 64, 8, group=1),
        "rows_double4": Variant(128, 64, 8, "double", group=1, depth=4),
        "swap": Variant(64, 128, 8, warpgroups=1, swapped=True, group=1, registers=(128, 40, 0)),
        "narrow": Variant(128, 32, 5, warpgroups=1, store_n=32, group=1, registers=(128, 40, 0), resident=2),
        "swap_apart": Variant(64, 128, 7, "apart", swapped=True, group=1),
    },
}


def described(matrix, block, ctas=1, swizzled=True):
    """A descriptor of a row-major matrix."""
    everywhere = [[0, 0]] * (ctas.bit_length() - 1)
    if swizzled:
        layout = gl.NVMMASharedLayout.get_default_for(list(block), ELEMENTS[matrix.dtype], cga_layout=everywhere)
    else:
        layout = gl.NVMMASharedLayout(0, 32, rank=2, cga_layout=everywhere)
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), list(block), layout)


def prepare(v: Variant, a, b, scale_a, scale_b, out, multiprocessors=132, pdl=True):
    """The grid, arguments and keywords of a launch.

    a: [M, K] row-major. b: [K, N], a view of the weight [N, K]. scale_a: [M, K/128], columns contiguous. scale_b:
    [K/128, N/128], a view of [N/128, K/128] with contiguous rows. out: [M, N].
    """
    m, k = a.shape
    n = b.shape[1]
    assert k % 512 == 0, "scales of the weight are loaded by TMA: their rows are multiples of 16 bytes"
    assert m % 4 == 0
    weight, fine, coarse = b.t(), scale_a.t(), scale_b.t()
    assert fine.stride(1) == 1 and coarse.stride(1) == 1, (fine.stride(), coarse.stride())
    left, right, rows, columns = (weight, a, n, m) if v.swapped else (a, weight, m, n)
    parts = v.warpgroups if v.ctas > 1 else 1
    side = v.bm if v.swapped else v.bn
    block_c = (v.store_n, 64) if v.swapped else (64, v.store_n)
    arguments = (
        described(left, (v.bm // parts, 128), v.ctas),
        described(right, (min(v.bn, 128), 128), v.ctas),
        described(fine, (1, v.bn if v.swapped else v.bm // parts), v.ctas, swizzled=False),
        described(coarse, (max(1, side // 128), 32), v.ctas, swizzled=False),
        described(out, block_c, v.ctas),
        rows,
        columns,
        k,
        v.group,
    )
    down, across = (v.ctas, 1) if v.share_b else (1, v.ctas)
    tiles = -(-rows // (v.bm * down)) * -(-columns // (v.bn * across))
    grid = (min(tiles, v.resident * multiprocessors // v.ctas),)
    keywords = {
        "BLOCK_SIZE_M": v.bm,
        "BLOCK_SIZE_N": v.bn,
        "STAGES": v.stages,
        "WARPGROUPS": v.warpgroups,
        "SHARE_B": v.share_b,
        "SWAPPED": v.swapped,
        "MODE": v.mode,
        "STORE_N": v.store_n,
        "TURNS": v.turns,
        "PDL": pdl,
        "DEPTH": v.depth,
        "A_LOADED": v.a_loaded,
        "LOADER_REGISTERS": v.registers[1],
        "MULTIPLIER_REGISTERS": v.registers[2],
        "num_warps": 4,
        "maxnreg": v.registers[0],
        "num_ctas": v.ctas,
        "launch_pdl": pdl,
    }
    return grid, arguments, keywords


def of(m: int) -> dict[str, Variant]:
    return SMALL.get(m, VARIANTS)


def named(name: str, m: int) -> Variant:
    """A variant by its name, which may end in "@8" for another GROUP_SIZE_M (a run-time argument)."""
    plain, _, group = name.partition("@")
    found = of(m)[plain]
    return replace(found, group=int(group)) if group else found


GROUPS = (
    "staged@4",
    "double4@4",
    "wide_order@8",
    "wide_loaded@4",
    "wide_loaded@8",
    "pair_double4@8",
    "pair_wide_order@8",
)


def operands(m, n, k, device="cuda", seed=0):
    """Random operands as `Problem(scaling="block")` has them."""
    torch.manual_seed(seed)
    if device == "meta":
        f8, f32 = {"dtype": torch.float8_e4m3fn, "device": "meta"}, {"dtype": torch.float32, "device": "meta"}
        return (
            torch.empty(m, k, **f8),
            torch.empty(n, k, **f8).t(),
            torch.empty(k // 128, m, **f32).t(),
            torch.empty(n // 128, k // 128, **f32).t(),
            torch.empty(m, n, dtype=torch.bfloat16, device="meta"),
        )
    a = torch.randn(m, k, device=device).to(torch.float8_e4m3fn)
    weight = torch.randn(n, k, device=device).to(torch.float8_e4m3fn)
    fine = torch.rand(k // 128, m, device=device) + 0.01
    coarse = torch.rand(n // 128, k // 128, device=device) + 0.01
    out = torch.empty(m, n, dtype=torch.bfloat16, device=device)
    return a, weight.t(), fine.t(), coarse.t(), out
