"""One digest of all that this process's lookups rest on: ranks with the same digest choose the same configs."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

from tuner.hardware import device as devices
from tuner.hardware.device import Device
from tuner.kernel import registry
from tuner.lookup import match_rules, strict
from tuner.lookup.device_winners import DeviceWinners
from tuner.lookup.lookup import resolver
from tuner.lookup.row import Row


def digest(device: Device | str | None = None) -> str:
    """Return the SHA-256 of everything that a lookup's answer depends on; reads every source, imports every kernel.

    It depends on the device, the versions of triton-tuner, Triton and each kernel, the match rules, every source's rows
    for this device and for others of its architecture in the order in which they are asked, the ranges of M that they
    serve, whether `tuner.strict` is on, and the configs that failed to launch in this process. It does not depend on
    the sources' paths, because ranks may mount one folder in different places.

    Args:
        device: as `lookup` takes it.

    Returns:
        "sha256:" and 64 hex digits.

    Raises:
        DeviceError: see `lookup`.
    """
    found = resolver()
    device = found.device(device)
    held = itertools.chain(found.sources.own(device.slug), found.sources.of_relatives(device))
    content = hashlib.sha256()
    for part in (_versions(device), *_winners(held), *_failures(device)):
        content.update(f"{json.dumps(part, sort_keys=True)}\n".encode())
    return f"sha256:{content.hexdigest()}"


def _versions(device: Device) -> dict[str, Any]:
    from tuner.version import __version__

    kernels = sorted((*key, spec.version) for key, spec in registry.specs().items())
    return {
        "device": device.slug,
        "tool_version": __version__,
        "triton": devices.triton_version(),
        "kernels": kernels,
        "strict": strict.is_on(),
    }


def _winners(found: Iterable[DeviceWinners]) -> Iterator[Any]:
    """What each source holds, if anything, with its rows in their order."""
    for winners in found:
        rows = [_row(row) for found in winners.rows.values() for row in found]
        if rows:
            yield {
                "rows": rows,
                "families": sorted(json.dumps([key, each.ranges()]) for key, each in winners.families.items()),
            }


def _row(row: Row) -> list[Any]:
    """The parts of a row that may decide; its figures in microseconds do not."""
    config = [row.config.kernel, dict(row.config), row.kernel_version]
    return [row.problem.fields(), *config, row.made.environment.triton, row.vs_vendor]


def _failures(device: Device) -> list[Any]:
    failed = [(problem, config) for slug, problem, config in match_rules.failed if slug == device.slug]
    return sorted(json.dumps([problem.fields(), str(config)], sort_keys=True) for problem, config in failed)
