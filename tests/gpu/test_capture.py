"""`tuner capture` of a program on a GPU: eager, in a thread, backward, under torch.compile, in a CUDA graph, in fp8."""

from __future__ import annotations

import csv
import subprocess
import sys

import torch

PROGRAM = """
import threading, torch
def bf16(*shape):
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")
linear = torch.nn.Linear(64, 32, dtype=torch.bfloat16, device="cuda")
torch.mm(torch.ones(2, 2), torch.ones(2, 2))
linear(bf16(5, 64)).sum().backward()
with torch.no_grad():
    torch.compile(linear)(bf16(24, 64))
thread = threading.Thread(target=lambda: torch.mm(bf16(11, 64), bf16(64, 160)))
thread.start()
thread.join()
x, w = bf16(16, 64), bf16(64, 96)
torch.mm(x, w)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = torch.mm(x, w)
graph.replay()
torch.testing.assert_close(y, torch.mm(x, w))
one = torch.ones((), device="cuda")
if torch.cuda.get_device_capability() >= (8, 9):
    e4m3 = torch.float8_e4m3fn
    torch._scaled_mm(x.to(e4m3), bf16(144, 64).to(e4m3).t(), one, one, out_dtype=torch.bfloat16)
torch._grouped_mm(bf16(8, 64), bf16(2, 64, 128), offs=torch.tensor([4, 8], dtype=torch.int32, device="cuda"))
"""


def test_what_a_gpu_multiplies_is_recorded_and_not_what_the_cpu_did(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = ["-m", "tuner", "capture", "--out", "calls", "--", sys.executable, "program.py"]
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, timeout=240, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "calls" / "suite.csv").read_text().splitlines()
    found = {
        (row["m"], row["n"], row["k"], row["layout"], row.get("epilogue", ""), row["count"])
        for row in csv.DictReader(line for line in lines if not line.startswith("#"))
    }
    assert found >= {
        ("5,24", "32", "64", "nt", "bias", "2"),
        ("11", "160", "64", "nn", "", "1"),
        ("16", "96", "64", "nn", "", "3"),
        ("8", "128", "64", "nn", "", "1"),
    }
    assert not [each for each in found if each[:3] == ("2", "2", "2")]
    if torch.cuda.get_device_capability() >= (8, 9):
        assert ("16", "144", "64", "nt", "", "1") in found
