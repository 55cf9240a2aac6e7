"""Memory for the partial sums and counters of split-K kernels, reused, safe with several streams and CUDA graphs.

Outside a capture a stream has one workspace: launches on a stream run one after the other. A captured graph may be
replayed on any stream, so a capture gets its own: partial sums from the graph's memory pool, which orders their reuse
itself, and counters that the graph clears once, at its start. Counters are 0 again after every launch.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tuner.launch.plan import Temporary, recording

MOST_BYTES = 64 << 20
"""The most bytes of partial sums of one launch. More would not stay in the L2."""
MOST_TILES = 4096
"""Counters of a workspace. Splitting pays only where there are fewer tiles than multiprocessors."""
_CAPTURING = 1


@dataclass(frozen=True, slots=True)
class Workspace:
    """Memory of one launch.

    Attributes:
        partials: of the sums' dtype, one block of elements for each split of each tile.
        counters: int32 zeros [MOST_TILES]; a launch leaves zeros.
    """

    partials: torch.Tensor
    counters: torch.Tensor


_partials: dict[tuple[int | None, int], torch.Tensor] = {}
_counters: dict[tuple[int | None, int], torch.Tensor] = {}
_captured: dict[tuple[int | None, int], tuple[int, torch.Tensor]] = {}


def workspace(elements: int, dtype: torch.dtype, device: torch.device) -> Workspace:
    """Memory for `elements` partial sums on the current stream of a device.

    Args:
        elements: tiles * splits * elements of a tile.
        dtype: float32 or int32.
        device: of the operands; "meta" and "cpu" get fresh memory.
    """
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    memory = _of_stream(elements, dtype, device, stream)

    def again(stream: int) -> tuple[torch.Tensor, torch.Tensor]:
        if device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
            partials, counters = _partials.get((device.index, stream)), _counters.get((device.index, stream))
            if partials is not None and counters is not None and partials.numel() >= elements:
                return partials, counters  # of 4 bytes either way
        like = _of_stream(elements, dtype, device, stream)
        return like.partials, like.counters

    if (seen := recording()) is not None:
        seen.temporaries.append(Temporary((memory.partials, memory.counters), again))
    return memory


def scratch(nbytes: int, device: torch.device) -> torch.Tensor:
    """Fresh memory of a launch, int8, whose contents mean nothing; torch reuses it in the current stream's order."""

    def fresh(_stream: int) -> tuple[torch.Tensor]:
        return (torch.empty(nbytes, dtype=torch.int8, device=device),)

    (memory,) = fresh(0)
    if (seen := recording()) is not None:
        seen.temporaries.append(Temporary((memory,), fresh))
    return memory


def _of_stream(elements: int, dtype: torch.dtype, device: torch.device, stream: int) -> Workspace:
    if device.type != "cuda":
        counters = torch.zeros(MOST_TILES, dtype=torch.int32, device=device)
        return Workspace(torch.empty(elements, dtype=dtype, device=device), counters)
    key = (device.index, stream)
    if torch.cuda.is_current_stream_capturing():
        return Workspace(torch.empty(elements, dtype=dtype, device=device), _counters_of_capture(key, device))
    partials = _partials.get(key)
    if partials is None or partials.numel() < elements:
        # 4 bytes either way; the old one may still be in use: the allocator reuses it in the stream's order.
        partials = torch.empty(max(elements, 1 << 20), dtype=torch.float32, device=device)
        _partials[key] = partials
    counters = _counters.get(key)
    if counters is None:
        counters = _counters[key] = torch.zeros(MOST_TILES, dtype=torch.int32, device=device)
    return Workspace(partials.view(dtype), counters)


def splits_together(tile_elements: int, warps: int, splits: int) -> int:
    """How many partial sums of a tile to load at a time: as many as a thread has registers for, about 128 values.

    Args:
        tile_elements: BLOCK_SIZE_M * BLOCK_SIZE_N.
        warps: num_warps, of 32 threads.
        splits: SPLIT_K; only whether it is 1 counts, for it is no part of the binary.
    """
    held = max(1, tile_elements // (32 * warps))
    return 1 if splits == 1 else max(1, min(16, 128 // held))


def _counters_of_capture(key: tuple[int | None, int], device: torch.device) -> torch.Tensor:
    capture = _capture_id(key[1])
    known = _captured.get(key)
    if capture is not None and known is not None and known[0] == capture:
        return known[1]
    # The clearing is captured: every replay begins with it, even after one that was cut short.
    counters = torch.zeros(MOST_TILES, dtype=torch.int32, device=device)
    if capture is not None:
        _captured[key] = (capture, counters)
    return counters


def _capture_id(stream: int) -> int | None:
    """The driver's number of the capture that a stream is part of; None where it cannot be asked (AMD)."""
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
