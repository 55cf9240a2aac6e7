"""The ops as operators of TorchInductor's programs on a real GPU: one program for all sizes, and the eager bits."""

from __future__ import annotations

import pytest
import torch

from tuner.kernels import bmm, fused_experts, gated_linear, grouped_mm, matmul, rms_norm, softmax, vector_add


def drawn(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def ends(x):
    return torch.tensor([len(x) // 2, len(x)], device="cuda", dtype=torch.int32)


def routed(x):
    shares, chosen = torch.topk(torch.randn(len(x), 4, device="cuda").softmax(-1), 2)
    return chosen, shares


OPS = {
    "matmul": (lambda x, w: matmul(x, w.t(), activation="relu"), lambda x: [drawn(64, 128)]),
    "bmm": (lambda x, w: bmm(x.unsqueeze(0), w), lambda x: [drawn(1, 128, 64)]),
    "grouped_mm": (grouped_mm, lambda x: [drawn(2, 128, 64), ends(x)]),
    "fused_experts": (fused_experts, lambda x: [drawn(4, 64, 128) / 8, drawn(4, 128, 32) / 8, *routed(x)]),
    "gated_linear": (gated_linear, lambda x: [drawn(64, 128), drawn(64, 128)]),
    "softmax": (softmax, lambda x: []),
    "rms_norm": (lambda x, w: rms_norm(x, w, 1e-6), lambda x: [drawn(128)]),
    "vector_add": (lambda x, y: vector_add(x.flatten(), y), lambda x: [drawn(x.numel())]),
}


@pytest.mark.long
@pytest.mark.parametrize("name", OPS)
def test_one_inductor_program_serves_every_size_and_gives_the_eager_bits(name):
    op, others = OPS[name]
    torch.compiler.reset()
    compiled = torch.compile(lambda *given: op(*given) * 2, fullgraph=True, dynamic=True)
    for rows in (8, 40, 8):
        x = drawn(rows, 128)
        given = [x, *others(x)]
        expected = op(*given) * 2
        for _ in range(3):  # the last ones by plans
            torch.testing.assert_close(compiled(*given), expected, rtol=0, atol=0)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # torch makes one to begin with
@pytest.mark.parametrize("name", ["bmm", "fused_experts", "softmax"])
def test_a_graph_that_inductor_captured_replays_new_values(name):
    op, others = OPS[name]
    torch.compiler.reset()
    x = drawn(16, 128)
    rest = others(x)
    compiled = torch.compile(op, fullgraph=True, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(4):
            x = drawn(16, 128)
            torch.compiler.cudagraph_mark_step_begin()
            torch.testing.assert_close(compiled(x, *rest), op(x, *rest), rtol=0, atol=0)
