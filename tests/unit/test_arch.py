"""What architectures can do, and what devices say of themselves."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tuner.hardware import arch
from tuner.hardware.device import INTERPRETER, KNOWN, Device, describe, from_properties

ROOT = Path(__file__).parents[2]
H200 = KNOWN["sm_90"]


def properties(**changed) -> SimpleNamespace:
    """What torch 2.11 says of an H200."""
    said = {
        "name": "NVIDIA H200",
        "major": 9,
        "minor": 0,
        "multi_processor_count": 132,
        "total_memory": H200.memory_bytes,
        "L2_cache_size": H200.l2_bytes,
        "shared_memory_per_block_optin": 232_448,
        "clock_rate": 1_980_000,
        "memory_clock_rate": 3_201_000,
        "memory_bus_width": 6016,
    }
    return SimpleNamespace(**{name: value for name, value in (said | changed).items() if value is not None})


def test_a_device_has_the_clock_and_the_bandwidth_that_its_driver_gives():
    found = from_properties(properties())
    assert (found.clock_mhz, found.memory_gb_per_s) == (1980, 4800)
    h100 = from_properties(
        properties(
            name="NVIDIA H100 80GB HBM3", L2_cache_size=50 * 2**20, memory_clock_rate=2_619_000, memory_bus_width=5120
        )
    )
    assert h100.memory_gb_per_s == 3350
    assert h100.peak_bytes_per_us == pytest.approx(3.35e6)
    assert h100.sustained_mhz == found.sustained_mhz == pytest.approx(1755)


def test_where_the_driver_does_not_say_the_architectures_figures_stand():
    found = from_properties(properties(clock_rate=None, memory_clock_rate=None, memory_bus_width=None))
    assert (found.clock_mhz, found.memory_gb_per_s) == (None, None)
    assert found.peak_bytes_per_us == 4.8e6
    assert from_properties(properties(memory_bus_width=None)).memory_gb_per_s is None


def test_amd_devices_take_their_figures_from_the_table():
    found = from_properties(properties(name="AMD Instinct MI300X", gcnArchName="gfx942:sramecc+:xnack-"))
    assert (found.arch, found.memory_gb_per_s, found.peak_bytes_per_us) == ("gfx942", None, 5.3e6)
    assert found.l2_bytes == KNOWN["gfx942"].l2_bytes


def test_a_known_device_and_the_same_one_opened_have_equal_rates():
    """Formulas must pick one default on a machine with the GPU and on one that only exports for it."""
    found = from_properties(properties())
    assert (found.sustained_mhz, found.peak_bytes_per_us) == (H200.sustained_mhz, H200.peak_bytes_per_us)


def test_drivers_that_differ_by_a_little_give_equal_rates():
    one, other = (
        from_properties(properties()),
        from_properties(properties(clock_rate=1_983_000, memory_clock_rate=3_190_000)),
    )
    assert (one.clock_mhz, one.memory_gb_per_s) == (other.clock_mhz, other.memory_gb_per_s)


def test_a_clock_makes_no_other_device():
    other = replace(H200, clock_mhz=1830, memory_gb_per_s=4000)
    assert other == H200
    assert hash(other) == hash(H200)
    assert other.slug == H200.slug


@pytest.mark.parametrize(
    ("name", "tma", "reads_shared", "supported"),
    [
        ("sm_75", False, False, False),
        ("sm_80", False, False, True),
        ("sm_90", True, True, True),
        ("sm_103", True, True, True),
        ("sm_120", True, False, True),
        ("sm_121", True, False, True),  # in no table: what portable PTX has
        ("gfx90a", False, False, False),
        ("interpreter", False, False, False),
    ],
)
def test_an_architecture_says_what_it_can_do(name, tma, reads_shared, supported):
    found = arch.of(name)
    assert (found.name, found.tma, found.reads_shared, found.supported) == (name, tma, reads_shared, supported)
    assert found.pdl == tma


def test_matrix_instructions_that_read_shared_memory_are_of_one_generation_each():
    for found in arch.ARCHES.values():
        assert not (found.wgmma and found.tcgen05), found.name
        assert found.clusters == found.reads_shared, found.name


def test_every_known_device_is_in_the_table_with_the_shared_memory_that_it_has():
    for device in KNOWN.values():
        assert device.shared_bytes == arch.ARCHES[device.arch].shared_bytes
        assert device.warp_size == (64 if device.vendor == "amd" else 32)
    assert INTERPRETER.features.name == "interpreter"


def test_a_device_of_no_known_architecture_gets_the_least():
    odd = describe(name="NVIDIA X1", arch="sm_130", sm_count=9, memory_bytes=1, l2_bytes=1)
    assert odd.shared_bytes == 49_152
    assert isinstance(odd, Device)


ASKS = re.compile(r"\bcapability\b *[<>=!]|\bcapability\b (not )?in\b|\.arch (not )?in\b|\.arch [!=]= \"(sm|gfx)")
"""A comparison of an architecture's number or name."""


def test_nothing_but_the_table_compares_architectures():
    asking = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("kernels", "tuner")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in path.read_text().splitlines()
        if ASKS.search(line) and path.name != "arch.py"
    ]
    assert [line for line in asking if "in ARCHES" not in line] == []
