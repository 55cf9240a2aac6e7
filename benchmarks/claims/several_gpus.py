"""Times `tuner run` of a suite from nothing on one GPU and on several, and says what each GPU waited for.

    python benchmarks/claims/several_gpus.py --gpus 2,4 --out RESULT.json
    python benchmarks/claims/several_gpus.py --gpus 2 --rehearse --out RESULT.json       # without a GPU, a tiny suite

One GPU runs first. Each run has an empty database and an empty compile cache, and `--cores` cores for each of its
GPUs; torch and Triton were read from disk before. Its time is that of the whole process. A thread of it looks a hundred
times a second at what each GPU's worker does:

start          the processes start and open the GPUs
no job         no problem is ready to be begun
compile        the search waits for a binary; where the GPU has several problems, all do, or wait for their next request
loop           the worker waits for its next request
end            nothing is left to begin, and others are at work
set up, search, finals   a worker is at work

`loop_cpu_s` is what the process that sends all requests took of a core, `workers_cpu_s` what the workers took together.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.sweep.sweep_processes import SweepProcesses

if TYPE_CHECKING:
    from tuner.sweep.supervisor import WorkerSupervisor

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

PUBLIC = Path(__file__).parents[1] / "suites" / "public.csv"
TINY = "op,m,n,k,dtype,layout\n" + "".join(f"softmax,{m},64,1,float16,nn\n" for m in (4, 8, 16, 32, 64, 128))
BEAT_S = 0.01
AT_WORK = {"SETTING_UP": "set up", "SEARCHING": "search", "FINALS": "finals"}


class Watch:
    """Samples what each GPU does; it is told what is left."""

    def __init__(self, supervisors: list[WorkerSupervisor], begun: float) -> None:
        self.supervisors = supervisors  # others of each GPU follow later
        self.gpus = tuple(supervisors)
        self.begun = begun
        self.seconds: list[Counter[str]] = [Counter() for _ in self.gpus]
        self.left: int | None = None
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)

    def cause(self, first: WorkerSupervisor) -> str:
        if self.left is None:
            return "start"
        workers = [supervisor for supervisor in self.supervisors if supervisor.gpu == first.gpu]
        for supervisor in workers:
            if supervisor.busy and supervisor.phase.name in AT_WORK:
                return AT_WORK[supervisor.phase.name]
        jobs = [(supervisor.phase, supervisor.job) for supervisor in workers if supervisor.job is not None]
        if not jobs:
            return "no job" if self.left else "end"
        return "compile" if any(phase.name == "SEARCHING" and job.searching for phase, job in jobs) else "loop"

    def _look(self) -> None:
        before = self.begun
        while not self.ended.wait(BEAT_S):
            now = time.monotonic()
            for supervisor, seconds in zip(self.gpus, self.seconds, strict=True):
                seconds[self.cause(supervisor)] += now - before
            before = now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gpus", type=counts, default=[2], metavar="N,...", help="of each run after the first")
    parser.add_argument("--cores", type=int, help="of each GPU; all, divided by the most GPUs, unless given")
    parser.add_argument("--suite", default=str(PUBLIC), help="a suite's name or file; public.csv unless given")
    parser.add_argument("--rehearse", action="store_true", help="under the interpreter, compiling for sm_90 beside it")
    parser.add_argument("--out", required=True, help="the result, as JSON")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(tuned(args.child, args.suite, Path(args.out), rehearse=args.rehearse)))
        gc.freeze()  # as `tuner run` ends
        return
    from tuner.sweep.compile_pool import cpu_count

    most = max(args.gpus)
    cores = args.cores or max(1, cpu_count() // most)
    if cores * most > cpu_count():
        parser.error(f"{most} GPUs with {cores} cores each need {cores * most}, there are {cpu_count()}")
    # So that the first run does not pay alone for reading torch and Triton from a cold disk.
    subprocess.run([sys.executable, "-c", "import torch, triton"], check=True)
    runs = [timed(gpus, cores, args.suite, rehearse=args.rehearse) for gpus in dict.fromkeys((1, *args.gpus))]
    summary = {
        "suite": "six rows of softmax" if args.rehearse else Path(args.suite).name,
        "cores_of_each_gpu": cores,
        "seconds": {str(run["gpus"]): run["process_s"] for run in runs},
        "speed_up": {str(run["gpus"]): round(runs[0]["process_s"] / run["process_s"], 3) for run in runs[1:]},
    }
    for run in runs:
        print(f"{run['gpus']} GPUs: {run['process_s']} s, {run['compiled']} binaries, start {run['start_s']} s")
        for number, shares in enumerate(run["shares"]):
            print(f"  GPU {number}:", ", ".join(f"{cause} {share:.1%}" for cause, share in shares.items()))
    print(summary)
    record.write(args.out, {"summary": summary, "runs": runs})


def counts(listed: str) -> list[int]:
    found = [int(each) for each in listed.split(",")]
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"{listed}: expected GPUs of each run, 1 or more")
    return found


def timed(gpus: int, cores: int, suite_name: str, *, rehearse: bool) -> dict[str, Any]:
    """Run a child on some of the cores, with nothing to begin with."""
    with tempfile.TemporaryDirectory(prefix="tuner-gpus-") as folder:
        if rehearse:
            suite_name = f"{folder}/tiny.csv"
            Path(suite_name).write_text(TINY)
        command = [sys.executable, __file__, "--child", str(gpus), "--suite", suite_name, "--out", folder]
        allowed = sorted(os.sched_getaffinity(0))[: gpus * cores]
        begun = time.perf_counter()
        done = subprocess.run(
            [*command, *(["--rehearse"] if rehearse else [])],
            env={**os.environ, "TRITON_CACHE_DIR": f"{folder}/cache"},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            preexec_fn=lambda: os.sched_setaffinity(0, allowed),
        )
        seconds = time.perf_counter() - begun
    if done.returncode:
        sys.exit(f"the run on {gpus} GPUs ended with {done.returncode}")
    return {"gpus": gpus, "cores": len(allowed), "process_s": round(seconds, 1), **json.loads(done.stdout)}


def tuned(gpus: int, suite_name: str, folder: Path, *, rehearse: bool) -> dict[str, Any]:
    """Tune a suite as `tuner run` does, which imports most of itself while the workers start."""
    if rehearse:
        from tuner.hardware.device import KNOWN
        from tuner.sweep.compile_pool import CompilePool

        SweepProcesses._start_pool = lambda self, _device: self._stack.enter_context(  # type: ignore[method-assign,assignment]
            CompilePool(KNOWN["sm_90"])
        )
    indices: list[int | None] = [None] * gpus if rehearse else list(range(gpus))
    with SweepProcesses(indices) as processes, contextlib.ExitStack() as stack:
        from tuner.problem import suite
        from tuner.store.store import Store
        from tuner.sweep.observer import Observer
        from tuner.sweep.plan import Plan
        from tuner.sweep.run import sweep

        class Left(Observer):
            def started(self, _device: Any, _environment: Any, problems: Any) -> None:
                watch.left = len(problems)

            def problem_started(self, _job: Any, _gpu: Any) -> None:
                watch.left -= 1  # type: ignore[operator]

        store = stack.enter_context(Store.open(folder / "tuner.db"))
        watch = Watch(processes.supervisors, processes.begun)
        watch.thread.start()
        report = sweep(store, suite.load(suite_name), processes, Plan(), observer=Left())
        compilers_s = sum(
            each.resources.compile_ms / 1e3 for each in processes.pool._results.values() if hasattr(each, "resources")
        )
        watch.ended.set()
        watch.thread.join()
    if report.undecided_count:
        sys.exit(f"{report.undecided_count} problems have no winner")
    shares = [
        {cause: round(spent / report.seconds, 4) for cause, spent in each.most_common()} for each in watch.seconds
    ]
    return {
        "device": report.device.slug,
        "wall_s": round(report.seconds, 1),
        "start_s": round(report.start_s, 1),
        "compiled": report.compiled,
        "compile_wall_s": round(report.compile_s, 1),
        "compilers_s": round(compilers_s, 1),
        "loop_cpu_s": round(time.process_time(), 1),
        "workers_cpu_s": round(sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]), 1),
        "shares": shares,
        "problems": [told(each) for each in report.problems],
    }


def told(problem: Any) -> dict[str, Any]:
    return {
        "problem": str(problem.problem),
        "measured": problem.measured,
        "seconds": round(problem.seconds, 3),
        "phases_s": {phase: round(seconds, 3) for phase, seconds in problem.phases_s.items()},
    }


if __name__ == "__main__":
    main()
