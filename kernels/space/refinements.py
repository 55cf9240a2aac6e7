"""Options from which few configs gain, and which a search therefore tries only on its best configs.

`num_ctas`: blocks of a cluster, which share the loads of one operand (of B with `SHARE_B`).
`waves_per_eu`: waves that a SIMD of AMD should hold at least.
`PDL_TRIGGER`: how many eighths of its steps along K a program completes before the next kernel may start.
`PREFETCH_KIB`: how much of its share of B a program prefetches into the L2 while it waits for the previous kernel.
A config without an option leaves the choice to Triton or to the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.problem import Problem, dtype

NUM_CTAS, WAVES_PER_EU = "num_ctas", "waves_per_eu"
PDL_TRIGGER, PREFETCH_KIB = "PDL_TRIGGER", "PREFETCH_KIB"
AFTER_LAST_STEP = 8
"""The PDL_TRIGGER of programs that let the next kernel start once they have read everything."""
SHARE_B = "SHARE_B"
"""Whether the blocks of a cluster lie along M and share B's loads, instead of along N to share A's."""
SOURCE = "PTX ISA, .reqnctapercluster, griddepcontrol and cp.async.bulk.prefetch"
_LARGEST_CLUSTER = 8
_MOST_WAVES = 8
_PREFETCHED_KIB = 32
_EARLIEST, _EARLIER, _LATER = 2, 3, 6
"""Values of PDL_TRIGGER to try with a prefetch. With 128 KiB instead of 32, configs were at best 0.7% faster and up to
an eighth slower (measured on an H200 in November 2026)."""
_SHORT_BYTES = 256 * 1024
"""A program whose share of B is at most this ends so soon that the next one should start earlier and prefetch more."""
_ROW_KIB, _MIDWAY = 2, 4
"""KiB to prefetch of each row of B in a program without `tl.dot`, and the PDL_TRIGGER to try with it. With 8 KiB,
configs were slower than without a prefetch (measured on an H200 in November 2026)."""

OptionError = Callable[[Value, Config, Problem, Device], str | None]
"""What is wrong with an option's value, or None."""


def only(kept: Value) -> OptionError:
    """The check of a parameter that lost its other values and stays, so that configs are what they were."""
    # True equals 1, and is another constant to the compiler.
    return lambda value, *_: None if repr(value) == repr(kept) else f"{value!r}: expected {kept}, the only value left"


def option_error(name: str, config: Config, problem: Problem, device: Device) -> str | None:
    """Why a config's value for an option is invalid, or None."""
    return _reasons[name](config[name], config, problem, device)


def _no_cluster(value: Value, config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    if not device.features.clusters:
        return f"{value}: no clusters of blocks on {device.arch}"
    if isinstance(value, (bool, str)) or value & (value - 1) or not 2 <= value <= _LARGEST_CLUSTER:
        return f"{value!r}: expected 2, 4 or {_LARGEST_CLUSTER}, or none for single blocks"
    return None


def _nothing_shared(value: Value, config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    if NUM_CTAS not in config:
        return f"{value!r}: without num_ctas there is no cluster to share"
    return None if value is True else f"{value!r}: expected true, or none"


def _no_waves(value: Value, config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    if device.vendor != "amd":
        return f"{value}: an option for AMD, not for {device.arch}"
    wrong = isinstance(value, (bool, str)) or not 1 <= value <= _MOST_WAVES
    return f"{value!r}: a SIMD has 1 to {_MOST_WAVES} waves" if wrong else None


def _no_trigger(value: Value, config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    if not config.get("launch_pdl", False):
        return f"{value}: without launch_pdl the next kernel starts after this one"
    wrong = isinstance(value, (bool, str)) or not 1 <= value <= AFTER_LAST_STEP
    return f"{value!r}: expected 1 to {AFTER_LAST_STEP} eighths of the steps along K, or none" if wrong else None


def _no_prefetch(value: Value, config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    if not config.get("launch_pdl", False):
        return f"{value}: without launch_pdl there is no kernel before to wait for"
    if isinstance(value, (bool, str)) or value & (value - 1) or not 1 <= value <= 256:
        return f"{value!r}: expected a power of two from 1 to 256, or none"
    if problem.layout[1] != "t" or not problem.aligned:
        return f"{value}: it takes rows of B along K that begin at multiples of 16 bytes"
    return None


_reasons = {
    NUM_CTAS: _no_cluster,
    SHARE_B: _nothing_shared,
    WAVES_PER_EU: _no_waves,
    PDL_TRIGGER: _no_trigger,
    PREFETCH_KIB: _no_prefetch,
}


def of_splits(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    """`SearchSpace.refine` of a `tl.dot` kernel for few rows: it tries prefetches of B, and `more_waves`."""
    if _no_prefetch(_PREFETCHED_KIB, config, problem, device) is None:
        ahead = config.replace(**{PREFETCH_KIB: _PREFETCHED_KIB})
        yield from (ahead, ahead.replace(**{PDL_TRIGGER: _EARLIER}))
        if _share_of_b(config, problem) > _SHORT_BYTES:
            yield ahead.replace(**{PDL_TRIGGER: _LATER})
        else:
            yield config.replace(**{PDL_TRIGGER: _EARLIEST, PREFETCH_KIB: 2 * _PREFETCHED_KIB})
    yield from more_waves(config, problem, device)


def more_waves(config: Config, problem: Problem, device: Device) -> Iterator[Config]:  # noqa: ARG001
    """`SearchSpace.refine` on AMD: it tries registers for two waves a SIMD."""
    if device.vendor == "amd":
        yield config.replace(waves_per_eu=2)


def of_rows(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    """`SearchSpace.refine` of a kernel that reads rows of B by plain loads: it tries prefetches of each row's start."""
    if _no_prefetch(_ROW_KIB, config, problem, device) is None:
        ahead = config.replace(**{PREFETCH_KIB: _ROW_KIB * config.integer("BLOCK_SIZE_N")})
        yield from (ahead, ahead.replace(**{PDL_TRIGGER: _MIDWAY}))


def _share_of_b(config: Config, problem: Problem) -> float:
    """Bytes of B that a program reads."""
    row = problem.k * dtype.ITEMSIZE[problem.b_dtype]
    return config.integer("BLOCK_SIZE_N") * row / config.integer("SPLIT_K", 1)
