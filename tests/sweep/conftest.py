import os
import sys
from pathlib import Path

import pytest

from tuner.kernel import registry
from tuner.problem import Problem

FAULTY = Path(__file__).parent / "faulty"


@pytest.fixture
def faulty(monkeypatch):
    """Installs the kernel of faulty_kernels.py, here and in child processes; gives a maker of its problems."""
    monkeypatch.syspath_prepend(FAULTY)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAULTY), os.environ.get("PYTHONPATH", "")]))
    registry.forget()
    yield lambda **extras: Problem(16, 16, 16, dtype="float32", op="faulty", extras=extras)
    registry.forget()
    sys.modules.pop("faulty_kernels", None)
