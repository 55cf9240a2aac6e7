"""What each GPU architecture can do: one table, which everything else asks by name.

A new architecture is a new entry of `ARCHES`, and its tests. What differs between two GPU models of one architecture
(multiprocessors, memory, clocks) belongs to `tuner.hardware.device.Device`.

Sources, unless a field says otherwise: CUDA C++ Programming Guide, technical specifications per compute capability;
CUDA Occupancy Calculator, allocation units; NVIDIA's architecture white papers (A100, GA102, Ada, H100, Blackwell); AMD
CDNA3 and CDNA4 ISA guides and white papers; data sheets of the A100-SXM4-80GB, RTX A6000, L40S, H200 SXM, B200 (HGX),
RTX 5090, MI300X and MI355X for clocks and bandwidth.
"""

from __future__ import annotations

import functools
from typing import NamedTuple


class Arch(NamedTuple):
    """What one architecture can do; a multiprocessor is a compute unit on AMD.

    Attributes:
        name: "sm_90", "gfx942".
        clock_mhz, memory_gb_per_s: highest clock and peak bandwidth, for a device whose driver did not say.
        sustained: share of the highest clock that holds while the tensor cores are busy.
        macs: dense 16-bit multiply-adds of one multiprocessor a cycle.
        mma_sync_share: share of `macs` that operands in registers reach (mma.sync, MFMA).
        shared_bytes: shared memory (LDS) that one block may opt in to.
        reserved_bytes: shared memory that the system takes for each block besides.
        shared_unit: shared memory is given to a block in multiples of this.
        registers: 32-bit registers of a multiprocessor.
        register_unit: registers are given to a warp (AMD: to a lane) in multiples of this.
        thread_registers: the most registers of one thread.
        warps, blocks: the most that reside on a multiprocessor at once.
        warp_size: threads of a warp.
        supported: whether the kernels are compiled and tested for it, or for one that it is compatible with.
        wgmma: Hopper's matrix instruction, which reads shared memory and sums in registers.
        tcgen05: datacenter Blackwell's, which sums in tensor memory.
        tma: tensor descriptors (the copy engine).
        pdl: programmatic dependent launch (PTX griddepcontrol) and L2 prefetches (cp.async.bulk.prefetch.L2).
        clusters: blocks that share a tile or loads.
        fp8: which 8-bit floats matrix instructions take: "ocp" (e4m3fn, e5m2), "fnuz", or "" for none.
        tf32: whether matrix instructions take tf32.
        kpack: whether Triton's backend packs two steps along K for one matrix instruction.
        copies_to_lds: whether Triton's HIP pipeliner copies straight to LDS, with a buffer a stage.
    """

    name: str
    clock_mhz: int
    memory_gb_per_s: int
    macs: int
    shared_bytes: int
    warps: int
    blocks: int
    sustained: float = 1.0
    mma_sync_share: float = 0.6
    reserved_bytes: int = 1024
    shared_unit: int = 128
    registers: int = 65_536
    register_unit: int = 256
    thread_registers: int = 255
    warp_size: int = 32
    supported: bool = True
    wgmma: bool = False
    tcgen05: bool = False
    tma: bool = False
    pdl: bool = False
    clusters: bool = False
    fp8: str = ""
    tf32: bool = True
    kpack: bool = False
    copies_to_lds: bool = False

    @property
    def reads_shared(self) -> bool:
        """Whether a matrix instruction reads its operands from shared memory by itself: wgmma or tcgen05."""
        return self.wgmma or self.tcgen05

    @property
    def threads(self) -> int:
        """The most threads that reside on a multiprocessor."""
        return self.warps * self.warp_size


SIMDS = 4
"""Parts of a multiprocessor, each with its share of the registers, that a block's warps are spread over."""

_SM_80 = Arch(name="sm_80", clock_mhz=1410, memory_gb_per_s=2039, macs=1024, shared_bytes=166_912, warps=64, blocks=32)
_SM_89 = Arch(
    name="sm_89",
    clock_mhz=2520,
    memory_gb_per_s=864,
    macs=512,
    shared_bytes=101_376,
    warps=48,
    blocks=24,
    fp8="ocp",
)
_SM_90 = Arch(
    name="sm_90",
    clock_mhz=1980,
    memory_gb_per_s=4800,
    sustained=1755 / 1980,  # fitted on an H200
    macs=2048,
    mma_sync_share=0.15,  # fitted on an H200
    shared_bytes=232_448,
    warps=64,
    blocks=32,
    wgmma=True,
    tma=True,
    pdl=True,
    clusters=True,
    fp8="ocp",
)
_SM_100 = _SM_90._replace(
    name="sm_100",
    clock_mhz=1965,
    memory_gb_per_s=8000,
    sustained=0.94,  # 2,250 TFLOP/s of the data sheet are 1,850 MHz
    macs=4096,
    mma_sync_share=0.6,
    wgmma=False,
    tcgen05=True,
)
_GFX942 = Arch(
    name="gfx942",
    clock_mhz=2100,
    memory_gb_per_s=5300,
    macs=1024,
    shared_bytes=65_536,
    reserved_bytes=0,
    shared_unit=512,
    registers=131_072,
    register_unit=8,
    thread_registers=512,
    warps=32,
    blocks=16,
    warp_size=64,
    fp8="fnuz",
    kpack=True,
)

ARCHES = {
    arch.name: arch
    for arch in (
        _SM_80,
        # The GA10x white paper: half the rate of the A100's multiprocessor; the A6000's clock and memory.
        _SM_89._replace(name="sm_86", clock_mhz=1800, memory_gb_per_s=768, blocks=16, fp8=""),
        _SM_89,
        _SM_90,
        _SM_100,
        _SM_100._replace(name="sm_103", clock_mhz=2032),
        # Consumer Blackwell multiplies as Ada does, by mma.sync; it has TMA, but no clusters of more than one block.
        _SM_89._replace(name="sm_120", clock_mhz=2407, memory_gb_per_s=1792, tma=True, pdl=True),
        _GFX942,
        _GFX942._replace(
            name="gfx950",
            clock_mhz=2400,
            memory_gb_per_s=8000,
            macs=2048,
            shared_bytes=163_840,
            shared_unit=1280,
            fp8="ocp",
            tf32=False,
            kpack=False,
            copies_to_lds=True,
        ),
    )
}
"""By name."""


@functools.cache
def of(name: str) -> Arch:
    """The architecture of that name; of one that the table lacks, what is safe to rely on there.

    A newer NVIDIA architecture runs whatever PTX is portable: TMA and dependent launches from 9.0 on, but neither wgmma
    nor tcgen05, which belong to one generation each. Its shared memory is the least of any, 48 KiB, until a driver says
    more. Older ones than 8.0, and AMD's others, are not supported.
    """
    if name in ARCHES:
        return ARCHES[name]
    if name.startswith("gfx"):
        return _GFX942._replace(name=name, shared_bytes=49_152, fp8="", tf32=False, kpack=False, supported=False)
    capability = int(name[3:]) if name.startswith("sm_") and name[3:].isdigit() else 0
    return Arch(
        name=name,
        clock_mhz=1700,
        memory_gb_per_s=2100,
        macs=1024,
        shared_bytes=49_152,
        warps=48,
        blocks=16,
        supported=capability >= 80,
        tma=capability >= 90,
        pdl=capability >= 90,
        fp8="ocp" if capability >= 89 else "",
    )
