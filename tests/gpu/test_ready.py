"""What ships ready to run is right at every M, with a bias and in a graph, in a process that never imports Triton."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tuner.hardware.device import current
from tuner.kernel import registry
from tuner.problem import Problem
from tuner.tables import binaries

RANGES = {
    (4096, 2048): {4: "gemv", 64: "swap_ab", 128: "tma", 256: "pointer"},
    (4096, 4096): {16: "cluster_k", 128: "warp_specialized", 512: "any_width", 1024: "persistent_tma"},
}
"""By N and K, the kernel of each range by its last M."""
PROGRAM = """
import json, sys
import torch
from tuner.kernels import matmul

errors = {}

def check(name, got, right):
    errors[name] = ((got.float() - right).abs().max() / right.abs().max()).item()

for (n, k), last in (((4096, 2048), 256), ((4096, 4096), 1024)):
    weight = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    bias = torch.randn(n, device="cuda", dtype=torch.bfloat16)
    for m in {1, 2, 3, 5, 15, 16, 17, 33, *range(20, last, 37), last - 1, last}:
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        right = a.float() @ weight.t().float()
        check(f"{m}x{k}", matmul(a, weight.t()), right)
        check(f"{m}x{k} in three dimensions", matmul(a.view(1, m, k), weight.t())[0], right)
        check(f"{m}x{k} with a bias", matmul(a, weight.t(), bias=bias), right + bias.float())
    a, out = (torch.empty(100, size, device="cuda", dtype=torch.bfloat16) for size in (k, n))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        matmul(a, weight.t(), out=out)
    a.normal_()
    graph.replay()
    check(f"100x{k} in a graph", out, a.float() @ weight.t().float())
print(json.dumps({"errors": errors, "imported": "triton" in sys.modules}))
"""

CAPTURED = """
import json
import torch
from tuner.kernels import matmul

errors = {}
for n, k in ((4096, 2048), (4096, 4096)):
    weight = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    for m in (3, 100, 200):
        a = torch.empty(m, k, device="cuda", dtype=torch.bfloat16)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = matmul(a, weight.t())
        a.normal_()
        graph.replay()
        right = a.float() @ weight.t().float()
        errors[f"{m}x{k}"] = ((out.float() - right).abs().max() / right.abs().max()).item()
print(json.dumps({"errors": errors}))
"""


@pytest.fixture(scope="module")
def shipped(make_family, make_row, make_table, tmp_path_factory):
    """A folder with a table and its kernels, and the environment of a process that has no other and no compiler."""
    device, rows, families, folder = current(), [], [], tmp_path_factory.mktemp("shipped")
    for (n, k), kernels in RANGES.items():
        for epilogue in ("none", "bias"):
            for m, kernel in kernels.items():
                problem = Problem(m, n, k, dtype="bfloat16", layout="nt", epilogue=epilogue)
                spec = registry.find("matmul", kernel)
                parts = {"dtype": "bfloat16", "layout": "nt", "epilogue": epilogue}
                config = spec.default_config(problem, device)
                rows.append(make_row(m, n, k, config=config, version=spec.version, **parts))
            families.append(make_family(*kernels, problem=problem))
    table = make_table(*rows, device=device, families=tuple(families))
    table.write(folder)
    assert binaries.write(table, folder).failed == ()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TUNER_")}
    return kept | {"PATH": "/nowhere", "TRITON_CACHE_DIR": str(folder / "cache"), "TUNER_TABLES": str(folder)}


def run(program: str, environment, folder):
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "no tuned config" not in done.stderr
    return json.loads(done.stdout), done.stderr


def test_every_m_is_right_without_triton(shipped, tmp_path):
    found, stderr = run(PROGRAM, shipped, tmp_path)
    assert max(found["errors"].values()) < 1e-2, found["errors"]
    assert len(found["errors"]) > 100
    assert not found["imported"], stderr


def test_ms_that_were_never_called_are_captured_and_their_binaries_loaded_meanwhile(shipped, tmp_path):
    found, _ = run(CAPTURED, shipped, tmp_path)
    assert len(found["errors"]) == 6
    assert max(found["errors"].values()) < 1e-2, found["errors"]
