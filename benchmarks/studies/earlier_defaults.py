"""Default configs of another version, for a study to play beside today's: written by --list, read by --before."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

from tuner import Config, Problem
from tuner.hardware.device import KNOWN
from tuner.kernel import registry


def add_options(parser: argparse.ArgumentParser) -> None:
    """Take --before and --list."""
    parser.add_argument("--before", type=Path, metavar="FILE", help="defaults of another version, from --list")
    parser.add_argument("--list", type=Path, metavar="FILE", help="write today's defaults and end")


def write(path: Path, problems: Iterable[Problem]) -> None:
    """Write this version's default config of each problem on an H200; it needs no GPU."""
    defaults = {str(problem): registry.default_config(problem, KNOWN["sm_90"]) for problem in problems}
    path.write_text(json.dumps({name: [one.kernel, dict(one.pairs)] for name, one in defaults.items()}))


def read(path: Path | None) -> dict[str, Config]:
    """What such a file holds, by the problem's name; nothing where none is given."""
    told = json.loads(path.read_text()) if path else {}
    return {name: Config(kernel, **parameters) for name, (kernel, parameters) in told.items()}
