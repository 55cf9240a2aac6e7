import dataclasses
import os
import sys
from pathlib import Path

import pytest

from tuner.kernel import registry
from tuner.problem import Problem
from tuner.sweep.child import Child

FAULTY = Path(__file__).parent / "faulty"


@pytest.fixture
def faulty(monkeypatch):
    """Installs the kernel of faulty_kernels.py, here and in child processes; gives a maker of its problems."""
    monkeypatch.syspath_prepend(FAULTY)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAULTY), os.environ.get("PYTHONPATH", "")]))
    registry.forget()
    yield lambda op="faulty", **extras: Problem(16, 16, 16, dtype="float32", op=op, extras=extras)
    registry.forget()
    for module in ("faulty_kernels", "careless_kernels"):
        sys.modules.pop(module, None)


@pytest.fixture
def on_a_card(monkeypatch):
    """Have the interpreter's workers say that they work on a card of some UUID, as those of a GPU do."""
    hello = Child.hello

    def say(uuid):
        monkeypatch.setattr(Child, "hello", lambda *args: dataclasses.replace(hello(*args), gpu_uuid=uuid))

    return say
