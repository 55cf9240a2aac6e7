"""How many blocks a cluster of `warp_specialized` or `cluster_k` may have, and how many are worth trying.

docs/lessons.md (Clusters) has measurements of what clusters gain on an H200.
"""

from __future__ import annotations

from tuner.hardware import device as devices
from tuner.hardware.device import Device

RESERVED_BYTES = 1024
"""Bytes of shared memory for the barriers of free stages, see `cluster.free_barriers`."""
_TRIED_TRITON = "3.7."
"""The Triton release with which clusters are tested. 3.6 has no multicast; 3.9 adds cluster barriers of its own, and
what it compiles was never run."""
_FEW_ROWS = 128
"""Rows of A up to which repeated loads of A, one for each tile, are most of the L2's traffic."""
_WHOLE = 7 / 8
"""The fraction of the multiprocessors that clusters of more than two can fill at once, because the multiprocessors of a
GPC are no multiple of the cluster's size."""
_FOUR = 4
_FOURS, _OF = 30, 33
"""Of clusters of four an H200 of 132 multiprocessors holds 30 (cuOccupancyMaxActiveClusters), not 33."""
_GPCS = 8
"""The most GPCs of a Hopper GPU (H100 white paper). A cluster lies within one GPC."""


def untried() -> str | None:
    """Why clusters are not used under the running Triton, or None."""
    running = devices.triton_version()
    return None if running.startswith(_TRIED_TRITON) else f"no Triton {running}: run under 3.7 alone so far"


def room(ctas: int, device: Device) -> int:
    """How many blocks in clusters of `ctas` are let run at once, one per multiprocessor; 0 if not even one cluster can.

    Of fours there is more room (`clusters_at_once`); `cluster_k` and `warp_specialized` were not played with more.
    """
    if device.sm_count <= _GPCS * (ctas - 1):
        return 0
    return device.sm_count if ctas <= 2 else int(_WHOLE * device.sm_count)


def clusters_at_once(ctas: int, multiprocessors: int) -> int:
    """How many clusters of `ctas` blocks run at once where any does, one block a multiprocessor; 1 at least."""
    if ctas == _FOUR:
        return max(1, multiprocessors // ctas * _FOURS // _OF)
    return max(1, (multiprocessors if ctas <= 2 else int(_WHOLE * multiprocessors)) // ctas)


def waiting(ctas: int, tiles: int, device: Device) -> str | None:
    """Why clusters, each of which lies in one GPC, would not all run at once, or None.

    Args:
        ctas: blocks of a cluster.
        tiles: tiles of the output.
        device: the device.
    """
    waits = ctas > 2 and tiles > room(ctas, device)
    return f"clusters of {ctas} for {tiles} tiles: one that waits for others to end doubles the time" if waits else None


def worth_trying(rows: int, tiles: int, device: Device) -> tuple[int, ...]:
    """Cluster sizes beyond two that are worth trying, for few rows of A whose tiles fill the device once."""
    return (4, 8) if rows <= _FEW_ROWS and device.sm_count / 2 <= tiles <= _WHOLE * device.sm_count else ()
