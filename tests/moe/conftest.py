"""vLLM's and SGLang's Python files are on the path of these tests."""

from __future__ import annotations

import packages
import pytest


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both packages can be found here and in child processes."""
    from tuner.moe.package import load

    for name in packages.EXPERTS:
        monkeypatch.syspath_prepend(packages.folder(name))
    monkeypatch.setenv("PYTHONPATH", packages.path_of(*packages.EXPERTS))
    load.cache_clear()
