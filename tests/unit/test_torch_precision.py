"""torch's float32 setting is changed by one thread at a time, and is afterwards what it was."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch")

from tuner.launch.torch_precision import torch_precision, torch_precision_set  # noqa: E402


def test_threads_that_ask_for_different_precisions_wait_for_each_other_and_leave_what_was():
    before, seen = torch.backends.cuda.matmul.fp32_precision, []
    inside, leave = threading.Event(), threading.Event()

    def first():
        with torch_precision_set("tf32"):
            inside.set()
            leave.wait(10)
            seen.append(torch_precision())

    def second():
        with torch_precision_set("ieee"):
            seen.append(torch_precision())

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert inside.wait(10)
    threads[1].start()
    threads[1].join(0.2)
    assert threads[1].is_alive()
    leave.set()
    for each in threads:
        each.join(10)
    assert seen == ["tf32", "ieee"]
    assert torch.backends.cuda.matmul.fp32_precision == before


PROGRAM = """
import json, os, sys, torch
from tuner.launch.torch_precision import torch_precision, torch_precision_set

def settings():
    return torch_precision(), torch.backends.fp32_precision, torch.backends.cudnn.fp32_precision, older()

def older():
    try:
        return torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_tf32
    except RuntimeError:  # the newer setting was used
        return None

def followed(setting):
    exec(setting)
    before = settings()
    for precision in ("tf32", "ieee"):
        with torch_precision_set(precision):
            assert torch_precision() == precision
        assert settings() == before, (setting, settings(), before)
    for later in ("tf32", "ieee"):
        torch.backends.fp32_precision = later
        yield torch_precision()

for setting in json.loads(sys.argv[1]):
    if not (child := os.fork()):  # nothing brings back what a process began with
        print(*followed(setting), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
FOLLOWED = {
    "": "tf32 ieee",
    "torch.backends.fp32_precision = 'tf32'": "tf32 ieee",
    "torch.backends.fp32_precision = 'ieee'": "tf32 ieee",
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'": "tf32 tf32",
    "torch.backends.cuda.matmul.fp32_precision = 'ieee'": "ieee ieee",
    "torch.backends.cuda.matmul.allow_tf32 = True": "tf32 tf32",
    "torch.set_float32_matmul_precision('high')": "tf32 tf32",
    "torch.set_float32_matmul_precision('highest')": "ieee ieee",
}
"""By what a user set, how torch multiplies when `torch.backends.fp32_precision` becomes tf32 and then ieee."""


def test_every_way_to_set_it_is_afterwards_what_it_was_and_follows_what_it_followed():
    command = [sys.executable, "-c", PROGRAM, json.dumps([*FOLLOWED])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert dict(zip(FOLLOWED, done.stdout.splitlines(), strict=True)) == FOLLOWED
