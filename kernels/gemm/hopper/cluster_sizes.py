"""How many blocks a cluster of `warp_specialized` or `cluster_k` may have, and how many are worth trying.

What they gain was measured on an H200: docs/lessons.md, Clusters.
"""

from __future__ import annotations

from tuner.hardware import device as devices
from tuner.hardware.device import Device

RESERVED_BYTES = 1024
"""Shared memory for a cluster's barriers of free stages: see `hopper.cluster`."""
_TRIED_TRITON = "3.7."
"""3.6 has no multicast; what 3.9 compiles has barriers of clusters of its own besides, and nobody has run it."""
_FEW_ROWS = 128
"""Up to here loads of A, one for each tile, are most of what the L2 serves."""
_WHOLE = 7 / 8
"""The part of the multiprocessors that clusters of more than two fill at once: a GPC has no multiple of so many."""
_GPCS = 8
"""GPCs of a Hopper GPU at most (H100 white paper); a cluster lies in one of them."""


def untried() -> str | None:
    """Why the running Triton makes no clusters, or None."""
    running = devices.triton_version()
    return None if running.startswith(_TRIED_TRITON) else f"no Triton {running}: run under 3.7 alone so far"


def room(ctas: int, device: Device) -> int:
    """Blocks in clusters of so many that find a multiprocessor of their own at once; 0 where one cluster may not."""
    if device.sm_count <= _GPCS * (ctas - 1):
        return 0
    return device.sm_count if ctas <= 2 else int(_WHOLE * device.sm_count)


def waiting(ctas: int, tiles: int, device: Device) -> str | None:
    """Why clusters of so many blocks, each in one GPC, would not all compute at once, or None.

    Args:
        ctas: blocks of a cluster.
        tiles: of the output.
        device: where.
    """
    waits = ctas > 2 and tiles > room(ctas, device)
    return f"clusters of {ctas} for {tiles} tiles: one that waits for others to end doubles the time" if waits else None


def worth_trying(rows: int, tiles: int, device: Device) -> tuple[int, ...]:
    """Sizes beyond two, for few rows of A whose tiles fill the device once."""
    return (4, 8) if rows <= _FEW_ROWS and device.sm_count / 2 <= tiles <= _WHOLE * device.sm_count else ()
