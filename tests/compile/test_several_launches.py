"""A config of several launches is told apart by all of their binaries, and judged by the one that takes the most."""

from __future__ import annotations


def test_configs_differ_where_any_launch_does(run_program):
    first, other, again = run_program("several_launches.py")
    assert first == again
    assert first[0] != other[0]
    assert first[1] > 1024, "the sums of the last launch take no such memory"
