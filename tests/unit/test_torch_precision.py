"""torch's float32 setting is changed by one thread at a time, and is afterwards what it was."""

from __future__ import annotations

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
