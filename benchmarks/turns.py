"""Steps of a model by torch and by triton-tuner, timed in turns: shared by the scripts that play models and layers."""

from __future__ import annotations

import copy
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

Step = Callable[[], Any]
SAMPLE_S = 0.03
"""How long one sample of a round takes, so that the clock's own steps do not count."""


def shared_copy(model: Any) -> Any:
    """A model of the same weights: torch's side and ours read the same memory."""
    kept = {id(each): each for each in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, kept)


def wait() -> None:
    """Wait for the device."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def host_seconds(step: Step, count: int) -> float:
    """Seconds a step, until the last one's result is there."""
    wait()
    begun = time.perf_counter()
    for _ in range(count):
        step()
    wait()
    return (time.perf_counter() - begun) / count


def device_seconds(step: Step, count: int) -> float:
    """Seconds a step on the device."""
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    wait()
    begin.record()
    for _ in range(count):
        step()
    end.record()
    wait()
    return begin.elapsed_time(end) / 1000 / count


def paired(theirs: Step, ours: Step, clock: Callable[[Step, int], float], rounds: int) -> dict[str, Any]:
    """Time both in turns, and torch's time over ours in each round."""
    steps = {"torch": theirs, "tuner": ours}
    for step in steps.values():
        clock(step, 2)
    count = max(1, min(200, int(SAMPLE_S / max(clock(theirs, 2), 1e-6))))
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name in random.sample(list(steps), 2):
            seconds[name].append(clock(steps[name], count))
    ratios = sorted(a / b for a, b in zip(seconds["torch"], seconds["tuner"], strict=True))
    return {
        "torch_ms": round(statistics.median(seconds["torch"]) * 1e3, 4),
        "tuner_ms": round(statistics.median(seconds["tuner"]) * 1e3, 4),
        "torch_over_tuner": round(statistics.median(ratios), 4),
        "least": round(ratios[0], 4),
        "most": round(ratios[-1], 4),
        "steps_a_sample": count,
    }


def captured(step: Step) -> Step:
    """One step as a CUDA graph."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        result = step()

    def replay(_read_by_the_graph: Step = step) -> Any:
        graph.replay()
        return result

    return replay


def numbers(text: str) -> list[int]:
    """Of an option such as 1,8,32."""
    return [int(each) for each in text.split(",") if each]
