"""A device: a GPU model, named the same way by the tuner and by the runtime.

The slug is name + arch + compute units ("nvidia-h200-sm90-132"): a name alone does not tell an H200 from a slice of
one. Aliases of marketing names live here and nowhere else.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tuner.errors import DeviceError
from tuner.hardware import arch as arches
from tuner.hardware import triton_settings
from tuner.hardware.arch import Arch

NAME_ALIASES = {
    "amd instinct mi300x oam": "amd instinct mi300x",
    "amd instinct mi300x vf": "amd instinct mi300x",
    "amd radeon graphics gfx942": "amd instinct mi300x",
    "amd instinct mi325 oam": "amd instinct mi325x",
    "amd instinct mi355 oam": "amd instinct mi355x",
}
"""Drivers' other spellings of one product (lower case). Products that differ in clocks or memory are no aliases."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU model and the limits that search spaces and formulas ask for.

    Attributes:
        slug: canonical name, safe in a file name.
        name: the driver's name.
        vendor: "nvidia", "amd", or "none" for the interpreter.
        arch: "sm_90", "gfx942", "interpreter".
        sm_count: multiprocessors (compute units on AMD).
        memory_bytes: device memory.
        shared_bytes: shared memory one block may opt in to.
        l2_bytes: L2 cache.
        clock_mhz, memory_gb_per_s: the highest clock and the peak bandwidth of device memory, as the driver gives them;
            None where it did not say, and the architecture's stand. They tell no two devices apart.
    """

    slug: str
    name: str
    vendor: str
    arch: str
    sm_count: int
    memory_bytes: int
    shared_bytes: int
    l2_bytes: int
    clock_mhz: int | None = field(default=None, compare=False)
    memory_gb_per_s: int | None = field(default=None, compare=False)

    def __hash__(self) -> int:
        # Formulas remember what they work out of a device: its slug tells it apart, and a word's hash is kept.
        return hash(self.slug)

    @property
    def features(self) -> Arch:
        """What its architecture can do."""
        return arches.of(self.arch)

    @property
    def warp_size(self) -> int:
        """Threads of a warp (64 on AMD's CDNA)."""
        return self.features.warp_size

    @property
    def sustained_mhz(self) -> float:
        """The clock, MHz, that holds while the tensor cores are busy."""
        return self.features.sustained * (self.clock_mhz or self.features.clock_mhz)

    @property
    def peak_bytes_per_us(self) -> float:
        """The peak bandwidth of device memory, bytes a microsecond."""
        return 1e3 * (self.memory_gb_per_s or self.features.memory_gb_per_s)

    @property
    def is_interpreter(self) -> bool:
        """Whether this is Triton's interpreter and no GPU at all."""
        return self.arch == "interpreter"


IDENTITY = tuple(one.name for one in fields(Device) if one.compare)
"""The fields that two devices must agree in to be the same; those that an exported table holds."""
INTERPRETER = Device("interpreter", "Triton interpreter", "none", "interpreter", 1, 0, 2**31 - 1, 0)
"""Where `tuner run` works without a GPU. What it measured is never offered to a GPU."""
INTERPRETED_FLOPS_S = 2e8
"""The interpreter's rate by the figures of `tuner bench --shape 512x512x512`, which differ from machine to machine."""


def slug_of(name: str, arch: str, sm_count: int) -> str:
    """The canonical slug: `slug_of("NVIDIA H200", "sm_90", 132)` is "nvidia-h200-sm90-132"."""
    plain = NAME_ALIASES.get(" ".join(name.lower().replace("_", " ").split()), name.lower())
    words = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    return f"{words}-{arch.replace('_', '')}-{sm_count}"


def of_one_arch(device: Device, slugs: Iterable[str]) -> list[str]:
    """Those slugs that are of other GPU models of a device's architecture, the most alike in compute units first.

    A model with less than half of the units, or more than twice as many, is none of them: it may be a slice of a GPU.
    """
    arch = device.arch.replace("_", "")
    parts = [(slug, *slug.rsplit("-", 2)[1:]) for slug in sorted(set(slugs) - {device.slug}) if slug.count("-") >= 2]
    found = {slug: int(units) for slug, its, units in parts if its == arch and units.isdigit()}
    like = {slug: abs(units - device.sm_count) for slug, units in found.items()}
    near = (slug for slug, units in found.items() if units <= 2 * device.sm_count <= 4 * units)
    return sorted(near, key=like.__getitem__)


def describe(*, name: str, arch: str, sm_count: int, memory_bytes: int, l2_bytes: int, shared_bytes: int = 0) -> Device:
    """A device from what its driver says; `shared_bytes` of 0 means the architecture's own limit."""
    vendor = "amd" if arch.startswith("gfx") else "nvidia"
    limit = shared_bytes or arches.of(arch).shared_bytes
    return Device(slug_of(name, arch, sm_count), name, vendor, arch, sm_count, memory_bytes, limit, l2_bytes)


_GIB = 2**30
_MIB = 2**20
KNOWN = {
    device.arch: device
    for device in (
        describe(name="NVIDIA A100-SXM4-80GB", arch="sm_80", sm_count=108, memory_bytes=80 * _GIB, l2_bytes=40 * _MIB),
        describe(name="NVIDIA L40S", arch="sm_89", sm_count=142, memory_bytes=48 * _GIB, l2_bytes=96 * _MIB),
        describe(name="NVIDIA H200", arch="sm_90", sm_count=132, memory_bytes=141 * _GIB, l2_bytes=60 * _MIB),
        describe(name="NVIDIA B200", arch="sm_100", sm_count=148, memory_bytes=180 * _GIB, l2_bytes=126 * _MIB),
        describe(
            name="NVIDIA GeForce RTX 5090", arch="sm_120", sm_count=170, memory_bytes=32 * _GIB, l2_bytes=96 * _MIB
        ),
        describe(name="AMD Instinct MI300X", arch="gfx942", sm_count=304, memory_bytes=192 * _GIB, l2_bytes=256 * _MIB),
        describe(name="AMD Instinct MI355X", arch="gfx950", sm_count=256, memory_bytes=288 * _GIB, l2_bytes=256 * _MIB),
    )
}
"""One device of each architecture the kernels are compiled for in CI, by arch.

Source: the vendors' data sheets; AMD's L2 figure is its Infinity Cache, which is what repeated reads come from. Their
clocks and bandwidths are those that the table of architectures has.
"""
MODELS = (
    *KNOWN.values(),
    replace(
        describe(
            name="NVIDIA H100 80GB HBM3", arch="sm_90", sm_count=132, memory_bytes=85017493504, l2_bytes=50 * _MIB
        ),
        clock_mhz=1980,
        memory_gb_per_s=3350,
    ),
)
"""Every GPU model that is known here: those, and the others that tables come with triton-tuner for.

Source of the H100's clock and bandwidth: its driver.
"""


def with_known_rates(device: Device) -> Device:
    """A device that came without clock and bandwidth, as from a table, with those that are known of its model."""
    if device.clock_mhz or device.memory_gb_per_s:
        return device
    known = next((model for model in MODELS if model.slug == device.slug), device)
    return replace(device, clock_mhz=known.clock_mhz, memory_gb_per_s=known.memory_gb_per_s)


def from_properties(properties: Any) -> Device:
    """A device from `torch.cuda.get_device_properties(...)`."""
    gcn = getattr(properties, "gcnArchName", "").split(":")[0]
    if gcn.startswith("gfx"):
        l2_bytes, shared_bytes = KNOWN[gcn].l2_bytes if gcn in KNOWN else properties.L2_cache_size, 0
    else:
        l2_bytes, shared_bytes = properties.L2_cache_size, getattr(properties, "shared_memory_per_block_optin", 0)
    device = describe(
        name=properties.name,
        arch=gcn if gcn.startswith("gfx") else f"sm_{properties.major}{properties.minor}",
        sm_count=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        l2_bytes=l2_bytes,
        shared_bytes=shared_bytes,
    )
    # HIP counts the transfers of a memory clock in another way than CUDA: there the architecture's figures stand.
    return device if device.vendor == "amd" else _with_rates(device, properties)


def _with_rates(device: Device, properties: Any) -> Device:
    """The device with its clock and its bandwidth, None where this torch does not give them.

    They are rounded, to 10 MHz and 50 GB/s, so that cards of one model whose drivers differ by a little get equal
    estimates, and with them equal defaults. Memory moves two words as wide as its bus in every cycle.
    """
    sm_khz, memory_khz, bits = (
        getattr(properties, name, 0) for name in ("clock_rate", "memory_clock_rate", "memory_bus_width")
    )
    return replace(
        device,
        clock_mhz=10 * round(sm_khz / 1e4) or None,
        memory_gb_per_s=50 * round(2 * memory_khz * bits / 8 / 1e6 / 50) or None,
    )


def current(index: int | None = None) -> Device:
    """This process's device: CUDA device `index` (torch's current one when None), the interpreter when it is on.

    Raises:
        DeviceError: no GPU is there and the interpreter is off, or `index` is beyond the GPUs there are.
    """
    import torch

    if triton_settings.interprets():
        return INTERPRETER
    if not torch.cuda.is_available():
        raise DeviceError("no GPU found: set TRITON_INTERPRET=1 before importing triton to run on the interpreter")
    count = torch.cuda.device_count()
    if index is not None and index >= count:
        raise DeviceError(f"no GPU cuda:{index}: this machine has {count}, from cuda:0 to cuda:{count - 1}")
    return from_properties(torch.cuda.get_device_properties(torch.cuda.current_device() if index is None else index))


_expected: ContextVar[int] = ContextVar("multiprocessors", default=1)


def multiprocessors(index: int | None) -> int:
    """Multiprocessors of CUDA device `index`; without an index those of the device that is `expected`.

    Where none is, 1, which the interpreter and a compile make do with.
    """
    return _expected.get() if index is None else _multiprocessors(index)


@functools.cache
def _multiprocessors(index: int) -> int:
    return current(index).sm_count


@contextmanager
def expected(device: Device) -> Iterator[None]:
    """Have launches of tensors without memory be those of a device inside the block."""
    before = _expected.set(device.sm_count)
    try:
        yield
    finally:
        _expected.reset(before)


def triton_version() -> str:
    """The running Triton's version, "" without Triton."""
    return triton_settings.version()


@dataclass(frozen=True, slots=True)
class Environment:
    """The versions a figure was measured under.

    Attributes:
        triton, torch, driver, python: versions; driver is "" where there is none.
        backend: "cuda 13.0", "hip 6.4", "interpreter".
    """

    triton: str
    torch: str
    backend: str
    driver: str
    python: str
