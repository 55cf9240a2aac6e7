"""What a lookup costs: a hit, a first lookup from a table or a database, the memory of an answer. Needs no GPU.

python benchmarks/lookup.py --out RESULT.json
"""

from __future__ import annotations

import argparse
import logging
import platform
import tempfile
import time
import timeit
import tracemalloc
from pathlib import Path

import record
import triton

import tuner
from tuner import registry
from tuner.device import KNOWN, Environment
from tuner.problem import Problem
from tuner.records import KernelVersion, Outcome, State, Trial, Verdict
from tuner.runtime import table
from tuner.store.store import Store

H200 = KNOWN["sm_90"]
ROWS = 2_000
OTHER_TRIALS = 8


def problem(m: int) -> Problem:
    return Problem(m, 4096, 4096, dtype="bfloat16", layout="nt")


def fill(path: Path) -> None:
    """A database with a winner for each of ROWS problems, and trials that lost."""
    spec = registry.serving(problem(1), H200)[0]
    version = KernelVersion("matmul", spec.name, spec.version, "benchmark")
    environment = Environment(triton.__version__, "2.13.0", "cuda 13.0", "580.1", platform.python_version())
    complete = Outcome(State.COMPLETE, median_us=10.0, p20_us=9.9, p80_us=10.1, samples=5)
    with Store.open(str(path)) as store:
        run = store.begin_run(H200, environment, argv=["benchmark"], host="benchmark")
        configs = spec.space(problem(1), H200).configs()[:OTHER_TRIALS]
        for m in range(1, ROWS + 1):
            won = registry.default_config(problem(m), H200)
            tried = dict.fromkeys((won, *configs))
            store.record(run, [Trial(problem(m), config, version, complete) for config in tried])
            store.decide(run, problem(m), version, Verdict(won, 9.5, 11.0, 10.0, (won,)))


def first_lookup_s(where: Path) -> float:
    tuner.use(None)
    start = time.perf_counter()
    tuner.use(where)
    assert tuner.lookup(problem(64), H200).rule == "exact"
    return time.perf_counter() - start


def hit_ns(statement: str, **names: object) -> float:
    runs = timeit.repeat(statement, globals={"lookup": tuner.lookup, **names}, number=100_000, repeat=7)
    return round(min(runs) / 100_000 * 1e9, 1)


def answer_bytes() -> int:
    tuner.use(None)
    tuner.lookup(problem(1), H200)
    tracemalloc.start()
    for m in range(2, 1_002):
        tuner.lookup(problem(m), H200)
    taken = tracemalloc.get_traced_memory()[0] // 1_000
    tracemalloc.stop()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    from tuner.export.table import select, write

    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "tuner.db"
        fill(database)
        with Store.open(str(database), read_only=True) as store:
            (exported,) = write(select(store.winners()).tables, Path(folder) / "tables")
        assert len(table.load(exported).rows) == ROWS
        figures = {
            f"first_lookup_from_a_database_of_{ROWS}_winners_s": round(first_lookup_s(database), 4),
            f"first_lookup_from_a_table_of_{ROWS}_rows_s": round(first_lookup_s(exported), 4),
        }
        known = problem(65)
        tuner.lookup(known, H200)
        figures["hit_same_problem_object_and_device_ns"] = hit_ns("lookup(p, d)", p=known, d=H200)
        figures["hit_equal_problem_object_and_device_ns"] = hit_ns("lookup(p, d)", p=problem(65), d=H200)
        # This process's own device, which a machine without a GPU does not have.
        tuner.runtime.lookup.desk()._here = H200
        tuner.lookup(known)
        figures["hit_same_problem_object_ns"] = hit_ns("lookup(p)", p=known)
        figures["hit_equal_problem_object_ns"] = hit_ns("lookup(p)", p=problem(65))
    figures["memory_of_an_answer_bytes"] = answer_bytes()
    print(figures)
    record.write(args.out, {"cpu": _cpu(), "figures": figures})


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
