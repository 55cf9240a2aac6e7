"""What a process pays before it serves: imports, a large table, a large database; and what lookups cost from then on.

    python benchmarks/claims/loading.py --out RESULT.json

Needs no GPU: lookups are for an H200, which need not be here. Imports are timed in fresh processes, tables and
databases in this one, the kernels being imported; figures are medians. The database holds a million trials, and the
winners of 500 problems on each of two devices; its memory is what a first lookup adds to a fresh process.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import random
import sqlite3
import statistics
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from commands import fresh
from written import table_of

import tuner
from tuner.hardware import device as devices
from tuner.hardware.device import KNOWN, Environment
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.store.records import KernelVersion, Outcome, State, Trial, Verdict

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

H200, B200 = KNOWN["sm_90"], KNOWN["sm_100"]
ROWS = 10_000
WINNERS = 500
SIZES = 100
"""Of M; the rows of a table are so many times as many columns."""

IMPORTS = """
import json, time
start = time.perf_counter()
import torch, triton
between = time.perf_counter()
import tuner
after = time.perf_counter()
from tuner.kernels import matmul
told = {"torch_and_triton_ms": between - start, "tuner_ms": after - between, "matmul_ms": time.perf_counter() - after}
print(json.dumps({name: 1e3 * took for name, took in told.items()}))
"""
GROWTH = """
import logging, sys, tuner
from tuner.kernel import registry
from tuner.hardware.device import KNOWN
from tuner.lookup import database, sources
logging.disable(logging.WARNING)
m, n, k = map(int, sys.argv[2:5])
device, problem = KNOWN["sm_90"], tuner.Problem(m, n, k, dtype="bfloat16", layout="nt")
registry.default_config(problem, device)

def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS"))

before = resident()
tuner.use(sys.argv[1])
assert tuner.lookup(problem, device).rule == "exact"
print(resident() - before)
"""
TRIALS = """
INSERT INTO trial (run_id, problem_id, config_id, state, median_us, samples, message, measured_at)
SELECT run_id, problem_id, config_id, 'COMPLETE', 20.0, 5, '', '2026-01-01T00:00:00Z'
FROM run, problem, config WHERE run_id < 3 AND (problem_id > 1 OR config_id > 1);
"""
WON = """
INSERT INTO winner (device_id, environment_id, problem_id, config_id, trial_id, run_id, median_us, default_us,
                    vendor_us, ties, decided_at)
SELECT w.device_id, w.environment_id, p.problem_id, w.config_id, t.trial_id, w.run_id, w.median_us, w.default_us,
       w.vendor_us, w.ties, w.decided_at
FROM winner AS w, problem AS p
JOIN trial AS t ON t.problem_id = p.problem_id AND t.config_id = w.config_id AND t.run_id = min(w.run_id, 2)
WHERE w.superseded_by IS NULL AND p.problem_id > 1;
"""


def problem(m: int, n: int = 4096) -> Problem:
    return Problem(m, n, 4096, dtype="bfloat16", layout="nt")


def problems(count: int) -> list[Problem]:
    """Of SIZES sizes of M each."""
    return [problem(m, 64 * n) for n in range(1, count // SIZES + 1) for m in range(1, SIZES + 1)]


def imports(processes: int) -> dict[str, float]:
    fresh(IMPORTS)  # compiles the modules
    told = [json.loads(fresh(IMPORTS)) for _ in range(processes)]
    return {f"import_{name}": round(statistics.median(one[name] for one in told), 2) for name in told[0]}


def median_ms(act: Callable[[], object], times: int = 7) -> float:
    took = []
    for _ in range(times):
        tuner.use(None)  # what an earlier round loaded is freed outside of the clock
        start = time.perf_counter()
        act()
        took.append(time.perf_counter() - start)
    return round(statistics.median(took) * 1e3, 2)


def first_lookup(where: Path, asked: Problem, rule: str) -> Callable[[], None]:
    def act() -> None:
        tuner.use(where)
        assert tuner.lookup(asked, H200).rule == rule

    return act


def tables(folder: Path) -> dict[str, float]:
    from tuner.lookup import table

    path = table_of(folder, H200, problems(ROWS), registry.default_config(problem(SIZES), H200))
    return {
        f"table_of_{ROWS}_rows_first_lookup_ms": median_ms(first_lookup(path, problem(64), "exact")),
        f"table_of_{ROWS}_rows_read_whole_ms": median_ms(lambda: table.load(path), 3),
        "table_bytes": path.stat().st_size,
    }


def fill(path: Path, trials: int) -> None:
    """A database: one winner as the store decides it, then by SQL its like for all problems, and trials that lost."""
    from tuner.store.store import Store

    config = registry.default_config(problem(64), H200)
    version = KernelVersion("matmul", config.kernel, registry.find("matmul", config.kernel).version, "benchmark")
    complete = Outcome(State.COMPLETE, median_us=10.0, p20_us=9.9, p80_us=10.1, samples=5)
    first, *others = problems(WINNERS)
    versions = Environment("3.7.1", "2.13.0", "cuda 13.0", "580.1", platform.python_version())
    with Store.open(str(path)) as store:
        for device in (B200, H200, H200):  # on this one decided twice: the first is superseded
            run = store.begin_run(device, versions, argv=["benchmark"], host="benchmark")
            store.record(run, [Trial(first, config, version, complete)])
            store.decide(run, first, version, Verdict(config, 9.5, 11.0, 10.0, (config,)))
    lost = range(100, 100 + trials // (2 * WINNERS))
    configs = [Config(config.kernel, **{**dict(config), "num_stages": stages}) for stages in lost]
    with closing(sqlite3.connect(path)) as connection, connection:
        rest = "k, a_dtype, b_dtype, out_dtype, layout, aligned, epilogue, precision, extras"
        connection.executemany(
            f"INSERT INTO problem (op, m, n, {rest}) SELECT op, ?, ?, {rest} FROM problem WHERE problem_id = 1",  # noqa: S608
            [(each.m, each.n) for each in others],
        )
        parameters = [(each.parameters_json, each.digest) for each in configs]
        connection.executemany("INSERT INTO config (kernel_id, parameters, hash) VALUES (1, ?, ?)", parameters)
        connection.executescript(TRIALS + WON)
        (held,) = connection.execute("SELECT count(*) FROM trial").fetchone()
        assert held >= trials, held


def databases(folder: Path, trials: int) -> dict[str, float]:
    path = folder / "tuner.db"
    fill(path, trials)
    asked = problems(WINNERS)[-1]
    grown = int(fresh(GROWTH, str(path), *map(str, asked.shape)))
    return {
        f"database_of_{trials}_trials_first_lookup_ms": median_ms(first_lookup(path, asked, "exact")),
        "database_winners_of_this_device": WINNERS,
        "database_bytes": path.stat().st_size,
        "database_first_lookup_memory_kb": grown,
    }


FORMULA = {"one_row": (1,), "few_rows": range(2, 33), "rows": range(33, 257), "many_rows": range(257, 4097)}
"""Of M, a name for each range."""


def formula(shapes: int) -> dict[str, float]:
    """The formula for shapes that nobody asked for before: the median of each range of M."""
    drawn, figures = random.Random(7), {}
    for name, sizes in FORMULA.items():
        drawings = [
            (drawn.choice(sizes), 64 * drawn.randint(16, 400), 64 * drawn.randint(16, 200)) for _ in range(shapes)
        ]
        asked = iter([Problem(*shape, dtype="bfloat16", layout="nt") for shape in drawings])
        figures[f"formula_{name}_ms"] = median_ms(
            lambda asked=asked: registry.default_config(next(asked), H200), shapes
        )
    return figures


def hits() -> dict[str, float]:
    """A table's or a formula's answer costs the same once it is known."""
    kept, device = problem(65), H200
    devices.current = lambda _=None: device  # a machine without a GPU has none of its own
    tuner.use(None)
    tuner.lookup(kept)
    names = {"lookup": tuner.lookup, "kept": kept, "equal": problem(65)}
    statements = {
        "hit_ns": "lookup(kept)",
        "hit_of_an_equal_problem_ns": "lookup(equal)",
    }
    number = 20_000
    runs = {name: timeit.repeat(each, globals=names, number=number, repeat=15) for name, each in statements.items()}
    return {name: round(statistics.median(times) / number * 1e9, 1) for name, times in runs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--processes", type=int, default=9, help="fresh processes that import; 0 leaves them out")
    parser.add_argument("--trials", type=int, default=1_000_000, help="of the database")
    parser.add_argument("--shapes", type=int, default=64, help="new ones for the formula, of each range of M")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    figures = imports(args.processes) if args.processes else {}
    registry.default_config(problem(64), H200)
    with tempfile.TemporaryDirectory() as folder:
        figures |= tables(Path(folder))
        figures |= databases(Path(folder), args.trials)
    figures |= formula(args.shapes) | hits()
    print(*(f"{name} {value:,}" for name, value in figures.items()), sep="\n")
    record.write(args.out, {"device": H200.slug, "figures": figures})


if __name__ == "__main__":
    main()
