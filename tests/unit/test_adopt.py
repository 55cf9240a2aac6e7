"""An adopted kernel is told apart by module, name and source, and its key is Triton's with what `tuner.tuned` adds."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
import triton
from triton.runtime import Autotuner

from tuner.adopt.kernel import is_of, kernel_of, op_of, problem_of
from tuner.adopt.values import Decoder, Encoder
from tuner.kernel import registry
from tuner.startup.after_import import after_import

MODULE = """
import triton
import triton.language as tl

FACTOR = 2
CONFIGS = [triton.Config({"BLOCK": block}, num_warps=1) for block in (64, 128)]


@triton.jit
def twice(x):
    return x * FACTOR


@triton.autotune(CONFIGS, key=["N"])
@triton.jit
def kernel(x, y, stride, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, twice(tl.load(x + at * stride, mask=at < N)), mask=at < N)
"""


pytestmark = pytest.mark.usefixtures("no_added_kernels")


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Writes a module of a library and imports it; each test's library has another name."""
    name = f"library_{tmp_path.name.replace('-', '_')}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two texts of one size within a second are told apart

    def write(module, text=MODULE):
        (tmp_path / name / f"{module}.py").write_text(text)
        full = f"{name}.{module}"
        monkeypatch.delitem(sys.modules, full, raising=False)
        return importlib.import_module(full).kernel

    yield write
    for each in [each for each in sys.modules if each.partition(".")[0] == name]:
        del sys.modules[each]


def test_an_op_is_named_by_module_and_qualified_name(library):
    one, other = library("one"), library("other")
    assert op_of(one).endswith("-one-kernel")
    assert op_of(one).split("-")[0] == one.base_fn.__module__.split(".")[0]
    assert op_of(one) != op_of(other)
    assert set(registry.of(op_of(one))) == set()
    assert kernel_of(one).spec is registry.of(op_of(one))[op_of(one)]
    assert kernel_of(one) is kernel_of(one)


def test_libraries_are_named_as_packages_or_modules(library):
    kernel = library("one")
    package, module = kernel.base_fn.__module__.split(".")[0], kernel.base_fn.__module__
    assert is_of(kernel, ["other", package])
    assert is_of(kernel, [module])
    assert not is_of(kernel, [package[:-1], f"{module}.kernel", ""])


def test_the_source_changes_with_what_a_kernel_calls_and_reads_and_not_with_comments(library):
    def source(text):
        return kernel_of(library("one", text)).source_hash

    first = source(MODULE)
    assert source(MODULE.replace("@triton.autotune", "# a comment\n\n@triton.autotune")) == first
    changed = [MODULE.replace("FACTOR = 2", "FACTOR = 3"), MODULE.replace("x * FACTOR", "FACTOR * x + 1")]
    assert len({first, *map(source, changed)}) == 3


def test_a_key_is_tritons_with_the_facts_that_tuned_adds(library):
    kernel = library("one")
    x, y = torch.zeros(257), torch.zeros(256, dtype=torch.float64)
    problem = problem_of(kernel, (x[1:], y, 1), {"N": 256, "grid": (1,), "num_warps": 4, "warmup": False})
    extras = dict(problem.extras)
    assert extras.pop("kernel.source") == kernel_of(kernel).source_hash[:16]
    assert extras == {"N": 256, "x.aligned": False, "stride.one": True, "y.dtype": "float64"}


def test_another_list_of_configs_is_another_kernel(library):
    kernel = library("one")
    before = kernel_of(kernel)
    kernel.configs = [triton.Config({"BLOCK": 32})]
    assert [config.kwargs for config in kernel_of(kernel).configs] == [{"BLOCK": 32}]
    assert kernel_of(kernel) is not before
    assert kernel_of(kernel) is kernel_of(kernel)


def test_a_subclass_of_the_autotuner_is_adopted_as_any(library):
    plain = library("one")

    class Own(Autotuner):
        def run(self, *args, **kwargs):
            return super().run(*args, **kwargs)

    own = Own(plain.fn, plain.arg_names, plain.configs, plain.keys, None, None)
    assert (op_of(own), kernel_of(own).source_hash) == (op_of(plain), kernel_of(plain).source_hash)


@pytest.mark.parametrize(
    "value", [None, True, -3, "word", 1.5, math.inf, -math.inf, np.float32(math.inf), np.float64(0.5), np.int64(7)]
)
def test_a_captured_value_is_made_again(value):
    written = json.loads(json.dumps(Encoder().value(value), allow_nan=False))
    made = Decoder([]).value(written)
    assert made == value
    assert isinstance(made, str) == isinstance(value, str)


def test_a_thread_that_goes_through_the_finders_misses_none_as_an_awaited_module_is_imported(monkeypatch, tmp_path):
    (tmp_path / "awaited_by_a_test.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    acted = []
    after_import("awaited_by_a_test", lambda: acted.append(True))
    seen = []
    for finder in sys.meta_path:  # as another thread's import does
        if not seen:
            importlib.import_module("awaited_by_a_test")
        seen.append(finder)
    monkeypatch.delitem(sys.modules, "awaited_by_a_test")
    assert acted == [True]
    assert seen[1:] == sys.meta_path


def test_torch_s_module_is_waited_for_once_whoever_asks():
    code = "\n".join(
        (
            "import sys",
            "from tuner.tuned import traced",
            "before = len(sys.meta_path)",
            "for _ in range(3):",
            "    traced.ask(traced.choose_tuned)",
            "traced.stop_asking(traced.choose_tuned)",
            "traced.ask(lambda *_: None)",
            "assert 'torch._higher_order_ops.triton_kernel_wrap' not in sys.modules",
            "assert len(sys.meta_path) == before + 1, sys.meta_path",
        )
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
