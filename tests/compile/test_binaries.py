"""One binary serves a class of shapes, and a launch finds the binary that a compile made."""

from __future__ import annotations

import itertools

import pytest

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def binaries(run_program):
    return run_program("binaries.py")


def test_pairs_of_one_compile_class_share_a_binary_and_no_others_do(binaries):
    for one, other in itertools.combinations(binaries, 2):
        same_class, same_binary = one["class"] == other["class"], one["hash"] == other["hash"]
        assert same_class == same_binary, (one["case"], other["case"])


def test_sizes_and_group_size_m_are_run_time_arguments(binaries):
    for one, other in itertools.combinations(binaries, 2):
        assert (one["group"] == other["group"]) == (one["hash"] == other["hash"]), (one["case"], other["case"])


def test_a_launch_asks_for_the_very_binary_that_compile_made(run_program):
    for row in run_program("launch_key.py"):
        assert row["launched"] == [row["compiled"]], row["case"]


def test_stages_are_the_same_program_where_the_rules_say_so(run_program):
    rows = run_program("stages.py")
    assert {row["predicted"] for row in rows} == {True, False}
    for row in rows:
        assert row["differ"] == row["predicted"], row["case"]


def test_no_compiler_serves_an_unknown_architecture():
    from tuner.errors import DeviceError
    from tuner.sweep import cross_target

    with pytest.raises(DeviceError, match=r"cannot compile for 'gfx1100': expected an architecture such as sm_90"):
        cross_target.activate("gfx1100")
