"""What benchmarks/recorded.py reads of trials that were recorded before kernels moved their last tile."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tuner.kernel.config import Config
from tuner.problem import Problem

pytest.importorskip("triton")
_PATH = Path(__file__).parents[2] / "benchmarks" / "recorded.py"


def is_gone(config: Config, problem: Problem) -> bool:
    spec = importlib.util.spec_from_file_location("recorded", _PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    gone: bool = module.is_gone(config, problem)
    return gone


@pytest.mark.parametrize(
    ("kernel", "own", "problem", "gone"),
    [
        ("swap_ab", {"LOADS": "tma"}, (192, 4096, "nt"), True),
        ("swap_ab", {"LOADS": "pointer"}, (192, 4096, "nt"), False),
        ("swap_ab", {"LOADS": "tma"}, (256, 4096, "nt"), False),
        ("swap_ab", {"LOADS": "tma"}, (72, 4096, "nt"), False),
        ("swap_ab", {"LOADS": "tma"}, (192, 4096, "tn"), False),
        ("swap_ab", {"LOADS": "tma"}, (128, 192, "nt"), True),
        ("warp_specialized", {}, (192, 4096, "nt"), True),
        ("warp_specialized", {}, (128, 192, "nt"), False),
        ("warp_specialized", {"BLOCK_SIZE_N_REST": 64, "SWAP_AB": True}, (160, 4096, "nt"), True),
        ("warp_specialized", {"BLOCK_SIZE_N_REST": 64, "SWAP_AB": True}, (192, 4096, "nt"), False),
        ("warp_specialized", {"BLOCK_SIZE_N_REST": 64, "SWAP_AB": False}, (128, 192, "nt"), False),
        ("warp_specialized", {}, (4032, 4096, "nt"), False),
        ("padded", {"INNER": "tma"}, (192, 4096, "nt"), True),
        ("pointer", {}, (192, 4096, "nt"), False),
    ],
)
def test_recorded_times_of_tiles_that_are_moved_now_are_not_read(kernel, own, problem, gone):
    """docs/kernels.md, The last tile: such a time says nothing of the tile that is there now."""
    m, n, layout = problem
    config = Config(kernel, BLOCK_SIZE_M=128, BLOCK_SIZE_N=128, BLOCK_SIZE_K=64, **own)
    assert is_gone(config, Problem(m, n, 4096, dtype="bf16", layout=layout)) is gone
