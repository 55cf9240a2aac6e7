"""Blocks of a binary that reside on a multiprocessor at once, and what keeps more away."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.hardware.arch import ARCHES, SIMDS

SOURCE = {
    "nvidia": "CUDA C++ Programming Guide, technical specifications; CUDA Occupancy Calculator, allocation units",
    "amd": "AMD CDNA3 and CDNA4 ISA guides: 512 registers a lane, 8 waves a SIMD, LDS of a compute unit",
}
"""Of the figures and of the formula, by vendor."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks on a multiprocessor.

    Attributes:
        blocks: how many reside at once.
        by_registers, by_shared, by_warps, by_slots: how many each of these would let in; None where it is not known, or
            nothing is taken.
        warps: the warps of these blocks; at most `most_warps` could reside.
        source: where the formula and its figures come from.
    """

    blocks: int
    by_registers: int | None
    by_shared: int | None
    by_warps: int
    by_slots: int
    warps: int
    most_warps: int
    source: str

    @property
    def by(self) -> dict[str, int | None]:
        """How many blocks each limit would let in, by its name for people."""
        return {
            "registers": self.by_registers,
            "shared memory": self.by_shared,
            "warps": self.by_warps,
            "slots": self.by_slots,
        }

    @property
    def limits(self) -> str:
        """What keeps more blocks away: "registers", "warps", several of them joined by "and"."""
        return " and ".join(name for name, count in self.by.items() if count == self.blocks)


def occupancy(arch: str, *, num_warps: int, registers: int | None, shared_bytes: int) -> Occupancy | None:
    """Blocks of a binary on a multiprocessor; None for an arch that nobody described.

    Registers: a warp gets those of its threads, rounded up to whole units; warps go round the four parts of a
    multiprocessor, each with a quarter of the registers. Shared memory: a block's, rounded up, and what is reserved for
    each. Warps: as many as reside. Slots: blocks that can reside at all. The least of them counts; registers that are
    not known limit nothing.
    """
    has = ARCHES.get(arch)
    if has is None:
        return None
    amd = arch.startswith("gfx")
    taken = _rounded(shared_bytes + has.reserved_bytes, has.shared_unit)
    by_shared = (has.shared_bytes + has.reserved_bytes) // taken if taken else None
    by_registers = None
    if registers is not None:
        if amd:
            of_a_simd = has.registers // SIMDS // has.warp_size // _rounded(max(1, registers), has.register_unit)
        else:
            of_a_warp = _rounded(max(1, registers) * has.warp_size, has.register_unit)
            of_a_simd = has.registers // SIMDS // of_a_warp
        by_registers = of_a_simd * SIMDS // num_warps
    by_warps = has.warps // num_warps
    blocks = min(count for count in (by_registers, by_shared, by_warps, has.blocks) if count is not None)
    source = SOURCE["amd" if amd else "nvidia"]
    return Occupancy(
        blocks, by_registers, by_shared, by_warps, has.blocks, blocks * num_warps, most_warps=has.warps, source=source
    )


def _rounded(value: int, unit: int) -> int:
    return -(-value // unit) * unit
