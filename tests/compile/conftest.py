"""Programs of programs/ in child processes: each activates one target, with a Triton cache of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="module")
def run_program(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Run a program and read the JSON it prints; one cache for a module's programs, empty at first."""
    cache = tmp_path_factory.mktemp("triton-cache")

    def run(name: str, *arguments: object) -> Any:
        child = subprocess.run(
            [sys.executable, "-W", "error", str(PROGRAMS / name), *map(str, arguments)],
            env={**{k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}, "TRITON_CACHE_DIR": str(cache)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert child.returncode == 0, child.stderr[-3000:]
        return json.loads(child.stdout)

    return run
