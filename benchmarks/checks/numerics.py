"""Every kernel over ragged shapes, dtypes, layouts, epilogues and views of memory, against float64 (docs/numerics.md).

    python benchmarks/checks/numerics.py --out RESULT.json
    python benchmarks/checks/numerics.py --again RESULT.json --out AGAIN.json          # its failures alone
    python benchmarks/checks/numerics.py --device interpreter --sizes 1,7,16,17,128,129 --limit-s 60 --out RESULT.json

Compiles run on all cores but one, ahead of the launches. Launches run in processes that a fault may take down: the case
is named, another process goes on. Exits 1 when a result is wrong, a launch fails, a default config does not compile, or
nothing ran.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import itertools
import json
import math
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.hardware.device import Device
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.store.records import State
from tuner.sweep.compile_child import Failed
from tuner.sweep.compile_pool import CompilePool

sys.path.extend(str(Path(__file__).parents[2] / part) for part in ("benchmarks", "tests/numerics"))
import record
from attempts import Attempt
from covering import SIZES, VIEWS, Case, Coverage
from launchers import Launchers

AHEAD = 1000
"""Compiles asked for before their cases are launched."""
GIVE_UP = 5
"""Ends by a hang or a dead process after which a kernel's other cases are left out: each takes long."""
NOT_BUILT = (State.COMPILE_ERROR, State.OUT_OF_RESOURCES)
"""Ends of a config that never ran: counted apart, a failure only for a default config."""


@dataclass(slots=True)
class Tally:
    """What came of one kernel's cases."""

    coverage: Coverage | None
    problems: set[tuple[Problem, str]] = field(default_factory=set)
    states: Counter[State] = field(default_factory=Counter)
    stray: int = 0
    unrepeatable: int = 0
    compiled: int = 0
    worst: tuple[float, Case | None] = (0.0, None)

    def add(self, case: Case, result: Attempt) -> None:
        self.problems.add((case.problem, case.view))
        self.states[result.state] += 1
        self.stray += result.stray
        self.unrepeatable += not result.repeatable
        self.compiled += result.compiled
        if result.ratio > self.worst[0] or self.worst[1] is None:
            self.worst = (result.ratio, case)

    @property
    def given_up(self) -> bool:
        return self.states[State.TIMEOUT] + self.states[State.CRASHED] >= GIVE_UP

    @property
    def launches(self) -> int:
        """Each right case is launched twice; a wrong one too."""
        return 2 * (self.states[State.COMPLETE] + self.states[State.WRONG_RESULT])

    def body(self) -> dict[str, Any]:
        ratio, case = self.worst
        planned = self.coverage.problems if self.coverage else self.problems
        return {
            "problems": len(self.problems),
            "problems_not_reached": len(planned) - len(self.problems),
            "launches": self.launches,
            "worst_error_over_tolerance": finite(ratio),
            "worst_case": str(case),
            "stray_writes": self.stray,
            "nondeterministic": self.unrepeatable,
            "states": {str(state): count for state, count in sorted(self.states.items())},
            "compiled_at_launch": self.compiled,
            "axis_values_untried": self.coverage.untried if self.coverage else [],
        }


class Session:
    """Cases on their way: asked to compile, being launched, tallied."""

    def __init__(self, tallies: dict[str, Tally], launchers: Launchers, compiles: CompilePool | None, device: Device):
        self.tallies, self.launchers, self.compiles, self.device = tallies, launchers, compiles, device
        self.failures: list[dict[str, Any]] = []
        self.not_built: list[dict[str, Any]] = []
        self._compiling: deque[tuple[Case, str]] = deque()
        self._running: dict[concurrent.futures.Future[Attempt], Case] = {}

    def run(self, cases: Iterator[Case], deadline: float, in_flight: int) -> bool:
        """Whether all cases came to an end before the deadline (of `time.monotonic`)."""
        while time.monotonic() < deadline:
            for case in itertools.islice(cases, min(5, AHEAD - len(self._compiling))):
                self._compiling.append((case, self._request(case)))
            if self.compiles:
                self.compiles.recover()
            for _ in range(len(self._compiling)):
                if len(self._running) >= in_flight:
                    break
                self._try_next()
            self._harvest()
            if not self._compiling and not self._running:
                return True
        return False

    def add_faults(self) -> None:
        """Count problems without configs as failures."""
        for name, tally in self.tallies.items():
            for problem, message in tally.coverage.faults if tally.coverage else ():
                row = {"case": f"{problem}, {name}", "state": str(State.INVALID), "message": message}
                self.failures.append(row)
                print(f"space or default config of {name} for {problem}: {message}", flush=True)

    def _request(self, case: Case) -> str:
        spec = registry.find(case.problem.op, case.config.kernel)
        return self.compiles.request(spec, case.problem, case.config) if self.compiles else ""

    def _try_next(self) -> None:
        case, key = self._compiling.popleft()
        if self.tallies[case.kernel].given_up:
            return
        result = self.compiles.result(key) if self.compiles else None
        if self.compiles and result is None:
            self._compiling.append((case, key))
        elif isinstance(result, Failed):
            self._end(case, Attempt(result.state, result.message))
        elif result is not None and (result.resources.shared_bytes or 0) > self.device.shared_bytes:
            message = f"{result.resources.shared_bytes} bytes of shared memory, a block has {self.device.shared_bytes}"
            self._end(case, Attempt(State.OUT_OF_RESOURCES, message))
        else:
            self._running[self.launchers.launch(case)] = case

    def _harvest(self) -> None:
        done, _ = concurrent.futures.wait(self._running, timeout=0.02, return_when="FIRST_COMPLETED")
        for future in done:
            self._end(self._running.pop(future), self.launchers.outcome(future))
        if not self._running:
            time.sleep(0.02)

    def _end(self, case: Case, result: Attempt) -> None:
        self.tallies[case.kernel].add(case, result)
        if result.state is State.COMPLETE:
            return
        row = {
            "case": str(case),
            "state": str(result.state),
            "message": result.message,
            "error_over_tolerance": finite(result.ratio),
            "problem": case.problem.fields(),
            "view": case.view,
            "kernel": case.config.kernel,
            "config": dict(case.config),
            "default": case.default,
            "seed": case.seed,
        }
        failed = case.default or result.state not in NOT_BUILT
        (self.failures if failed else self.not_built).append(row)
        print(f"{result.state}  {case}: {result.message}", flush=True)


def finite(ratio: float) -> float | None:
    """A ratio as JSON has it: None for an infinite one."""
    return round(ratio, 4) if math.isfinite(ratio) else None


def interleaved(iterators: list[Iterator[Case]]) -> Iterator[Case]:
    """One of each in turn, so that a run that is stopped early has tried all kernels."""
    return (case for turn in itertools.zip_longest(*iterators) for case in turn if case is not None)


def failed_before(path: str) -> Iterator[Case]:
    """The failures of an earlier result."""
    for row in json.loads(Path(path).read_text())["failures"]:
        if "config" in row:
            config = Config(row["kernel"], **row["config"])
            yield Case(Problem.from_fields(row["problem"]), row["view"], config, row["default"], row["seed"])


def plan(args: argparse.Namespace, device: Device) -> tuple[dict[str, Tally], Iterator[Case]]:
    if args.again:
        again = list(failed_before(args.again))
        return {case.kernel: Tally(None) for case in again}, iter(again)
    specs = {f"{op}/{name}": spec for (op, name), spec in sorted(registry.specs().items())}
    if unknown := {spec.op for spec in specs.values()} - set(VIEWS):
        sys.exit(f"no problems are drawn for the op {', '.join(unknown)}: add it to EXTRAS and VIEWS of covering.py")
    sizes = tuple(int(size) for size in args.sizes.split(","))
    coverages = {
        name: Coverage(spec, device, (sizes, sizes, sizes), configs=args.configs, seed=args.seed, refined=args.refined)
        for name, spec in specs.items()
        if not args.kernel or name in args.kernel
    }
    cases = interleaved([coverage.cases() for coverage in coverages.values()])
    return {name: Tally(coverage) for name, coverage in coverages.items()}, cases


def report(session: Session, *, complete: bool, begin: float) -> dict[str, Any]:
    tallies = session.tallies
    kernels = {name: tally.body() for name, tally in tallies.items()}
    for name, body in kernels.items():
        print(f"{name:24}", *(f"{figure} {value}" for figure, value in body.items() if value), sep="  ")
    summary = {
        "device": session.device.slug,
        "wall_s": round(time.monotonic() - begin, 1),
        "compile_s": round(session.compiles.seconds, 1) if session.compiles else None,
        "binaries": session.compiles.compiled if session.compiles else 0,
        "all_reached": complete,
        "problems": sum(len(tally.problems) for tally in tallies.values()),
        "launches": sum(tally.launches for tally in tallies.values()),
        "worst_error_over_tolerance": finite(max((tally.worst[0] for tally in tallies.values()), default=0.0)),
        "stray_writes": sum(tally.stray for tally in tallies.values()),
        "nondeterministic": sum(tally.unrepeatable for tally in tallies.values()),
        "serve_nothing_here": [name for name, one in tallies.items() if one.coverage and not one.coverage.problems],
        "not_built": len(session.not_built),
        "failures": len(session.failures),
    }
    print(summary)
    return {"summary": summary, "kernels": kernels, "failures": session.failures, "not_built": session.not_built}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--device", choices=("auto", "interpreter"), default="auto")
    parser.add_argument("--kernel", action="append", help="op/name; all when not given")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="of M, N and K")
    parser.add_argument("--configs", type=int, default=1, help="sampled for each problem, beside the default")
    parser.add_argument("--seed", type=int, default=0, help="of problems, configs and inputs")
    parser.add_argument("--refined", action="store_true", help="give sampled configs an option each, such as num_ctas")
    parser.add_argument("--limit-s", type=float, default=150.0, help="of the whole run")
    parser.add_argument("--case-limit-s", type=float, default=30.0)
    parser.add_argument("--launchers", type=int, default=2, help="processes that launch")
    parser.add_argument("--again", help="a result: run its failures alone")
    args = parser.parse_args()
    begin = time.monotonic()
    interpreting = args.device == "interpreter"
    if interpreting:
        # Read when Triton is imported, here and in the children.
        os.environ["TRITON_INTERPRET"] = "1"
    with contextlib.ExitStack() as stack:
        launchers = stack.enter_context(Launchers("cpu" if interpreting else "cuda", args.launchers, args.case_limit_s))
        device = launchers.device()
        tallies, cases = plan(args, device)
        compiles = None if interpreting else stack.enter_context(CompilePool(device))
        session = Session(tallies, launchers, compiles, device)
        complete = session.run(cases, begin + args.limit_s, 4 * args.launchers)
        session.add_faults()
        body = report(session, complete=complete, begin=begin)
    record.write(args.out, body)
    return 1 if session.failures or not body["summary"]["launches"] else 0


if __name__ == "__main__":
    sys.exit(main())
