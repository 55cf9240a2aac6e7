"""The copies of padded load and store as widely as rows allow, and its GEMM takes what the inner kernel's rule says."""

from __future__ import annotations

import pytest

WIDTHS = [
    ([".b16", ".v2.b64"], [".b32", ".v2.b64"]),
    ([".v4.b32"], [".v4.b32"]),
    ([".b16", ".v2.b64"], [".b32", ".v2.b64"]),
    ([".b16", ".v2.b64"], [".b32", ".v2.b64"]),
]
"""Of loads and stores, by problem: odd K; rows of 16 bytes' multiples; even K of single bytes; odd K. Narrow ones are
for a matrix's ends."""
BY_POINTER = [True, False, True, True]
"""Whether N leaves no whole multiple of 16 bytes a row."""


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_copies_are_as_wide_as_rows_allow_and_outputs_without_descriptor_go_by_pointers(arch, run_program):
    rows = run_program("padded.py", arch)
    assert [(row["loads"], row["stores"]) for row in rows] == WIDTHS
    assert [row["by_pointer"] for row in rows] == BY_POINTER
    for row in rows:
        # Triton 3.6 hands the bias from thread to thread by way of shared memory.
        assert row["shared_bytes"] - row["predicted_bytes"] <= 1024, row["case"]
        # Of an inner `warp_specialized` the prediction is an upper bound.
        assert row["shared_bytes"] >= row["predicted_bytes"] or "INNER=warp_specialized" in row["case"], row["case"]
