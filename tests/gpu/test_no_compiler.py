"""Where no C compiler is and no cache, kernels are right on the GPU: by a lookup, by a plan, and in a new thread."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: torch.cuda.is_available() is False"),
]
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
