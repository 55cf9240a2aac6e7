"""Host side of bmm_jit."""

from __future__ import annotations

from dataclasses import dataclass

import bmm_jit
import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

SHARED = 232_448  # of a block; a multiprocessor has 1,024 more, and each block takes 1,024 for itself


@dataclass(frozen=True)
class Bmm:
    m: int
    n: int
    groups: int = 2
    pingpong: bool = False
    per_sm: int = 1
    part: int = 64
    group: int = 1
    stages: int = 0
    pdl: bool = True
    nt: bool = True
    programs: int = 0  # of a multiprocessor, if fewer than fit: the next launch's may start beside them

    @property
    def rows(self):
        return self.m if self.pingpong else self.m // self.groups

    @property
    def turns(self):
        return 2 if self.n > self.part else 1

    @property
    def depth(self):
        each = (SHARED + 1024) // self.per_sm - 1024
        other = self.turns * self.groups * self.rows * self.part * 2 + 512
        return self.stages or min(8, (each - other) // ((self.m + self.n) * 128 + 16))

    @property
    def name(self):
        shape = f"{self.m}x{self.n} wg{self.groups} s{self.depth} x{self.per_sm} p{self.part} g{self.group}"
        shape += " beside" if self.programs else ""
        return shape + (" pingpong" if self.pingpong else "") + ("" if self.nt else " nn")

    def constants(self):
        loader, multiplier = (40, 232) if self.groups == 2 else (40, 0)
        return {
            "BLOCK_M": self.m,
            "BLOCK_N": self.n,
            "PART": self.part,
            "WARPGROUPS": self.groups,
            "STAGES": self.depth,
            "TURNS": self.turns,
            "PINGPONG": self.pingpong,
            "B_TRANSPOSED": self.nt,
            "LOADER_REGISTERS": loader,
            "MULTIPLIER_REGISTERS": multiplier,
            "PDL": self.pdl,
        }

    def options(self):
        if self.groups == 2:
            most = 168 if self.per_sm == 1 else 80
        else:  # 8 warps a program are counted: 4 that multiply, 4 of which one loads
            most = {1: 168, 2: 128, 3: 96}[self.per_sm]  # 3: 12 * 96 * 64 registers fit
        return {"num_warps": 4, "maxnreg": most, "launch_pdl": self.pdl}


def laid_out(batch, rows, columns):
    layout = gl.NVMMASharedLayout.get_default_for([1, rows, columns], gl.bfloat16)
    return TensorDescriptor(batch, list(batch.shape), list(batch.stride()), [1, rows, columns], layout)


def arguments(config, a, b, c):
    """b as stored: [batch, N, K] if nt, else [batch, K, N]."""
    count, m, k = a.shape
    n = c.shape[2]
    tiles = count * -(-m // config.m) * -(-n // config.n)
    rows = -(-m // config.m)
    b_box = (config.n, 64) if config.nt else (64, config.n)
    return (min(tiles, 132 * (config.programs or config.per_sm)),), (
        laid_out(a, config.m, 64),
        laid_out(b, *b_box),
        laid_out(c, config.rows, config.part),
        m,
        n,
        k,
        count,
        min(config.group, rows),
    )


def launch(config, a, b, c):
    grid, args = arguments(config, a, b, c)
    return bmm_jit.bmm_kernel[grid](*args, **config.constants(), **config.options())


def warm(config):
    a = torch.empty(64, 512, 64, dtype=torch.bfloat16, device="meta")
    b = torch.empty(64, 512, 64, dtype=torch.bfloat16, device="meta")
    c = torch.empty(64, 512, 512, dtype=torch.bfloat16, device="meta")
    if not config.nt:
        b, c = b.new_empty(64, 64, 64), c.new_empty(64, 512, 64)
    grid, args = arguments(config, a, b, c)
    return bmm_jit.bmm_kernel.warmup(*args, grid=grid, **config.constants(), **config.options())
