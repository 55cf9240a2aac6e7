"""Check and time the variants of `variants.py` against torch._scaled_mm and today's kernels, on one H200.

    OUT=/tmp/out python block.py            all of it, within BUDGET_S
    python block.py rehearse                what can be done without a GPU: compiles, and runs every stage's code but the launch

Without arguments this process makes no CUDA context. It compiles everything in parallel, then checks each variant in a
process of its own (a hang, a crash or a wrong result costs that variant alone), then times what was right, one process
a shape, by the project's protocol (`tuner.sweep.timer`: graphs over rotating buffers, L2 swept before each replay, paired
rounds). $OUT/block.json gets everything; the table comes last.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
OUT = Path(os.environ.get("OUT", "/tmp/block-out"))
BUDGET_S = float(os.environ.get("BUDGET_S", "145"))
SHAPES = ((4096, 4096, 7168), (4096, 7168, 16384), (4096, 24576, 1536), (64, 7168, 2048), (128, 7168, 2048))
CHECKED = {
    0: ((512, 1024, 1536), (4096, 4096, 7168), (4096, 24576, 1536)),
    64: ((64, 7168, 2048),),
    128: ((128, 7168, 2048),),
}
CHECK_S, TIME_S, COMPILE_S = 25, 35, 45
ROUNDS = 30
LAUNCHES = 20  # of one variant on the same operands: their bits must be equal
START = time.monotonic()


def left() -> float:
    return BUDGET_S - (time.monotonic() - START)


def problem_of(m: int, n: int, k: int):
    from tuner import Problem

    return Problem(m, n, k, dtype="e4m3", layout="nt", scaling="block")


def spec_of(name: str):
    from tuner.kernel import registry

    return {spec.name: spec for (op, _), spec in registry.specs().items() if op == "matmul"}[name]


def todays(m: int, n: int, k: int) -> dict:
    """Today's configs that come into question, by a short name."""
    from tuner.hardware.device import KNOWN

    problem, device = problem_of(m, n, k), KNOWN["sm_90"]
    found = {}
    for name, most in (("warp_specialized", 6 if m > 128 else 12), ("block_scaled", 1 if m > 128 else 4)):
        spec = spec_of(name)
        configs = [spec.default_config(problem, device)]
        others = sorted(spec.space(problem, device).configs(), key=lambda c: spec.estimate_us(c, problem, device))
        for config in others:
            few = m <= 128 and config.integer("GROUP_SIZE_M", 1) > 1
            if config.get("LOADS", "tma") == "tma" and "num_ctas" not in config and not few and config not in configs:
                configs.append(config)
        for number, config in enumerate(configs[:most]):
            found[f"today:{name}:{number}"] = (spec, config)
    return found


# ---------------------------------------------------------------- compiling


def compile_one(task: tuple) -> str:
    """Compile one thing into Triton's cache, without the GPU. Runs in a pool's process."""
    from tuner.sweep import cross_target

    cross_target.activate("sm_90")
    m, n, k, name = task
    try:
        if name.startswith("today"):
            spec, config = todays(m, n, k)[name]
            compiled = spec.compile(problem_of(m, n, k), config)
        else:
            import variants

            import kernels

            grid, arguments, keywords = variants.prepare(variants.of(m)[name], *variants.operands(m, n, k, "meta"))
            compiled = kernels.staged_kernel.warmup(*arguments, grid=grid, **keywords)
        return "" if compiled.metadata.shared <= 232448 else f"{compiled.metadata.shared} bytes of shared memory"
    except BaseException as e:  # noqa: BLE001
        return f"{type(e).__name__}: {str(e)[-300:]}"


def compile_all() -> dict[str, str]:
    import variants

    tasks = []
    for shape in SHAPES:
        m = shape[0]
        if m > 128 and shape != SHAPES[0]:
            continue
        tasks += [(*shape, name) for name in variants.of(m)]
        tasks += [(*shape, name) for name in todays(*shape)]
    said = {}
    cores = max(1, min(14, (os.cpu_count() or 2) - 1))
    pool = concurrent.futures.ProcessPoolExecutor(cores)
    futures = {pool.submit(compile_one, task): task for task in tasks}
    try:
        for future in concurrent.futures.as_completed(futures, timeout=float(os.environ.get("COMPILE_S", COMPILE_S))):
            task = futures[future]
            try:
                said[f"{task[0]}:{task[3]}"] = future.result()
            except BaseException as e:  # noqa: BLE001
                said[f"{task[0]}:{task[3]}"] = f"{type(e).__name__}: {e}"
    except concurrent.futures.TimeoutError:
        pass
    pool.shutdown(wait=False, cancel_futures=True)
    for task in tasks:
        said.setdefault(f"{task[0]}:{task[3]}", "not compiled in time")
    return said


# ---------------------------------------------------------------- checking


def multiprocessors() -> int:
    import torch

    return torch.cuda.get_device_properties(0).multi_processor_count


def launcher(name: str, m: int, inputs):
    """A call that launches a variant on a set of operands."""
    import variants

    import kernels

    v = variants.named(name, m)
    tensors = (inputs.a, inputs.b, inputs.scale_a, inputs.scale_b, inputs.out)
    grid, arguments, keywords = variants.prepare(v, *tensors, multiprocessors=multiprocessors())
    kernel = kernels.staged_kernel[grid]
    return lambda: kernel(*arguments, **keywords)


def error_of(out, expected, k: int) -> float:
    difference = (out.double() - expected).abs()
    worst = float(difference.max()) if bool(difference.isfinite().all()) else math.inf
    return worst / (math.sqrt(k) + 1)


def check(m_class: int, name: str) -> None:
    """Print a JSON object: for each shape the error, and whether 20 launches gave the same bits."""
    import torch

    from tuner.kernels.base import numerics

    spec = spec_of("warp_specialized")
    found = {}
    for m, n, k in CHECKED[m_class]:
        problem = problem_of(m, n, k)
        inputs = spec.make_inputs(problem, "cuda:0", 3)
        expected = spec.reference(inputs)
        call = launcher(name, m_class or 4096, inputs)
        inputs.out.fill_(float("nan"))
        call()
        torch.cuda.synchronize()
        first = inputs.out.clone()
        error, differ = error_of(first, expected, k), 0
        for _ in range(LAUNCHES):
            inputs.out.fill_(float("nan"))
            call()
            differ += int((inputs.out.view(torch.int16) != first.view(torch.int16)).any())
        torch.cuda.synchronize()
        found[f"{m}x{n}x{k}"] = {"error": error, "tolerance": numerics.tolerance(problem), "differ": differ}
        print(json.dumps(found), flush=True)


def checked(task: tuple[int, str]) -> tuple[tuple[int, str], dict]:
    """Check a variant in a child process with a time limit."""
    m_class, name = task
    out, error, code = run_child(["check", str(m_class), name], min(CHECK_S, left()))
    lines = [line for line in out.splitlines() if line.startswith("{")]
    found = {"shapes": json.loads(lines[-1]) if lines else {}, "code": code, "stderr": error[-600:] if code else ""}
    shapes = found["shapes"]
    complete = len(shapes) == len(CHECKED[m_class]) and code == 0
    found["right"] = complete and all(s["error"] <= s["tolerance"] and s["differ"] == 0 for s in shapes.values())
    return task, found


def run_child(arguments: list[str], limit: float) -> tuple[str, str, int]:
    """Run this script in a session of its own and kill all of it when its time is over (code -9)."""
    child = subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=HERE,
    )  # fmt: skip
    try:
        out, error = child.communicate(timeout=max(1.0, limit))
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        try:
            out, error = child.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            out, error = "", "could not be killed"
        return out, error, -9
    return out, error, child.returncode


# ---------------------------------------------------------------- timing


def timed(m: int, n: int, k: int, names: list[str], bare: list[str]) -> None:
    """Time what is right for one shape, paired; print a JSON object."""
    import torch

    from tuner.kernels.gemm.vendor import vendor
    from tuner.sweep.timer import GraphTimer

    spec, problem = spec_of("warp_specialized"), problem_of(m, n, k)
    timer = GraphTimer(torch.cuda.get_device_properties(0).L2_cache_size)
    with torch.cuda.stream(torch.cuda.Stream()):
        first = spec.make_inputs(problem, "cuda:0", 1)
        count = timer.buffer_sets(first.nbytes)
        sets = [first, *(spec.make_inputs(problem, "cuda:0", 2 + i) for i in range(count - 1))]
        expected = spec.reference(first)
        calls, failed, errors = {}, {}, {}

        def add(name, makes) -> None:
            try:
                each = [makes(one) for one in sets]
                first.out.fill_(float("nan"))
                each[0]()
                torch.cuda.synchronize()
                errors[name] = error_of(first.out, expected, k)
                for call in each[1:]:
                    call()
                torch.cuda.synchronize()
                calls[name] = timer.capture(lambda i, each=each: each[i](), count)
            except Exception as e:  # noqa: BLE001
                failed[name] = f"{type(e).__name__}: {str(e)[-300:]}"

        for again in ("torch", "torch_again"):
            add(again, lambda one: lambda: vendor(one))
        for name, (other, config) in todays(m, n, k).items():
            add(name, lambda one, other=other, config=config: lambda: other.launch(one, config))
        for name in (*names, *bare):
            add(name, lambda one, name=name: launcher(name, m, one))
        order = list(calls)
        # A first look throws out what is far behind; the rounds are for the rest.
        look = {name: timer.replay([calls[name]])[0] for name in order}
        look = {name: min(look[name], timer.replay([calls[name]])[0]) for name in order}
        ours = min((look[name] for name in order if name.startswith("today")), default=math.inf)
        kept = [name for name in order if not name.startswith("today") or look[name] <= 1.05 * ours]
        rounds = {name: [] for name in kept}
        draw = random.Random(1)
        for _ in range(ROUNDS):
            draw.shuffle(kept)
            for name, us in zip(kept, timer.replay([calls[name] for name in kept]), strict=True):
                rounds[name].append(us)
    clocks = ""
    with contextlib.suppress(OSError):
        query = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw,temperature.gpu", "--format=csv,noheader"]
        clocks = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    print(json.dumps({
        "shape": [m, n, k], "rounds_us": rounds, "look_us": look, "failed": failed, "errors": errors, "clocks": clocks,
        "sets": count, "configs": {name: str(config) for name, (_, config) in todays(m, n, k).items()},
        "device": torch.cuda.get_device_name(0), "torch": torch.__version__,
    }))  # fmt: skip


# ---------------------------------------------------------------- the whole


def summary(shape, result: dict) -> list[str]:
    """Lines of the table for a shape: torch's time over each, the median of paired ratios."""
    rounds = result.get("rounds_us") or {}
    if "torch" not in rounds:
        return [f"{'x'.join(map(str, shape))}: no timings: {str(result.get('stderr') or result.get('failed'))[-300:]}"]
    base = rounds["torch"]
    ratio = {name: statistics.median(b / u for b, u in zip(base, us, strict=True)) for name, us in rounds.items()}
    today = [name for name in rounds if name.startswith("today")]
    best_today = max(today, key=ratio.get) if today else None
    m, n, k = shape
    lines = [f"{m}x{n}x{k}  torch {statistics.median(base):.2f} us, clocks {result.get('clocks')}"]
    for name in sorted(rounds, key=ratio.get, reverse=True):
        if name == "torch" or (name in today and name != best_today):
            continue
        us = statistics.median(rounds[name])
        label = f"TODAY ({name[6:]})" if name == best_today else name
        lines.append(f"   {label:32} {ratio[name]:6.3f}  {us:9.2f} us  {2 * m * n * k / us / 1e6:7.0f} TFLOP/s")
    lines += [f"   {name:32} failed: {why[-120:]}" for name, why in (result.get("failed") or {}).items()]
    return lines


def main() -> None:
    import variants

    OUT.mkdir(parents=True, exist_ok=True)
    document: dict = {"compiled": {}, "checked": {}, "timed": []}

    def save() -> None:
        document["seconds"] = time.monotonic() - START
        (OUT / "block.json").write_text(json.dumps(document, indent=1))

    document["compiled"] = compile_all()
    save()
    print(f"compiled at {time.monotonic() - START:.0f} s", flush=True)
    tasks = []
    for m_class in CHECKED:
        table = variants.of(m_class or 4096)
        fine = [name for name in table if not document["compiled"][f"{m_class or 4096}:{name}"]]
        tasks += [(m_class, name) for name in fine if table[name].mode != "bare"]
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("CHECKERS", "6"))) as pool:
        for (m_class, name), found in pool.map(checked, tasks):
            document["checked"][f"{m_class or 4096}:{name}"] = found
    save()
    print(f"checked at {time.monotonic() - START:.0f} s", flush=True)
    lines = []
    for shape in SHAPES:
        m = shape[0]
        right = [n for n in variants.of(m) if (document["checked"].get(f"{m}:{n}") or {}).get("right")]
        bare = [n for n, v in variants.of(m).items() if v.mode == "bare" and not document["compiled"][f"{m}:{n}"]]
        if m > 128:
            right += [name for name in variants.GROUPS if name.partition("@")[0] in right]
        if left() < 8:
            lines.append(f"{shape}: no time left")
            continue
        arguments = ["time", *map(str, shape), ",".join(right), ",".join(bare)]
        out, error, code = run_child(arguments, min(TIME_S, left()))
        found = [line for line in out.splitlines() if line.startswith("{")]
        result = json.loads(found[-1]) if found else {"shape": shape, "stderr": f"code {code}: {error[-600:]}"}
        document["timed"].append(result)
        lines += summary(shape, result)
        save()
        print(f"timed {shape} at {time.monotonic() - START:.0f} s", flush=True)
    for name, why in document["compiled"].items():
        if why:
            print("not compiled:", name, why[-200:])
    for name, found in document["checked"].items():
        if not found["right"]:
            brief = {s: (f"{x['error']:.2g}", x["differ"]) for s, x in found["shapes"].items()}
            print("not right:", name, "code", found["code"], brief, found["stderr"].strip()[-160:].replace("\n", " "))
    print("\nTorch's time over each (more is better); bare* have wrong sums by design")
    print("\n".join(lines))


def rehearse() -> None:
    """Everything but launches, with one compile process at a time."""
    os.environ["COMPILE_S"] = "3000"
    said = compile_all() if "compile" in sys.argv else {}
    print({name: why for name, why in said.items() if why}, len(said), "compiled")
    fake = {"rounds_us": {"torch": [10.0, 11.0], "torch_again": [10.0, 11.1], "today:warp_specialized:0": [12.0, 13.0],
                          "staged": [9.0, 9.5]}, "failed": {"x": "why"}, "clocks": "1700 MHz"}  # fmt: skip
    print("\n".join(summary((64, 7168, 2048), fake)))
    for shape in SHAPES:
        print(shape, list(todays(*shape))[-1], len(todays(*shape)))
    print(run_child(["sleep"], 1.0)[2], run_child(["nothing"], 5.0)[2])


if __name__ == "__main__":
    mode = sys.argv[1] if len(sys.argv) > 1 else ""
    if mode == "check":
        check(int(sys.argv[2]), sys.argv[3])
    elif mode == "time":
        shape_ = tuple(map(int, sys.argv[2:5]))
        timed(*shape_, *([n for n in part.split(",") if n] for part in sys.argv[5:7]))
    elif mode == "rehearse":
        rehearse()
    elif mode == "sleep":
        time.sleep(60)
    elif mode:
        sys.exit(3)
    else:
        main()
