"""Protocol 1's timer: a CUDA graph of n calls over rotating buffers, replayed after the L2 was swept.

What is timed is a call that takes the index of a buffer set. `capture` captures it; `replay` replays a list
of captures one after the other and returns microseconds a call for each. docs/protocol.md says why each step is there.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tuner.sweep.gpu_gate import Gate, OpenGate

if TYPE_CHECKING:
    import torch

Call = Callable[[int], None]

REPLAY_US = 1_000.0
"""How long one replay should last: long against an event's resolution, about 0.5 us (CUDA Runtime API,
cudaEventElapsedTime), and against the gap before a graph's first node."""
MAX_CALLS = 512
"""The most calls in one graph: with these, a call of 2 us still makes a replay of 1 ms."""
L2_SWEEPS = 5
"""How many times the L2's size is touched before a buffer is used again."""
FINAL_SETS = 8
"""How many sets the finals make where fewer are enough for the L2: what a config gains or loses by where one of them
lies then counts an eighth. More would hardly be used: a replay of what reads 500 MB holds about eight calls."""
FINAL_BYTES = 2 << 30
"""The finals make no more sets than take this, unless the L2 asks for them."""


def unstopped(measure: Callable[[], list[float]]) -> list[float]:
    """Measure, and again for as long as this process was stopped meanwhile (SIGSTOP, Ctrl-Z), which a time would hold.

    A process that is continued gets SIGCONT. Where `serve_requests` has blocked it, it waits here to be seen.
    """
    signal.sigtimedwait({signal.SIGCONT}, 0)
    figures = measure()
    while signal.sigtimedwait({signal.SIGCONT}, 0) is not None:
        figures = measure()
    return figures


class CapturedGraph:
    """A captured CUDA graph of some calls on one buffer set after the other."""

    __slots__ = ("call", "calls", "end", "graph", "sets", "start")

    def __init__(self, graph: torch.cuda.CUDAGraph, call: Call, calls: int, sets: int) -> None:
        import torch

        self.graph = graph
        self.call, self.calls, self.sets = call, calls, sets
        self.start = torch.cuda.Event(enable_timing=True)
        self.end = torch.cuda.Event(enable_timing=True)


class GraphTimer:
    """Times on a GPU. Everything runs on one side stream, which must be the current one.

    Attributes:
        search_rounds: the most replays of a config in the search.
        final_rounds: paired rounds that every finalist plays.
        max_final_rounds: the most rounds, played by those that may still win.
        launches_binaries: whether launches need compiled binaries.
        gate: what is passed before the GPU is used; `warm_up` and `replay` need it `alone`, all else `shared`.
    """

    search_rounds = 3
    final_rounds = 30
    # Under the power cap, 30 rounds cannot tell near ties apart: see docs/protocol.md.
    max_final_rounds = 150
    launches_binaries = True

    def __init__(self, l2_bytes: int, gate: Gate | None = None) -> None:
        """Allocate what sweeps an L2 of so many bytes; without a gate, nobody else uses the GPU."""
        import torch

        self.gate = gate or OpenGate()
        self._l2_bytes = max(l2_bytes, 1 << 20)
        self._sweep = torch.zeros(L2_SWEEPS * self._l2_bytes // 4, dtype=torch.int32, device="cuda")
        self._sink = torch.zeros((), dtype=torch.int64, device="cuda")

    def buffer_sets(self, nbytes: int) -> int:
        """Return enough sets to touch five times the L2 before one is used again, but no more than a graph's calls."""
        return min(MAX_CALLS, max(2, math.ceil(L2_SWEEPS * self._l2_bytes / nbytes)))

    def final_sets(self, nbytes: int) -> int:
        """Return how many sets the finals make in other memory than the search's, 0 for none.

        Small problems have many sets as it is. Where memory is short, the search's have to do.
        """
        import torch

        least = self.buffer_sets(nbytes)
        if least >= FINAL_SETS:
            return 0
        free, _ = torch.cuda.mem_get_info()
        wanted = max(least, min(FINAL_SETS, FINAL_BYTES // nbytes))
        return next((count for count in (wanted, least) if count * nbytes <= free / 4), 0)

    def _estimate_us(self, call: Call) -> float:
        """Time one cold call between events; the L2 sweep before it hides the host's launch time."""
        import torch

        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._sweep_l2()
        start.record()
        call(0)
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3

    def capture(self, call: Call, sets: int) -> CapturedGraph:
        """Return what to time of a call that ran before; see `prepare` and `warm_up`."""
        return self.warm_up(self.prepare(call, sets))

    def prepare(self, call: Call, sets: int) -> CapturedGraph:
        """Capture as many calls as last `REPLAY_US`; the call ran before, so nothing is compiled or loaded here."""
        return self._record(call, _calls(self._estimate_us(call)), sets)

    def warm_up(self, capture: CapturedGraph) -> CapturedGraph:
        """Replay a capture once, which uploads the graph; return what to time.

        The one cold call by which it was sized takes longer than each of many, and may have waited for another worker;
        where this makes the replay too short, the call is captured again.
        """
        (call_us,) = self.replay([capture])
        if call_us * capture.calls < REPLAY_US / 2 and capture.calls < MAX_CALLS:
            capture = self._record(capture.call, _calls(call_us), capture.sets)
            self.replay([capture])
        return capture

    def _record(self, call: Call, calls: int, sets: int) -> CapturedGraph:
        import torch

        graph = torch.cuda.CUDAGraph()
        # torch.cuda.graph() would collect garbage and empty the allocator's cache each time.
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for index in range(calls):
                call(index % sets)
        finally:
            graph.capture_end()
        return CapturedGraph(graph, call, calls, sets)

    def replay(self, captures: Sequence[CapturedGraph]) -> list[float]:
        """Enqueue an L2 sweep, an event, the replay and an event for each capture, then wait once."""
        return unstopped(lambda: self._replay(captures))

    def _replay(self, captures: Sequence[CapturedGraph]) -> list[float]:
        import torch

        for capture in captures:
            self._sweep_l2()
            capture.start.record()
            capture.graph.replay()
            capture.end.record()
        torch.cuda.current_stream().synchronize()
        return [float(capture.start.elapsed_time(capture.end)) * 1e3 / capture.calls for capture in captures]

    def synchronize(self) -> None:
        """Wait for the stream; an error of an earlier launch is raised here."""
        import torch

        torch.cuda.current_stream().synchronize()

    def _sweep_l2(self) -> None:
        # Reading leaves the L2 full of clean lines, so that nothing is written back inside the timed region.
        import torch

        torch.sum(self._sweep, dim=0, out=self._sink)


def _calls(call_us: float) -> int:
    return max(1, min(MAX_CALLS, math.ceil(REPLAY_US / max(call_us, 1e-3))))


class HostTimer:
    """Times under Triton's interpreter with the host's clock. Its figures say nothing about a GPU."""

    search_rounds = 1
    final_rounds = 5
    max_final_rounds = 5
    launches_binaries = False

    def __init__(self, gate: Gate | None = None) -> None:
        """Without a gate, nobody else uses what stands for the GPU."""
        self.gate = gate or OpenGate()

    def buffer_sets(self, nbytes: int) -> int:  # noqa: ARG002
        """Return 1, because there is no L2 to keep cold."""
        return 1

    def final_sets(self, nbytes: int) -> int:  # noqa: ARG002
        """Return 0, because a host's figures are not that exact."""
        return 0

    def capture(self, call: Call, sets: int) -> Call:  # noqa: ARG002
        """Return the call itself."""
        return call

    prepare = capture

    def warm_up(self, capture: Call) -> Call:
        """Return the call, which has run before."""
        return capture

    def replay(self, captures: Sequence[Call]) -> list[float]:
        """Call each once and time it."""
        return unstopped(lambda: self._replay(captures))

    def _replay(self, captures: Sequence[Call]) -> list[float]:
        times: list[float] = []
        for call in captures:
            start = time.perf_counter()
            call(0)
            times.append((time.perf_counter() - start) * 1e6)
        return times

    def synchronize(self) -> None:
        """Return at once, because every call has ended already."""


Timer = GraphTimer | HostTimer
