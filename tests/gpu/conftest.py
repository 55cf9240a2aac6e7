"""Every test of this folder needs a GPU, and is skipped where there is none."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["*"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    if not here:
        return
    import torch

    absent = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: torch.cuda.is_available() is False")
    for item in here:
        item.add_marker(pytest.mark.gpu)
        item.add_marker(absent)
