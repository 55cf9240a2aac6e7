"""Copies into padded rows hold what was there, wherever rows begin, beside one another in one launch.

A product that runs beside its copy reads all of it, launch after launch, on several streams and in graphs.
"""

from __future__ import annotations

import ctypes
import dataclasses

import pytest
import torch

from tuner import Config, Problem
from tuner.kernel import registry
from tuner.kernels.base.operands import Operands, make_operands
from tuner.kernels.gemm.padded import copy as padding
from tuner.launch.launch import run
from tuner.launch.plan import recorded


def placed(rows: int, columns: int, stride: int, before: int, dtype: torch.dtype) -> torch.Tensor:
    """Random bits, so many elements into their memory."""
    room = torch.randint(-128, 128, ((before + rows * stride) * dtype.itemsize,), dtype=torch.int8, device="cuda")
    return room.view(dtype).as_strided((rows, columns), (stride, 1), before)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32], ids=str)
@pytest.mark.parametrize("before", [0, 1, 5])
def test_rows_that_begin_anywhere_are_copied_bit_for_bit(dtype, before):
    first, second = placed(1023, 4093, 4093, before, dtype), placed(517, 4093, 4099, before, dtype).t()
    operands = Operands(first, second, first, None, Problem(64, 64, 64), first)
    copies, launches = padding.pad(operands, "ab")
    run(launches)
    torch.cuda.synchronize()
    assert len(launches) == 1
    assert torch.equal(copies.a, first)
    assert torch.equal(copies.b, second)


AHEAD = Config(
    "padded",
    BLOCK_SIZE_M=128,
    BLOCK_SIZE_N=128,
    BLOCK_SIZE_N_REST=0,
    BLOCK_SIZE_K=64,
    EPILOGUE_PARTS=1,
    GROUP_SIZE_M=8,
    SWAP_AB=False,
    num_stages=5,
    num_warps=4,
    launch_pdl=True,
    INNER="warp_specialized",
    PAD="ab",
    CHUNK_SIZE_K=256,
)
"""A product that runs beside the copy of its operands."""
only_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="warp_specialized is for sm_90",
)


class Product:
    """a @ b of integers, exact in every order; each call is on values that the one before did not have."""

    def __init__(self, m: int, n: int, k: int, config: Config, *, b_padded: bool = False) -> None:
        self.problem = Problem(m, n, k, dtype="bf16", layout="nt", b_padded=b_padded)
        self.operands, self.config = make_operands(self.problem, "cuda", 0), config
        self.expected = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)

    def draw(self, seed: int) -> None:
        generator = torch.Generator("cuda").manual_seed(seed)
        for matrix in (self.operands.a, self.operands.b):
            matrix.copy_(torch.randint(-1, 2, matrix.shape, device="cuda", generator=generator))
        self.expected.copy_(self.operands.a.float() @ self.operands.b.float())
        self.operands.out.fill_(float("nan"))

    def run(self) -> None:
        registry.find("matmul", "padded").launch(self.operands, self.config)

    def check(self) -> None:
        assert torch.equal(self.operands.out, self.expected)


@only_hopper
@pytest.mark.parametrize(
    ("m", "n", "k", "changes"),
    [
        (1023, 2047, 4093, {}),
        (1023, 2047, 4093, {"CHUNK_SIZE_K": 512}),
        (1024, 2048, 4094, {"GROUP_SIZE_M": 1}),
        (129, 2047, 515, {"BLOCK_SIZE_M": 64}),
        (1025, 16 * 128 + 1, 1537, {}),
        (1023, 2047, 4100, {"CHUNK_SIZE_K": 512, "BLOCK_SIZE_K": 128, "num_stages": 3}),
        (2047, 4095, 1029, {}),
    ],
)
@pytest.mark.parametrize("b_padded", [False, True])
def test_a_product_beside_its_copy_never_reads_what_has_not_come(m, n, k, changes, b_padded):
    product = Product(m, n, k, AHEAD.replace(**changes), b_padded=b_padded)
    for seed in range(10):
        product.draw(seed)
        product.run()
        product.check()


@only_hopper
def test_two_streams_and_a_graph_each_count_their_own_chunks():
    products, streams = [Product(1023, 2047, 4093, AHEAD) for _ in range(3)], [torch.cuda.Stream() for _ in range(2)]
    products[2].run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        products[2].run()
        products[2].run()
    for seed in range(20):
        for one, product in enumerate(products):
            product.draw(3 * seed + one)
        torch.cuda.synchronize()
        for product, stream in zip(products, streams, strict=False):
            with torch.cuda.stream(stream):
                for _ in range(3):
                    product.run()
        graph.replay()
        torch.cuda.synchronize()
        for product in products:
            product.check()


@only_hopper
def test_operands_that_need_no_copy_or_lie_across_k_take_the_same_config():
    product = Product(256, 384, 512, AHEAD)
    product.draw(0)
    product.run()
    product.check()
    across = Product(255, 384, 511, AHEAD)
    a = across.operands.a
    for other in (a.t().contiguous().t(), a.repeat_interleave(2, dim=1)[:, ::2]):
        across.operands = dataclasses.replace(across.operands, a=other)
        across.draw(1)
        across.run()
        across.check()


@only_hopper
def test_the_copy_has_multiprocessors_divided_as_the_product_needs_them():
    product, share = Product(1023, 2047, 4093, AHEAD), ctypes.c_int()
    with recorded() as seen:
        product.run()
    (_, copy), _ = seen.launches
    carveout = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
    driver = ctypes.CDLL("libcuda.so.1")
    assert driver.cuFuncGetAttribute(ctypes.byref(share), carveout, ctypes.c_void_p(copy.function)) == 0
    assert share.value == 100
