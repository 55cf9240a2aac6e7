"""Runs commands of `tuner` as a user would, each in a process of its own, and reads what `--json` prints."""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tuner.problem import Problem, suite

LAUNCHER = "from tuner.cli import main; main()"


def tuner(folder: Path, *arguments: str, accept: tuple[int, ...] = (0,)) -> dict[str, Any]:
    """What `tuner ... --json` prints.

    Args:
        folder: where the command runs, and where its compile cache and its log are kept. It is not the checkout, whose
            folder `tuner` would hide the installed package.
        arguments: of the command.
        accept: exit codes after which the answer is still used. Any other ends this process with the command's last
            words.
    """
    # Modules come compiled after the first process, as an installer leaves them.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = kept | {"TRITON_CACHE_DIR": str(folder / "cache")}
    with (folder / "log.txt").open("a") as log:
        log.write(f"tuner {' '.join(arguments)}\n")
        log.flush()
        done = subprocess.run(
            [sys.executable, "-c", LAUNCHER, *arguments, "--json"],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            check=False,
        )
    if done.returncode not in accept:
        tail = (folder / "log.txt").read_text()[-1500:]
        sys.exit(f"tuner {' '.join(arguments)} ended with {done.returncode}:\n{tail}")
    return json.loads(done.stdout)


def new_folder(parser: argparse.ArgumentParser, path: Path) -> Path:
    """Make the folder that --out names; it must be new, so that nothing in it is older than the run."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        parser.error(f"--out {path} is there already: name a new folder")
    return path.resolve()


def write_suite(path: Path, problems: Iterable[Problem]) -> None:
    """Write problems that shape, dtype and layout describe as a suite."""
    listed = list(dict.fromkeys(problems))
    with path.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("m", "n", "k", "dtype", "layout"))
        table.writerows((*problem.shape, problem.a_dtype, problem.layout) for problem in listed)
    if suite.load(str(path)) != listed:
        sys.exit(f"{path}: some of these problems are described by more than shape, dtype and layout")
