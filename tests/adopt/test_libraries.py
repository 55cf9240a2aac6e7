"""Libraries as the index has them, under adoption: flash-linear-attention, Liger and FlagGems."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import packages
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
name, of_a_class = sys.argv[1], int(sys.argv[2])
if name == "flag_gems":  # it asks for a GPU when it is imported
    import torch
    torch.cuda.is_available, torch.cuda.device_count, torch.cuda.current_device = lambda: True, lambda: 1, lambda: 0
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    sizes = dict(multi_processor_count=132, L2_cache_size=60 << 20, max_shared_memory_per_multiprocessor=233_472)
    torch.cuda.get_device_properties = lambda *_: MagicMock(**sizes)
    torch.cuda.get_device_name = lambda *_: "NVIDIA H200"
library = importlib.import_module(name)
for module in pkgutil.walk_packages(library.__path__, f"{library.__name__}.", onerror=lambda _name: None):
    try:
        importlib.import_module(module.name)
    except Exception:
        pass  # it needs what is not installed here, adopted or not
found = [each for each in gc.get_objects() if isinstance(each, Autotuner) and not isinstance(each, TunedKernel)]
found = [each for each in found if each.base_fn.__module__.startswith(library.__name__)]
by_class = {}
for each in found:
    by_class.setdefault(type(each), []).append(each)
asking = [each for several in by_class.values() for each in several[:of_a_class]]

class Launched:
    def __init__(self, fn):
        self.arg_names = fn.arg_names
        self.launches = []
    def run(self, *args, **kwargs):
        self.launches.append(kwargs)

def bench(*args, **kwargs):
    raise AssertionError("it was measured")

served, sources = 0, {(op_of(each), kernel_of(each).source_hash) for each in found}
for each in asking:
    each.fn, each._do_bench = Launched(each.fn), bench
    given = [name for name in each.arg_names if name not in each.configs[-1].all_kwargs()]
    arguments = {name: 128 if name in each.keys else MagicMock() for name in given}
    each.run(grid=(1,), warmup=False, **arguments)
    asks = len(asked)
    each.run(grid=(1,), warmup=False, **arguments)
    first, second = each.fn.launches
    served += first == second and each.best_config == each.configs[-1] and len(asked) == asks
ops = len({op for op, _ in sources})
print(json.dumps([len(found), len(asking) - served, len(sources) - ops, len(by_class)]))
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
@pytest.mark.parametrize(
    ("library", "at_least", "classes", "of_a_class"),
    [
        *(("fla", 150, 2, 1000), ("liger_kernel", 10, 1, 1000)),
        ("flag_gems", 100, 2, 8),  # it writes each answer to its own database, which takes a second
    ],
)
def test_every_autotuner_that_imports_is_reached_and_has_a_name_of_its_own(
    tmp_path, library, at_least, classes, of_a_class
):
    environment = {"HOME": str(tmp_path), "GEMS_VENDOR": "nvidia"}
    if library in packages.VERSIONS:
        environment["PYTHONPATH"] = str(packages.folder(library))
    found, unserved, ambiguous, kinds = run(REACH, tmp_path, library, str(of_a_class), **environment)
    assert found >= at_least
    assert (unserved, ambiguous) == (0, 0)
    assert kinds >= classes, "flash-linear-attention and FlagGems have Autotuners of their own"


def test_a_kernel_of_fla_is_served_under_the_interpreter_by_a_row_and_without_one(tmp_path):
    first, tuned, configs = run(INTERPRETED, tmp_path, TRITON_INTERPRET="1")
    assert (first, tuned) == (0, configs - 1)
    assert configs > 1
