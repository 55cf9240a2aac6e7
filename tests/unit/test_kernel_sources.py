"""A kernel's source cannot change without somebody deciding whether its timings still speak for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tuner import registry

RECORD = Path(__file__).with_name("kernel_sources.json")


@pytest.mark.parametrize("key", sorted(registry.specs()), ids="/".join)
def test_a_changed_kernel_has_a_decided_version(key):
    spec = registry.specs()[key]
    recorded = json.loads(RECORD.read_text()).get("/".join(key), {})
    current = {"version": spec.version, "hash": spec.source_hash()}
    if current != recorded:
        pytest.fail(
            f"the source of {'/'.join(key)} is not the recorded one. If timings may differ, raise its VERSION: old "
            f"trials then become stale. If they cannot (a comment, a name), leave VERSION. Either way record what you "
            f"decided in {RECORD.name}: {json.dumps({'/'.join(key): current})}",
            pytrace=False,
        )


def test_a_hash_does_not_depend_on_where_or_when_it_is_taken():
    for spec in registry.specs().values():
        assert spec.source_hash() == spec.source_hash()
        assert len(spec.source_hash()) == 64
