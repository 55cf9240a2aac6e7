"""vLLM's and SGLang's Python files are on the path of these tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import packages


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both packages can be found here and in child processes."""
    from tuner.moe.package import load

    for name in packages.VERSIONS:
        monkeypatch.syspath_prepend(packages.folder(name))
    monkeypatch.setenv("PYTHONPATH", packages.path_of(*packages.VERSIONS))
    load.cache_clear()
