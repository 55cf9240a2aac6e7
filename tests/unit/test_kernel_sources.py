"""A kernel's source cannot change without somebody deciding whether its timings still speak for it.

`python tests/unit/test_kernel_sources.py` records the sources as they are.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from tuner.kernel import KernelSpec, registry

RECORD = Path(__file__).with_name("kernel_sources.json")


@functools.cache
def ours() -> dict[tuple[str, str], KernelSpec]:
    """Kernels by op and name, without those that other test modules decorate."""
    return {key: spec for key, spec in sorted(registry.specs().items()) if not spec.origin}


@functools.cache
def current() -> dict[str, dict[str, object]]:
    """Version and hash of every kernel, by op and name."""
    return {"/".join(key): {"version": spec.version, "hash": spec.source_hash()} for key, spec in ours().items()}


@pytest.mark.parametrize("key", ours(), ids="/".join)
def test_a_changed_kernel_has_a_decided_version(key):
    name = "/".join(key)
    if current()[name] != json.loads(RECORD.read_text()).get(name):
        pytest.fail(
            f"the source of {name} is not the recorded one. If timings may differ, raise its VERSION: old trials then "
            f"become stale. If they cannot (a comment, a name), leave VERSION. Either way record what you decided: "
            f"python tests/unit/{Path(__file__).name}",
            pytrace=False,
        )


def test_nothing_is_recorded_of_kernels_that_are_gone():
    pytest.importorskip("torch", reason="kernels need torch")
    assert json.loads(RECORD.read_text()).keys() == current().keys()


def test_a_hash_does_not_depend_on_where_or_when_it_is_taken():
    for spec in registry.specs().values():
        assert spec.source_hash() == spec.source_hash()
        assert len(spec.source_hash()) == 64


if __name__ == "__main__":
    RECORD.write_text(json.dumps(current(), indent=2) + "\n")
