"""A database with everything that a report shows, and a real browser to open one with."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tuner.hardware.device import INTERPRETER, KNOWN, Device, Environment
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.problem.family import Check, Family, Range
from tuner.store.records import KernelVersion, Outcome, Resources, State, Trial, Verdict
from tuner.store.store import RunStatus, Store

REQUIRED = "TUNER_TEST_BROWSER"
"""Set to "required", as .ci/run does, it makes a failure of what skips otherwise: no browser or no Playwright."""
H200 = KNOWN["sm_90"]
CUDA = Environment("3.7.1", "2.13.0", "cuda 13.0", "580.1", "3.11.7")
FAMILY = Problem(1, 6144, 4096, dtype="bf16", layout="nt")
SMALL = Problem(256, 512, 1024)
LOST = Problem(64, 64, 64, dtype="fp32")
"""Every one of its trials failed."""
HOSTILE = (
    "<!--</script ></script><script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\">"
)
MS = (1, 16, 64, 256)


def config(kernel: str, block: int, stages: int = 3) -> Config:
    return Config(kernel, BLOCK_SIZE_M=block, BLOCK_SIZE_N=128, num_stages=stages, num_warps=4)


def trial(problem: Problem, tried: Config, us: float | None, **parts: Any) -> Trial:
    resources = Resources(900.0, 64, 0, 99_328)
    if us is None:
        outcome = Outcome(parts.pop("state", State.COMPILE_ERROR), HOSTILE, resources=resources)
    else:
        card = {
            "sm_clock_mhz": 1900 + tried.integer("BLOCK_SIZE_M"),
            "power_w": 412.3,
            "throttle": 0x4,
            "gpu_uuid": "GPU-1",
        }
        outcome = Outcome(State.COMPLETE, "", us, us, us, 25, 1e-3, resources, **(card | parts))
    return Trial(problem, tried, KernelVersion(problem.op, tried.kernel, 1, "a0"), outcome)


def fill(
    path: Path, *, device: Device = H200, environment: Environment = CUDA, slower: float = 1.0, host: str = HOSTILE
) -> Path:
    """Two runs, one of them exhaustive; a family of four Ms; a problem by itself; one that has no winner."""
    card = dict.fromkeys(("sm_clock_mhz", "power_w", "throttle", "gpu_uuid")) if device.is_interpreter else {}
    with Store.open(path) as store:
        run = store.begin_run(device, environment, argv=["tuner", "run", "--strategy", "exhaustive"], host=host)
        store.record(run, [trial(SMALL, config("tma", block), 9.0 + block / 64, **card) for block in (16, 32, 64)])
        store.end_run(run, RunStatus.DONE)
        run = store.begin_run(device, environment, argv=["tuner", "run"], host=host)
        for number, problem in enumerate((*map(FAMILY.with_m, MS), SMALL)):
            found = [
                trial(problem, config("pointer", 16), 30.0 + number, **card),
                trial(problem, config("tma", 128), None),
                trial(problem, config("swap_ab", 32), (12.0 + number) * slower, **card),
                trial(problem, config("swap_ab", 64), (12.01 + number) * slower, **card),
            ]
            store.record(run, found)
            best = found[2]
            us = best.outcome.median_us
            ties = (best.config, found[3].config)
            verdict = Verdict(best.config, us, us * 1.5, us * (0.8 + 0.2 * number), ties)
            store.decide(run, problem, best.kernel, verdict)
        store.record(run, [trial(LOST, config("tma", block), None, state=State.TIMEOUT) for block in (16, 32)])
        ranges = (Range(1, 16, 16, "measured"), Range(17, 256, 256, "estimated"))
        store.record_family(run, Family(FAMILY.group(), ranges, Check(10, 1.004, 1.031)))
        store.end_run(run, RunStatus.DONE)
    return path


@pytest.fixture(scope="session")
def database(tmp_path_factory) -> Path:
    return fill(tmp_path_factory.mktemp("report") / "tuner.db")


@pytest.fixture(scope="session")
def make_database() -> Callable[..., Path]:
    return fill


@pytest.fixture(scope="session")
def interpreted(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("interpreted")
    return fill(
        folder / "tuner.db", device=INTERPRETER, environment=Environment("3.7.1", "2.13.0", "cpu", "", "3.11.7")
    )


def missing(what: str) -> None:
    if os.environ.get(REQUIRED) == "required":
        pytest.fail(f"{what}, and {REQUIRED} says that this must be tested")
    pytest.skip(what)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, started once."""
    if importlib.util.find_spec("playwright") is None:
        missing("Playwright is not installed (pip install playwright)")
    if (program := shutil.which("chromium")) is None:
        missing("Chromium is not installed (Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program)
        yield opened
        opened.close()
