"""A product and the copy beside it compile to what their rules assume: both fit, one counts chunks, the other waits."""

from __future__ import annotations

from tuner.hardware.device import KNOWN

PROGRAMS = 4
"""Of the copy on a multiprocessor."""
REGISTERS = 65_536
RESERVED_BYTES = 1024
WAITS = ["griddepcontrol.wait", "ld.acquire.gpu", "fence.proxy.async.global"]
"""For the copy's end last of all; for chunks, TMA's sight of which a fence brings."""


def test_both_fit_a_multiprocessor_and_chunks_are_released_and_acquired(run_program):
    rows = run_program("padding_ahead.py")
    for copy, product in zip(rows[::2], rows[1::2], strict=True):
        assert copy["words"] == ["griddepcontrol.launch_dependents"], copy["case"]
        assert copy["releases"]
        assert product["words"] == WAITS, product["case"]
        assert PROGRAMS * copy["registers"] + product["registers"] <= REGISTERS
        held = product["shared_bytes"] + PROGRAMS * copy["shared_bytes"] + (PROGRAMS + 1) * RESERVED_BYTES
        assert held <= KNOWN["sm_90"].shared_bytes + RESERVED_BYTES, product["case"]
