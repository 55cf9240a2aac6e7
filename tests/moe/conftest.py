"""vLLM's and SGLang's Python files are on the path of these tests, which leave no kernel registered."""

from __future__ import annotations

from collections.abc import Iterator

import packages
import pytest

from tuner.kernel import registry


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Both packages can be found here and in child processes."""
    from tuner.moe import kernel
    from tuner.moe.package import load

    for name in packages.EXPERTS:
        monkeypatch.syspath_prepend(packages.folder(name))
    monkeypatch.setenv("PYTHONPATH", packages.path_of(*packages.EXPERTS))
    load.cache_clear()
    with monkeypatch.context() as alone:
        alone.setattr(registry, "_added", {})
        alone.setattr(kernel, "_registered", {})
        yield
    registry.forget()
