"""Any M of a tuned family: what tuning a range costs, what it loses at random Ms, and what first calls take.

    python benchmarks/claims/any_m.py --out FOLDER
    python benchmarks/claims/any_m.py --batches 64 --random 24 --serve 0 --out FOLDER

Four weights of Llama 3 8B are tuned for every M from 1 to 256 in a new database, with an empty compile cache. Random
(M, weight) are then raced in full in another database, and each config that the ranges give plays the race's winner
and the default in paired rounds; no fit knows these problems. Last, the tables are exported with their kernels, and
fresh processes with empty caches call other Ms, as a decode server does: each (M, weight) is timed once, by the host,
until the call returns and until its result is there, and so is a weight that nobody tuned. After the first M Python's
collector leaves alone what is there, as vLLM's engine has it.
With --batches these are products of a batch instead, of every batch up to that one: the absorbed projections of
DeepSeek V3's attention, whose batch is the number of heads on a GPU.
FOLDER must not exist yet; it receives databases, tables, the log and any-m.json.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from commands import fresh, new_folder, tuner
from written import write_suite

from tuner.bench.held_out import Case, play
from tuner.kernel import registry
from tuner.lookup.lookup import lookup, use
from tuner.problem import Problem
from tuner.store.store import Store
from tuner.sweep.paired import PairedRunner

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

WEIGHTS = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
PROJECTIONS = ((512, 128), (128, 512))
UNTUNED = ((5120, 3072),)
"""No table has this weight."""
STALL_MS = 5
RESULT = "any-m.json"
SERVER = """
import gc, json, os, pathlib, sys, time, torch, tuner
from tuner.kernels import matmul
library, ms, weights = json.loads(sys.argv[1])
weights = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for n, k in weights]
calls, host = [], []
for m in ms:
    for index, weight in enumerate(weights):
        rows = torch.randn(m, weight.shape[1], device="cuda", dtype=torch.bfloat16)
        torch.cuda.synchronize()
        start = time.perf_counter()
        rows @ weight.t() if library == "torch" else matmul(rows, weight.t())
        returned = time.perf_counter()
        torch.cuda.synchronize()
        calls.append(1e3 * (time.perf_counter() - start))
        host.append(1e3 * (returned - start))
    if m == ms[0]:
        gc.collect()
        gc.freeze()  # as vLLM's engine does once it is warm; a full collection takes longer than any call
cache = pathlib.Path(os.environ["TRITON_CACHE_DIR"])
print(json.dumps({"ms": calls, "host_ms": host, "compiled": len(list(cache.rglob("*.cubin")))}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--random", type=int, default=100, help="how many (M, weight) are raced")
    parser.add_argument("--serve", type=int, default=60, help="how many Ms a server's processes call")
    parser.add_argument("--last", type=int, default=256, help="the range's last M")
    parser.add_argument("--batches", type=int, metavar="LAST", help="products of batches from 1 on; needs --serve 0")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="a new folder")
    args = parser.parse_args()
    folder = new_folder(parser, args.out)
    if args.batches and args.serve:
        parser.error("--batches imitates no server: type --serve 0")
    kind = f"bmm,1-{args.batches}" if args.batches else "matmul,"
    lines = (f"1-{args.last},{n},{k},bfloat16,nt,{kind}\n" for n, k in weights(args))
    (folder / "ladders.csv").write_text("m,n,k,dtype,layout,op,batch\n" + "".join(lines))
    begin = time.monotonic()
    ladders = tuner(folder, "run", "--suite", "ladders.csv", "--db", "ladders.db")
    body: dict[str, Any] = {
        "ladders": {
            "seconds": round(time.monotonic() - begin, 1),
            "problems": len(ladders["problems"]),
            "binaries": ladders["compiled"],
            "families": ladders["families"],
        }
    }
    if args.random:
        body["regret"] = regret(folder, args)
    if args.serve:
        body["serving"] = serving(folder, args)
    record.write(folder / RESULT, body)
    show(body)


def weights(args: argparse.Namespace) -> tuple[tuple[int, int], ...]:
    return PROJECTIONS if args.batches else WEIGHTS


def regret(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    draw = random.Random(7)
    chosen: set[Problem] = set()
    while len(chosen) < args.random:
        n, k = draw.choice(weights(args))
        problem = Problem(draw.randint(1, args.last), n, k, dtype="bfloat16", layout="nt")
        if args.batches:
            extras = {"batch": draw.randint(1, args.batches)}
            problem = Problem.from_fields({**problem.fields(), "op": "bmm", "extras": extras})
        chosen.add(problem)
    write_suite(folder / "random.csv", sorted(chosen))
    tuner(folder, "run", "--suite", "random.csv", "--db", "races.db")
    use(folder / "ladders.db")
    with Store.open(str(folder / "races.db"), read_only=True) as store:
        raced = {winner.problem: winner.config for winner in store.winners()}
    with PairedRunner(0) as runner:
        cases = []
        for problem, best in raced.items():
            served = lookup(problem, runner.device)
            default = registry.default_config(problem, runner.device)
            cases.append(Case(problem, served.rule, served.config, default, best))
        played = [one for one in play(cases, runner) if one.answer is not None and one.formula is not None]
    rows = [
        {"problem": str(one.case.problem), "rule": one.case.rule, "served": one.answer, "default": one.formula}
        for one in played
    ]
    figures = {name: [row[name] for row in rows] for name in ("served", "default")}
    summary = {name: {"geomean": record.geomean(them), "worst": max(them)} for name, them in figures.items()}
    return {"played": len(rows), "summary": summary, "problems": rows}


def serving(folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    tuner(folder, "export", "tables", "--db", "ladders.db", "--with-kernels")
    size = sum(path.stat().st_size for path in (folder / "tables").rglob("*") if path.is_file())
    draw = random.Random(11)
    ms = draw.sample(range(1, args.last + 1), args.serve)
    found = []
    for name in ("tuned, kernels shipped", "torch"):
        call = json.dumps(["torch" if name == "torch" else "ours", ms, WEIGHTS])
        # Nothing on the PATH: slim images have no C compiler.
        cache = folder / f"cache-of-{name.split(',')[0]}"
        changed = {"TUNER_TABLES": folder / "tables", "TRITON_CACHE_DIR": cache, "PATH": ""}
        told = json.loads(fresh(SERVER, call, **changed))
        first, *rest = told["ms"]
        figures = {"first_ms": first, "median_ms": statistics.median(rest), "largest_ms": max(rest[len(WEIGHTS) - 1 :])}
        figures["host_median_ms"] = statistics.median(told["host_ms"])
        found.append({"server": name, **figures, "total_ms": sum(told["ms"]), "compiled": told["compiled"]})
    found[0]["table_bytes"] = size
    return [*found, untuned(folder, ms)]


def untuned(folder: Path, ms: list[int]) -> dict[str, Any]:
    """The same Ms of a weight that no table has, with an empty compile cache: which calls wait, and for how long."""
    (folder / "no-tables").mkdir()
    changed = {"TUNER_TABLES": folder / "no-tables", "TRITON_CACHE_DIR": folder / "cache-of-untuned"}
    told = json.loads(fresh(SERVER, json.dumps(["ours", ms, UNTUNED]), **changed))
    calls = told["ms"]
    stalls = {str(m): took for m, took in zip(ms, calls, strict=True) if took > STALL_MS}
    figures = {"median_ms": statistics.median(calls), "total_ms": sum(calls), "compiled": told["compiled"]}
    figures["host_median_ms"] = statistics.median(told["host_ms"])
    return {"server": "nobody tuned", **figures, "stalls_ms": stalls, "stalled": len(stalls)}


def show(body: dict[str, Any]) -> None:
    ladders = body["ladders"]
    print(f"{len(ladders['families'])} families: {ladders['seconds']} s, {ladders['problems']} problems")
    for row in body.get("regret", {}).get("problems", []):
        print(f"{row['problem']:60} {row['rule']:8} {row['served'] - 1:6.1%}  default {row['default'] - 1:6.1%}")
    for name, figures in body.get("regret", {}).get("summary", {}).items():
        print(f"{name:10} loses {figures['geomean'] - 1:6.2%} in the mean, {figures['worst'] - 1:6.1%} at most")
    for row in body.get("serving", []):
        print(
            " ".join(f"{name}={value:.3f}" if isinstance(value, float) else f"{value}" for name, value in row.items())
        )


if __name__ == "__main__":
    main()
