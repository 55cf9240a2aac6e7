"""A row's bits do not depend on its batch: every kernel's configs of a family's order, against the family's witness."""

from __future__ import annotations

import random

import pytest
import torch

from tuner import Problem
from tuner.hardware import device
from tuner.kernel import registry
from tuner.kernels import matmul
from tuner.sweep import verify

KINDS = [
    {"dtype": "bf16", "out_dtype": "fp32"},
    {"dtype": "fp16", "epilogue": "bias+gelu"},
    {"dtype": "fp32", "precision": "tf32"},
    {"dtype": "fp32"},
    {"dtype": "e4m3", "out_dtype": "fp32"},
    {"dtype": "e4m3", "scaling": "row", "fast_accum": True, "out_dtype": "fp32", "epilogue": "bias"},
    {"dtype": "e4m3", "scaling": "block", "out_dtype": "fp32"},
    {"dtype": "i8", "scaling": "row", "out_dtype": "fp32"},
]
SIZES = [(1024, 4096), (200, 1000), (136, 8208)]
_CONFIGS = 4


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("m", [1, 8, 32, 256, 2048])
def test_every_kernel_writes_what_the_witness_writes(kind, size, m):
    here, draw = device.current(), random.Random(f"{kind} {size} {m}")
    problem = Problem(m, *size, layout="nt", invariant=True, **kind)
    specs = registry.serving(problem, here)
    inputs = specs[0].make_inputs(problem, "cuda", 0)
    expected = specs[0].invariance.witness(inputs)
    for spec in specs:
        configs = spec.space(problem, here).configs()
        for config in (spec.default_config(problem, here), *draw.sample(configs, min(_CONFIGS, len(configs)))):
            verify.poison(inputs)
            spec.launch(inputs, config)
            assert not verify.differs(inputs.output, expected).any(), config


@pytest.mark.parametrize("layout", ["nt", "nn", "tn"])
@pytest.mark.parametrize("k", [4096, 1000, 77])
def test_a_row_has_the_same_bits_in_every_batch(layout, k):
    a, b = torch.randn(2048, k, device="cuda").bfloat16(), torch.randn(k, 640, device="cuda").bfloat16()
    a = a.t().contiguous().t() if layout[0] == "t" else a
    b = b.t().contiguous().t() if layout[1] == "t" else b
    whole = matmul(a, b, out_dtype=torch.float32, invariant=True)
    for rows in (slice(0, 1), slice(5, 6), slice(0, 8), slice(3, 35), slice(0, 256), slice(1000, 2047)):
        part = matmul(a[rows], b, out_dtype=torch.float32, invariant=True)
        assert not verify.differs(part, whole[rows]).any(), rows


def test_a_row_of_zeros_has_the_same_zeros_in_every_batch():
    a, b = torch.zeros(300, 512, device="cuda").bfloat16(), -torch.ones(512, 256, device="cuda").bfloat16()
    whole = matmul(a, b, invariant=True)
    for m in (1, 16, 64, 200):
        assert not verify.differs(matmul(a[:m], b, invariant=True), whole[:m]).any(), m
