"""Runs commands of `tuner` as a user would, and other fresh processes: each sees the installed package alone.

It imports nothing of `tuner`: a process that times the first import of that imports this module before.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

LAUNCHER = "from tuner.cli import main; main()"


def tuner(folder: Path, *arguments: str, accept: tuple[int, ...] = (0,), **changed: str) -> dict[str, Any]:
    """What `tuner ... --json` prints.

    Args:
        folder: where the command runs, and where its compile cache and its log are kept. It is not the checkout, whose
            folder `tuner` would hide the installed package.
        arguments: of the command.
        accept: exit codes after which the answer is still used. Any other ends this process with the command's last
            words.
        changed: of the command's environment.
    """
    with (folder / "log.txt").open("a") as log:
        log.write(f"tuner {' '.join(arguments)}\n")
        log.flush()
        done = subprocess.run(
            [sys.executable, "-c", LAUNCHER, *arguments, "--json"],
            cwd=folder,
            env=environment(TRITON_CACHE_DIR=folder / "cache", **changed),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            check=False,
        )
    if done.returncode not in accept:
        tail = (folder / "log.txt").read_text()[-1500:]
        sys.exit(f"tuner {' '.join(arguments)} ended with {done.returncode}:\n{tail}")
    return json.loads(done.stdout)


def where_time_went(told: dict[str, Any]) -> dict[str, Any]:
    """The wall time of what `tuner run --json` tells, by phase, and its binaries."""
    phases_s = sum((Counter(problem["phases_s"]) for problem in told["problems"]), Counter[str]())
    return {
        "wall_s": round(told["seconds"], 1),
        "start_s": round(told["start_seconds"], 1),
        "phases_s": {phase: round(seconds, 1) for phase, seconds in phases_s.items()},
        "binaries": told["compiled"],
        "compile_wall_s": round(told["compile_seconds"], 1),
    }


def fresh(source: str, *arguments: str, **changed: str | Path) -> str:
    """What a new process prints that runs a source, with some of the environment changed."""
    command = [sys.executable, "-c", source, *arguments]
    # Not from a checkout: its folder `tuner` would hide the installed package from a process that runs `-c`.
    with tempfile.TemporaryDirectory() as folder:
        values = environment(**{"TUNER_DB": f"{folder}/none.db", **changed})
        done = subprocess.run(command, env=values, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"a child process failed:\n{done.stderr}")
    return done.stdout


def environment(**changed: str | Path) -> dict[str, str]:
    """This process's environment for another, whose modules come compiled, as an installer leaves them."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {name: str(value) for name, value in changed.items()}


def card(slug: str) -> str:
    """The short name of a GPU's model by its slug, by which results are told apart: "h100"."""
    return slug.removeprefix("nvidia-").partition("-")[0]


def new_folder(parser: argparse.ArgumentParser, path: Path) -> Path:
    """Make the folder that --out names; it must be new, so that nothing in it is older than the run."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        parser.error(f"--out {path} is there already: name a new folder")
    return path.resolve()
