"""A suite tuned by another version of triton-tuner and by this one: whose winners, and whose defaults, are faster.

    pip install --no-deps --target BEFORE triton_tuner-OTHER.whl
    python benchmarks/claims/two_versions.py --before BEFORE --suite FILE.csv --out FOLDER

Each version tunes the suite in a new database with an empty compile cache. Then what both chose for a problem plays
each other in paired rounds, in this version's process, and so do the defaults that either gives where nobody tuned.
Figures are the other version's time over this one's. Configs must mean the same to both. FOLDER must not exist yet; it
receives databases, caches, the log and a result that is named by the card, as two-versions-h100.json is.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from commands import LAUNCHER, card, environment, new_folder

from tuner.bench.held_out import Case, play
from tuner.kernel.config import Config
from tuner.problem import Problem, suite
from tuner.store.store import Store
from tuner.sweep.paired import PairedRunner

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

DEFAULTS = """
import json, sys
from tuner.hardware import device
from tuner.kernel import registry
from tuner.problem import Problem
here = device.current()
found = [registry.default_config(Problem.from_fields(each), here) for each in json.load(sys.stdin)]
print(json.dumps([[config.kernel, dict(config)] for config in found]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--before", required=True, type=Path, metavar="FOLDER", help="the other version's modules")
    parser.add_argument("--suite", required=True, type=Path, metavar="FILE", help="a suite's file")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="a new folder")
    args = parser.parse_args()
    folder = new_folder(parser, args.out)
    shutil.copy(args.suite, folder / "suite.csv")
    paths = {"before": [str(args.before.resolve())], "now": []}
    seconds = {name: tune(folder, name, path) for name, path in paths.items()}
    won = {name: winners(folder / f"{name}.db") for name in paths}
    problems = [each for each in suite.load(str(folder / "suite.csv")) if all(each in them for them in won.values())]
    defaults = {name: of_nobody(folder, path, problems) for name, path in paths.items()}
    cases = [Case(each, "winner", won["now"][each], won["before"][each], won["before"][each]) for each in problems]
    for each, before, now in zip(problems, defaults["before"], defaults["now"], strict=True):
        cases.append(Case(each, "default", now, before, before))
    with PairedRunner(0) as runner:
        name = card(runner.device.slug)
        rows = [told for found in play(cases, runner) if (told := row(found))]
    ratios = {
        rule: [each["before_over_now"] for each in rows if each["what"] == rule] for rule in ("winner", "default")
    }
    summary = {
        rule: {"geomean": round(record.geomean(them), 4), "least": min(them), "most": max(them)}
        for rule, them in ratios.items()
        if them
    }
    body = {"seconds": seconds, "summary": summary, "rows": rows}
    record.write(folder / f"two-versions-{name}.json", body)
    for each in rows:
        print(
            f"{each['what']:8} {each['problem']:44} {each['before_over_now']:.4f} {each['now']} (was {each['before']})"
        )
    print(seconds, summary)


def of_version(path: list[str], **changed: Any) -> dict[str, str]:
    """The environment of a process that imports a version."""
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return environment(**changed, PYTHONPATH=os.pathsep.join([*path, *filter(None, known)]))


def tune(folder: Path, name: str, path: list[str]) -> float:
    begin = time.monotonic()
    with (folder / "log.txt").open("a") as log:
        subprocess.run(
            [sys.executable, "-c", LAUNCHER, "run", "--suite", "suite.csv", "--db", f"{name}.db"],
            cwd=folder,
            env=of_version(path, TRITON_CACHE_DIR=folder / f"cache-{name}"),
            stdout=log,
            stderr=log,
            check=True,
        )
    return round(time.monotonic() - begin, 1)


def winners(database: Path) -> dict[Problem, Config]:
    with Store.open(str(database), read_only=True) as store:
        return {winner.problem: winner.config for winner in store.winners()}


def of_nobody(folder: Path, path: list[str], problems: list[Problem]) -> list[Config]:
    """The defaults of a version."""
    done = subprocess.run(
        [sys.executable, "-c", DEFAULTS],
        cwd=folder,
        env=of_version(path),
        input=json.dumps([each.fields() for each in problems]),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [Config(kernel, **values) for kernel, values in json.loads(done.stdout)]


def row(found: Any) -> dict[str, Any] | None:
    """What is kept of a case; None where both versions chose one config, or one could not be measured."""
    if not (found.answer and found.formula):
        return None
    case = found.case
    configs = {"before": case.formula.label, "now": case.answer.label}
    ratio = round(found.formula / found.answer, 4)
    return {"what": case.rule, "problem": str(case.problem), "before_over_now": ratio, **configs}


if __name__ == "__main__":
    main()
