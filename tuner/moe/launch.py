"""Launches the packages' kernels with the grid and the arguments that the packages' own functions pass."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl

from tuner.kernel.config import Config
from tuner.kernels.base import interpreted
from tuner.launch import active_driver, compile_cache
from tuner.moe import space as spaces
from tuner.moe.inputs import ExpertInputs, Gemm
from tuner.moe.layer import layer_of
from tuner.moe.package import load
from tuner.moe.routing import Blocks
from tuner.problem import Problem

VERSION = 1
"""Incremented when launches change so much that old timings no longer count."""
_COMPUTED = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}
_HOPPER = 90


@dataclass(frozen=True, slots=True)
class Call:
    """One launch of a jit function.

    Attributes:
        grid: programs along the first axis.
        args: by position.
        kwargs: constants, the config among them.
    """

    grid: tuple[int]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def launch(inputs: ExpertInputs, config: Config) -> None:
    """Run all GEMMs of a problem by one config, for one draw of the routing after the other."""
    kernel = _kernel(inputs.problem)
    if not hasattr(kernel, "device_caches"):
        _launch_interpreted(kernel, inputs, config)
        return
    compile_cache.install(kernel)
    for call in calls(inputs, config):
        kernel[call.grid](*call.args, **call.kwargs)


def _launch_interpreted(kernel: Any, inputs: ExpertInputs, config: Config) -> None:
    changed = inputs.interpreted()
    with interpreted.ignore_float_warnings():
        for call in calls(changed, config):
            kernel[call.grid](*call.args, **call.kwargs)
    for written, gemm in zip(changed.gemms, inputs.gemms, strict=True):
        interpreted.copy_rounded(written.c, gemm.c)


def compile_all(problem: Problem, config: Config) -> Any:
    """Compile what a config launches, and return the binary that needs the most shared memory."""
    kernel = _kernel(problem)
    compile_cache.install(kernel)
    binaries = [
        kernel.warmup(*call.args, grid=call.grid, **call.kwargs) for call in calls(_shaped(problem, config), config)
    ]
    return max(binaries, key=lambda compiled: compiled.metadata.shared)


def compile_class(problem: Problem, config: Config) -> str:
    """Return what Triton specializes a config's launches on: dtypes, divisibility of integers, and constants."""
    launches = calls(_shaped(problem, config), config, 0)  # the compile pool has one target for all
    facts = [[*map(_specialization, call.args), call.kwargs] for call in launches]
    # The kernel for groups takes sizes as constants, which are among the arguments here.
    sizes = None if layer_of(problem).group_size is None else problem.shape[1:]
    return json.dumps([problem["package"], sizes, facts], sort_keys=True, separators=(",", ":"), default=str)


def calls(inputs: ExpertInputs, config: Config, target: int | None = None) -> list[Call]:
    """Return a config's launches on some operands, in their order.

    Args:
        inputs: the operands.
        config: one whose BLOCK_SIZE_M the tokens are sorted for.
        target: the compute capability times 10, 0 for none; by default that of the device launched on or compiled for.
    """
    make = _of_vllm if inputs.problem["package"] == "vllm" else _of_sglang
    if layer_of(inputs.problem).group_size is not None:
        make = _of_groups
    target = _capability(inputs) if target is None else target
    each = inputs.blocks[config.integer("BLOCK_SIZE_M")]
    return [make(inputs, gemm, blocks, config, target) for blocks in each for gemm in inputs.gemms]


@functools.lru_cache(maxsize=64)
def _operands(problem: Problem, block_m: int) -> ExpertInputs:
    return ExpertInputs(problem, "meta", 0, (block_m,))


def _shaped(problem: Problem, config: Config) -> ExpertInputs:
    return _operands(problem, config.integer("BLOCK_SIZE_M"))


def _capability(inputs: ExpertInputs) -> int:
    """Return the compute capability to launch on or compile for, times 10; 0 on AMD and under the interpreter."""
    if inputs.output.device.type == "cpu":
        return 0
    target = active_driver.active().get_current_target()
    return int(target.arch) if target.backend == "cuda" else 0


def _kernel(problem: Problem) -> Any:
    return load(str(problem["package"])).kernel_of(layer_of(problem))


def _of_vllm(inputs: ExpertInputs, gemm: Gemm, blocks: Blocks, config: Config, target: int) -> Call:
    parameters, slots = dict(config), _slots(gemm, blocks, config)
    group_n, group_k = layer_of(inputs.problem).block_shape or (0, 0)
    constants = {
        **_constants(inputs, gemm),
        "naive_block_assignment": blocks.ids is None,
        "HAS_BIAS": False,
        "SPLIT_K": 1,
        "SWAP_AB": spaces.exchanges(config, layer_of(inputs.problem), f"sm_{target}"),
        "USE_TD": False,
    }
    scales = _scale_strides(gemm, of_one=True)
    args = (
        *(gemm.a, gemm.b, gemm.c, None, gemm.a_scale, gemm.b_scale, inputs.weights),
        *(blocks.ids, blocks.experts, blocks.padded, *_sizes(gemm), slots, _positions(gemm), *_strides(gemm)),
        *(*scales, 0, 0, group_n, group_k),
    )
    return Call(_grid(slots, gemm, config), args, {**constants, **parameters})


def _of_sglang(inputs: ExpertInputs, gemm: Gemm, blocks: Blocks, config: Config, target: int) -> Call:
    assert blocks.ids is not None
    group_n, group_k = layer_of(inputs.problem).block_shape or (0, 0)
    early = {"USE_GDC": True, "launch_pdl": True, "GDC_EARLY": gemm.a.shape[0] <= 512}  # its invoke_fused_moe_kernel
    constants = {
        **_constants(inputs, gemm),
        "even_Ks": gemm.b.shape[2] % config.integer("BLOCK_SIZE_K") == 0,
        "c_sorted": False,
        "swap_ab": spaces.exchanges(config, layer_of(inputs.problem), f"sm_{target}"),
        "FUSE_ADD_TO_OUTPUT": False,
        "A_OUTPUT_SLICES": 1,
        "A_OUTPUT_SLICE_WIDTH": 0,
        "A_OUTPUT_SLICE_K": 0,
        "MASK_OUTPUT": False,
        "FUSE_SUM_ALL_REDUCE": False,
        # The layer's top_k reaches the down GEMM alone.
        "ROUTER_TOPK": layer_of(inputs.problem).top_k if gemm.weighted else 1,
        "FUSE_SWIGLU": False,
        **(early if target >= _HOPPER else {}),
    }
    args = (
        *(gemm.a, None, gemm.b, None, None, gemm.c, gemm.a_scale, gemm.b_scale, inputs.weights),
        *(blocks.ids, blocks.experts, blocks.padded, None, *_sizes(gemm), len(blocks.ids), inputs.weights.numel()),
        *(*_strides(gemm)[:5], 0, 0, *_strides(gemm)[5:], *_scale_strides(gemm, of_one=False), group_n, group_k),
    )
    return Call(_grid(len(blocks.ids), gemm, config), args, {**constants, **dict(config)})


def _of_groups(inputs: ExpertInputs, gemm: Gemm, blocks: Blocks, config: Config, target: int) -> Call:  # noqa: ARG001
    """Return a launch of `fused_moe_kernel_gptq_awq`, which both packages have."""
    assert blocks.ids is not None
    assert gemm.b_scale is not None
    layer, (n, width), k = layer_of(inputs.problem), gemm.b.shape[1:], gemm.a.shape[1]
    if gemm.weighted:
        config = spaces.of_down(config)
    constants = {
        "group_size": layer.group_size,
        "MUL_ROUTED_WEIGHT": gemm.weighted,
        "top_k": gemm.top_k,
        "compute_type": _COMPUTED[gemm.c.dtype],
        "has_zp": gemm.b_zp is not None,
        "use_int4_w4a16": layer.dtype == "int4_w4a16",
        "use_int8_w8a16": layer.dtype == "int8_w8a16",
        "enable_fp_fusion": True,
    }
    weights: torch.Tensor | None = inputs.weights
    if inputs.problem["package"] == "vllm":
        slots = _slots(gemm, blocks, config)
        weights = weights if gemm.weighted else None  # as its TritonWNA16Experts passes them
        constants |= {"block_k_diviable": k % config.integer("BLOCK_SIZE_K") == 0, "SPLIT_K": 1}
    else:
        slots = len(blocks.ids)
        constants["even_Ks"] = width % config.integer("BLOCK_SIZE_K") == 0
    scale, zero = gemm.b_scale.stride(), (0, 0, 0) if gemm.b_zp is None else gemm.b_zp.stride()
    args = (
        *(gemm.a, gemm.b, gemm.c, gemm.b_scale, gemm.b_zp, weights, blocks.ids, blocks.experts, blocks.padded),
        *(
            n,
            k,
            slots,
            _positions(gemm),
            *_strides(gemm),
            *(scale[0], scale[2], scale[1]),
            *(zero[0], zero[2], zero[1]),
        ),
    )
    parameters = {name: config[name] for name in spaces.PARAMETERS}
    return Call(_grid(slots, gemm, config), args, {**constants, **parameters})


def _constants(inputs: ExpertInputs, gemm: Gemm) -> dict[str, Any]:
    quant = layer_of(inputs.problem).config_dtype
    return {
        "MUL_ROUTED_WEIGHT": gemm.weighted,
        "top_k": gemm.top_k,
        "compute_type": _COMPUTED[gemm.c.dtype],
        "use_fp8_w8a8": quant == "fp8_w8a8",
        "use_int8_w8a8": False,
        "use_int8_w8a16": quant == "int8_w8a16",
        "per_channel_quant": False,
        "enable_fp_fusion": True,  # Triton's default; Triton 3.9 warns where nobody says so
    }


def _positions(gemm: Gemm) -> int:
    return len(gemm.a) * gemm.top_k


def _slots(gemm: Gemm, blocks: Blocks, config: Config) -> int:
    """Return how many positions vLLM's grid covers."""
    block_m = config.integer("BLOCK_SIZE_M")
    most = _positions(gemm) * block_m
    if blocks.ids is None:
        return most
    # At most as many experts as there are positions have tokens, and blocks beyond theirs are empty.
    return min(len(blocks.ids), most) if gemm.a.shape[0] < block_m else len(blocks.ids)


def _sizes(gemm: Gemm) -> tuple[int, int]:
    return gemm.b.shape[1], gemm.b.shape[2]


def _strides(gemm: Gemm) -> tuple[int, ...]:
    a, b, c = gemm.a.stride(), gemm.b.stride(), gemm.c.stride()
    return *a, b[0], b[2], b[1], c[1], c[2]


def _scale_strides(gemm: Gemm, *, of_one: bool) -> tuple[int, ...]:
    """Return the strides of both scales; `of_one`: whether one scale an expert has a stride too."""
    a = gemm.a_scale.stride() if gemm.a_scale is not None and gemm.a_scale.dim() == 2 else (0, 0)
    b = gemm.b_scale
    if b is None:
        return *a, 0, 0, 0
    experts = b.stride(0) if b.dim() >= 2 or of_one else 0
    return *a, experts, b.stride(2) if b.dim() == 3 else 0, b.stride(1) if b.dim() >= 2 and b.shape[1] > 1 else 0


def _grid(slots: int, gemm: Gemm, config: Config) -> tuple[int]:
    block_m, block_n = config.integer("BLOCK_SIZE_M"), config.integer("BLOCK_SIZE_N")
    return (-(-slots // block_m) * -(-gemm.b.shape[1] // block_n),)


def _specialization(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype)
    return [value == 1, value % 16 == 0] if type(value) is int else value
