"""bmm and grouped_mm on a real GPU: every kernel against float64, torch's library, strides, graphs, other streams."""

from __future__ import annotations

import itertools

import pytest
import torch
from checked import check_configs, check_sample, check_streams

from tuner import Problem
from tuner.hardware import device
from tuner.kernel import registry
from tuner.kernels import bmm, grouped_mm
from tuner.kernels.base.numerics import tolerance
from tuner.kernels.base.operands import Operands
from tuner.kernels.grouped.operands import vendor
from tuner.sweep import verify


def grouped(m: int, n: int, k: int, groups: int, *, listed: bool = False, **rest) -> Problem:
    extras = {"groups": groups, **({"listed": True} if listed else {})}
    return Problem(m, n, k, op="grouped_mm", extras=extras, **rest)


def tf32(m: int, n: int, k: int, batch: int, **rest) -> Problem:
    return Problem(m, n, k, dtype="fp32", precision="tf32", op="bmm", extras={"batch": batch}, **rest)


PROBLEMS = [
    Problem(512, 512, 128, dtype="fp16", op="bmm", extras={"batch": 64}),
    Problem(128, 4096, 128, dtype="bf16", layout="nt", epilogue="bias+silu", op="bmm", extras={"batch": 32}),
    Problem(100, 200, 300, dtype="fp32", layout="tn", precision="tf32", op="bmm", extras={"batch": 7}),
    Problem(64, 256, 1024, dtype="e4m3", layout="nt", op="bmm", extras={"batch": 5}),
    Problem(33, 65, 127, dtype="bf16", layout="tt", epilogue="gelu", op="bmm", extras={"batch": 300}),
    grouped(4096, 4096, 2048, 8, dtype="bf16", layout="nt"),
    grouped(4096, 1024, 2048, 64, dtype="bf16", epilogue="bias+silu"),
    grouped(100, 512, 512, 128, dtype="fp16", layout="tt"),
    grouped(1000, 300, 500, 17, dtype="fp32", precision="tf32"),
    grouped(2048, 1024, 1024, 8, dtype="bf16", layout="nt", listed=True),
    grouped(999, 333, 777, 5, dtype="fp16", epilogue="gelu", listed=True),
]
BF16 = torch.bfloat16
SPECIALIZED = [
    Problem(512, 512, 64, dtype="bf16", layout="nt", op="bmm", extras={"batch": 64}),
    Problem(1003, 648, 72, dtype="fp16", layout="nt", epilogue="bias+gelu", op="bmm", extras={"batch": 37}),
    Problem(1003, 72, 1032, dtype="bf16", op="bmm", extras={"batch": 19}),
    Problem(136, 520, 9, dtype="bf16", layout="tn", out_dtype="fp32", epilogue="bias", op="bmm", extras={"batch": 300}),
    Problem(264, 328, 200, dtype="fp16", layout="tt", epilogue="silu", op="bmm", extras={"batch": 50}),
    Problem(512, 512, 320, dtype="bf16", layout="nt", out_dtype="fp32", op="bmm", extras={"batch": 64}),
    Problem(2048, 2048, 128, dtype="bf16", layout="nt", op="bmm", extras={"batch": 16}),
    Problem(40, 40, 8, dtype="bf16", layout="nt", op="bmm", extras={"batch": 1}),
    tf32(1000, 512, 64, 40, layout="nt"),
    tf32(520, 72, 520, 37),
    tf32(136, 264, 100, 300, epilogue="bias+gelu"),
    tf32(264, 328, 200, 50, layout="tt", epilogue="bias"),
    tf32(520, 72, 523, 37, layout="tn"),
    tf32(72, 520, 100, 40, layout="tn", epilogue="bias+gelu"),
    tf32(256, 256, 33, 9, layout="tn"),
]
"""One step along K and many, rings whose length divides the steps or not, and shapes that no tile divides."""


def drawn(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def assert_right(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    problem = Problem(1, 1, a.shape[-1], dtype=str(a.dtype))
    assert verify.error(out, a.double() @ b.double(), a.shape[-1]) <= tolerance(problem)


def offs_of(*sizes: int) -> torch.Tensor:
    return torch.tensor(list(itertools.accumulate(sizes)), dtype=torch.int32, device="cuda")


def assert_groups_right(out, a, b, offs) -> None:
    for group, (first, beyond) in enumerate(itertools.pairwise([0, *offs.tolist()])):
        if beyond > first:
            assert_right(out[first:beyond], a[first:beyond], b[group])


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_every_kernels_default_and_a_sample_of_its_space_are_right_and_repeat_their_bits(problem):
    for spec in registry.serving(problem, device.current()):
        check_sample(spec, problem, 6)


@pytest.mark.parametrize("problem", [*PROBLEMS[:2], PROBLEMS[5]], ids=str)
def test_torchs_library_passes_the_same_check(problem):
    spec = registry.serving(problem, device.current())[0]
    inputs = spec.make_inputs(problem, "cuda", 0)
    try:
        if problem.op == "bmm":
            spec.vendor(inputs)
            result = inputs.output
        else:
            result = vendor(inputs)
    except NotImplementedError as e:
        pytest.skip(str(e))
    assert verify.error(result, spec.reference(inputs), problem.k) <= spec.tolerance(problem)


def test_products_share_a_matrix_or_lie_between_each_others_rows():
    shared = drawn(1, 128, 96).expand(16, 128, 96)
    a = drawn(16, 64, 128)
    assert_right(bmm(a, shared), a, shared)
    heads, keys = drawn(256, 16, 64).transpose(0, 1), drawn(192, 16, 64).permute(1, 2, 0)
    out = torch.empty(256, 16, 192, device="cuda", dtype=BF16).transpose(0, 1)
    bmm(heads, keys, out=out)
    assert_right(out, heads, keys)


def test_a_captured_grouped_mm_replays_with_the_offsets_of_the_day():
    a, b, offs = drawn(1024, 256), drawn(8, 256, 512), offs_of(*[128] * 8)
    out = torch.empty(1024, 512, device="cuda", dtype=BF16)
    grouped_mm(a, b, offs, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        grouped_mm(a, b, offs, out=out)
    for sizes in ([0, 1, 1000, 0, 20, 3, 0, 0], [1, 2, 3, 4, 5, 6, 7, 996], [1024, 0, 0, 0, 0, 0, 0, 0]):
        offs.copy_(offs_of(*sizes))
        out.fill_(float("nan"))
        graph.replay()
        assert_groups_right(out, a, b, offs)


def test_rows_beyond_the_last_group_are_not_written():
    a, b, offs = drawn(512, 256), drawn(2, 256, 128), offs_of(100, 150)
    out = torch.full((512, 128), 7.0, device="cuda", dtype=BF16)
    grouped_mm(a, b, offs, out=out)
    assert_groups_right(out, a, b, offs)
    assert (out[250:] == 7).all()


def test_lists_of_any_sizes_also_captured_and_on_another_stream():
    shapes = [(100, 300, 500), (1, 64, 1000), (0, 8, 8), (513, 129, 65)]
    a, b = [drawn(m, k) for m, _, k in shapes], [drawn(k, n) for _, n, k in shapes]
    outs = [torch.empty(m, n, device="cuda", dtype=BF16) for m, n, _ in shapes]
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        results = [grouped_mm(a, b) for _ in range(2)]
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        grouped_mm(a, b, out=outs)
    graph.replay()
    graph.replay()
    for written in (*results, outs):
        for out, one, other in zip(written, a, b, strict=True):
            if out.numel():
                assert_right(out, one, other)


@pytest.fixture
def specialized():
    if not device.current().features.wgmma:
        pytest.skip(f"no Hopper GPU: {device.current().arch}")
    return registry.find("bmm", "bmm_warp_specialized")


@pytest.mark.parametrize("problem", SPECIALIZED, ids=str)
def test_every_config_of_bmm_warp_specialized_is_right_and_repeats_its_bits(specialized, problem):
    here = device.current()
    assert specialized.supports(problem, here) is None
    configs = specialized.space(problem, here).configs()
    shallow = [one.replace(num_stages=2) for one in configs if one["GROUP_SIZE_M"] == 1 and problem.k > 128]
    check_configs(specialized, problem, [*configs, *shallow], on="cuda", launches=20)


def test_bmm_warp_specialized_takes_shared_matrices_and_heads_between_each_others_rows(specialized):
    heads, keys = drawn(250, 48, 64).transpose(0, 1), drawn(192, 48, 64).permute(1, 2, 0)
    shared = drawn(1, 64, 192).expand(48, 64, 192)
    around = torch.empty(250, 50, 192, device="cuda", dtype=BF16)
    out = around[:, 1:49].transpose(0, 1)
    for a, b, layout in ((heads, keys, "nt"), (heads, shared, "nn"), (heads[:1].expand(48, 250, 64), keys, "nt")):
        problem = Problem(250, 192, 64, dtype="bf16", layout=layout, op="bmm", extras={"batch": 48})
        for config in specialized.space(problem, device.current()).configs():
            around.fill_(7)
            specialized.launch(Operands(a, b, out, None, problem, out), config)
            assert_right(out, a, b)
            assert (around[:, 0] == 7).all(), str(config)
            assert (around[:, 49] == 7).all(), str(config)


def test_bmm_warp_specialized_copies_what_lies_across_k_for_each_call_graph_and_stream(specialized):
    sets = [(drawn(24, 200, 136, dtype=torch.float32).mT, drawn(24, 200, 72, dtype=torch.float32)) for _ in range(2)]
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        check_streams(bmm, sets)
        for a, b in sets:
            for first, second in (
                (a, b),
                (b.mT, a.mT),
                (a[:1].expand(24, 136, 200), b),
                (a, b[:1].expand(24, 200, 72)),
            ):
                problem = tf32(first.shape[1], second.shape[2], 200, 24, layout="tn")
                assert registry.default_config(problem, device.current()).kernel == specialized.name
                torch.testing.assert_close(
                    bmm(first, second), (first.double() @ second.double()).float(), atol=0.5, rtol=0.01
                )
        a, b = (each.clone() for each in sets[0])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = bmm(a, b)
        for each, values in zip((a, b), sets[1], strict=True):
            each.copy_(values)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, bmm(*sets[1]))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_a_launch_of_bmm_warp_specialized_reads_what_the_one_before_it_wrote(specialized):
    problem = Problem(256, 256, 256, dtype="bf16", layout="nn", op="bmm", extras={"batch": 48})
    first, b = drawn(48, 256, 256), drawn(48, 256, 256) / 16
    for config in specialized.space(problem, device.current()).configs():
        results = []
        for synchronized in (True, False):
            x, y = first.clone(), torch.empty_like(first)
            for _ in range(20):
                specialized.launch(Operands(x, b, y, None, problem, y), config)
                if synchronized:
                    torch.cuda.synchronize()
                x, y = y, x
            results.append(x.clone())
        assert torch.isfinite(results[0]).all(), str(config)
        assert torch.equal(*results), str(config)
