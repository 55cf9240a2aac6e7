"""What a call costs the host: small calls by every path in one process; first calls in fresh ones.

    python benchmarks/claims/launch_cost.py --out RESULT.json

Host time alone: calls are issued in bursts shorter than the GPU's queue and waited for outside the clock. All paths
take turns in each round, in an order drawn anew; the figures are medians over the rounds. The first call of a process
is timed until its result is there, from a Triton cache that holds Triton's own driver module and nothing else ("cold"),
that the same call has filled ("warm"), and either of these with kernels shipped beside the table ("shipped", "shipped,
warm": where Triton compiles a launcher in C, the cache has it). `driver_s` is what Triton's driver took before, its
module cached but for "shipped, empty", which has no cache.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from commands import fresh
from written import table_of

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

SHAPE = (256, 256, 256)
BATCH = 4
FRESH, VECTOR = 16_384, 8
"""Addresses that take turns, and the elements between two of them, which are 16 bytes."""
FIRST = (4096, 2048, 1024)
Call = Callable[[], object]


def paths(device: str) -> dict[str, Call]:
    """Every way to products of float16 matrices, B stored [N, K], and the parts of ours."""
    import torch

    from tuner.kernels import bmm, grouped_mm, matmul, softmax, vector_add
    from tuner.models import accelerate

    m, n, k = SHAPE
    a = torch.randn(m, k, device=device).half()
    b = torch.randn(n, k, device=device).half().t()
    weight, out = b.t(), torch.empty(m, n, device=device, dtype=torch.float16)
    many_a, many_b = a.expand(BATCH, m, k).contiguous(), b.t().expand(BATCH, n, k).contiguous().mT
    many_out = torch.empty(BATCH, m, n, device=device, dtype=torch.float16)
    ends = torch.arange(1, BATCH + 1, device=device, dtype=torch.int32) * (m // BATCH)
    x, y = a.flatten(), out.flatten()
    # Overlapping activations, more than any cache of addresses holds.
    long = torch.randn(m * k + VECTOR * FRESH, device=device).half()
    fresh = itertools.cycle([long[at : at + m * k].view(m, k) for at in range(0, VECTOR * FRESH, VECTOR)])
    layer, accelerated = (
        torch.nn.Linear(k, n, bias=False, device=device, dtype=torch.float16).requires_grad_(False) for _ in range(2)
    )
    accelerate(accelerated, backend="tuner")
    return {
        "torch.empty": lambda: torch.empty((m, n), dtype=torch.float16, device=a.device),
        "torch.matmul": lambda: torch.matmul(a, b),
        "torch.matmul, A at a fresh address": lambda: torch.matmul(next(fresh), b),
        "torch.matmul(out=)": lambda: torch.matmul(a, b, out=out),
        "torch.bmm": lambda: torch.bmm(many_a, many_b),
        "torch.bmm(out=)": lambda: torch.bmm(many_a, many_b, out=many_out),
        "torch.softmax": lambda: torch.softmax(a, -1),
        "torch.add": lambda: torch.add(x, y),
        "tuner matmul": lambda: matmul(a, b),
        "tuner matmul, A at a fresh address": lambda: matmul(next(fresh), b),
        "tuner matmul, b.t() in the call": lambda: matmul(a, weight.t()),
        "torch.matmul, b.t() in the call": lambda: torch.matmul(a, weight.t()),
        "tuner matmul(out=)": lambda: matmul(a, b, out=out),
        "nn.Linear": lambda: layer(a),
        "nn.Linear, accelerated": lambda: accelerated(a),
        "tuner bmm": lambda: bmm(many_a, many_b),
        "tuner bmm(out=)": lambda: bmm(many_a, many_b, out=many_out),
        "tuner grouped_mm": lambda: grouped_mm(a, many_b, ends),
        "tuner softmax": lambda: softmax(a),
        "tuner vector_add": lambda: vector_add(x, y),
        **parts(a, b, out),
    }


def parts(a: Any, b: Any, out: Any) -> dict[str, Call]:
    """What a call of `tuner.kernels.matmul` is made of, and what Triton asks for the same launch."""
    from triton.runtime.driver import driver

    import tuner
    from tuner.kernels.ops import dispatch
    from tuner.launch import bound, guards
    from tuner.launch.plan import make_plan, recorded_launches

    seen = recorded(a, b, out)
    launch, kernel = seen.launches[-1]
    function, grid, constants = launch.function, launch.grid, launch.constants
    arguments, options = launch.arguments, launch.options
    names = [parameter.name for parameter in function.params[len(arguments) :]]
    given = (*arguments, *(constants[name] for name in names))
    x, y, z = (*grid, 1, 1)[:3]
    index = a.device.index or 0
    stream = driver.active.get_current_stream(index)
    run, handle, packed = kernel.run, kernel.function, kernel.packed_metadata
    addresses = [each.data_ptr() for each in (out, a, b)]
    launches = recorded_launches(seen, addresses)
    assert launches is not None
    plan = make_plan(seen, launches, index)
    matches, allocate = guards.make_guard((a, b), None), bound.allocator(out)
    model = dispatch.device_of(a.device.index)
    problem = tuner.Problem(*SHAPE, dtype="float16", layout="nt")
    return {
        "part: memory of the result": allocate,
        "part: torch's guard of two tensors": lambda: matches(a, b),
        "part: a plan's launch": lambda: plan.steps[0](stream, *addresses),
        "kernel[grid]": lambda: function[grid](*arguments, **constants, **options),
        "CompiledKernel.run": lambda: run(x, y, z, stream, handle, packed, None, None, None, *given),
        "tuner.lookup": lambda: tuner.lookup(problem, model),
    }


def recorded(a: Any, b: Any, out: Any) -> Any:
    """What a first call launches."""
    from tuner.kernels import matmul
    from tuner.kernels.ops.matmul import CALL_CACHE

    seen: list[Any] = []
    remember = CALL_CACHE.remember

    def keep(tensors: Any, options: Any, recording: Any, *rest: Any, **more: Any) -> None:
        seen.append(recording)
        remember(tensors, options, recording, *rest, **more)

    CALL_CACHE.plans.by_key.clear()
    CALL_CACHE.remember = keep  # type: ignore[method-assign]
    matmul(a, b, out=out)
    del CALL_CACHE.remember
    return seen[0]


def timed(calls: Mapping[str, Call], args: argparse.Namespace) -> dict[str, list[float]]:
    """Microseconds a call by path, one figure a round; the paths take turns in an order drawn anew each round."""
    import torch

    synchronize = torch.cuda.synchronize if args.device == "cuda" else lambda: None
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        burst(call, args.burst, synchronize)
    for _ in range(args.rounds):
        for name in random.sample(list(calls), len(calls)):
            times[name].append(burst(calls[name], args.burst, synchronize))
    return times


def burst(call: Call, count: int, synchronize: Callable[[], None]) -> float:
    start = time.perf_counter_ns()
    for _ in range(count):
        call()
    taken = time.perf_counter_ns() - start
    synchronize()
    return taken / count / 1e3


def parser() -> argparse.ArgumentParser:
    """The options of every script that times calls."""
    options = argparse.ArgumentParser()
    options.add_argument("--out", required=True)
    options.add_argument("--rounds", type=int, default=300)
    options.add_argument("--burst", type=int, default=100, help="calls at a time: the GPU's queue takes a thousand")
    options.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu rehearses over a stub")
    return options


def summary(found: list[float]) -> dict[str, float]:
    low, median, high = statistics.quantiles(found, n=4)
    return {"median_us": round(median, 3), "p25_us": round(low, 3), "p75_us": round(high, 3)}


CHILD = """
import json, sys, time
import logging, torch, triton, tuner
from tuner.kernels import matmul
told = {}
logging.disable(logging.WARNING)
m, n, k = json.loads(sys.argv[2])
a = torch.randn(m, k, device="cuda").half()
b = torch.randn(n, k, device="cuda").half().t()
compiled = []
triton.knobs.compilation.listener = lambda *_, cache_hit=False, **__: compiled.append(not cache_hit)
torch.cuda.synchronize()
start = time.perf_counter()
triton.runtime.driver.active.get_current_target()
told["driver_s"] = time.perf_counter() - start
for which in ("first_s", "second_s"):
    start = time.perf_counter()
    (torch.matmul if sys.argv[1] == "torch" else matmul)(a, b)
    torch.cuda.synchronize()
    told[which] = time.perf_counter() - start
told["compiled"] = sum(compiled)
print(json.dumps(told))
"""
SHIP = """
import sys
from pathlib import Path
from tuner.tables import binaries as kernels
from tuner.lookup import table
from tuner.sweep import cross_target as target
loaded = table.load(Path(sys.argv[1]))
target.activate(loaded.device.arch)
kernels.write(loaded, Path(sys.argv[1]).parent)
"""
PRIME = "import triton; triton.runtime.driver.active.utils"


def first_calls(processes: int) -> dict[str, dict[str, float]]:
    """Medians over fresh processes, by what they find."""
    from tuner import Problem
    from tuner.hardware import device
    from tuner.kernel import registry

    problem, here = Problem(*FIRST, dtype="float16", layout="nt"), device.current()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        primed = root / "primed"
        fresh(PRIME, TRITON_CACHE_DIR=primed)
        # Its one row is the default config, as if it had won: what serves is the same in every way.
        table = table_of(root / "tables", here, [problem], registry.default_config(problem, here))
        fresh(SHIP, str(table), TRITON_CACHE_DIR=root / "ship")
        without = root / "without"
        without.mkdir()
        shutil.copy(table, without)
        ways = {"torch": without, "cold": without, "warm": without}
        ways |= dict.fromkeys(("shipped", "shipped, warm", "shipped, empty"), table.parent)
        found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        given = {way: ("torch" if way == "torch" else "tuner", json.dumps(FIRST)) for way in ways}
        before = dict.fromkeys(ways, primed)
        for way in (way for way in ways if way.endswith("warm")):
            before[way] = Path(shutil.copytree(primed, root / f"{way}-filled"))
            fresh(CHILD, *given[way], TRITON_CACHE_DIR=before[way], TUNER_TABLES=ways[way])
        for number in range(processes):
            for way in random.sample(list(ways), len(ways)):
                cache = root / f"{way}-{number}"
                if not way.endswith("empty"):
                    shutil.copytree(before[way], cache)
                told = fresh(CHILD, *given[way], TRITON_CACHE_DIR=cache, TUNER_TABLES=ways[way])
                found[way].append(json.loads(told))
    return {
        way: {name: round(statistics.median(one[name] for one in ones), 4) for name in ones[0]}
        for way, ones in found.items()
    }


def main() -> None:
    options = parser()
    options.add_argument("--processes", type=int, default=3, help="fresh processes of each kind; 0 leaves them out")
    args = options.parse_args()
    import torch

    if args.device == "cuda" and not torch.cuda.is_available():
        options.error("no CUDA device is here: it times calls that a GPU runs")
    logging.disable(logging.WARNING)
    body: dict[str, Any] = {"shape": SHAPE, "rounds": args.rounds, "calls_a_burst": args.burst}
    body["host"] = {name: summary(found) for name, found in timed(paths(args.device), args).items()}
    if args.processes:
        body |= {"first_call_shape": FIRST, "processes": args.processes, "first_call": first_calls(args.processes)}
    record.write(args.out, body)
    for name, figures in [*body["host"].items(), *body.get("first_call", {}).items()]:
        print(f"{name:32}", *(f"{figure} {value}" for figure, value in figures.items()))


if __name__ == "__main__":
    main()
