"""What errors say in one line."""

from __future__ import annotations

from tuner.errors import first_line, in_short


def test_a_line_that_announces_the_cause_is_followed_by_it():
    """As Triton words what does not compile: where, the source with a mark below, and in the end why."""
    error = ValueError("at 2:17:\n    x = tl.arange(0, 3)\n        ^\narange's range must be a power of 2")
    assert first_line(error) == "at 2:17: arange's range must be a power of 2"
    assert in_short(error) == "ValueError: at 2:17: arange's range must be a power of 2"
    assert in_short(ValueError("first\nsecond")) == "ValueError: first"
    assert first_line(ValueError()) == "ValueError"
