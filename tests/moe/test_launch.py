"""What is launched for a config is what the packages' own functions launch, argument by argument."""

from __future__ import annotations

import functools
import inspect
import types

import pytest
import torch
import triton
import triton.language as tl

from tuner.moe import launch, space
from tuner.moe.inputs import ExpertInputs
from tuner.moe.layer import Layer
from tuner.moe.package import load

LAYERS = (
    Layer(8, 32, 48, 2),
    Layer(8, 32, 48, 2, "fp16"),
    Layer(8, 32, 48, 2, "fp8_w8a8"),
    Layer(8, 128, 128, 2, "fp8_w8a8", (64, 64)),
    Layer(8, 32, 48, 2, "int8_w8a16"),
)
INVOKE = {"vllm": "invoke_fused_moe_triton_kernel", "sglang": "invoke_fused_moe_kernel"}
CONFIG = {
    "BLOCK_SIZE_M": 32,
    "BLOCK_SIZE_N": 64,
    "BLOCK_SIZE_K": 64,
    "GROUP_SIZE_M": 8,
    "num_warps": 4,
    "num_stages": 3,
}


class Recorder:
    """Stands where a package has its jit function, and keeps what that is launched with."""

    def __init__(self):
        self.calls = []

    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.calls.append((grid(kwargs), args, kwargs))


@functools.cache
def own_launch(name, target):
    """A package's function that launches, for a compute capability, and what records its launches."""
    package, recorder = load(name), Recorder()

    def swaps(block_m, block_n):
        return target == 90 and block_m < 64 <= block_n

    given = {
        "torch": torch,
        "triton": triton,
        "tl": tl,
        "fused_moe_kernel": recorder,
        "enable_swap_ab": swaps,
        "should_enable_swap_ab": swaps,
        "resolve_moe_use_td": lambda: False,
        "warn_if_moe_use_td_ineffective": lambda *_, **__: None,
        "padding_size": 0,
        "scaled_fp8_quant": lambda a, scale, **_: (a, scale),
        "is_arch_support_pdl": lambda: target >= 90,
    }
    file = str(package.file.relative_to(package.folder))
    return getattr(package.part(file, (INVOKE[name],), given), INVOKE[name]), recorder


def launched(inputs, gemm, blocks, target):
    """The grid and arguments by which a package launches a GEMM."""
    name = inputs.problem["package"]
    invoke, recorder = own_launch(name, target)
    recorder.calls.clear()
    quant = dict(inputs.problem.extras).get("quant")
    layer = launch.layer_of(inputs.problem)
    options = {
        "A": gemm.a,
        "B": gemm.b,
        "C": gemm.c,
        "A_scale": gemm.a_scale,
        "B_scale": gemm.b_scale,
        "topk_weights": inputs.weights,
        "sorted_token_ids": blocks.ids,
        "expert_ids": blocks.experts,
        "num_tokens_post_padded": blocks.padded,
        "mul_routed_weight": gemm.weighted,
        "top_k": gemm.top_k,
        "config": dict(CONFIG),
        "compute_type": {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[gemm.c.dtype],
        "use_fp8_w8a8": quant == "fp8_w8a8",
        "use_int8_w8a8": False,
        "use_int8_w8a16": quant == "int8_w8a16",
        "use_int4_w4a16": False,
        "per_channel_quant": False,
        "block_shape": list(layer.block_shape) if layer.block_shape else None,
    }
    if name == "sglang":
        top_k = layer.top_k if gemm.weighted else 1
        options |= {"bias": None, "B_zp": None, "topk_ids": inputs.draws[-1], "router_topk": top_k}
    invoke(**options)
    ((grid, args, kwargs),) = recorder.calls
    return grid, args, kwargs


def by_name(kernel, args, kwargs):
    """Arguments by name; tensors by identity, whose values nobody compares."""
    parameters = list(inspect.signature(kernel.fn).parameters)
    named = {**dict(zip(parameters, args, strict=False)), **kwargs}
    named.pop("enable_fp_fusion", None)  # Triton's default
    named.pop("USE_TD", None)
    return {name: id(value) if isinstance(value, torch.Tensor) else value for name, value in named.items()}


@pytest.mark.parametrize("target", [0, 80, 90])
@pytest.mark.parametrize("m", [1, 9])
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: f"{layer.dtype} {layer.block_shape}")
@pytest.mark.parametrize("package", list(INVOKE))
def test_a_launch_is_that_of_the_packages_own_function(package, layer, m, target):
    kernel, compared = load(package).kernel, 0
    for problem in layer.problems(package, m):
        inputs = ExpertInputs(problem, "cpu", 0, (32,))
        config = space.canonical(space.config_of(package, CONFIG), problem, types.SimpleNamespace())
        ours = launch.calls(inputs, config, target)
        theirs = [launched(inputs, gemm, blocks, target) for blocks in inputs.blocks[32] for gemm in inputs.gemms]
        for call, (grid, args, kwargs) in zip(ours, theirs, strict=True):
            assert call.grid == grid
            assert by_name(kernel, call.args, call.kwargs) == by_name(kernel, args, kwargs)
            compared += 1
    assert compared == 8
