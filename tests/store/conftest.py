"""A store in a temporary folder, and values to put into it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tuner.hardware.device import KNOWN, Device, Environment
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.store.records import KernelVersion, Outcome, Resources, State, Trial
from tuner.store.store import Run, Store


@pytest.fixture
def database(tmp_path) -> Path:
    """Where the database will be; its folder is not there yet."""
    return tmp_path / "new" / "folder" / "tuner.db"


@pytest.fixture
def store(database):
    with Store.open(str(database)) as opened:
        yield opened


@pytest.fixture
def device() -> Device:
    return KNOWN["sm_90"]


@pytest.fixture
def environment() -> Environment:
    return Environment("3.7.1", "2.13.0", "cuda 13.0", "580.65", "3.11.2")


@pytest.fixture
def kernel() -> KernelVersion:
    return KernelVersion("matmul", "pointer", 1, "a0")


@pytest.fixture
def problem() -> Problem:
    return Problem(4096, 4096, 1024, dtype="bf16", layout="nt")


@pytest.fixture
def run(store, device, environment) -> Run:
    return store.begin_run(device, environment, argv=["tuner", "run"], host="node1")


@pytest.fixture
def make_trial(problem, kernel) -> Callable[..., Trial]:
    """A COMPLETE trial of the config with a BLOCK_SIZE_M, unless told otherwise."""

    def make(block: int, median_us: float = 10.0, *, on: Problem = problem, by: KernelVersion = kernel, **outcome):
        config = Config(
            by.name, BLOCK_SIZE_M=block, BLOCK_SIZE_N=128, BLOCK_SIZE_K=64, GROUP_SIZE_M=8, num_stages=3, num_warps=4
        )
        parts = {"state": State.COMPLETE, "median_us": median_us, "p20_us": 9.5, "p80_us": 11.0, "samples": 20}
        return Trial(on, config, by, Outcome(**{**parts, "resources": Resources(120.5, 64, 0, 99_328), **outcome}))

    return make


@pytest.fixture
def python(start: Callable[..., subprocess.Popen[str]]) -> Callable[..., subprocess.Popen[str]]:
    """Start another Python process on a piece of code; it is killed at the end if it is still there."""
    return partial(start, "-c")
