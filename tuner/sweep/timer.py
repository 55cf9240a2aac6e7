"""Protocol 1's clock: a CUDA graph of n calls over rotating buffers, replayed after the L2 was swept.

A contestant is a call that takes a buffer set's index. `Timer.capture` makes a shot of it; `Timer.fire` replays a list
of shots one after the other and returns microseconds a call for each. docs/protocol.md says why each step is there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

Call = Callable[[int], None]

REPLAY_US = 1_000.0
"""How long one replay should last: long against an event's resolution, about 0.5 us (CUDA Runtime API,
cudaEventElapsedTime), and against the gap before a graph's first node."""
MAX_CALLS = 512
"""Most calls in one graph: a call of 2 us still gives a replay of 1 ms."""
L2_SWEEPS = 5
"""How many times the L2's size is touched before a buffer comes round again."""


class Timer(Protocol):
    """What measuring needs of a device.

    Attributes:
        search_rounds: replays of a config in the search at most.
        final_rounds: paired rounds of the finals.
        max_final_rounds: rounds of those that may still be ties.
    """

    search_rounds: int
    final_rounds: int
    max_final_rounds: int

    def buffer_sets(self, nbytes: int) -> int:
        """How many input sets to make when one takes `nbytes`."""
        ...

    def estimate_us(self, call: Call) -> float:
        """Time of one cold call, to size a graph by, microseconds."""
        ...

    def capture(self, call: Call, estimate_us: float, sets: int) -> Any:
        """A shot of enough calls to last `REPLAY_US`, over `sets` buffer sets in turn."""
        ...

    def fire(self, shots: Sequence[Any]) -> list[float]:
        """Replay each shot once, in the order given; microseconds a call for each."""
        ...

    def synchronize(self) -> None:
        """Wait for the device; raises what went wrong there."""
        ...


class GraphShot:
    """A captured CUDA graph of some calls."""

    __slots__ = ("calls", "end", "graph", "start")

    def __init__(self, graph: torch.cuda.CUDAGraph, calls: int) -> None:
        import torch

        self.graph = graph
        self.calls = calls
        self.start = torch.cuda.Event(enable_timing=True)
        self.end = torch.cuda.Event(enable_timing=True)


class GraphTimer:
    """Times on a GPU, everything on one side stream, which must be the current one."""

    search_rounds = 3
    final_rounds = 30
    # Under the power cap 30 rounds do not tell near ties apart: see docs/protocol.md.
    max_final_rounds = 150

    def __init__(self, l2_bytes: int) -> None:
        import torch

        self._l2_bytes = max(l2_bytes, 1 << 20)
        self._sweep = torch.zeros(L2_SWEEPS * self._l2_bytes // 4, dtype=torch.int32, device="cuda")
        self._sink = torch.zeros((), dtype=torch.int64, device="cuda")

    def buffer_sets(self, nbytes: int) -> int:
        """Sets so that five times the L2 is touched before one comes round, as many as a graph has calls at most."""
        return min(MAX_CALLS, max(2, math.ceil(L2_SWEEPS * self._l2_bytes / nbytes)))

    def estimate_us(self, call: Call) -> float:
        """Time one cold call between events; the sweep before it hides the host's launch time."""
        import torch

        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._sweep_l2()
        start.record()
        call(0)
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3

    def capture(self, call: Call, estimate_us: float, sets: int) -> GraphShot:
        """Capture as many calls as last `REPLAY_US`, and replay them once, which uploads the graph.

        The call ran before, so nothing is compiled or loaded here. One cold call takes longer than each of many: where
        the replay turns out too short for that, it is captured anew.
        """
        calls = _calls(estimate_us)
        shot = self._record(call, calls, sets)
        (call_us,) = self.fire([shot])
        if call_us * calls < REPLAY_US / 2 and calls < MAX_CALLS:
            shot = self._record(call, _calls(call_us), sets)
            self.fire([shot])
        return shot

    def _record(self, call: Call, calls: int, sets: int) -> GraphShot:
        import torch

        graph = torch.cuda.CUDAGraph()
        # torch.cuda.graph() would collect garbage and empty the allocator's cache each time.
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for index in range(calls):
                call(index % sets)
        finally:
            graph.capture_end()
        return GraphShot(graph, calls)

    def fire(self, shots: Sequence[GraphShot]) -> list[float]:
        """Enqueue sweep, event, replay, event for each shot, then wait once."""
        import torch

        for shot in shots:
            self._sweep_l2()
            shot.start.record()
            shot.graph.replay()
            shot.end.record()
        torch.cuda.current_stream().synchronize()
        return [float(shot.start.elapsed_time(shot.end)) * 1e3 / shot.calls for shot in shots]

    def synchronize(self) -> None:
        """Wait for the stream; raises what went wrong on it."""
        import torch

        torch.cuda.current_stream().synchronize()

    def _sweep_l2(self) -> None:
        # A read leaves the L2 full of clean lines: nothing has to be written back inside the timed region.
        import torch

        torch.sum(self._sweep, dim=0, out=self._sink)


def _calls(call_us: float) -> int:
    return max(1, min(MAX_CALLS, math.ceil(REPLAY_US / max(call_us, 1e-3))))


class HostShot:
    """One call, timed on the host."""

    __slots__ = ("call", "calls")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.calls = 1


class HostTimer:
    """Times under Triton's interpreter: the host's clock around one call. Its figures say nothing about a GPU."""

    search_rounds = 1
    final_rounds = 5
    max_final_rounds = 5

    def buffer_sets(self, nbytes: int) -> int:  # noqa: ARG002
        """One set: there is no L2 to keep cold."""
        return 1

    def estimate_us(self, call: Call) -> float:
        """Time one call."""
        return self.fire([HostShot(call)])[0]

    def capture(self, call: Call, estimate_us: float, sets: int) -> HostShot:  # noqa: ARG002
        """A shot of one call."""
        return HostShot(call)

    def fire(self, shots: Sequence[HostShot]) -> list[float]:
        """Call each once."""
        times: list[float] = []
        for shot in shots:
            start = time.perf_counter()
            shot.call(0)
            times.append((time.perf_counter() - start) * 1e6)
        return times

    def synchronize(self) -> None:
        """Nothing runs behind the host's back."""
