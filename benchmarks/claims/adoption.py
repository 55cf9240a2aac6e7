"""flash-linear-attention under adoption: first results, capture, tuning, steady steps, and outputs bit for bit.

    python benchmarks/claims/adoption.py --out FOLDER
    python benchmarks/claims/adoption.py --out FOLDER --ops l2norm,cumsum --interpreter

fla-core and what it needs must be importable. Each part is processes of their own; results are written part by part.
`imports` is the ops' modules imported, and nothing else, by two processes, the first of which may read them from a
disk: every process's first results contain it. `plain` is the
library alone with empty caches, ended after --limit-s. `capture` records what the ops call, `tune` tunes
that from nothing, `export` writes tables and binaries, and `serve` is a fresh process with empty caches that has these.
`bare` is another such process, strict, with no program on its path: no C compiler builds Triton's modules (`built`).
`steady` plays steps of the library's own autotuned configs and of the adopted ones in one process, in paired rounds, by
the host's clock and, with all launches queued before they begin, by the GPU's. It compares outputs bit for bit with
those of the same configs without adoption. The library's own configs play twice in each round: `own_over_own` is what
the machine alone makes of equal steps. Its own autotuning finds the binaries that `tune` compiled. FOLDER must not
exist yet, but for parts that go on with what it holds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from commands import LAUNCHER, environment, tuner

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

RESULT = "adoption.json"
OPS = "chunk_gla,chunk_simple_gla,chunk_delta_rule,chunk_gated_delta_rule"
Part = Callable[[Path, argparse.Namespace], dict[str, Any]]
PARTS = "imports,capture,tune,export,serve,bare,plain,steady"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("--parts", default=PARTS)
    parser.add_argument("--ops", default=OPS, help="also: l2norm, cumsum, which the interpreter can run")
    parser.add_argument("--interpreter", action="store_true", help="rehearse without a GPU")
    parser.add_argument(
        "--limit-s", type=float, default=120.0, help="end the library's own first results after so long"
    )
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    play(args, BY_NAME, RESULT, {"fla": version("fla-core"), "ops": args.ops.split(",")})


def play(args: argparse.Namespace, by_name: Mapping[str, Part], name: str, about: dict[str, Any]) -> None:
    """Play the parts that are asked for in a folder, and write what they and those of before found to a file in it."""
    args.out.mkdir(parents=True, exist_ok=True)
    folder = args.out.resolve()
    result = folder / name
    found: dict[str, Any] = json.loads(result.read_text())["parts"] if result.exists() else {}
    for part in args.parts.split(","):
        found[part] = by_name[part](folder, args)
        print(part, {name: value for name, value in found[part].items() if not isinstance(value, dict)}, flush=True)
        record.write(result, {**about, "parts": found})


def imports(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    first, again = (program(folder, args, "imports")["all_s"] for _ in range(2))
    return {"first_s": first, "again_s": again}


def capture(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    done = program(folder, args, "first", before=("capture", "--adopt", "fla", "--out", "calls", "--"))
    return done | {"calls": len(list((folder / "calls").glob("*.call.json")))}


def tune(folder: Path, args: argparse.Namespace, *options: str) -> dict[str, Any]:
    began = time.monotonic()
    device = ["--device", "interpreter"] if args.interpreter else []
    told = tuner(folder, "run", "--captured", "calls", "--db", "fla.db", *options, *device, accept=(0, 1))
    states: Counter[str] = Counter()
    for problem in told["problems"]:
        states.update(problem["states"])
    return {"seconds": round(time.monotonic() - began, 1), "problems": len(told["problems"]), **states}


def export(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    began = time.monotonic()
    kernels = ["--device", "interpreter"] if args.interpreter else ["--with-kernels", "--captured", "calls"]
    tuner(folder, "export", "tables", "--db", "fla.db", *kernels)
    size = sum(path.stat().st_size for path in (folder / "tables").rglob("*") if path.is_file())
    return {"seconds": round(time.monotonic() - began, 1), "bytes": size}


def serve(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    return program(folder, args, "first", before=("exec", "--adopt", "fla", "--"), TUNER_TABLES=folder / "tables")


def bare(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    changed = {"TUNER_TABLES": folder / "tables", "TUNER_STRICT": "1", "PATH": "/nowhere", "CC": ""}
    return program(folder, args, "first", before=("exec", "--adopt", "fla", "--"), **changed)


def plain(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    return program(folder, args, "first", limit_s=args.limit_s)


def steady(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    return program(folder, args, "steady", TUNER_TABLES=folder / "tables", TRITON_CACHE_DIR=folder / "cache")


BY_NAME: Mapping[str, Part] = {
    "imports": imports,
    "capture": capture,
    "tune": tune,
    "export": export,
    "serve": serve,
    "bare": bare,
    "plain": plain,
    "steady": steady,
}


def program(
    folder: Path,
    args: argparse.Namespace,
    what: str,
    *,
    before: tuple[str, ...] = (),
    limit_s: float | None = None,
    **changed: str | Path,
) -> dict[str, Any]:
    """What a fresh process of `CHILD` tells, its compile cache empty unless it is named; started by `tuner` or not."""
    cache = folder / f"empty-{time.monotonic_ns()}"
    empty = {"TRITON_CACHE_DIR": cache, "TUNER_DB": folder / "none.db"}
    interpreted = {"TRITON_INTERPRET": "1"} if args.interpreter else {}
    told = folder / "told.json"
    told.unlink(missing_ok=True)
    child = [sys.executable, "-c", CHILD, what, args.ops, str(told), str(args.rounds)]
    command = [sys.executable, "-c", LAUNCHER, *before, *child] if before else child
    began = time.monotonic()
    with (folder / "log.txt").open("a") as log:
        values = environment(**(empty | interpreted | changed))
        values = {name: value for name, value in values.items() if value or name not in changed}
        try:
            done = subprocess.run(command, cwd=folder, env=values, stdout=log, stderr=log, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            return {"ended_after_s": limit_s, **(json.loads(told.read_text()) if told.exists() else {})}
    if done.returncode:
        sys.exit(f"{what} ended with {done.returncode}:\n{(folder / 'log.txt').read_text()[-2000:]}")
    seconds, built = round(time.monotonic() - began, 2), len(list(cache.rglob("*.so")))
    return {"process_s": seconds, "built": built, **json.loads(told.read_text())}


CHILD = '''
import hashlib, json, random, statistics, sys, time
import torch
import torch.nn.functional as F
import triton
from triton.runtime.autotuner import Autotuner

what, ops, told, rounds = sys.argv[1], sys.argv[2].split(","), sys.argv[3], int(sys.argv[4])
device = "cuda" if torch.cuda.is_available() else "cpu"
B, T, H, D = (2, 2048, 8, 128) if device == "cuda" else (1, 64, 2, 32)
counts = {"measured": 0, "compiled": 0}
def measure(call, quantiles):
    counts["measured"] += 1
    return triton.testing.do_bench(call, quantiles=quantiles) if device == "cuda" else [random.random()] * 3

Autotuner.do_bench = property(lambda self: measure)

def note(*_, cache_hit=False, **__):
    counts["compiled"] += not cache_hit

triton.knobs.compilation.listener = note

def sync():
    if device == "cuda":
        torch.cuda.synchronize()

def given(*shape):
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    return torch.randn(*shape, device=device, dtype=dtype).requires_grad_()

def module_of(name):
    known = {"chunk_gla": "ops.gla", "chunk_simple_gla": "ops.simple_gla", "chunk_delta_rule": "ops.delta_rule"}
    known |= {"l2norm": "modules.l2norm", "cumsum": "ops.utils.cumsum"}
    return __import__(f"fla.{known.get(name, 'ops.gated_delta_rule')}", fromlist=[name])

def imports():
    start = time.perf_counter()
    for name in ops:
        module_of(name)
    tell({"all_s": round(time.perf_counter() - start, 3)})

def make(name):
    """An op's step: it returns outputs and gradients, of the same inputs each time."""
    torch.manual_seed(0)
    q, k, v = (given(B, T, H, D) for _ in range(3))
    if name == "l2norm":
        return lambda: [each for each in module_of(name).l2norm_fwd(q.detach().view(-1, D)) if each is not None]
    if name == "cumsum":
        return lambda: [module_of(name).chunk_local_cumsum(q.detach()[..., 0].contiguous(), 64)]
    gates, wide, beta = given(B, T, H), given(B, T, H, D), given(B, T, H)
    leaves = [q, k, v, gates, wide, beta]
    op = getattr(module_of(name), name)
    more = {
        "chunk_gla": lambda: (F.logsigmoid(wide),),
        "chunk_simple_gla": lambda: (F.logsigmoid(gates),),
        "chunk_delta_rule": lambda: (beta.sigmoid(),),
        "chunk_gated_delta_rule": lambda: (F.logsigmoid(gates.float()), beta.sigmoid()),
    }[name]
    keys = (lambda: F.normalize(k, dim=-1)) if "delta" in name else lambda: k

    def step():
        for leaf in leaves:
            leaf.grad = None
        out = op(q, keys(), v, *more())[0]
        out.backward(torch.ones_like(out))
        return [out, *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    return step

def digest(tensors):
    whole = hashlib.sha256()
    for tensor in tensors:
        whole.update(tensor.detach().float().cpu().numpy().tobytes())
    return whole.hexdigest()[:16]

def first():
    found = {"first_s": {}, "digests": {}}
    for name in ops:
        start = time.perf_counter()
        step = make(name)
        out = step()
        sync()
        found["first_s"][name] = round(time.perf_counter() - start, 3)
        found["digests"][name] = digest(out)
        found |= {"all_s": round(sum(found["first_s"].values()), 3), **counts}
        tell(found)

def tell(found):
    with open(told, "w") as file:
        json.dump(found, file)

def gpu_s(step, steps=5):
    """The GPU's time a step: all is queued while it sleeps, so that no step waits for the host."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(100_000_000)
    start.record()
    for _ in range(steps):
        step()
    end.record()
    sync()
    return 1e-3 * start.elapsed_time(end) / steps

def autotuners():
    import gc
    return [each for each in gc.get_objects() if isinstance(each, Autotuner)]

def swapped(kept):
    for each in autotuners():
        each.cache = dict(kept.get(id(each), {}))

def steady():
    import tuner
    steps = {name: make(name) for name in ops}
    sides, found = {}, {"own_autotuning_s": {}, "first_adopted_s": {}}
    for name, step in steps.items():
        start = time.perf_counter()
        step()
        sync()
        found["own_autotuning_s"][name] = round(time.perf_counter() - start, 2)
    sides["own"] = {id(each): each.cache for each in autotuners()}
    found["measured_by_the_library"] = counts["measured"]
    swapped({})
    adoption = tuner.adopt("fla")
    counts["measured"] = 0
    digests = {}
    for name, step in steps.items():
        start = time.perf_counter()
        digests[name] = digest(step())
        found["first_adopted_s"][name] = round(time.perf_counter() - start, 3)
    sides["adopted"] = {id(each): each.cache for each in autotuners()}
    sides["own again"] = sides["own"]
    found["measured_under_adoption"] = counts["measured"]
    found["keys"] = sum(map(len, sides["adopted"].values()))
    times = {name: {side: [] for side in sides} for name in steps}
    queued = {name: {side: [] for side in sides} for name in steps}
    for _ in range(rounds):
        for name in random.sample(list(steps), len(steps)):
            for side in random.sample(list(sides), len(sides)):
                swapped(sides[side])
                steps[name]()
                sync()
                start = time.perf_counter()
                for _ in range(5):
                    steps[name]()
                sync()
                times[name][side].append((time.perf_counter() - start) / 5)
                if device == "cuda":
                    queued[name][side].append(gpu_s(steps[name]))
    def over(of, than):
        return round(statistics.median(a / b for a, b in zip(of, than)), 4)

    for what, taken in (("steady", times), ("on_the_gpu", queued)):
        found[what] = {
            name: {
                "own_ms": round(1e3 * statistics.median(each["own"]), 4),
                "own_over_adopted": over(each["own"], each["adopted"]),
                "own_over_own": over(each["own"], each["own again"]),
            }
            for name, each in taken.items()
            if each["own"]
        }
    adoption.undo()
    swapped(sides["adopted"])
    again = {name: (digest(step()), digest(step())) for name, step in steps.items()}
    found["equal"] = {name: digests[name] == again[name][0] for name in steps}
    found["repeats_itself"] = {name: one == two for name, (one, two) in again.items()}
    found["measured_after"] = counts["measured"]
    tell(found)

{"imports": imports, "first": first, "steady": steady}[what]()
'''


if __name__ == "__main__":
    main()
