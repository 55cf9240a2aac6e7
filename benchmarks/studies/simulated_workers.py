"""How long a GPU waits for `tuner run`'s own work: a sweep whose workers and compilers only take their time.

    python benchmarks/studies/simulated_workers.py --out RESULT.json

No GPU is used. Everything is the product's own but what a worker and a compile child do: they sleep as long as they
take on an H100 with 16 cores whose compile cache has every binary. What a config takes is the cost model's time and up
to 30% more, by its digest. The suite is what `tuner model` lists of Llama 3 8B for M 1 to 128. `gaps_s` is how long no
worker had anything to do, from the first request to the last.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import statistics
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

from tuner.hardware.device import KNOWN, Environment
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.problem import Problem, suite
from tuner.store.records import Outcome, Resources, State
from tuner.store.store import Store
from tuner.sweep import compile_pool, messages, run, sweep_processes, worker
from tuner.sweep.loop import Loop
from tuner.sweep.plan import Plan

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

DEVICE = KNOWN["sm_90"]
ENVIRONMENT = Environment("3.7.1", "2.11.0", "cuda 13.0", "", "3.12")
SUITE = """m,n,k,dtype,layout,epilogue,op,eps
1-128,4096,4096,bfloat16,nt,,,
1-128,1024,4096,bfloat16,nt,,,
1-128,14336,4096,bfloat16,nt,,,
1-128,4096,14336,bfloat16,nt,,,
1-128,128256,4096,bfloat16,nt,,,
1-128,14336,4096,bfloat16,nt,silu,gated_linear,
1-128,4096,1,bfloat16,nn,,rms_norm,1e-06
"""
SET_UP_S, CLEAR_S, TRIAL_S, FINALS_S = 0.022, 0.0047, 0.0107, 0.19
BINARY_S = 0.003
"""Of a binary that the compile cache has."""
CHILDREN = 4
TRACE = "SIMULATED_WORKERS"
"""The variable that names the folder in which each worker notes its requests."""
_SHORT_S = 0.05


def trial(problem: Problem | None, config: Config) -> Outcome:
    """A config takes what its model says and up to 30% more, the same share in all problems."""
    assert problem is not None
    model = registry.find(problem.op, config.kernel).estimate_us
    share = hashlib.sha256(config.digest.encode()).digest()[0] / 255
    us = ((model and model(config, problem, DEVICE)) or 10.0) * (1 + 0.3 * share)
    return Outcome(State.COMPLETE, median_us=us, p20_us=us, p80_us=us, samples=2)


def serve(connection: Connection, _gpu: int | None, _log: str) -> None:
    """A worker: it answers as one of a GPU does, and as late."""
    if not connection.poll():
        connection.send(messages.Imported())
    connection.recv()
    registry.specs()
    connection.send(messages.Hello(DEVICE, ENVIRONMENT))
    problem: Problem | None = None
    with Path(os.environ[TRACE], f"{os.getpid()}.txt").open("a", buffering=1) as trace:
        while True:
            try:
                request = connection.recv()
            except EOFError:
                return
            begun = time.monotonic()
            if isinstance(request, messages.SetProblem):
                problem = request.problem
            for reply in replies(request, problem):
                connection.send(reply)
            trace.write(f"{begun} {time.monotonic()}\n")


def replies(request: Any, problem: Problem | None) -> list[Any]:
    """What a worker answers to a request, after as long as it takes."""
    match request:
        case messages.SetProblem():
            time.sleep(SET_UP_S)
            return [messages.Ready(0)]
        case messages.Measure():
            time.sleep(TRIAL_S * len(request.configs))
            return [*(messages.Result(each, trial(problem, each)) for each in request.configs), messages.Idle()]
        case messages.PlayFinals():
            time.sleep(FINALS_S)
            times = {each.digest: trial(problem, each).median_us or 0.0 for each in request.finalists}
            times["vendor"] = 100.0
            return [
                messages.FinalsPlayed(
                    {name: [us * (1 + n % 7 / 1e3) for n in range(30)] for name, us in times.items()}, {}
                )
            ]
        case _:
            time.sleep(CLEAR_S)
            return [messages.ProblemCleared()]


def compile_config(op: str, kernel: str, problem: Problem, config: Config) -> compile_pool.CompileResult:
    """A compile child's task: it takes its time, and each binary is a program of its own."""
    time.sleep(BINARY_S)
    key = registry.find(op, kernel, problem.source).compile_class(problem, config)
    return compile_pool.Compiled(
        Resources(registers=64, spill_bytes=0, shared_bytes=1024, compile_ms=500.0), f"{op}/{kernel}/{key}"
    )


class Pool(compile_pool.CompilePool):
    """A compile pool of few children, whatever the number of cores."""

    def __init__(self, device: Any) -> None:
        """Start the children."""
        super().__init__(device, workers=CHILDREN)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="the result, as JSON")
    parser.add_argument("--sweeps", type=int, default=3)
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(worker, "serve", serve))
        stack.enter_context(mock.patch.object(sweep_processes, "first_arch", return_value=DEVICE.arch))
        stack.enter_context(mock.patch.object(compile_pool, "CompilePool", Pool))
        stack.enter_context(mock.patch.object(compile_pool, "compile_config", compile_config))
        sweeps = [simulated() for _ in range(args.sweeps)]
    medians = {name: round(statistics.median(each[name] for each in sweeps), 2) for name in sweeps[0]}
    print(medians)
    record.write(args.out, {"medians": medians, "sweeps": sweeps})


def simulated() -> dict[str, float]:
    """One sweep from nothing."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ[TRACE] = folder
        listed = Path(folder, "suite.csv")
        listed.write_text(SUITE)
        cpu_s: list[float] = []
        work = Loop.work

        def timed(loop: Loop, stop: threading.Event) -> None:
            begun = time.thread_time()
            work(loop, stop)
            cpu_s.append(time.thread_time() - begun)

        with mock.patch.object(Loop, "work", timed), Store.open(f"{folder}/tuner.db") as store:
            report = run.sweep(store, suite.load_with_ladders(listed), [0], Plan())
        spans = [tuple(map(float, line.split())) for each in Path(folder).glob("*.txt") for line in open_lines(each)]
    gaps, until = [], min(spans)[0]
    for begin, end in sorted(spans):
        gaps.append(max(0.0, begin - until))
        until = max(until, end)
    return {
        "seconds": round(report.seconds, 2),
        "problems": len(report.problems),
        "binaries": report.compiled,
        "requests": len(spans),
        "gaps_s": round(sum(gaps), 2),
        "gaps_of_at_most_50_ms_s": round(sum(gap for gap in gaps if gap <= _SHORT_S), 2),
        "cpu_of_the_loop_s": round(cpu_s[0], 2),
    }


def open_lines(path: Path) -> list[str]:
    """A trace's lines, but the one that a worker was writing when it was ended."""
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


if __name__ == "__main__":
    main()
