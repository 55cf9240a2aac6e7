"""Kernels that start before the one they depend on has ended: what they fetch ahead is never what they multiply by."""

from __future__ import annotations

import pytest
import torch

from tuner import Config, Problem
from tuner.kernel import registry
from tuner.kernels.base.operands import Operands

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability()[0] < 9,
    reason="programmatic dependent launch needs sm_90",
)
ROWS, FEWEST, WIDE, INNER = 16, 2, 2048, 1024
TILE = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "num_stages": 4, "num_warps": 4}
PLAIN = Config("swap_ab", **TILE, SPLIT_K=1, LOADS="pointer", launch_pdl=True)
CONFIGS = [
    PLAIN.replace(LOADS=loads, PREFETCH_KIB=32, **more)
    for loads in ("pointer", "tma")
    for more in ({}, {"PDL_TRIGGER": 3}, {"PDL_TRIGGER": 8, "SPLIT_K": 4})
]
STREAM = Config("gemv", BLOCK_SIZE_N=1, BLOCK_SIZE_K=1024, SPLIT_K=1, num_warps=1, launch_pdl=True, PREFETCH_KIB=2)
CONFIGS += [STREAM, STREAM.replace(BLOCK_SIZE_N=4, num_warps=4, PREFETCH_KIB=8, PDL_TRIGGER=4)]


def multiply(a: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, config: Config) -> torch.Tensor:
    """out = a @ weight.t() by one config, on the current stream."""
    problem = Problem(*out.shape, a.shape[1], dtype="bf16", layout="nt")
    registry.find("matmul", config.kernel).launch(Operands(a, weight.t(), out, None, problem, out), config)
    return out


class Chain:
    """Products that are rows of the next one's weight and all of its A: each kernel reads what the one before wrote."""

    def __init__(self, seed: int, config: Config, length: int) -> None:
        generator = torch.Generator("cuda").manual_seed(seed)

        def values(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, device="cuda", generator=generator).bfloat16() / 16

        self.config, self.length = config, length
        self.rows = rows = FEWEST if config.kernel == "gemv" else ROWS
        # [N, K] of the weight, of which so many rows are written anew before each use.
        self.given = [values(rows, INNER) for _ in range(length)]
        self.mixing, self.weight = values(INNER, INNER), values(WIDE, INNER)
        self.results = torch.empty(length, rows, WIDE, device="cuda", dtype=torch.bfloat16)

    def run(self) -> None:
        """Write rows of the weight, then multiply by it at once; and again."""
        for given, result in zip(self.given, self.results, strict=True):
            multiply(given, self.mixing, self.weight[: self.rows], self.config)
            multiply(self.weight[: self.rows], self.weight, result, self.config)

    def check(self) -> None:
        """The same by torch, in its own order."""
        weight = self.weight.clone()
        for given, result in zip(self.given, self.results, strict=True):
            weight[: self.rows] = given @ self.mixing.t()
            expected = weight[: self.rows] @ weight.t()
            torch.testing.assert_close(result, expected, rtol=3e-2, atol=3e-2 * float(expected.abs().max()))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.label)
def test_what_is_fetched_ahead_is_seen_as_the_kernel_before_left_it(config):
    for seed in range(5):
        chain = Chain(seed, config, length=20)
        chain.run()
        chain.check()


def test_two_streams_and_a_graph_that_is_replayed_on_other_values():
    config = PLAIN.replace(PREFETCH_KIB=32, PDL_TRIGGER=6)
    chains, streams = [Chain(seed, config, length=20) for seed in (0, 1)], [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    for _ in range(10):
        for chain, stream in zip(chains, streams, strict=True):
            with torch.cuda.stream(stream):
                chain.run()
    torch.cuda.synchronize()
    for chain in chains:
        chain.check()
    chain, graph = chains[0], torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain.run()
    for _ in range(5):
        for given in chain.given:
            given.copy_(torch.randn_like(given) / 16)
        chain.results.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        chain.check()
