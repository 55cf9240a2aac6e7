"""Tune a suite exhaustively and say what it took: trials by state, seconds, rates, winners beside default and vendor.

python benchmarks/tune_suite.py --suite FILE.csv --rows bfloat16/nt,float16/nn --db NEW.db --out RESULT.json
Several suites (--suite A --suite B) and several GPUs of one model (--gpus 0,1,2,3) make one sweep. With --kernel NAME
and --beside LANDSCAPES.json.gz all configs of these kernels of `matmul` are tried, beside the fastest recorded there.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections import Counter

import record

from tuner.kernel.config import Config
from tuner.problem import Problem, suite
from tuner.store.records import State
from tuner.store.store import Store
from tuner.sweep.report import Observer, Plan
from tuner.sweep.run import sweep
from tuner.sweep.search import FixedList, Strategy
from tuner.sweep.strategies import STRATEGIES

RECORDED = 40
"""Of each problem, of the configs recorded before: beyond these none is within reach of the fastest."""


class Stopwatch(Observer):
    """Notes when each problem's trials ended, and what each binary cost."""

    def __init__(self):
        self.ends = {}
        self.compile_ms = {}
        self.begin = time.monotonic()

    def trial_ended(self, job, config, outcome):
        self.ends.setdefault(job.problem, []).append((time.monotonic(), outcome.state))
        if outcome.resources.compile_ms is not None:
            self.compile_ms[job.key(config)] = outcome.resources.compile_ms

    def problem_ended(self, report):
        winner = report.winner
        label = winner.config.label if winner else report.reason
        print(f"{time.monotonic() - self.begin:7.1f} s  {report.problem}: {label}", flush=True)

    def rate(self):
        """Measured trials a second between the first and the last trial of a problem, over all problems."""
        measured = seconds = 0.0
        for ends in self.ends.values():
            ran = [at for at, state in ends if state in (State.COMPLETE, State.WRONG_RESULT, State.RUNTIME_ERROR)]
            if len(ran) > 1:
                measured += len(ran) - 1
                seconds += ran[-1] - ran[0]
        return measured, seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--suite", required=True, action="append")
    parser.add_argument("--rows", default="", help="dtype/layout pairs, comma separated; all when empty")
    parser.add_argument("--db", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--trials", type=int)
    parser.add_argument("--time-budget", type=float)
    parser.add_argument("--strategy", default="exhaustive", choices=STRATEGIES)
    parser.add_argument("--kernel", action="append", default=[], help="these alone, every config of them")
    parser.add_argument("--beside", help="landscapes: with --kernel, their fastest configs are tried too")
    parser.add_argument("--gpus", default="0", help="CUDA indices, comma separated; -1: the interpreter, to rehearse")
    args = parser.parse_args()
    kinds = [tuple(kind.split("/")) for kind in args.rows.split(",") if kind]
    listed = [problem for name in args.suite for problem in suite.load(name)]
    problems = [problem for problem in listed if not kinds or (problem.a_dtype, problem.layout) in kinds]
    if args.kernel:
        problems = [problem for problem in problems if problem.op == "matmul"]
    gpus = [None if gpu == "-1" else int(gpu) for gpu in args.gpus.split(",")]
    watch = Stopwatch()
    strategy = only(args.kernel, args.beside) if args.kernel else STRATEGIES[args.strategy]
    plan = Plan(strategy=strategy, trials=args.trials, time_budget_s=args.time_budget)
    with Store.open(args.db) as store:
        report = sweep(store, problems, gpus, plan, observer=watch)
    record.write(args.out, body(report, watch))


def only(kernels, beside):
    """Every config of some kernels, and of the others the fastest that landscapes recorded."""
    recorded = recorded_configs(beside) if beside else {}

    def start(field):
        known = dict.fromkeys(field.configs)
        kept = [config for config in known if config.kernel in kernels]
        fastest = [config for config in recorded.get(field.problem, ()) if config in known]
        return FixedList(
            list(dict.fromkeys([field.default, *fastest[:RECORDED], *kept])), "every config of these was tried"
        )

    return Strategy("exhaustive", start)


def recorded_configs(path):
    """Configs of each problem of a file of landscapes, from the fastest on."""
    with gzip.open(path) as file:
        document = json.load(file)
    configs = [Config(kernel, **parameters) for kernel, parameters in document["configs"]]
    found = {}
    for entry in document["problems"]:
        ranked = sorted(zip(entry["us"], entry["configs"], strict=True))
        found[Problem.from_fields(entry["problem"])] = [configs[number] for _, number in ranked]
    return found


def body(report, watch):
    states, phases = Counter(), Counter()
    rows = []
    for ended in report.problems:
        states += ended.states
        phases += Counter(ended.phases_s)
        winner = ended.winner
        rows.append(
            {
                "problem": str(ended.problem),
                "reason": ended.reason,
                "considered": ended.considered,
                "measured": ended.measured,
                "stopped": ended.stopped,
                "states": {str(state): count for state, count in sorted(ended.states.items())},
                "seconds": round(ended.seconds, 2),
                "phases_s": {phase: round(seconds, 2) for phase, seconds in ended.phases_s.items()},
                **(
                    {}
                    if winner is None
                    else {
                        "winner": winner.config.label,
                        "median_us": round(winner.median_us, 3),
                        "tflops": round(winner.tflops, 1),
                        "vs_default": winner.vs_default and round(winner.vs_default, 4),
                        "vs_vendor": winner.vs_vendor and round(winner.vs_vendor, 4),
                        "ties": winner.ties,
                    }
                ),
            }
        )
    measured, seconds = watch.rate()
    summary = {
        "device": report.device.slug,
        "environment": report.environment,
        "wall_s": round(report.seconds, 1),
        "start_s": round(report.start_s, 1),
        "phases_s": {phase: round(seconds, 1) for phase, seconds in phases.items()},
        "binaries": report.compiled,
        "compile_wall_s": round(report.compile_s, 1),
        "compile_sum_s": round(sum(watch.compile_ms.values()) / 1e3, 1),
        "trials_by_state": {str(state): count for state, count in sorted(states.items())},
        "measured_trials": int(measured),
        "measuring_s": round(seconds, 1),
        "trials_per_s": round(measured / seconds, 1) if seconds else None,
        "geomean_vs_default": round(record.geomean([r["vs_default"] for r in rows if r.get("vs_default")]), 4),
        "geomean_vs_vendor": round(record.geomean([r["vs_vendor"] for r in rows if r.get("vs_vendor")]), 4),
    }
    for name, value in summary.items():
        print(f"{name:20} {value}")
    for row in rows:
        print(
            f"{row['problem']:44} {row.get('winner', row['reason'])[:48]:48} "
            f"{row.get('median_us') or 0:9.2f} us  {row.get('vs_default') or 0:6.3f} {row.get('vs_vendor') or 0:6.3f}"
        )
    return {"summary": summary, "rows": rows}


if __name__ == "__main__":
    main()
