"""The `experts_pointer` kernel: a mixture of experts in four launches, whose two products share a tile."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import torch

from tuner.errors import ProblemError
from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernel.space import SearchSpace
from tuner.kernels.base import blocks, epilogue
from tuner.kernels.base.operands import VECTOR_BYTES
from tuner.kernels.base.program import Operation, spec_of
from tuner.kernels.base.workspace import scratch
from tuner.kernels.batched.space import config_of, of_many, share
from tuner.kernels.cost import model as cost
from tuner.kernels.experts import jit as experts_kernel
from tuner.kernels.experts import operands as experts_operands
from tuner.kernels.experts.operands import GROUPS, TOP_K, ExpertsOperands, experts_of, top_k_of
from tuner.kernels.gemm.pointer import default as pointer_default
from tuner.kernels.gemm.pointer import space as pointer_space
from tuner.kernels.gemm.spec import simplicity
from tuner.kernels.grouped import jit as grouped_kernel
from tuner.kernels.grouped.space import MOST_GROUPS
from tuner.kernels.space import tile_resources, tile_rules
from tuner.kernels.space.tile_resources import next_power_of_two
from tuner.launch.launch import Launch, compiler_options
from tuner.problem import Problem, dtype
from tuner.problem.gemm_fields import MAX_SIZE

NAME = "experts_pointer"
VERSION = 1
DTYPES = ("float32", "float16", "bfloat16")
_ROUTED = 1024
"""Slots that a program of the first launch reads at a time."""
_COMBINED = 1024
"""Columns of a program of the last launch."""
_MOST_SLOTS = 2**31 - 1
_FEWEST_COLUMNS = 32
_SMALL = {"num_warps": 4, "num_stages": 1}
"""Options of the first and the last launch, which multiply nothing."""
FUSED_EXPERTS = Operation(
    "fused_experts",
    experts_operands.make_operands,
    experts_operands.vendor,
    experts_operands.reference,
    experts_operands.launch_interpreted,
    experts_operands.tolerance,
    flops=lambda problem: 6 * problem.m * top_k_of(problem) * problem.n * problem.k,
    bytes_moved=experts_operands.bytes_moved,
)


def program(operands: ExpertsOperands, config: Config) -> tuple[Launch, ...]:
    """The launches of a config: tokens by expert, gate and up, down, and the sums."""
    (m, k), (experts, _, n), top_k = operands.a.shape, operands.down.shape, operands.experts.shape[1]
    device, slots = operands.a.device, m * top_k
    order, ends, hidden, parts = (
        scratch(count * kind.itemsize, device).view(kind)
        for count, kind in (
            *((slots, torch.int32), (experts, torch.int32)),
            *((slots * n, operands.a.dtype), (slots * k, operands.out.dtype)),
        )
    )
    a, b, down, chosen, out = operands.a, operands.b, operands.down, operands.experts, operands.out
    shared, options = _shared(operands.problem, config, experts, top_k), compiler_options(config)
    small = {**options, **_SMALL}
    pdl, block_m = shared["PDL"], shared["BLOCK_SIZE_M"]
    tiles_m = (slots + min(experts, slots) * (block_m - 1)) // block_m
    group_m = max(1, config.integer("GROUP_SIZE_M", 1))
    vector_n, vector_k = _vectors(operands)
    lengths = [{"VECTOR_N": of_n, "VECTOR_K": of_k} for of_n, of_k in ((vector_n, vector_k), (vector_k, vector_n))]
    first, second = (
        {**shared, **vectors, "EVEN_K": length % shared["BLOCK_SIZE_K"] == 0}
        for vectors, length in zip(lengths, (k, n), strict=True)
    )
    block_n = shared["BLOCK_SIZE_N"]
    gate_up = (a, b, hidden, order, ends, m, n, k, experts, a.stride(0), b.stride(0), b.stride(1), group_m)
    downs = (hidden, down, parts, operands.shares, order, ends, m, k, n, experts, down.stride(0), down.stride(1))
    combined = {"TOP_K": top_k, "BLOCK_SIZE": _COMBINED, "VECTOR_N": vector_k, "PDL": pdl}
    return (
        Launch(
            experts_kernel.route_kernel,
            (experts,),
            (chosen, order, ends, m),
            {"TOP_K": top_k, "BLOCK_SIZE": _ROUTED, "PDL": pdl},
            small,
        ),
        Launch(
            experts_kernel.gate_up_kernel,
            (tiles_m * -(-n // (block_n // 2)),),
            gate_up,
            {**first, "ACTIVATION": operands.problem.activation},
            options,
        ),
        Launch(experts_kernel.down_kernel, (tiles_m * -(-k // block_n),), (*downs, group_m), second, options),
        Launch(
            experts_kernel.combine_kernel,
            (m, -(-k // _COMBINED)),
            (parts, chosen, out, k, experts, out.stride(0)),
            combined,
            small,
        ),
    )


@functools.lru_cache(maxsize=4096)
def _shared(problem: Problem, config: Config, experts: int, top_k: int) -> dict[str, Any]:
    """The constexprs of both products."""
    return {
        "TOP_K": top_k,
        **{name: config.integer(name) for name in ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K")},
        "BLOCK_GROUPS": next_power_of_two(experts),
        "PRECISION": "ieee" if problem.precision == "default" else problem.precision,
        "PDL": bool(config.get("launch_pdl", False)),
    }


def _vectors(operands: ExpertsOperands) -> tuple[int, int]:
    """Powers of two, up to 16 bytes of elements, that divide N, and K with all strides; 1 without aligned addresses."""
    a, b, down, out = operands.a, operands.b, operands.down, operands.out
    widest = VECTOR_BYTES // a.element_size()
    if any(each.data_ptr() % VECTOR_BYTES for each in (a, b, down, out)):
        return 1, 1
    along_n = (down.shape[2], down.stride(0), down.stride(1))
    along_k = (a.shape[1], a.stride(0), b.stride(0), b.stride(1), out.stride(0))
    return math.gcd(widest, *along_n), math.gcd(widest, *along_k)


def supports(problem: Problem, device: Device) -> str | None:  # noqa: PLR0911  one return for each reason
    """Why the kernel cannot serve a problem on a device, or None."""
    if problem.a_dtype not in DTYPES:
        return f"no {problem.a_dtype}: it takes {', '.join(DTYPES)}"
    if not problem.a_dtype == problem.b_dtype == problem.out_dtype:
        return f"no {problem.dtype_label}: tokens, weights and output are of one dtype"
    if problem.layout != "nt":
        return f"no layout {problem.layout}: expected nt, weights stored [experts, outputs, inputs]"
    if problem.has_bias:
        return f"no epilogue {problem.epilogue}: experts have no bias"
    try:
        experts, top_k = experts_of(problem), top_k_of(problem)
    except ProblemError as e:
        return str(e)
    if unknown := set(dict(problem.extras)) - {GROUPS, TOP_K}:
        return f"no extras {', '.join(sorted(unknown))}: leave them out"
    if top_k > experts or experts > MOST_GROUPS:
        return f"top_k is {top_k} of {experts} experts: expected at most as many, and {MOST_GROUPS} experts"
    if 2 * problem.n > MAX_SIZE:
        return f"N is {problem.n}: expected at most {MAX_SIZE // 2}, as gate and up have twice as many columns"
    if problem.m * top_k > _MOST_SLOTS:
        return f"{problem.m} tokens with {top_k} experts each: expected at most {_MOST_SLOTS} together"
    return pointer_space.supports_operands(_products(problem)[0], device)


def _used(problem: Problem) -> int:
    """How many experts have rows if tokens are sent to as many as they can be."""
    return min(experts_of(problem), problem.m * top_k_of(problem))


@functools.lru_cache(maxsize=1024)
def _products(problem: Problem) -> tuple[Problem, Problem]:
    """Gate and up of an expert, and its down; with more rows than most have if tokens choose at random."""
    average = problem.m * top_k_of(problem) / _used(problem)
    rows = math.ceil(average + 2 * math.sqrt(average)) if _used(problem) < problem.m * top_k_of(problem) else 1
    aligned = None if problem.aligned else False
    kind: dict[str, Any] = {"dtype": problem.a_dtype, "precision": problem.precision, "aligned": aligned}
    first, second = (rows, 2 * problem.n, problem.k), (rows, problem.k, problem.n)
    return Problem(*first, layout="nt", **kind), Problem(*second, layout="nt", **kind)


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space: that of `pointer` for gate and up of one expert, on its share of the device."""
    single = pointer_space.space(_products(problem)[0], device)
    if device.is_interpreter:
        single = single.narrowed(BLOCK_SIZE_M=(16, 32), BLOCK_SIZE_N=(32,), BLOCK_SIZE_K=(32,))
    made = of_many(single, NAME, _used(problem))
    # Half of a tile's columns are gate's, and `tl.dot` takes 16 at least.
    columns = tuple(value for value in made.axes["BLOCK_SIZE_N"] if isinstance(value, int) and value >= _FEWEST_COLUMNS)
    axes = {**made.axes, "BLOCK_SIZE_N": columns}
    own = {each.name: each for each in (tile_rules.parameters(lambda *_: axes), _SHARED_MEMORY)}
    others = (each for each in made.rules if each.name not in (*own, tile_rules.waves.name))
    rules = (*own.values(), *others)
    return dataclasses.replace(made, axes=axes, rules=rules)


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:
    """Shared memory of one block of the product that takes more, in bytes: an upper bound.

    Besides `tile_resources.shared_bytes`: on Blackwell each sum of gate and up has barriers of its own; down's rows go
    to where their slots lie in another order of threads, through shared memory; and for tf32x3 on wgmma and tcgen05, A
    has a stage less and B's lower bits a tile of their own. Source: tests/compile/test_batched.py.
    """
    block_m, block_n, block_k = tile_resources.tile(config)
    size, taken = dtype.ITEMSIZE[problem.a_dtype], tile_resources.shared_bytes(config, problem, device)
    if device.features.tcgen05 and tile_resources.asynchronous(config, problem, device):
        taken += 16
    if problem.precision == "tf32x3" and tile_resources.asynchronous(config, problem, device):
        taken += max(0, block_n - block_m) * block_k * size
    return max(taken, block_m * block_n * size)


_SHARED_MEMORY = tile_rules.shared_memory(shared_bytes, "kernels/experts/fused.py")


def default_config(problem: Problem, device: Device) -> Config:
    """The `pointer` kernel's default for gate and up of one expert."""
    single = pointer_default.default_config(_products(problem)[0], share(device, _used(problem)))
    wide = single.replace(BLOCK_SIZE_N=max(_FEWEST_COLUMNS, single.integer("BLOCK_SIZE_N")))
    return config_of(wide, space(problem, device))


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """The estimated time in microseconds of both products of all experts."""
    return sum(cost.tiled(config, each, device, by_tma=False, products=_used(problem)) for each in _products(problem))


SPEC = spec_of(
    FUSED_EXPERTS,
    NAME,
    VERSION,
    program,
    supports=supports,
    space=space,
    default_config=default_config,
    shared_bytes=shared_bytes,
    estimate_us=estimate_us,
    sources=(experts_kernel, grouped_kernel, program, _shared, _vectors, blocks, epilogue),
    simplicity=simplicity,
    runtime_parameters=("GROUP_SIZE_M",),
)
