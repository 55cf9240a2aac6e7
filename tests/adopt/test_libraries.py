"""flash-linear-attention and Liger, as the index has them, under adoption."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(
    find_spec("fla") is None or find_spec("liger_kernel") is None,
    reason="fla-core and liger-kernel are not installed: pip install -e '.[dev]'",
)
REACH = """
import gc, importlib, json, pkgutil, sys, warnings
warnings.simplefilter("ignore")
from unittest.mock import MagicMock
from triton.runtime import Autotuner
import tuner
from tuner.adopt import hook
from tuner.adopt.kernel import kernel_of, op_of
from tuner.tuned.tuned_kernel import TunedKernel

asked = []
hook.ask(lambda autotuner, kwargs: asked.append(autotuner) or autotuner.configs[-1])
library = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(library.__path__, f"{library.__name__}.", onerror=lambda _name: None):
    try:
        importlib.import_module(module.name)
    except Exception:
        pass  # it needs what is not installed here, adopted or not
found = [each for each in gc.get_objects() if isinstance(each, Autotuner) and not isinstance(each, TunedKernel)]
found = [each for each in found if each.base_fn.__module__.startswith(library.__name__)]

class Launched:
    def __init__(self, fn):
        self.arg_names = fn.arg_names
        self.launches = []
    def run(self, *args, **kwargs):
        self.launches.append(kwargs)

def bench(*args, **kwargs):
    raise AssertionError("it was measured")

served, sources = 0, set()
for each in found:
    sources.add((op_of(each), kernel_of(each).source_hash))
    each.fn, each._do_bench = Launched(each.fn), bench
    arguments = {name: MagicMock() for name in each.arg_names if name not in each.configs[-1].kwargs}
    each.run(grid=(1,), warmup=False, **arguments)
    asks = len(asked)
    each.run(grid=(1,), warmup=False, **arguments)
    first, second = each.fn.launches
    served += first == second and each.best_config == each.configs[-1] and len(asked) == asks
print(json.dumps([len(found), served, len(sources), len({op for op, _ in sources}), len(set(map(type, found)))]))
"""
INTERPRETED = """
import json, warnings
warnings.simplefilter("ignore")
from pathlib import Path
import torch
import tuner
from fla.ops.utils import cumsum
from tuner.adopt.kernel import kernel_of, problem_of
from tuner.hardware.device import INTERPRETER, Environment
from tuner.lookup.table import Provenance, Row, Table

calls = []
autotuner = cumsum.chunk_local_cumsum_scalar_kernel.fn
run = type(autotuner).run
type(autotuner).run = lambda self, *args, **kwargs: (calls.append((args, kwargs)), run(self, *args, **kwargs))[1]
x = torch.randn(1, 128, 2)
expected = x.view(1, 2, 64, 2).cumsum(2)

def used(on_miss):
    with tuner.adopt("fla", on_miss=on_miss):
        out = cumsum.chunk_local_cumsum(x, 64).view_as(expected)
    assert torch.allclose(out, expected, atol=1e-5)
    return autotuner.configs.index(autotuner.best_config)

first = used("first")
kernel, last = kernel_of(autotuner), autotuner.configs[-1]
made = Provenance(Environment("3.7.1", "2.13.0", "interpreter", "none", "3.11.7"), 1, "0.1.0")
row = Row(problem_of(autotuner, *calls[0]), kernel.config_list.of(last), 1, made, 10.0, 1.5, None, 1)
tuner.use(Table(kernel.options.name, INTERPRETER, "2026-01-31T12:00:00Z", (row,)).write(Path.cwd()))
print(json.dumps([first, used("autotune"), len(autotuner.configs)]))
"""


def run(program, tmp_path, *arguments, **environment):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TUNER_", "TRITON_"))}
    path = tmp_path / "program.py"
    path.write_text(program)
    command = [sys.executable, str(path), *arguments]
    env = kept | environment | {"TUNER_DB": str(tmp_path / "tuner.db"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
@pytest.mark.parametrize(("library", "at_least", "classes"), [("fla", 150, 2), ("liger_kernel", 10, 1)])
def test_every_autotuner_that_imports_is_reached_and_has_a_name_of_its_own(tmp_path, library, at_least, classes):
    found, served, kernels, ops, kinds = run(REACH, tmp_path, library)
    assert found >= at_least
    assert served == found
    assert kernels == ops
    assert kinds >= classes, "flash-linear-attention has an Autotuner of its own"


def test_a_kernel_of_fla_is_served_under_the_interpreter_by_a_row_and_without_one(tmp_path):
    first, tuned, configs = run(INTERPRETED, tmp_path, TRITON_INTERPRET="1")
    assert (first, tuned) == (0, configs - 1)
    assert configs > 1
