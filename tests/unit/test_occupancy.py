"""Blocks on a multiprocessor: figures worked out by hand from the vendors' tables."""

from __future__ import annotations

import pytest

from tuner.inspection.occupancy import occupancy


@pytest.mark.parametrize(
    ("arch", "num_warps", "registers", "shared", "blocks", "limits"),
    [
        ("sm_90", 4, 32, 0, 16, "registers and warps"),  # 2,048 threads
        ("sm_90", 8, 187, 196_608, 1, "registers and shared memory"),  # 192 registers a thread: 2 warps a quarter
        ("sm_90", 4, 128, 0, 4, "registers"),  # 512 threads of 128 registers
        ("sm_90", 4, 129, 0, 3, "registers"),  # rounded up to 136: 3 warps a quarter
        ("sm_90", 1, 255, 0, 8, "registers"),  # 256 registers: 2 warps a quarter
        ("sm_90", 1, 16, 0, 32, "slots"),  # 64 warps, 32 slots for blocks
        ("sm_90", 4, 32, 76_800, 3, "shared memory"),  # 3 blocks of 75 KiB and 1 KiB each are all of 228 KiB
        ("sm_90", 4, 32, 76_801, 2, "shared memory"),
        ("sm_80", 4, 40, 82_944, 2, "shared memory"),  # 164 KiB
        ("sm_89", 4, 32, 0, 12, "warps"),  # 48 warps
        ("gfx942", 4, 64, 0, 8, "registers and warps"),  # 512 / 64 registers: 8 waves a SIMD
        ("gfx942", 4, 65, 0, 7, "registers"),  # rounded up to 72
        ("gfx942", 8, 32, 32_768, 2, "shared memory"),
        ("gfx942", 1, 32, 0, 16, "slots"),
    ],
)
def test_the_scarcest_of_registers_shared_memory_and_warps_decides(arch, num_warps, registers, shared, blocks, limits):
    found = occupancy(arch, num_warps=num_warps, registers=registers, shared_bytes=shared)
    assert found is not None
    assert (found.blocks, found.warps) == (blocks, blocks * num_warps)
    assert found.limits == limits
    assert found.source


def test_unknown_registers_limit_nothing_and_an_unknown_arch_has_none():
    found = occupancy("sm_90", num_warps=4, registers=None, shared_bytes=0)
    assert found is not None
    assert (found.blocks, found.by_registers, found.limits) == (16, None, "warps")
    assert occupancy("sm_70", num_warps=4, registers=32, shared_bytes=0) is None
