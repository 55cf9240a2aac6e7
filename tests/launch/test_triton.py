"""Triton's real launch path, from `kernel[grid](...)` to the driver, without a GPU."""

from __future__ import annotations

import struct

import pytest


@pytest.fixture(scope="module")
def cold(stub):
    """The program's first process: Triton's cache is empty."""
    return stub.run("scale.py", alone=True)


def test_a_launch_reaches_the_driver_with_its_grid_block_stream_and_arguments_in_order(cold):
    first = cold.launches[0]
    assert (first.name, first.grid, first.block) == ("scale", (4, 1, 1), (256, 1, 1))
    assert first.stream == 7
    x, y = cold.printed["pointers"]
    assert [first.integer(i) for i in (0, 1, 2, 4)] == [x, y, 1000, 40_000]
    assert struct.unpack("<f", first.params[3]) == (2.5,)
    # The constexpr BLOCK is no parameter; Triton adds two scratch pointers, null here.
    assert [first.integer(i) for i in (5, 6)] == [0, 0]
    assert len(first.params) == 7


def test_the_second_launch_compiles_nothing_and_another_size_reuses_the_binary(cold):
    assert cold.printed["compiled_after_each"] == [1, 1, 1]
    assert cold.loads == ("scale",)
    assert [launch.integer(2) for launch in cold.launches] == [1000, 1000, 999]


def test_a_missing_argument_is_an_error_and_launches_nothing(cold):
    assert "factor" in cold.printed["refused"]
    assert len(cold.launches) == 3


def test_a_second_process_with_a_warm_cache_compiles_nothing(stub, cold):
    warm = stub.run("scale.py")
    assert (cold.printed["compiled_after_each"][-1], cold.printed["from_cache"]) == (1, 0)
    assert (warm.printed["compiled_after_each"][-1], warm.printed["from_cache"]) == (0, 1)
    assert [launch.grid for launch in warm.launches] == [launch.grid for launch in cold.launches]
