"""Host side of anyw_jit: configs, descriptors, launches, and the check of the ring's offsets."""

from __future__ import annotations

import re
from dataclasses import dataclass

import anyw_jit
import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tuner.kernels.gemm.hopper.cluster import everywhere

SHARED = 232_448


@dataclass(frozen=True)
class Any:
    rows: int
    width: int
    groups: int = 2  # multiplying warpgroups
    group: int = 16
    ctas: int = 1
    share_b: bool = False
    stream: bool = False
    move_n: bool = True
    stages: int = 0
    pdl: bool = True

    @property
    def chunk(self):
        return 32 if self.width % 32 == 0 else 16

    @property
    def a_box(self):
        return {128: 128, 192: 64, 256: 256}[self.rows] if self.ctas == 1 else 64

    def fitting(self, turns):
        other = self.groups * turns * 8192 + 640 + (1024 if self.ctas > 1 else 0)
        return min(8, (SHARED - other) // ((self.rows + self.width) * 128 + 16))

    @property
    def turns(self):
        """Two buffers for storing, unless a single one allows one more stage of fewer than five."""
        return 1 if self.fitting(1) > self.fitting(2) and self.fitting(2) < 4 else 2

    @property
    def depth(self):
        return self.stages or self.fitting(self.turns)

    @property
    def name(self):
        return (
            f"{self.rows}x{self.width} wg{self.groups} s{self.depth} g{self.group}"
            + (f" pair{'B' if self.share_b else 'A'}" if self.ctas > 1 else "")
            + (" stream" if self.stream else "")
            + ("" if self.move_n else " still")
        )

    def constants(self):
        loader, multiplier = {2: (40, 232), 3: (32, 160)}[self.groups]
        return {
            "BLOCK_M": self.rows,
            "W": self.width,
            "CHUNK": self.chunk,
            "WARPGROUPS": self.groups,
            "STAGES": self.depth,
            "A_BOX": self.a_box,
            "TURNS": self.turns,
            **self.offsets(),
            "LOADER_REGISTERS": loader,
            "MULTIPLIER_REGISTERS": multiplier,
            "SHARE_B": self.share_b,
            "MOVE_N": self.move_n,
            "STREAM": self.stream,
            "PDL": self.pdl,
        }

    def offsets(self):
        """Triton's allocator puts the largest buffer first (seen in 3.7.1; `try1.py` looks again)."""
        a, b = self.depth * self.rows * 128, self.depth * self.width * 128
        return {"A_OFFSET": b, "B_OFFSET": 0} if b > a else {"A_OFFSET": 0, "B_OFFSET": a}

    def options(self):
        return {
            "num_warps": 4,
            "maxnreg": {2: 168, 3: 128}[self.groups],
            "launch_pdl": self.pdl,
            **({"num_ctas": self.ctas} if self.ctas > 1 else {}),
        }


def laid_out(matrix, rows, columns, ctas):
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], gl.bfloat16, cga_layout=everywhere(ctas))
    return TensorDescriptor(matrix, list(matrix.shape), [matrix.stride(0), 1], [rows, columns], layout)


def arguments(config, a, bt, c, workspace, flags):
    m, k = a.shape
    n = bt.shape[0]
    down, across = (config.ctas, 1) if config.share_b else (1, config.ctas)
    rows = -(-m // (config.rows * down))
    tiles = rows * -(-n // (config.width * across))
    programs = min(tiles, 132 // config.ctas)
    return (programs,), (
        laid_out(a, config.a_box, 64, config.ctas),
        *(laid_out(bt, box, 64, config.ctas) if config.width & box else None for box in (256, 128, 64, 32, 16)),
        laid_out(c, 64, 64, config.ctas),
        laid_out(c, 64, config.chunk, config.ctas) if config.width % 64 else None,
        workspace if config.stream else None,
        flags if config.stream else None,
        m,
        n,
        k,
        min(config.group, rows),
    )


def workspace_of(config, device):
    return (
        torch.empty(132 * config.rows * config.width, dtype=torch.float32, device=device),
        torch.zeros(132 * config.groups, dtype=torch.int32, device=device),
    )


def launch(config, a, bt, c, workspace, flags):
    grid, args = arguments(config, a, bt, c, workspace, flags)
    return anyw_jit.anyw_kernel[grid](*args, **config.constants(), **config.options())


def warm(config):
    """Compile for the active driver, without tensors."""
    a = torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta")
    c = torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta")
    grid, args = arguments(config, a, a, c, None, None)
    if config.stream:
        args = (*args[:8], torch.float32, torch.int32, *args[10:])
    return anyw_jit.anyw_kernel.warmup(*args, grid=grid, **config.constants(), **config.options())


def found_offsets(llir):
    """The least offset into the dynamic shared memory of what TMA loads, by the descriptor's number among arguments."""
    defs = dict(
        re.findall(
            r"(%[\w.]+) = ((?:tail call|call|getelementptr|select|phi|insert|extract|add|mul|inttoptr|ptrtoint)[^\n]*)",
            llir,
        )
    )

    def base(name, depth=0):
        text = defs.get(name, "")
        if "@global_smem, i32 " in text and (fixed := re.search(r"@global_smem, i32 (\d+)\)", text)):
            return int(fixed[1])
        if "@global_smem" in text:
            return 0
        inner = re.search(r"ptr addrspace\(3\) (%[\w.]+)", text)
        return base(inner[1], depth + 1) if inner and depth < 9 else None

    found = {}
    for line in llir.splitlines():
        if "cp.async.bulk.tensor.2d.shared" in line and "global.mbarrier" in line:
            names = re.findall(r"ptr addrspace\(3\) (%[\w.]+|getelementptr[^)]*\)|@global_smem)", line)
            desc = re.findall(r"ptr (?:nonnull )?(%\w+)", line)
            one = names[0]
            at = base(one) if one.startswith("%") else int((re.search(r"i32 (\d+)", one) or [0, 0])[1])
            found.setdefault(desc[0] if desc else "?", set()).add(at)
    return found
