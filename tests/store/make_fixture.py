"""Write a database of the newest revision to fixtures/, to be kept for ever: `python tests/store/make_fixture.py`.

Run it once for each revision, before its release; a fixture that is there is never written again. Every table gets
rows.
"""

from __future__ import annotations

import dataclasses
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from tuner.hardware.device import KNOWN, Environment
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.problem.family import Check, Family, Range
from tuner.store import claims, schema
from tuner.store.records import KernelVersion, Outcome, Resources, State, Trial, Verdict
from tuner.store.store import RunStatus, Store

KERNEL = KernelVersion("matmul", "pointer", 1, "0123456789abcdef")
ENVIRONMENT = Environment("3.7.1", "2.13.0", "cuda 13.0", "580.65.06", "3.11.2")
GPU = "GPU-01234567-89ab-cdef-0123-456789abcdef"
DECODE = Problem(16, 4096, 4096, dtype="bfloat16", layout="nt")
BATCHED = Problem(8, 512, 128, dtype="bfloat16", layout="nt", op="bmm", extras={"batch": 8})
TF32 = Problem(1024, 1024, 1024, dtype="float32", precision="tf32", epilogue="bias+gelu")


def config(block: int) -> Config:
    return Config(
        "pointer", BLOCK_SIZE_M=block, BLOCK_SIZE_N=64, BLOCK_SIZE_K=64, GROUP_SIZE_M=8, num_stages=3, num_warps=4
    )


def timed(problem: Problem, block: int, median_us: float) -> Trial:
    resources = Resources(231.5, 96, 0, 49_152)
    outcome = Outcome(
        State.COMPLETE, "", median_us, median_us - 0.25, median_us + 0.5, 20, 2e-3, resources, 1980, 640.0, 0, GPU
    )
    return Trial(problem, config(block), KERNEL, outcome)


def failed(block: int, state: State) -> Trial:
    return Trial(DECODE, config(block), KERNEL, Outcome(state, f"how {state} reads", resources=Resources(80.0)))


def fill(store: Store) -> None:
    h200 = KNOWN["sm_90"]
    first = store.begin_run(h200, ENVIRONMENT, argv=["tuner", "run", "--suite", "decode"], host="node1")
    failures = [failed(1000 + i, state) for i, state in enumerate(State) if state is not State.COMPLETE]
    store.record(first, [timed(DECODE, 16, 12.5), timed(DECODE, 32, 12.25), *failures])
    store.decide(first, DECODE, KERNEL, Verdict(config(16), 12.5, 15.0, 13.0, (config(16),)))
    store.end_run(first, RunStatus.INTERRUPTED)
    alias = dataclasses.replace(h200, name="NVIDIA H200 (another driver's word)", clock_mhz=1980, memory_gb_per_s=4800)
    second = store.begin_run(alias, ENVIRONMENT, argv=["tuner", "run"], host="node1")
    store.record(second, [timed(DECODE, 16, 12.5), timed(TF32, 128, 40.5), timed(TF32, 64, 44.0)])
    store.decide(second, DECODE, KERNEL, Verdict(config(32), 12.25, 15.0, None, (config(32), config(16))))
    store.decide(second, TF32, KERNEL, Verdict(config(128), 40.5, 52.0, 41.5, (config(128),)))
    store.record_family(second, Family(DECODE.group(), (Range(9, 16, 16, "measured"),), Check(2, 1.004, 1.01)))
    few = Range(1, 8, 8, "measured")
    store.record_family(second, Family(BATCHED.group(), (few,), Check(1, 1.004, 1.01), (5, 8)))
    store.end_run(second, RunStatus.DONE)
    with store._writing() as connection:  # as only a server's runs do
        assert claims.claim(connection, store._ids, second, DECODE, begin=True)


def main() -> None:
    path = Path(__file__).parent / "fixtures" / f"{schema.HEAD}.db"
    if path.exists():
        sys.exit(f"{path} is there already: a released fixture never changes")
    path.parent.mkdir(exist_ok=True)
    with Store.open(str(path)) as store:
        fill(store)
    with closing(sqlite3.connect(path, isolation_level=None)) as plain:
        plain.execute("UPDATE run SET node = 'a machine, and its boot'")
        plain.execute("PRAGMA journal_mode = DELETE")
        plain.execute("VACUUM")


if __name__ == "__main__":
    main()
