"""Each test begins as if nothing had been compiled before it."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def nothing_was_compiled():
    """Torch.compile remembers of a forward's code which sizes it saw, whatever module and test it was."""
    if (dynamo := sys.modules.get("torch._dynamo")) is not None:
        dynamo.reset()
