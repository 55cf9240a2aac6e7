"""A strict process without tables: every op comes from torch's library, and is right; nothing is compiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys

PROGRAM = """
import json
import torch
from tuner.kernels import bmm, gated_linear, grouped_mm, matmul, rms_norm, softmax, vector_add

def drawn(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda").to(dtype)

a, b, bias = drawn(64, 256), drawn(128, 256).t(), drawn(128, dtype=torch.float32)
wide, weights = a.float() @ b.float(), drawn(3, 128, 256).mT
ends = torch.tensor([10, 10, 60], dtype=torch.int32, device="cuda")
groups = torch.cat([a[:10].float() @ weights[0].float(), a[10:60].float() @ weights[2].float()])
eight, weight = (drawn(64, 256, dtype=torch.float8_e4m3fn) for _ in range(2))
one, rows = torch.full((1,), 0.5, device="cuda"), drawn(4, 70_000)
graph, captured = torch.cuda.CUDAGraph(), torch.empty(64, 128, dtype=torch.bfloat16, device="cuda")
matmul(a, b, out=captured)
with torch.cuda.graph(graph):
    matmul(a, b, out=captured)
captured.zero_()
graph.replay()
half = lambda x: x.half()
pairs = {
    "plain": (matmul(a, b), wide),
    "captured": (captured, wide),
    "wide bias": (matmul(a, b, bias=bias, activation="silu"), torch.nn.functional.silu(wide + bias)),
    "wide result": (matmul(a, b, bias=bias, out_dtype="float32"), wide + bias),
    "narrow result": (matmul(a.float(), b.float(), precision="tf32x3", out_dtype="float16"), wide),
    "bmm": (bmm(a.view(2, 32, 256), weights[:2], bias=bias), a.view(2, 32, 256).float() @ weights[:2].float() + bias),
    "groups": (grouped_mm(a, weights, ends)[:60], groups),
    "groups one by one": (grouped_mm(half(a), half(weights), ends)[:60], groups),
    "fp8": (matmul(eight, weight.t(), scale_a=one, scale_b=one, bias=bias[:64]),
            0.25 * (eight.float() @ weight.t().float()) + bias[:64]),
    "gated": (gated_linear(a, weights[0].mT, weights[1].mT),
              torch.nn.functional.silu(a.float() @ weights[0].float()) * (a.float() @ weights[1].float())),
    "softmax": (softmax(rows), rows.float().softmax(1)),
    "softmax in place": (softmax(copy := rows.clone(), out=copy), rows.float().softmax(1)),
    "norm": (rms_norm(a, a[0], 1e-6), torch.nn.functional.rms_norm(a.float(), a.shape[1:], a[0].float(), 1e-6)),
    "sum": (vector_add(rows[0], rows[1]), rows[0].float() + rows[1].float()),
}
errors = {name: ((got.float() - right).abs().max() / right.abs().max()).item() for name, (got, right) in pairs.items()}
print(json.dumps(errors))
"""


def test_every_op_comes_right_from_torch_and_nothing_is_compiled(tmp_path):
    kept = {name: value for name, value in os.environ.items() if name != "CC" and not name.startswith("TUNER_")}
    places = {"PATH": "/nowhere", "TRITON_CACHE_DIR": str(tmp_path / "cache"), "TUNER_DB": str(tmp_path / "none.db")}
    command, environment = [sys.executable, "-c", PROGRAM], {**kept, **places, "TUNER_STRICT": "1"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    errors = json.loads(done.stdout)
    assert max(errors.values()) < 1e-2, errors
    assert list(tmp_path.rglob("*.so")) + list(tmp_path.rglob("*.cubin")) == []
