"""What is launched for a config is what the packages' own functions launch, argument by argument."""

from __future__ import annotations

import functools
import inspect
import json
import types

import pytest
import torch
import triton
import triton.language as tl

from tuner.hardware.device import KNOWN
from tuner.moe import config_file, launch, space
from tuner.moe.inputs import ExpertInputs
from tuner.moe.kernel import default_config
from tuner.moe.layer import Layer
from tuner.moe.package import load

LAYERS = (
    Layer(8, 32, 48, 2),
    Layer(8, 32, 48, 2, "fp16"),
    Layer(8, 32, 48, 2, "fp8_w8a8"),
    Layer(8, 128, 128, 2, "fp8_w8a8", (64, 64)),
    Layer(8, 32, 48, 2, "int8_w8a16"),
    Layer(8, 64, 96, 2, "int8_w8a16", group_size=32),
    Layer(8, 64, 192, 2, "int4_w4a16", group_size=64, zero_points=True),
)
INVOKE = {"vllm": "invoke_fused_moe_triton_kernel", "sglang": "invoke_fused_moe_kernel"}
OF_GROUPS = {**INVOKE, "vllm": "invoke_fused_moe_wna16_triton_kernel"}
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
def own_launch(name, target, grouped):
    """A package's function that launches, for a compute capability, and what records its launches."""
    package, recorder = load(name), Recorder()
    invoke, other = (OF_GROUPS if grouped else INVOKE)[name], Recorder()

    def swaps(block_m, block_n):
        return target == 90 and block_m < 64 <= block_n

    given = {
        "torch": torch,
        "triton": triton,
        "tl": tl,
        "fused_moe_kernel": other if grouped else recorder,
        "fused_moe_kernel_gptq_awq": recorder if grouped else other,
        "enable_swap_ab": swaps,
        "should_enable_swap_ab": swaps,
        "resolve_moe_use_td": lambda: False,
        "warn_if_moe_use_td_ineffective": lambda *_, **__: None,
        "padding_size": 0,
        "scaled_fp8_quant": lambda a, scale, **_: (a, scale),
        "is_arch_support_pdl": lambda: target >= 90,
    }
    file = str(package.file.relative_to(package.folder))
    names = (invoke, "get_moe_wna16_block_config") if grouped and name == "vllm" else (invoke,)
    return getattr(package.part(file, names, given), invoke), recorder


def launched(inputs, gemm, blocks, target, config):
    """The grid and arguments by which a package launches a GEMM."""
    name = inputs.problem["package"]
    layer = launch.layer_of(inputs.problem)
    invoke, recorder = own_launch(name, target, layer.group_size is not None)
    recorder.calls.clear()
    quant = dict(inputs.problem.extras).get("quant")
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
        "config": dict(config),
        "compute_type": {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[gemm.c.dtype],
        "use_fp8_w8a8": quant == "fp8_w8a8",
        "use_int8_w8a8": False,
        "use_int8_w8a16": quant == "int8_w8a16",
        "use_int4_w4a16": quant == "int4_w4a16",
        "per_channel_quant": False,
        "block_shape": layer.blocks,
        "B_zp": gemm.b_zp,
    }
    if name == "sglang":
        top_k = layer.top_k if gemm.weighted else 1
        options |= {"bias": None, "topk_ids": inputs.draws[-1], "router_topk": top_k}
    elif layer.group_size is not None:
        options["topk_weights"] = inputs.weights if gemm.weighted else None  # TritonWNA16Experts.apply
    taken = inspect.signature(invoke).parameters
    invoke(**{option: value for option, value in options.items() if option in taken})
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
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: f"{layer.dtype} {layer.blocks}")
@pytest.mark.parametrize("package", list(INVOKE))
def test_a_launch_is_that_of_the_packages_own_function(package, layer, m, target):
    kernel, compared = load(package).kernel_of(layer), 0
    # vLLM's file for groups says SPLIT_K, see `config_file.dumps`.
    row = CONFIG | ({"SPLIT_K": 1} if package == "vllm" and layer.group_size else {})
    for problem in layer.problems(package, m):
        inputs = ExpertInputs(problem, "cpu", 0, (32,))
        config = space.canonical(space.config_of(package, CONFIG), problem, types.SimpleNamespace())
        ours = launch.calls(inputs, config, target)
        theirs = [launched(inputs, gemm, blocks, target, row) for blocks in inputs.blocks[32] for gemm in inputs.gemms]
        for call, (grid, args, kwargs) in zip(ours, theirs, strict=True):
            assert call.grid == grid
            assert by_name(kernel, call.args, call.kwargs) == by_name(kernel, args, kwargs)
            compared += 1
    assert compared == 8


@pytest.mark.parametrize("m", [1, 3, 40])
@pytest.mark.parametrize("dtype", ["int4_w4a16", "int8_w8a16"])
def test_a_default_without_sizes_is_launched_with_those_that_vllm_adds(dtype, m):
    layer = Layer(8, 64, 192, 2, dtype, group_size=64)
    (problem,) = layer.problems("vllm", m)
    config = default_config(problem, KNOWN["sm_90"])
    row = load("vllm").default_parameters(layer, m, shared_bytes=232448)
    assert not {"BLOCK_SIZE_N", "BLOCK_SIZE_K"} & row.keys()
    inputs = ExpertInputs(problem, "cpu", 0, (row["BLOCK_SIZE_M"],))
    theirs = [launched(inputs, gemm, *inputs.blocks[row["BLOCK_SIZE_M"]][:1], 90, row) for gemm in inputs.gemms]
    kernel = load("vllm").kernel_of(layer)
    for call, (grid, args, kwargs) in zip(launch.calls(inputs, config, 90), theirs, strict=False):
        own = by_name(kernel, call.args, call.kwargs)
        assert (own.pop("num_warps"), own.pop("num_stages")) == (4, 3)  # Triton's own, which the row leaves unsaid
        assert (call.grid, own) == (grid, by_name(kernel, args, kwargs))
    sizes = [(kwargs["BLOCK_SIZE_N"], kwargs["BLOCK_SIZE_K"]) for _, _, kwargs in theirs]
    assert (len(set(sizes)) == 2) == (m == 1), "for one token vLLM takes other sizes for gate-up than for down"
    written = json.loads(config_file.dumps("vllm", layer, {m: config}))[str(m)]
    assert space.canonical(space.config_of("vllm", written), problem, KNOWN["sm_90"]) == config
    assert row.items() <= written.items()
    assert ("BLOCK_SIZE_N" in written) == (m != 1)


@pytest.mark.parametrize("package", list(INVOKE))
def test_no_config_of_groups_reads_weights_beyond_k(package):
    for problem in Layer(8, 256, 96, 2, "int4_w4a16", group_size=32).problems(package, 256):
        steps = {config["BLOCK_SIZE_K"] for config in space.space(problem, KNOWN["sm_90"]).configs()}
        assert steps == ({32, 64, 128, 256} if problem["gemm"] == "gate_up" else {32})


def test_binaries_of_groups_are_shared_by_tokens_and_not_by_sizes():
    config = space.config_of("sglang", CONFIG)
    layers = (Layer(8, hidden, 512, 2, "int4_w4a16", group_size=128) for hidden in (1024, 2048))
    first, other = (
        [launch.compile_class(layer.problem("sglang", m, "down"), config) for m in (64, 96)] for layer in layers
    )
    assert first[0] == first[1]
    assert first[0] != other[0]


@pytest.mark.parametrize("layer", [Layer(32, 2880, 2880, 4), Layer(128, 2048, 768, 8, "fp8_w8a8", (128, 128))])
def test_a_leaders_refinements_are_configs_a_step_away(layer):
    (problem,) = layer.problems("vllm", 64)
    its = space.space(problem, KNOWN["sm_90"])
    known = set(its.configs())
    leader = next(one for one in its.configs() if one.integer("num_stages") == 3)
    refined = its.refinements(leader)
    assert its.refines
    assert known >= set(refined)
    assert leader.replace(num_stages=4) in refined
    for one in refined:
        (name,) = (name for name in one if one[name] != leader[name])
        values = sorted(space.axes(problem, KNOWN["sm_90"])[name])
        assert abs(values.index(one[name]) - values.index(leader[name])) == 1
