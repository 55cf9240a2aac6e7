"""How long a sweep takes by its order and its own work alone: workers and compilers only take their time.

    python benchmarks/studies/simulated_workers.py --out RESULT.json [--compiled] [--slower 2]

No GPU is used. Everything is the product's own but what a worker and a compile child do: they sleep as long as they
take on an H200 with 16 cores, whose 15 compilers keep 15 of them busy. A worker passes its GPU's gate as a real one
does. What a config takes is the cost model's time and up to 30% more, by its digest. The suite is what `tuner model`
lists of Llama 3 8B for M 1 to 128. With --compiled the compile cache has every binary. With --slower 2 all sleep twice
as long, and figures are halved: the product's own work then counts half, for a machine of few cores.

`gaps_s` is how long no worker had anything to do, from the first request to the last; `compilers` how many were at work
on average until the last binary.
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
from tuner.sweep import compile_child, compile_pool, messages, run, sweep_processes, worker
from tuner.sweep.gpu_gate import GpuGate
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
SET_UP_S, CLEAR_S = 0.027, 0.005
LOAD_S, PREPARE_S, TIME_S = 0.0024, 0.0044, 0.0052
"""Of each config of a request: to read its binary, to check and capture it beside others, and to time it alone."""
PREPARE_FINALS_S, FINALS_S = 0.027, 0.093
COMPILE_S = {
    "swap_ab": 0.45,
    "cluster_k": 0.41,
    "any_height": 0.64,
    "warp_specialized": 0.49,
    "gemv": 0.25,
    "tma": 0.31,
    "persistent_tma": 0.48,
    "pointer": 0.62,
    "split_k": 0.72,
    "gated_any_height": 0.64,
    "gated_pointer": 0.51,
    "gated_warp_specialized": 0.55,
    "gated_gemv": 0.24,
    "rms_norm_whole": 0.24,
}
"""Means of a sweep of that suite, where 15 compile at a time."""
BINARY_S = 0.003
"""Of a binary that the compile cache has."""
CHILDREN = 15
SLOWER, COMPILED = "SIMULATED_SLOWER", "SIMULATED_COMPILED"
"""Variables that tell the children of --slower and --compiled."""
TRACE = "SIMULATED_WORKERS"
"""The variable that names the folder in which workers note their requests, and compilers their binaries."""
_SHORT_S = 0.05


def trial(problem: Problem | None, config: Config) -> Outcome:
    """A config takes what its model says and up to 30% more, the same share in all problems."""
    assert problem is not None
    model = registry.find(problem.op, config.kernel).estimate_us
    share = hashlib.sha256(config.digest.encode()).digest()[0] / 255
    us = ((model and model(config, problem, DEVICE)) or 10.0) * (1 + 0.3 * share)
    return Outcome(State.COMPLETE, median_us=us, p20_us=us, p80_us=us, samples=2)


def spend(seconds: float) -> None:
    time.sleep(seconds * float(os.environ[SLOWER]))


def serve(connection: Connection, _gpu: int | None, _log: str, *, gate: Path | None = None) -> None:
    """A worker: it answers as one of a GPU does, and as late."""
    assert gate is not None
    passed = GpuGate(gate, waiting=lambda: connection.send(messages.Waiting()))
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
            answers = replies(request, problem, passed)
            trace.write(f"worked {begun} {time.monotonic()}\n")
            for reply in answers:
                connection.send(reply)


def replies(request: Any, problem: Problem | None, gate: GpuGate) -> list[Any]:
    """What a worker answers to a request, after as long as it takes."""
    match request:
        case messages.SetProblem():
            with gate.shared():
                spend(SET_UP_S)
            return [messages.Ready(0)]
        case messages.Measure():
            count = len(request.configs)
            spend(LOAD_S * count)
            with gate.shared():
                spend(PREPARE_S * count)
            with gate.alone():
                spend(TIME_S * count)
            return [*(messages.Result(each, trial(problem, each)) for each in request.configs), messages.Idle()]
        case messages.PlayFinals():
            with gate.shared():
                spend(PREPARE_FINALS_S)
            with gate.alone():
                spend(FINALS_S)
            times = {each.digest: trial(problem, each).median_us or 0.0 for each in request.finalists}
            times["vendor"] = 100.0
            return [
                messages.FinalsPlayed(
                    {name: [us * (1 + n % 7 / 1e3) for n in range(30)] for name, us in times.items()}, {}
                )
            ]
        case _:
            with gate.shared():
                spend(CLEAR_S)
            return [messages.ProblemCleared()]


def compile_config(op: str, kernel: str, problem: Problem, config: Config) -> compile_child.CompileResult:
    """A compile child's task: it takes its time, and each binary is a program of its own."""
    begun = time.monotonic()
    share = hashlib.sha256(config.digest.encode()).digest()[1] / 255
    spend(BINARY_S if os.environ[COMPILED] else COMPILE_S[kernel] * (0.5 + share))
    with Path(os.environ[TRACE], f"{os.getpid()}.txt").open("a", buffering=1) as trace:
        trace.write(f"compiled {begun} {time.monotonic()}\n")
    key = registry.find(op, kernel, problem.source).compile_class(problem, config)
    return compile_child.Compiled(
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
    parser.add_argument("--compiled", action="store_true", help="the compile cache has every binary")
    parser.add_argument("--slower", type=float, default=1.0, help="how many times as long all sleep")
    args = parser.parse_args()
    os.environ |= {SLOWER: str(args.slower), COMPILED: "1" if args.compiled else ""}
    with contextlib.ExitStack() as stack:
        # One for all sweeps: compilers see the variables that their fork server began with.
        os.environ[TRACE] = stack.enter_context(tempfile.TemporaryDirectory())
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
    for trace in Path(os.environ[TRACE]).glob("*.txt"):
        trace.unlink()
    with tempfile.TemporaryDirectory() as folder:
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
    spans = spans_of(Path(os.environ[TRACE]))
    worked, compiled = spans["worked"], spans["compiled"]
    gaps, until = [], min(worked)[0]
    for begin, end in sorted(worked):
        gaps.append(max(0.0, begin - until))
        until = max(until, end)
    compiling_s = max(end for _, end in compiled) - min(compiled)[0]
    slower = float(os.environ[SLOWER])
    return {
        "seconds": round(report.seconds / slower, 2),
        "problems": len(report.problems),
        "binaries": report.compiled,
        "requests": len(worked),
        "trials": sum(each.measured for each in report.problems),
        "gaps_s": round(sum(gaps) / slower, 2),
        "gaps_of_at_most_50_ms_s": round(sum(gap for gap in gaps if gap <= slower * _SHORT_S) / slower, 2),
        "compiling_s": round(compiling_s / slower, 2),
        "compilers": round(sum(end - begin for begin, end in compiled) / compiling_s, 1),
        "cpu_of_the_loop_s": round(cpu_s[0], 2),
    }


def spans_of(folder: Path) -> dict[str, list[tuple[float, float]]]:
    """When workers and compilers were at work."""
    found = dict[str, list[tuple[float, float]]](worked=[], compiled=[])
    for file in folder.glob("*.txt"):
        for line in open_lines(file):
            what, begin, end = line.split()
            found[what].append((float(begin), float(end)))
    return found


def open_lines(path: Path) -> list[str]:
    """A trace's lines, but the one that a worker was writing when it was ended."""
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


if __name__ == "__main__":
    main()
