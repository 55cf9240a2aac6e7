"""What makes two kernels the same: their source with all that it calls, however and wherever it is written."""

from __future__ import annotations

import importlib
import sys
import textwrap
import types

import pytest

from tuner.tuned.source import source_hash

KERNEL = """
import library
from library import half as halved
SIZE = 16

def kernel(x_ptr, N, BLOCK: "constexpr" = SIZE):
    at = arange(0, BLOCK) + SIZE
    for each in range(N):
        store(x_ptr + at, halved(library.doubled(load(x_ptr + at))), mask=at < N - 1)
    return f"{at!r}: {N}"
"""
LIBRARY = """
FACTOR = 2

def doubled(x):
    return x * FACTOR

def half(x):
    return other(x) / 2

def other(x):
    return x if x else half(x)
"""


class Jit:
    """What Triton makes of a function, as far as the source is concerned."""

    def __init__(self, fn):
        self.fn = fn


@pytest.fixture
def hashed(tmp_path, monkeypatch):
    """Return the hash of the kernel of two modules that are written here and imported."""
    monkeypatch.syspath_prepend(tmp_path)
    count = iter(range(100))

    def hashed(kernel=KERNEL, library=LIBRARY):
        names = [f"{name}_{tmp_path.name}_{next(count)}" for name in ("library", "mine")]
        for name, text in zip(names, (library, kernel), strict=True):
            (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        monkeypatch.setitem(sys.modules, "library", importlib.import_module(names[0]))
        return source_hash(Jit(importlib.import_module(names[1]).kernel))

    return hashed


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SIZE = 16\n", "SIZE = 16\n\n# moved down by\n# two lines\n"),
        ("    for each", "    # why\n    for each"),
        (
            "):\n    at = arange(0, BLOCK) + SIZE",
            '):\n    """Say what it does."""\n    at = (arange(0, BLOCK,) +\n        SIZE)',
        ),
        ('"constexpr"', "'constexpr'"),
        ("def kernel", "@(lambda function: function)\ndef kernel"),
        ("SIZE = 16", "SIZE = 16\nUNREAD = 7"),
    ],
)
def test_how_and_where_a_kernel_is_written_does_not_count(hashed, old, new):
    assert old in KERNEL
    assert hashed(KERNEL.replace(old, new)) == hashed()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SIZE = 16", "SIZE = 32"),
        ("N - 1", "N - 2"),
        ("BLOCK) + SIZE", "BLOCK)"),
        ("import half as halved", "import doubled as halved"),
        ("FACTOR = 2", "FACTOR = 3"),
        ("x * FACTOR", "x + FACTOR"),
        ("x if x else", "-x if x else"),
    ],
)
def test_what_a_kernel_computes_counts_in_what_it_calls_elsewhere_too(hashed, old, new):
    assert (old in KERNEL) != (old in LIBRARY)
    assert hashed(KERNEL.replace(old, new), LIBRARY.replace(old, new)) != hashed()


def test_the_hash_is_the_same_under_every_python(hashed):
    assert hashed() == "a14b315f30f16a65505e7bc4624949d758ffabd61cc487f3928b59bd385a72b7"


def test_kernels_that_one_function_makes_differ_by_what_they_close_over():
    def make(factor):
        def kernel(x):
            return x * factor

        return Jit(kernel)

    assert source_hash(make(2)) == source_hash(make(2)) != source_hash(make(3))


def test_what_triton_read_counts_where_the_file_has_changed_since():
    namespace = types.ModuleType("unwritten").__dict__
    text = textwrap.dedent(
        """
        def kernel(x):
            return x + 1
        """
    )
    exec(text, namespace)  # no file holds it
    made = [Jit(namespace["kernel"]) for _ in range(3)]
    made[0].src, made[1].src = text, text.replace("+ 1", "+ 2")
    assert len({source_hash(each) for each in made}) == 3


@pytest.mark.parametrize(
    "changed",
    [
        ("x + 1", "x + 2"),
        ("max(x", "min(x"),
        ("SIZE = 16", "SIZE = 32"),
        ("x / 2", "x / 3"),
        ("(each + 3", "(each + 4"),
        ("x.first", "x.last"),
    ],
)
def test_a_kernel_that_no_file_holds_counts_by_its_constants_and_all_that_it_names_too(changed):
    text = textwrap.dedent(
        """
        SIZE = 16
        def half(x):
            return x / 2
        def kernel(x):
            return max(x + 1, SIZE) * half(x.first) - sum(each + 3 for each in x)
        """
    )

    def hashed(text):
        namespace = types.ModuleType("unwritten").__dict__
        exec(text, namespace)
        return source_hash(Jit(namespace["kernel"]))

    assert changed[0] in text
    assert hashed(text) == hashed(f"# moved\n{text}")
    assert hashed(text.replace(*changed)) != hashed(text)
