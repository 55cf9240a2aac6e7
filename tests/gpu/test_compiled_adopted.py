"""Under torch.compile, forward and backward, graphs hold winners alone, and TorchInductor measures nothing of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

MODULE = """
import torch, triton, triton.language as tl
CONFIGS = [triton.Config({"BLOCK": block}, num_warps=4) for block in (128, 512, 2048)]

@DECORATOR
@triton.jit
def square(x, y, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < N)
    tl.store(y + at, v * v, mask=at < N)

@DECORATOR
@triton.jit
def square_backward(x, dy, dx, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(dx + at, 2.0 * tl.load(x + at, mask=at < N) * tl.load(dy + at, mask=at < N), mask=at < N)

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        square[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
        return y

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        dx = torch.empty_like(x)
        square_backward[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, dy.contiguous(), dx, x.numel())
        return dx
"""
PROGRAM = """
import json, sys
from pathlib import Path
import torch
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch._inductor.utils import fresh_cache
from triton.runtime import Autotuner
import library, own, tuner
from tuner.adopt.kernel import kernel_of
from tuner.hardware import device
from tuner.hardware.device import Environment
from tuner.lookup.table import Provenance, Row, Table

SIZE = 1 << 20
made = Provenance(Environment("3.7.1", "2.13.0", "cuda 13.0", "580.1", "3.11.7"), 1, "0.1.0")

def write_row(kernel, operands, block):
    tensors = [torch.empty(SIZE, device="cuda") for _ in range(operands)]
    problem = kernel.signature.problem(kernel.signature.named((*tensors, SIZE), {}))
    (config,) = [kernel.config_list.of(each) for each in kernel.configs if each.kwargs["BLOCK"] == block]
    row = Row(problem, config, 1, made, 10.0, 1.5, None, 1)
    Table(problem.op, device.current(), "2026-01-31T12:00:00Z", (row,)).write(Path.cwd())

for module in (library, own):
    for name, operands, block in (("square", 2, 2048), ("square_backward", 3, 512)):
        kernel = getattr(module, name)
        write_row(kernel_of(kernel) if module is library else kernel, operands, block)
tuner.use(str(Path.cwd()))
held, measured = [], []
init, benchmark, bench = CachingAutotuner.__init__, CachingAutotuner.benchmark_all_configs, Autotuner._bench

def note_init(self, *args, **kwargs):
    init(self, *args, **kwargs)
    self.blocks = [each.kwargs["BLOCK"] for each in self.configs if "BLOCK" in each.kwargs]  # Inductor's have XBLOCK
    if self.blocks:
        held.append(self.blocks)

def note_benchmark(self, *args, **kwargs):
    if blocks := getattr(self, "blocks", None):
        measured.append(blocks)
    return benchmark(self, *args, **kwargs)

def note_bench(self, *args, **kwargs):
    measured.append(["by Triton"])
    return bench(self, *args, **kwargs)

CachingAutotuner.__init__, CachingAutotuner.benchmark_all_configs = note_init, note_benchmark
Autotuner._bench = note_bench

def play(module, dynamic):
    torch._dynamo.reset()
    held.clear()
    measured.clear()
    compute = torch.compile(lambda x: module.Square.apply(x), fullgraph=True, dynamic=dynamic)
    for size in (SIZE, SIZE - 1000) if dynamic else (SIZE,):
        x, dy = (torch.randn(size, device="cuda") for _ in range(2))
        y = compute(x.requires_grad_())
        y.backward(dy)
        torch.testing.assert_close(y, x * x)
        torch.testing.assert_close(x.grad, 2 * x * dy)
    return [sorted(map(list, set(map(tuple, held)))), sorted(measured)]

def play_anew(module, dynamic):
    with fresh_cache():  # both modules' kernels have one source, and Inductor makes nothing twice
        return play(module, dynamic)

told = {"alone": play_anew(library, False)}
for dynamic in (False, True):
    told["tuned", dynamic] = play_anew(own, dynamic)
    with tuner.adopt("library"):
        told["adopted", dynamic] = play_anew(library, dynamic)
print(json.dumps({" ".join(map(str, [name] if isinstance(name, str) else name)): each for name, each in told.items()}))
"""


def test_graphs_hold_winners_alone_and_inductor_measures_nothing(tmp_path):
    own = MODULE.replace("DECORATOR", 'tuner.tuned(CONFIGS, ["N"])').replace("import torch,", "import tuner, torch,")
    (tmp_path / "own.py").write_text(own)
    (tmp_path / "library.py").write_text(MODULE.replace("DECORATOR", 'triton.autotune(CONFIGS, key=["N"])'))
    (tmp_path / "program.py").write_text(PROGRAM)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TUNER_")}
    # Compiled in the process that counts, and not found in the caches of an earlier one.
    inductor = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    places = {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "TUNER_DB": str(tmp_path / "none.db")}
    command, env = [sys.executable, "program.py"], kept | inductor | places
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    every = [128, 512, 2048]
    assert told.pop("alone") == [[every], [every] * 2], "what is counted without us"
    assert len(told) == 4
    for name, (held, measured) in told.items():
        assert (held, measured) == ([[512], [2048]], []), name
