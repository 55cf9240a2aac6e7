"""Variants of GEMM tiles for a last wave, and of bmm with a short K, beside torch and today's configs, on one H200.

python benchmarks/studies/last_wave/waves.py [--part a|b|ab] [--deadline 145] [--only SUBSTRING]     # results: $OUT/waves.json, a table last
python benchmarks/studies/last_wave/waves.py --rehearse        # without a GPU: compile everything in one process, and look at it
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import multiprocessing as mp
import os
import re
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
SMS = 132
ROUNDS = 15


# ---- what is played


def problems(part: str) -> list:
    import tuner.problem.suite as suite
    from tuner.problem import Problem

    suites = HERE.parents[1] / "suites"
    squares = [Problem(n, n, n, dtype="bfloat16", layout="nt") for n in (5000, 3000)]
    a = [("a", p) for p in [*squares, *suite.load(str(suites / "last-wave.csv"))]]
    b = [("b", p) for p in suite.load(str(suites / "attention.csv"))]
    order = []
    for i in range(max(len(a), len(b))):
        order += a[i : i + 1] * ("a" in part) + b[i : i + 1] * ("b" in part)
    return order


SHARED_RATE = 135
"""Bytes a cycle of a multiprocessor's shared memory at which tiles of 128x192 and 192x192 of 128+64 columns were busy for
83% and 91% of the cycles (docs/lessons.md, Three warpgroups)."""


def shared_bytes(rows, width) -> float:
    """Bytes of shared memory a step: each wgmma of 64 rows reads its part of A and all of B; TMA writes both once."""
    return (rows * 128 + rows / 64 * width * 128) + (rows + width) * 128


def tile_us(m, n, k, rows, width, share="", stream=False) -> float:
    """Predicted time: the busiest multiprocessor's steps; slow rows are those that are no multiple of 128 bytes."""
    steps = -(-k // 64)
    slow = 1.9 if k * 2 % 128 else 1.0
    asked = {"": rows + width, "A": rows / 2 + width, "B": rows + width / 2}[share] * 128 * slow
    step = max(rows * width * 64 / 2048 / 0.985, asked / 58, shared_bytes(rows, width) / SHARED_RATE)
    tiles = -(-m // rows) * -(-n // width)
    if share == "A":
        tiles = -(-m // rows) * -(-n // (2 * width)) * 2
    if share == "B":
        tiles = -(-m // (2 * rows)) * -(-n // width) * 2
    each = 1000 + 6 * width
    if stream:
        return (tiles * steps * step / SMS + 2 * each + 6000) / 1490 + 2
    return -(-tiles // SMS) * (steps * step + each) / 1490 + 2


SIZES = (
    [(128, w, 2) for w in (128, 144, 160, 176, 192, 208, 224, 240, 256)]
    + [(192, w, 3) for w in (112, 128, 144, 160, 176, 192)]
    + [(256, w, 2) for w in (128, 144, 160, 176, 192)]
)


def variants_a(p) -> list:
    from anyw import Any

    m, n, k = p.shape if hasattr(p, "shape") else (p.m, p.n, p.k)
    slow = k * 2 % 128 != 0
    ranked = sorted(SIZES, key=lambda s: tile_us(m, n, k, s[0], s[1]))
    found = [Any(*size) for size in ranked[:3]]
    pairs = sorted(
        ((tile_us(m, n, k, s[0], s[1], share), s, share) for s in SIZES for share in "AB"), key=lambda x: x[0]
    )
    found += [Any(*s, ctas=2, share_b=share == "B") for _, s, share in pairs[: 3 if slow else 1]]
    # Taller streams spill a little, outside of the loop over steps: 192x192 40 bytes, 256x192 144.
    streams = [s for s in SIZES if (s[0] == 128 or s[1] in (128, 192)) and -(-m // s[0]) * -(-n // s[1]) >= SMS]
    streams = sorted(streams, key=lambda s: tile_us(m, n, k, s[0], s[1], stream=True))
    wide = [s for s in streams if s[0] == 128][:1] + [s for s in streams if s[0] > 128][:1]
    found += [Any(*s, stream=True) for s in (wide if len(wide) == 2 else streams[:2])]
    if slow:
        found += [Any(128, 256, ctas=2, share_b=True, stream=True), Any(128, 224, stream=True, ctas=2, share_b=True)]
        found += [Any(192, 192, 3, ctas=2), Any(192, 192, 3, ctas=2, share_b=True)]
        found += [Any(128, 224, ctas=2), Any(128, 224, ctas=2, share_b=True), Any(128, 224)]
        found += [dataclasses.replace(found[0], group=8), dataclasses.replace(found[3], group=8)]
    if n % ranked[0][1]:
        found.append(dataclasses.replace(found[0], move_n=False))
    return list(dict.fromkeys(found))


def variants_b(p) -> list:
    from bmm import Bmm

    m, n, k = p.m, p.n, p.k
    if n % 8 or k % 8:
        return []
    if p.layout == "nt":
        tried = [
            Bmm(128, 128),
            Bmm(128, 256),
            Bmm(256, 128),
            Bmm(128, 128, pingpong=True),
            Bmm(64, 256, pingpong=True),
            Bmm(128, 128, 1, per_sm=2),
            Bmm(64, 128, 1, per_sm=2),
            Bmm(128, 128, part=128, stages=4),
            Bmm(64, 128, pingpong=True),
            Bmm(128, 128, pingpong=True, group=16),
            Bmm(128, 128, 1, per_sm=2, programs=1),
            Bmm(64, 128, 1, per_sm=2, programs=1),
        ]
        return [one for one in tried if one.n <= max(128, n) and one.m <= max(128, m)]
    if n == 64:
        return [
            Bmm(m, 64, groups, pp, per, nt=False)
            for m, groups, pp, per in (
                (128, 2, False, 1),
                (256, 2, False, 1),
                (128, 2, True, 1),
                (128, 1, False, 2),
                (64, 1, False, 2),
            )
        ]
    return [
        Bmm(m, 128, groups, pp, per, nt=False)
        for m, groups, pp, per in ((128, 2, False, 1), (256, 2, False, 1), (128, 2, True, 1), (128, 1, False, 2))
    ]


def today(p) -> list:
    listed = json.loads((HERE / "today.json").read_text())
    found = listed.get(str(p), [])
    if str(p) == "bmm 512x512x64 bfloat16 nt batch=64":
        known = {
            "kernel": "bmm_tma",
            "BLOCK_SIZE_M": 128,
            "BLOCK_SIZE_N": 128,
            "BLOCK_SIZE_K": 64,
            "GROUP_SIZE_M": 1,
            "launch_pdl": True,
            "num_stages": 1,
            "num_warps": 4,
        }
        found = [known, *(c for c in found if c != known)]
    if p.m == p.n == p.k:  # the winners of waves-h200.json
        known = {
            "kernel": "warp_specialized",
            "BLOCK_SIZE_M": 192,
            "BLOCK_SIZE_N": 128,
            "BLOCK_SIZE_N_REST": 64,
            "BLOCK_SIZE_K": 64,
            "EPILOGUE_PARTS": 2,
            "GROUP_SIZE_M": 1 if p.m == 5000 else 16,
            "SWAP_AB": False,
            "launch_pdl": True,
            "num_ctas": 2,
            "num_stages": 4,
            "num_warps": 12,
        }
        found = [known, *(c for c in found if c != known)]
    return found


def contestants(kind: str, p) -> list[tuple[str, str, object]]:
    """(name, kind, config) of everything that a problem plays beside torch."""
    own = variants_a(p) if kind == "a" else variants_b(p)
    which = "anyw" if kind == "a" else "bmm"
    played = [(f"{which} {one.name}", which, one) for one in own]
    for values in today(p):
        values = dict(values)
        kernel = values.pop("kernel")
        label = "x".join(str(values.get(f"BLOCK_SIZE_{side}", "")) for side in "MN")
        rest = values.get("BLOCK_SIZE_N_REST", 0)
        label += (f"+{rest}" if rest else "") + f"x{values.get('BLOCK_SIZE_K')} s{values.get('num_stages')}"
        label += f" w{values.get('num_warps')} g{values.get('GROUP_SIZE_M', 1)}"
        if values.get("num_ctas", 1) > 1:
            label += " pair" + ("B" if values.get("SHARE_B") else "A")
        played.append((f"today {kernel} {label}", "today", (kernel, values)))
    return list({name: (name, which, config) for name, which, config in played}.values())


# ---- compiling


def compile_key(which: str, config) -> str:
    """Equal for contestants that share a binary, up to what is passed at run time."""
    if which in ("anyw", "bmm"):
        return f"{which} {sorted({**config.constants(), **config.options()}.items())}"
    return f"today {config[0]} {sorted((k, v) for k, v in config[1].items() if k != 'GROUP_SIZE_M')}"


def begin_child() -> None:
    os.environ.setdefault("TRITON_DISABLE_LINE_INFO", "0")
    from tuner.sweep import cross_target

    cross_target.activate("sm_90")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def compile_one(which: str, config, p) -> tuple[str, float]:
    start = time.time()
    try:
        if which == "anyw":
            import anyw

            kernel = anyw.warm(config)
            offsets, constants = anyw.found_offsets(kernel.asm["llir"]), config.constants()
            a = offsets.pop("%0", set())
            others = set().union(*offsets.values()) if offsets else set()
            if None in a | others or min(a) != constants["A_OFFSET"] or min(others) != constants["B_OFFSET"]:
                return f"the ring lies elsewhere: {a}, {others}, expected {constants}", time.time() - start
        elif which == "bmm":
            import bmm

            kernel = bmm.warm(config)
        else:
            from tuner.kernel import registry
            from tuner.kernel.config import Config

            kernel = registry.find(p.op, config[0]).compile(p, Config(config[0], **config[1]))
        if kernel.metadata.shared > 232_448:
            return f"shared memory: {kernel.metadata.shared}", time.time() - start
        return "", time.time() - start
    except Exception as e:  # noqa: BLE001
        return f"{type(e).__name__}: {str(e)[:300]}", time.time() - start


# ---- the GPU's process


def serve(connection) -> None:
    """Check and time one problem's contestants; say before each step what is about to be touched."""
    import anyw
    import bmm
    import torch

    from tuner.kernel import registry
    from tuner.kernel.config import Config
    from tuner.sweep import finals, verify
    from tuner.sweep.timer import GraphTimer

    torch.backends.cuda.matmul.allow_tf32 = False
    stream = torch.cuda.Stream()
    torch.cuda.set_stream(stream)
    timer = GraphTimer(torch.cuda.get_device_properties(0).L2_cache_size)
    connection.send(("ready", torch.cuda.get_device_name(0), torch.__version__))
    spaces: dict = {}

    def calls(which, config, sets, p):
        if which == "today":
            launch = registry.find(p.op, config[0]).launch
            made = Config(config[0], **config[1])
            return lambda index: launch(sets[index], made)
        constants, options = config.constants(), config.options()
        if which == "anyw":
            if config.stream and (config.rows, config.width, config.groups) not in spaces:
                spaces[config.rows, config.width, config.groups] = anyw.workspace_of(config, "cuda")
            extra = spaces.get((config.rows, config.width, config.groups), (None, None))
            kernel = anyw.anyw_jit.anyw_kernel
            made = [anyw.arguments(config, one.a, one.b.t(), one.out, *extra) for one in sets]
        else:
            kernel = bmm.bmm_jit.bmm_kernel
            stored = [one.b.mT if config.nt else one.b for one in sets]
            made = [bmm.arguments(config, one.a, b, one.out) for one, b in zip(sets, stored, strict=True)]

        def call(index):
            grid, args = made[index]
            kernel[grid](*args, **constants, **options)

        return call

    while True:
        p, played = connection.recv()
        start = time.time()
        spec = next(iter(registry.of(p.op).values()))
        first = spec.make_inputs(p, "cuda", 1)
        count = timer.buffer_sets(first.nbytes)
        sets = [first, *(spec.make_inputs(p, "cuda", seed) for seed in range(2, count + 1))]
        reference, tolerance = spec.reference(first), spec.tolerance(p)
        captures, failed, errors = {}, {}, {}
        for name, which, config in played:
            connection.send(("begin", name))
            try:
                call = calls(which, config, sets, p)
                verify.poison(first)
                call(0)
                torch.cuda.synchronize()
                found = verify.check(first, reference, p.k, tolerance, witness=None)
                if found.failure is not None:
                    failed[name] = f"wrong: {found.failure}"
                    continue
                errors[name] = found.error
                if which != "today":  # a race shows as bits that differ from run to run
                    once = first.out.clone()
                    for _ in range(3):
                        verify.poison(first)
                        call(0)
                        if not torch.equal(once, first.out):
                            failed[name] = "differs from run to run"
                    if name in failed:
                        continue
                connection.send(("capture", name))
                captures[name] = timer.capture(call, count)
            except Exception as e:  # noqa: BLE001
                failed[name] = f"{type(e).__name__}: {str(e)[:200]}"
                torch.cuda.synchronize()  # a lost context raises here and ends this process
        reference = None
        connection.send(("begin", "torch"))
        spec.vendor(first)
        captures["torch"] = timer.capture(lambda index: spec.vendor(sets[index]), count)
        connection.send(("begin", "rounds"))
        times = finals.play(
            list(captures),
            lambda names: timer.replay([captures[name] for name in names]),
            seed=1,
            rounds=ROUNDS,
            max_rounds=ROUNDS,
            beside=tuple(captures),
        )
        rows = {
            name: {
                "us": sorted(figures)[len(figures) // 2],
                "torch_over": 1 / finals.ratio(figures, times["torch"]),
                "error": errors.get(name),
                "all_us": [round(x, 3) for x in figures],
            }
            for name, figures in times.items()
        }
        connection.send(("done", rows, failed, time.time() - start))
        captures = sets = first = None
        torch.cuda.empty_cache()


class Server:
    """The GPU's process, replaced where it hangs or dies."""

    def __init__(self) -> None:
        self.process = None
        self.losses: dict[str, int] = {}  # by family: those that ended the process twice are not tried any more

    def start(self) -> None:
        context = mp.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None

    def play(self, p, played, until: float):
        """Rows, failures and seconds; contestants that hang or end the process are left out of a second try."""
        failed = {one[0]: "its family was lost twice" for one in played if self.losses.get(family(one[0]), 0) > 1}
        for _ in range(6):
            if time.time() > until:
                break
            if self.process is None:
                self.start()
                self.ready = False
            touched = "start"
            try:
                if not self.ready:
                    if not self.connection.poll(60):
                        raise TimeoutError
                    print(*self.connection.recv(), flush=True)
                    self.ready = True
                left = [one for one in played if one[0] not in failed]
                self.connection.send((p, left))
                while True:
                    limit = 20 if touched in ("start", "rounds", "torch") else 7
                    if not self.connection.poll(limit):
                        raise TimeoutError
                    message = self.connection.recv()
                    if message[0] == "done":
                        return message[1], {**failed, **message[2]}, message[3]
                    touched = message[1]
            except (TimeoutError, EOFError, OSError) as e:
                print("LOST", p, touched, type(e).__name__, flush=True)
                failed[touched] = f"hung or died: {type(e).__name__}"
                lost = family(touched)
                self.losses[lost] = self.losses.get(lost, 0) + 1
                if self.losses[lost] > 1 and touched in {one[0] for one in played}:
                    failed |= {
                        one[0]: "its family was lost twice"
                        for one in played
                        if family(one[0]) == lost and one[0] not in failed
                    }
                self.end()
                if touched in ("start", "torch", "rounds"):
                    break
        return {}, failed, 0.0


# ---- the run


def geomean(values) -> float:
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values)) if values else float("nan")


def family(name: str) -> str:
    if not name.startswith(("today", "bmm", "anyw")):
        return name
    if name.startswith("today"):
        return "today"
    if name.startswith("bmm"):
        return "bmm pingpong" if "pingpong" in name else f"bmm {re.search(r'x[12] ', name)[0].strip()}"
    return "anyw" + (" stream" if "stream" in name else "") + (" pair" if "pair" in name else "")


def table(results: dict) -> None:
    for kind, title in (("a", "last wave"), ("b", "bmm")):
        rows = {name: one for name, one in results.items() if one["kind"] == kind and one["rows"]}
        if not rows:
            continue
        print(f"\n{title}: problem | torch us | today's best: torch's time over ours | best variant: ratio, name")
        gains = {}
        for name, one in rows.items():
            best: dict[str, tuple[float, str]] = {}
            for contestant, row in one["rows"].items():
                if contestant != "torch":
                    best[family(contestant)] = max(
                        best.get(family(contestant), (0, "")), (row["torch_over"], contestant)
                    )
            new = max((v for f, v in best.items() if f != "today"), default=(0, "none"))
            old = best.get("today", (float("nan"), "none"))
            rest = " ".join(f"{f[4:].strip() or 'single'} {v[0]:.3f}" for f, v in sorted(best.items()) if f != "today")
            print(
                f"{name.replace(' bfloat16', '')[:44]:44} {one['rows']['torch']['us']:7.1f} {old[0]:.3f} -> {new[0]:.3f} {new[1]} [{rest}]"
            )
            gains[name] = (old[0], max(old[0], new[0]))
        print(
            f"geomean: today {geomean(v[0] for v in gains.values()):.4f}, with variants "
            f"{geomean(v[1] for v in gains.values()):.4f}; least {min(v[1] for v in gains.values()):.3f}"
        )
    lost = {name: one["failed"] for name, one in results.items() if one["failed"]}
    reasons: dict[str, list[str]] = {}
    for name, failures in lost.items():
        for contestant, reason in failures.items():
            reasons.setdefault(
                f"{family(contestant) if contestant.startswith(('anyw', 'bmm', 'today')) else contestant}: {reason[:90]}",
                [],
            ).append(name)
    for reason, names in list(reasons.items())[:12]:
        print(f"FAILED {len(names)}x {reason} ({names[0]})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--part", default="ab")
    parser.add_argument("--deadline", type=float, default=145)
    parser.add_argument("--only", default="")
    parser.add_argument("--rehearse", action="store_true")
    args = parser.parse_args()
    begun = time.time()
    out = Path(os.environ.get("OUT", "/tmp")) / "waves.json"
    every = [(kind, p, contestants(kind, p)) for kind, p in problems(args.part) if args.only in str(p)]
    jobs = {}
    for _, p, played in every:
        for _name, which, config in played:
            jobs.setdefault(compile_key(which, config), (which, config, p))
    print(f"{len(every)} problems, {sum(len(x[2]) for x in every)} contestants, {len(jobs)} binaries", flush=True)
    if args.rehearse:
        rehearse(every, jobs)
        return
    server = Server()
    server.start()  # imports while others compile
    server.ready = False
    bad, seconds = {}, []
    workers = max(1, min(15, (os.cpu_count() or 2) - 1))
    with ProcessPoolExecutor(workers, mp_context=mp.get_context("spawn"), initializer=begin_child) as pool:
        futures = {pool.submit(compile_one, *job): key for key, job in jobs.items()}
        try:
            for future in as_completed(futures, timeout=70):
                reason, took = future.result()
                seconds.append(took)
                if reason:
                    bad[futures[future]] = reason
        except Exception as e:  # noqa: BLE001  what is left is compiled where it is launched
            print("compiling:", type(e).__name__, len(seconds), "of", len(jobs), flush=True)
            for process in list(pool._processes.values()):
                process.kill()
    print(f"compiled in {time.time() - begun:.0f} s, {sum(seconds):.0f} s of work, {len(bad)} failed", flush=True)
    results: dict = {}
    for kind, p, played in every:
        if time.time() - begun > args.deadline - 6:
            results[str(p)] = {"kind": kind, "rows": {}, "failed": {}, "skipped": "deadline"}
            continue
        good = [one for one in played if compile_key(one[1], one[2]) not in bad]
        refused = {one[0]: bad[compile_key(one[1], one[2])] for one in played if one not in good}
        rows, failed, took = server.play(p, good, begun + args.deadline)
        results[str(p)] = {"kind": kind, "rows": rows, "failed": {**refused, **failed}, "seconds": took}
        results[str(p)]["predicted_us"] = {
            name: round(
                tile_us(
                    p.m, p.n, p.k, one.rows, one.width, "" if one.ctas == 1 else "B" if one.share_b else "A", one.stream
                ),
                1,
            )
            for name, which, one in played
            if which == "anyw"
        }
        best = max(((row["torch_over"], name) for name, row in rows.items() if name != "torch"), default=(0, ""))
        print(f"{time.time() - begun:5.0f} s {p} {best[0]:.3f} {best[1]}", flush=True)
        out.write_text(json.dumps({"results": results, "compile_failures": bad}, indent=1))
    server.end()
    table(results)
    print(f"{sum('skipped' in one for one in results.values())} problems skipped; {time.time() - begun:.0f} s in all")


def rehearse(every, jobs) -> None:
    """Compile what a GPU run would, one after the other, and look at registers, spills and shared memory."""
    from collections import Counter

    import anyw
    import bmm

    from tuner.sweep import binary_resources, cross_target

    cross_target.activate("sm_90")
    rows = []
    for key, (which, config, p) in jobs.items():
        reason, took = compile_one(which, config, p)
        if reason:
            print("FAILS", which, getattr(config, "name", config), reason)
            continue
        if which != "today":
            kernel = (anyw if which == "anyw" else bmm).warm(config)
            found = binary_resources.read_resources(kernel, took * 1e3)
            rows.append((which, config.name, found))
    for row in rows:
        print(*row)
    print(Counter(which for which, *_ in jobs.values()))


if __name__ == "__main__":
    main()
