"""A library's own tests under adoption: what passes without it passes with it.

    python benchmarks/claims/adopted_tests.py --out FOLDER --tests CHECKOUT/tests
    python benchmarks/claims/adopted_tests.py --out FOLDER --tests CHECKOUT/tests --interpreter --workers 0 \\
        --files ops/utils/test_cumsum.py --tuned-files ops/utils/test_cumsum.py --each 1

The library must be importable, and pytest with pytest-xdist. Source distributions of flash-linear-attention have had
no tests since 0.3, so its repository is asked for them at the tag of the version that is installed
(`git archive v0.5.2 tests`). Each part is processes of their own; results are written part by part. `plain` runs the
tests without triton-tuner, `adopted` by `tuner exec --adopt` without any table, `--on-miss first`. `capture`, `tune`
and `export` record, tune and ship what --tuned-files call, and `served` runs these with the tables that came of it;
the tests that are captured are compared with `plain`, too. Tests whose outcomes differ are run once more on both
sides, one by one.

Triton's own autotuning of all that these tests call takes hours. Without triton-tuner, too, kernels therefore run by
the first of their configs that launches (`chosen_configs.py`, which counts what is measured); --autotune leaves the
choice to Triton. Parts share a compile cache, so that a config is compiled once. FOLDER must not exist yet, but for
parts that go on with what it holds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import adoption
import chosen_configs
from commands import LAUNCHER, environment

RESULT = "adopted-tests.json"
PARTS = "plain,adopted,capture,tune,export,served"
OPS = "gla simple_gla delta gdn kda retention linear_attn hgrn gsa rwkv6 rwkv7 comba delta_product lightning_attn"
FILES = [
    *(f"ops/test_{name}.py" for name in OPS.split()),
    *(f"modules/test_{name}.py" for name in ("conv", "l2norm", "layernorm", "layernorm_gated", "cross_entropy")),
    *("ops/utils/test_cumsum.py", "layers/test_gated_deltanet.py"),
]
TUNED = ["ops/test_hgrn.py", "modules/test_l2norm.py", "layers/test_gated_deltanet.py"]
DIFFER = 20  # tests that are run again at most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("--tests", required=True, type=Path, metavar="FOLDER", help="the library's tests")
    parser.add_argument("--library", default="fla")
    parser.add_argument("--parts", default=PARTS)
    parser.add_argument("--files", nargs="+", default=FILES, help="which of them, below --tests")
    parser.add_argument("--each", type=int, default=1, help="tests of each function; 0: all")
    parser.add_argument("--tuned-files", nargs="+", default=TUNED, help="whose calls are tuned")
    parser.add_argument("-k", default="", dest="words", help="as pytest's")
    parser.add_argument("--workers", type=int, default=14, help="of pytest-xdist; 0: none")
    parser.add_argument("--limit-s", type=float, default=100.0, help="skip what a part has not begun after so long")
    parser.add_argument("--tune-s", type=int, default=60, help="end tuning after so long")
    parser.add_argument("--autotune", action="store_true", help="without triton-tuner, let Triton measure")
    parser.add_argument("--interpreter", action="store_true", help="rehearse without a GPU")
    args = parser.parse_args()
    args.tests = args.tests.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "pytest.ini").write_text("[pytest]\n")
    adoption.play(args, BY_NAME, RESULT, {"library": args.library, "version": version(args.library)})


def version(library: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"import {library}; print({library}.__version__)"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


def plain(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    return played(folder, args, "plain", args.files)


def adopted(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    return compared(folder, args, "adopted", args.files)


def capture(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    done = compared(folder, args, "capture", args.tuned_files)
    calls = len(list((folder / "calls").glob("*.call.json")))
    return done | {"calls": calls} if calls else sys.exit(f"no call was captured: {folder / 'log.txt'} says why")


def served(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    return compared(folder, args, "served", args.tuned_files)


def tune(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    return adoption.tune(folder, args, "--time-budget", f"{args.tune_s}s")


BY_NAME: Mapping[str, adoption.Part] = {
    "plain": plain,
    "adopted": adopted,
    "capture": capture,
    "tune": tune,
    "export": adoption.export,
    "served": served,
}


def compared(folder: Path, args: argparse.Namespace, side: str, files: Sequence[str]) -> dict[str, Any]:
    """What a side of the library's tests tells, and where it differs from the plain one."""
    done = played(folder, args, side, files)
    without, chosen_without = chosen_configs.read(folder / "plain")
    with_it, chosen = chosen_configs.read(folder / side)
    both = [each for each in with_it if reached(with_it, each) and reached(without, each)]
    differ = [each for each in both if without[each]["outcome"] != with_it[each]["outcome"]]
    keys = chosen_without["configs"].keys() & chosen["configs"].keys()
    same = sum(chosen_without["configs"][key] == chosen["configs"][key] for key in keys)
    done |= {"compared": len(both), "keys_of_both": len(keys), "of_which_one_config": same, "differ": len(differ)}
    done["lost"] = [each for each in differ if without[each]["outcome"] == "passed"]
    if differ:
        done["outcomes"] = {each: [without[each]["outcome"], with_it[each]["outcome"]] for each in differ}
        done["said"] = {each: (with_it[each]["said"] or without[each]["said"]) for each in differ[:DIFFER]}
        done["again"] = again(folder, args, side, differ[:DIFFER])
    return done


def again(folder: Path, args: argparse.Namespace, side: str, ids: Sequence[str]) -> dict[str, list[str]]:
    """The outcomes of tests that differed, one after another in a process of their own: without, and with."""
    outcomes = []
    for each in ("plain", side):
        out = folder / f"{side}-again-{each}"
        run_tests(folder, args, each, out, [str(args.tests.parent / name) for name in ids], workers=0)
        outcomes.append(chosen_configs.read(out)[0])
    return {name: [found.get(name, {}).get("outcome", "none") for found in outcomes] for name in ids}


def reached(outcomes: Mapping[str, Mapping[str, Any]], test: str) -> bool:
    return test in outcomes and chosen_configs.LATE not in outcomes[test]["said"]


def played(folder: Path, args: argparse.Namespace, side: str, files: Sequence[str]) -> dict[str, Any]:
    """How a side of the tests went."""
    began = time.monotonic()
    paths = [str(args.tests / each) for each in files]
    code = run_tests(folder, args, side, folder / side, paths, workers=args.workers)
    outcomes, chosen = chosen_configs.read(folder / side)
    if code not in (0, 1) or not outcomes:
        sys.exit(f"pytest ended with {code}:\n{(folder / 'log.txt').read_text()[-3000:]}")
    states = Counter(each["outcome"] if reached(outcomes, test) else "late" for test, each in outcomes.items())
    keys, by_us = len(chosen["configs"]), len(chosen["served"])
    return {
        "seconds": round(time.monotonic() - began, 1),
        **states,
        **{name: chosen[name] for name in ("measured", "compiled")},
        "keys": keys,
        "keys_by_tuner": by_us,
        "failures": {test: each["said"] for test, each in outcomes.items() if each["outcome"] == "failed"},
    }


def run_tests(
    folder: Path, args: argparse.Namespace, side: str, out: Path, what: Sequence[str], *, workers: int
) -> int:
    """Run tests without triton-tuner or by one of its commands; returns pytest's exit code."""
    out.mkdir()
    before = {
        "plain": [],
        "adopted": ["exec", "--adopt", args.library, "--on-miss", "first", "--"],
        "capture": ["capture", "--adopt", args.library, "--out", "calls", "--"],
        "served": ["exec", "--adopt", args.library, "--on-miss", "first", "--"],
    }[side]
    started = [sys.executable, "-c", LAUNCHER, *before] if before else []
    options = ["-q", "-c", "pytest.ini", "--rootdir", str(args.tests.parent), "-p", "no:cacheprovider"]
    options += ["-p", "no:benchmark", "-p", "chosen_configs", "-k", args.words]
    options += ["-n", str(workers)] if workers else []
    values = {
        "CHOSEN_OUT": out,
        "CHOSEN_EACH": str(args.each),
        "CHOSEN_UNTIL": str(time.time() + args.limit_s),
        "CHOSEN_FIRST": "1" if side == "plain" and not args.autotune else "",
        "PYTHONPATH": ":".join([chosen_configs.plugin(folder), *filter(None, [environment().get("PYTHONPATH")])]),
        "TRITON_CACHE_DIR": folder / "cache",
        "TUNER_DB": folder / "none.db",
        **({"TUNER_TABLES": folder / "tables"} if side == "served" else {}),
        **({"TRITON_INTERPRET": "1"} if args.interpreter else {}),
    }
    with (folder / "log.txt").open("a") as log:
        command = [*started, sys.executable, "-m", "pytest", *options, *what]
        done = subprocess.run(command, cwd=folder, env=environment(**values), stdout=log, stderr=log, check=False)
    return done.returncode


if __name__ == "__main__":
    main()
