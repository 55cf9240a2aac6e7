"""benchmarks/dropin.py makes of a tutorial what it says: the definitions alone, and one line changed."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import dropin

TUTORIAL = '''"""A tutorial."""
import triton
import triton.language as tl

@triton.autotune(
    [triton.Config({"BLOCK": 64})],
    key=["N"],
)
@triton.jit
def kernel(x_ptr, N, BLOCK: tl.constexpr):
    tl.store(x_ptr, N)

@triton.autotune(configs=[], key=["N"])
@triton.jit
def other(x_ptr, N):
    tl.store(x_ptr, N)

run = kernel[(1,)]
for size in (1, 2):
    run(size)
run.plot()
'''


def test_a_tutorial_ends_before_the_first_statement_that_runs_something():
    assert dropin.definitions(TUTORIAL) == TUTORIAL[: TUTORIAL.index("for size")]


def test_the_decorator_alone_changes_and_every_line_stays_where_it_is():
    before, after = TUTORIAL.splitlines(), dropin.tuned(TUTORIAL).splitlines()
    changed = {old: new for old, new in zip(before, after, strict=True) if old != new}
    assert changed == {
        "import triton": "import triton; import tuner",
        "@triton.autotune(": "@tuner.tuned(",
        '    key=["N"],': '    key=["N"], tune_on_miss=True,',
        '@triton.autotune(configs=[], key=["N"])': '@tuner.tuned(configs=[], key=["N"], tune_on_miss=True)',
    }
