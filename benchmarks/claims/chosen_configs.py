"""What autotuners chose in a process, and a plugin of pytest by which tests tell it; it knows nothing of triton-tuner.

Under `$CHOSEN_FIRST` a kernel's own autotuning ends with the first config that launches, which is then what a program
runs by: Triton's autotuning of all that a library's tests call takes hours. Of the plugin, `$CHOSEN_EACH` is how many
tests of each function are run, `$CHOSEN_UNTIL` the time after which the others are skipped, and `$CHOSEN_OUT` the
folder to write into.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

counts = {"measured": 0, "compiled": 0}
LATE = "the time is up"
_OTHERS = [float("inf")] * 3


def begin() -> None:
    """Count what is measured and compiled from here on, and take first configs where that is asked for."""
    import triton
    from triton.runtime import Autotuner

    def note(*_: Any, cache_hit: bool = False, **__: Any) -> None:
        counts["compiled"] += not cache_hit

    triton.knobs.compilation.listener = note
    if os.environ.get("CHOSEN_FIRST"):
        _take_first(Autotuner)
        return

    def benchmark(self: Any) -> Any:
        def counted(call: Callable[[], Any], quantiles: Sequence[float]) -> Any:
            counts["measured"] += 1
            return (self._do_bench or triton.runtime.driver.active.get_benchmarker())(call, quantiles=quantiles)

        return counted

    Autotuner.do_bench = property(benchmark)


def _take_first(autotuner: Any) -> None:
    bench, prune = autotuner._bench, autotuner.prune_configs
    found: set[int] = set()

    def prune_configs(self: Any, kwargs: Any) -> Any:  # Triton prunes before it measures a key
        found.discard(id(self))
        return prune(self, kwargs)

    def first(self: Any, *args: Any, config: Any, **meta: Any) -> Any:
        if id(self) in found:
            return _OTHERS
        measured = bench(self, *args, config=config, **meta)
        if measured[0] != _OTHERS[0]:
            found.add(id(self))
        return measured

    def once(call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
        call()
        return [0.0 for _ in quantiles]

    autotuner.prune_configs, autotuner._bench = prune_configs, first
    autotuner.do_bench = property(lambda _: once)


def told() -> dict[str, Any]:
    """The config of each kernel and key, which of them triton-tuner chose, and what was counted."""
    from triton.runtime import Autotuner

    configs, served = {}, []
    for each in [found for found in gc.get_objects() if Autotuner in type(found).__mro__]:
        for key, config in each.cache.items():
            name = f"{each.base_fn.__module__}.{each.base_fn.__qualname__} {key}"
            configs[name] = str(config)
            if hasattr(config, "chosen_by_tuner"):
                served.append(name)
    return {"configs": configs, "served": served, **counts}


def pytest_configure() -> None:
    begin()
    if os.environ.get("TRITON_INTERPRET"):
        _go_without_gpu()


def _go_without_gpu() -> None:
    """Have tests of flash-linear-attention make their tensors on the CPU."""
    import fla.utils
    import torch

    fla.utils.device = "cpu"
    torch.cuda.synchronize = lambda *_: None


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Of each function the first tests; files are mixed, so that a run which ends early has seen some of all."""
    each, seen = int(os.environ.get("CHOSEN_EACH", "0")), Counter[str]()
    for item in list(items) if each else []:
        name = item.nodeid.partition("[")[0]
        seen[name] += 1
        if seen[name] > each:
            items.remove(item)
    items.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))


def pytest_runtest_setup() -> None:
    import pytest

    if time.time() > float(os.environ.get("CHOSEN_UNTIL", "inf")):
        pytest.skip(LATE)


def pytest_runtest_logreport(report: Any) -> None:
    """Write each outcome as it comes; pytest-xdist's workers leave that to the process that started them."""
    if "PYTEST_XDIST_WORKER" in os.environ or (report.when != "call" and report.passed):
        return
    line = {"id": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 2)}
    line["said"] = "" if report.passed else str(report.longrepr)[-400:]
    with (_folder() / "outcomes.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def pytest_sessionfinish() -> None:
    (_folder() / f"{os.getpid()}.told.json").write_text(json.dumps(told()))


def read(folder: Path) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """What a run of tests wrote: outcomes by test, of which the worst counts, and what was chosen in its processes."""
    outcomes: dict[str, dict[str, Any]] = {}
    order = ("passed", "skipped", "failed")
    for each in _lines(folder / "outcomes.jsonl"):
        known = outcomes.get(each["id"])
        if known is None or order.index(each["outcome"]) > order.index(known["outcome"]):
            outcomes[each["id"]] = each
    all_told: dict[str, Any] = {"configs": {}, "served": set(), "measured": 0, "compiled": 0}
    for path in folder.glob("*.told.json"):
        one = json.loads(path.read_text())
        all_told["configs"] |= one["configs"]
        all_told["served"] |= set(one["served"])
        for name in counts:
            all_told[name] += one[name]
    return outcomes, all_told


def plugin(folder: Path) -> str:
    """A path on which this module lies alone, for the processes of a program; its folder here holds other names."""
    (folder / "plugin").mkdir(exist_ok=True)
    shutil.copy(__file__, folder / "plugin")
    return str(folder / "plugin")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        yield from map(json.loads, path.read_text().splitlines())


def _folder() -> Path:
    return Path(os.environ["CHOSEN_OUT"])
