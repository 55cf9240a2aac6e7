"""Reused memory for the partial sums and counters of split-K kernels, safe with several streams and CUDA graphs.

Outside a capture each stream has one workspace, since its launches run one after the other. A captured graph may be
replayed on any stream, so each capture has its own workspace: partial sums come from the graph's memory pool, which
orders their reuse, and the graph clears its counters once, at its start. Every launch leaves the counters at 0.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import torch

from tuner.launch.plan import Temporary, recording

MOST_BYTES = 64 << 20
"""The most bytes of partial sums in one launch. More would not stay in the L2."""
MOST_TILES = 4096
"""Number of counters in a workspace. Splitting pays only if there are fewer tiles than multiprocessors."""
_CAPTURING = 1

Workspace = tuple[torch.Tensor, torch.Tensor]
"""Partial sums in the sums' dtype, one block of elements for each split of each tile; and int32 zeros [MOST_TILES], the
counters, which a launch leaves at zero."""

_partials: dict[tuple[int | None, int], torch.Tensor] = {}
_counters: dict[tuple[int | None, int], torch.Tensor] = {}
_captured: dict[tuple[int | None, int], tuple[int, torch.Tensor]] = {}


def workspace(elements: int, dtype: torch.dtype, device: torch.device) -> Workspace:
    """Memory for `elements` partial sums on the current stream of a device.

    Args:
        elements: tiles * splits * elements of a tile.
        dtype: float32 or int32.
        device: device of the operands; "meta" and "cpu" get fresh memory.
    """
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    memory = _of_stream(elements, dtype, device, stream)

    def again(stream: int) -> Workspace:
        if device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
            partials, counters = _partials.get((device.index, stream)), _counters.get((device.index, stream))
            if partials is not None and counters is not None and partials.numel() >= elements:
                return partials, counters  # both dtypes have 4 bytes
        return _of_stream(elements, dtype, device, stream)

    if (active := recording()) is not None:
        active.temporaries.append(Temporary(memory, again))
    return memory


def scratch(nbytes: int, device: torch.device) -> torch.Tensor:
    """Uninitialized int8 memory for a launch; torch reuses it in the order of the current stream."""

    def fresh(_stream: int) -> tuple[torch.Tensor]:
        return (torch.empty(nbytes, dtype=torch.int8, device=device),)

    (memory,) = fresh(0)
    if (active := recording()) is not None:
        active.temporaries.append(Temporary((memory,), fresh))
    return memory


def _of_stream(elements: int, dtype: torch.dtype, device: torch.device, stream: int) -> Workspace:
    if device.type != "cuda":
        counters = torch.zeros(MOST_TILES, dtype=torch.int32, device=device)
        return torch.empty(elements, dtype=dtype, device=device), counters
    key = (device.index, stream)
    if torch.cuda.is_current_stream_capturing():
        return torch.empty(elements, dtype=dtype, device=device), _counters_of_capture(key, device)
    partials = _partials.get(key)
    if partials is None or partials.numel() < elements:
        # Both dtypes have 4 bytes. The old memory may still be in use; the allocator reuses it in the stream's order.
        partials = torch.empty(max(elements, 1 << 20), dtype=torch.float32, device=device)
        _partials[key] = partials
    counters = _counters.get(key)
    if counters is None:
        counters = _counters[key] = torch.zeros(MOST_TILES, dtype=torch.int32, device=device)
    return partials.view(dtype), counters


def splits_together(tile_elements: int, warps: int, splits: int) -> int:
    """How many splits' partial sums of a tile to load at a time, so that a thread holds about 128 values.

    Args:
        tile_elements: BLOCK_SIZE_M * BLOCK_SIZE_N.
        warps: num_warps, of 32 threads each.
        splits: SPLIT_K. Only whether it is 1 matters, because SPLIT_K is not compiled in.
    """
    held = max(1, tile_elements // (32 * warps))
    return 1 if splits == 1 else max(1, min(16, 128 // held))


def _counters_of_capture(key: tuple[int | None, int], device: torch.device) -> torch.Tensor:
    capture = _capture_id(key[1])
    known = _captured.get(key)
    if capture is not None and known is not None and known[0] == capture:
        return known[1]
    # The capture includes this clearing, so every replay starts from zeros, even after one that was interrupted.
    counters = torch.zeros(MOST_TILES, dtype=torch.int32, device=device)
    if capture is not None:
        _captured[key] = (capture, counters)
    return counters


def _capture_id(stream: int) -> int | None:
    """The driver's id of the capture that a stream is part of; None if the driver cannot report it (AMD)."""
    query = _capture_info()
    if query is None:
        return None
    status, capture = ctypes.c_int(), ctypes.c_uint64()
    failed = query(ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(capture), None, None, None)
    return capture.value if not failed and status.value == _CAPTURING else None


@functools.cache
def _capture_info() -> Callable[..., int] | None:
    if torch.version.hip:
        return None
    try:
        function: Callable[..., int] = ctypes.CDLL("libcuda.so.1").cuStreamGetCaptureInfo_v2
    except (OSError, AttributeError):
        return None
    return function
