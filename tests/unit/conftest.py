"""Runs a kernel's source by threads on the CPU, in a process whose Triton is replaced by stand-ins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def emulate() -> Callable[[str], list[dict[str, object]]]:
    """What a program of tests/unit/programs prints: for each case and each planted fault, the difference."""

    def emulate(program: str) -> list[dict[str, object]]:
        # The small products are those of many threads already.
        alone = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, str(Path(__file__).parent / "programs" / program)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=alone)
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout)

    return emulate
