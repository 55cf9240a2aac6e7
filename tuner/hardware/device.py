"""A device: a GPU model, named the same way by the tuner and by the runtime.

The slug is name + arch + compute units ("nvidia-h200-sm90-132"): a name alone does not tell an H200 from a slice of
one. Aliases of marketing names live here and nowhere else.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tuner.errors import DeviceError

NAME_ALIASES = {
    "amd instinct mi300x oam": "amd instinct mi300x",
    "amd instinct mi300x vf": "amd instinct mi300x",
    "amd radeon graphics gfx942": "amd instinct mi300x",
    "amd instinct mi325 oam": "amd instinct mi325x",
    "amd instinct mi355 oam": "amd instinct mi355x",
}
"""Drivers' other spellings of one product (lower case). Products that differ in clocks or memory are no aliases."""

ARCH_SHARED_BYTES = {
    "sm_80": 166_912,
    "sm_86": 101_376,
    "sm_89": 101_376,
    "sm_90": 232_448,
    "sm_100": 232_448,
    "sm_103": 232_448,
    "sm_120": 101_376,
    "gfx942": 65_536,
    "gfx950": 163_840,
}
"""Opt-in shared memory (LDS) of one thread block, bytes.

Source: CUDA C++ Programming Guide, technical specifications per compute capability (the opt-in maximum: 163, 99, 227
KiB less the reserved KiB); AMD CDNA3 and CDNA4 ISA guides (64 and 160 KiB of LDS per compute unit).
"""


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
    """

    slug: str
    name: str
    vendor: str
    arch: str
    sm_count: int
    memory_bytes: int
    shared_bytes: int
    l2_bytes: int

    def __hash__(self) -> int:
        # Formulas remember what they work out of a device: its slug tells it apart, and a word's hash is kept.
        return hash(self.slug)

    @property
    def capability(self) -> int:
        """Compute capability as one number (sm_90: 90); 0 where there is none."""
        return int(self.arch[3:]) if self.arch.startswith("sm_") else 0

    @property
    def warp_size(self) -> int:
        """Threads of a warp (64 on AMD's CDNA)."""
        return 64 if self.vendor == "amd" else 32

    @property
    def is_interpreter(self) -> bool:
        """Whether this is Triton's interpreter and no GPU at all."""
        return self.arch == "interpreter"


INTERPRETER = Device("interpreter", "Triton interpreter", "none", "interpreter", 1, 0, 2**31 - 1, 0)
"""Where `tuner run` works without a GPU. What it measured is never offered to a GPU."""


def slug_of(name: str, arch: str, sm_count: int) -> str:
    """The canonical slug: `slug_of("NVIDIA H200", "sm_90", 132)` is "nvidia-h200-sm90-132"."""
    plain = NAME_ALIASES.get(" ".join(name.lower().replace("_", " ").split()), name.lower())
    words = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    return f"{words}-{arch.replace('_', '')}-{sm_count}"


def of_one_arch(device: Device, slugs: Iterable[str]) -> list[tuple[str, int]]:
    """Those slugs that are of other GPU models of a device's architecture, each with its compute units."""
    arch = device.arch.replace("_", "")
    parts = [(slug, *slug.rsplit("-", 2)[1:]) for slug in sorted(set(slugs) - {device.slug}) if slug.count("-") >= 2]
    return [(slug, int(units)) for slug, its, units in parts if its == arch and units.isdigit() and int(units)]


def describe(*, name: str, arch: str, sm_count: int, memory_bytes: int, l2_bytes: int, shared_bytes: int = 0) -> Device:
    """A device from what its driver says; `shared_bytes` of 0 means the architecture's own limit."""
    vendor = "amd" if arch.startswith("gfx") else "nvidia"
    limit = shared_bytes or ARCH_SHARED_BYTES.get(arch, 49_152)
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
        describe(name="AMD Instinct MI300X", arch="gfx942", sm_count=304, memory_bytes=192 * _GIB, l2_bytes=256 * _MIB),
        describe(name="AMD Instinct MI355X", arch="gfx950", sm_count=256, memory_bytes=288 * _GIB, l2_bytes=256 * _MIB),
    )
}
"""One device of each architecture the kernels are compiled for in CI, by arch.

Source: the vendors' data sheets; AMD's L2 figure is its Infinity Cache, which is what repeated reads come from.
"""


def from_properties(properties: Any) -> Device:
    """A device from `torch.cuda.get_device_properties(...)`."""
    gcn = getattr(properties, "gcnArchName", "").split(":")[0]
    arch = gcn if gcn.startswith("gfx") else f"sm_{properties.major}{properties.minor}"
    return describe(
        name=properties.name,
        arch=arch,
        sm_count=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        l2_bytes=KNOWN[arch].l2_bytes if gcn in KNOWN else properties.L2_cache_size,
        shared_bytes=getattr(properties, "shared_memory_per_block_optin", 0) if not gcn.startswith("gfx") else 0,
    )


def current(index: int | None = None) -> Device:
    """This process's device: CUDA device `index` (torch's current one when None), the interpreter when it is on.

    Raises:
        DeviceError: no GPU is there and the interpreter is off, or `index` is beyond the GPUs there are.
    """
    import torch
    from triton import knobs

    if knobs.runtime.interpret:
        return INTERPRETER
    if not torch.cuda.is_available():
        raise DeviceError("no GPU found: set TRITON_INTERPRET=1 before importing triton to run on the interpreter")
    count = torch.cuda.device_count()
    if index is not None and index >= count:
        raise DeviceError(f"no GPU cuda:{index}: this machine has {count}, from cuda:0 to cuda:{count - 1}")
    return from_properties(torch.cuda.get_device_properties(torch.cuda.current_device() if index is None else index))


@functools.cache
def multiprocessors(index: int | None) -> int:
    """Multiprocessors of CUDA device `index`; without an index 1, which the interpreter and a compile make do with."""
    return 1 if index is None else current(index).sm_count


def triton_version() -> str:
    """The running Triton's version, "" without Triton."""
    try:
        import triton
    except ImportError:
        return ""
    return str(triton.__version__)


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
