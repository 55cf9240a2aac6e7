"""Where no C compiler is and no cache, kernels are right on the GPU: looked up, planned, in a new thread, adopted."""

from __future__ import annotations

import json
import os
import subprocess
import sys

PROGRAM = """
import json, threading
import torch
from tuner.kernels import bmm, matmul, softmax

def half(*shape):
    return torch.randn(*shape, device="cuda").half()

a, b, few, many = half(512, 256), half(1024, 256).t(), half(4, 64, 256), half(4, 256, 128)
rows = half(2, 131_072)
calls = {
    "matmul": (lambda: matmul(a, b), a.float() @ b.float()),
    "bmm": (lambda: bmm(few, many), few.float() @ many.float()),
    "softmax": (lambda: softmax(rows), rows.float().softmax(-1)),
}
errors = {}

def check(when):
    for name, (call, expected) in calls.items():
        errors[name, when] = ((call().float() - expected).abs().max() / expected.abs().max()).item()

check("first")
check("by a plan")
torch.cuda.synchronize()
thread = threading.Thread(target=check, args=("in a new thread",))
thread.start()
thread.join()
print(json.dumps({f"{name}, {when}": error for (name, when), error in errors.items()}))
"""


def test_what_no_table_ships_is_compiled_and_launched_without_a_c_compiler(tmp_path):
    kept = {name: value for name, value in os.environ.items() if name != "CC" and not name.startswith("TUNER_")}
    places = {"PATH": "/nowhere", "TRITON_CACHE_DIR": str(tmp_path / "cache"), "TUNER_DB": str(tmp_path / "none.db")}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=kept | places, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    errors = json.loads(done.stdout)
    assert len(errors) == 9
    assert max(errors.values()) < 2e-3, errors
    assert list(tmp_path.rglob("*.so")) == []
    assert list(tmp_path.rglob("*.cubin"))


LIBRARY = """
import torch, triton, triton.language as tl
CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (128, 1024) for warps in (2, 4)]

@triton.autotune(CONFIGS, key=["N"])
@triton.jit
def scale(x, y, N, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < N) * factor, mask=at < N)

@triton.jit
def negate(x, y, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, -tl.load(x + at, mask=at < N), mask=at < N)

def opposite(x):
    scaled, out = torch.empty_like(x), torch.empty_like(x)
    scale[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, scaled, x.numel(), 2.5)
    negate[(triton.cdiv(x.numel(), 512),)](scaled, out, x.numel(), 512)
    return out
"""
ADOPTED = """
import json, sys
import torch, triton
from triton.runtime import Autotuner
import library

counts = {"measured": 0, "compiled": 0}

def refuse(self):
    counts["measured"] += 1
    raise AssertionError("it was measured")

def note(*_, cache_hit=False, **__):
    counts["compiled"] += not cache_hit

Autotuner.do_bench, triton.knobs.compilation.listener = property(refuse), note
errors = []
for _ in range(2):
    x = torch.randn(100_000, device="cuda")
    errors.append((library.opposite(x) + 2.5 * x).abs().max().item())
print(json.dumps({"errors": errors, **counts, "config": str(library.scale.best_config)}))
"""


def test_an_adopted_library_is_served_strict_by_what_was_captured_tuned_and_shipped(tmp_path):
    (tmp_path / "library.py").write_text(LIBRARY)
    (tmp_path / "program.py").write_text(ADOPTED)
    kept = {name: value for name, value in os.environ.items() if name != "CC" and not name.startswith("TUNER_")}
    found = os.pathsep.join([str(tmp_path), *filter(None, [kept.get("PYTHONPATH")])])
    places = {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "TUNER_DB": str(tmp_path / "tuner.db"), "PYTHONPATH": found}

    def run(*arguments, **changed):
        command = [sys.executable, "-m", "tuner", *arguments]
        env = kept | places | changed
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)
        assert done.returncode == 0, done.stderr
        return done

    program = ("--adopt", "library", "--", sys.executable, "program.py")
    run("capture", "--out", "calls", *program)
    (problem,) = json.loads(run("run", "--captured", "calls", "--json").stdout)["problems"]
    assert problem["winner"], problem["reason"]
    run("export", "tables", "--with-kernels", "--captured", "calls")
    bare = {"PATH": "/nowhere", "HOME": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "empty")}
    bare |= {"TUNER_DB": str(tmp_path / "none.db"), "TUNER_TABLES": str(tmp_path / "tables"), "TUNER_STRICT": "1"}
    done = run("exec", *program, **bare)
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["measured"], told["compiled"]) == (0, 0), done.stderr
    assert max(told["errors"]) < 1e-5
    assert [path.name for path in (tmp_path / "empty").rglob("*") if path.suffix in (".so", ".cubin")] == []
