"""Programs of programs/ in child processes: each activates one target, with a Triton cache of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "programs"
QUICK = "sm_90"
"""The architecture that a quick run compiles for."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        here = item.nodeid.startswith("tests/compile/") and "run_program" in item.fixturenames
        if here and hasattr(item, "callspec") and item.callspec.params["arch"] != QUICK:
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="module")
def run_program(compiling, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Run a program and read the JSON it prints; one cache for a module's programs, empty at first."""
    cache = tmp_path_factory.mktemp("triton-cache")

    def run(name: str, *arguments: object) -> Any:
        child = compiling.run(
            PROGRAMS / name, *map(str, arguments), env={**compiling.env, "TRITON_CACHE_DIR": str(cache)}, timeout=290
        )
        assert child.returncode == 0, child.stderr[-3000:]
        return json.loads(child.stdout)

    return run
