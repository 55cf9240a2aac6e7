"""The `pointer` kernel of the op `matmul`: its launch, its compile and its KernelSpec."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from dataclasses import dataclass
from typing import Any

import torch
import triton

from tuner import dtype as dtypes
from tuner.config import Config
from tuner.kernel import KernelSpec
from tuner.kernels import epilogue, numerics, pointer_kernel
from tuner.kernels.interpreted import launch_interpreted
from tuner.kernels.operands import Operands, make_operands, placement
from tuner.kernels.pointer_default import default_config
from tuner.kernels.pointer_space import NAME, space, supports
from tuner.kernels.vendor import vendor
from tuner.problem import Problem

VERSION = 1
"""Raise when timings of the version before no longer speak for this one (tests/unit/test_kernel_sources.py)."""
INTERPRETED = not isinstance(pointer_kernel.matmul_kernel, triton.JITFunction)
"""Whether the kernel was decorated under TRITON_INTERPRET=1."""
_TILE = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K")
_INT32_SPAN = 2**31
_BUFFER_OPS_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Call:
    """A launch but for its tensors.

    Attributes:
        grid: programs.
        scalars: M, N, K, the six strides, GROUP_SIZE_M.
        constants: constexpr arguments by name.
        options: the compiler's: num_warps, num_stages and so on.
    """

    grid: tuple[int]
    scalars: tuple[int, ...]
    constants: dict[str, Any]
    options: dict[str, Any]


def launch(operands: Operands, config: Config) -> None:
    """Write `operands.out` on the current device and stream.

    Raises:
        KeyError: the config lacks a parameter, or has one that Triton does not know.
    """
    if INTERPRETED:
        launch_interpreted(operands, config, _run)
    else:
        _run(operands, config)


def compile_kernel(problem: Problem, config: Config) -> Any:
    """Compile what `launch` runs for contiguous operands of a problem; returns Triton's CompiledKernel.

    The arguments are those of a launch, on tensors without memory: Triton's cache key is the same, and the process that
    launches finds the binary.
    """
    operands = make_operands(problem, "meta", 0)
    call = _call_of(operands, config)
    return pointer_kernel.matmul_kernel.warmup(
        *_tensors(operands), *call.scalars, **call.constants, **call.options, grid=call.grid
    )


def compile_class(problem: Problem, config: Config) -> str:
    """What the binary of contiguous operands depends on, as canonical JSON."""
    operands = make_operands(problem, "meta", 0)
    call = _call_of(operands, config)
    tensors = _tensors(operands)
    parts = {
        "dtypes": [None if tensor is None else dtypes.name_of(tensor.dtype) for tensor in tensors],
        "misaligned": [i for i, tensor in enumerate(tensors) if tensor is not None and tensor.data_ptr() % 16],
        "unit_strides": [i for i, stride in enumerate(call.scalars[3:9]) if stride == 1],
        "constants": call.constants,
        "options": call.options,
    }
    if "matrix_instr_nonkdim" in config:
        # AMD's backend alone asks whether a 32-bit offset reaches all of a tensor.
        parts["large"] = [
            i
            for i, tensor in enumerate(tensors)
            if tensor is not None and tensor.untyped_storage().size() > _BUFFER_OPS_BYTES
        ]
    return json.dumps(parts, sort_keys=True, separators=(",", ":"))


def simplicity(config: Config) -> tuple[Any, ...]:
    """Sorts configs from simplest: least memory in flight, fewest threads, row-major order, then canonical order."""
    rows = config.integer("BLOCK_SIZE_M") + config.integer("BLOCK_SIZE_N")
    held = rows * config.integer("BLOCK_SIZE_K") * config.integer("num_stages")
    return (held, config.integer("num_warps"), config.integer("GROUP_SIZE_M"), config)


def source_hash() -> str:
    """SHA-256 of everything that decides timings: the jit functions, and what the host passes them."""
    parts = (pointer_kernel, epilogue, call_for, numerics.max_imprecise, placement)
    return hashlib.sha256("\n".join(inspect.getsource(part) for part in parts).encode()).hexdigest()


def _run(operands: Operands, config: Config) -> None:
    call = _call_of(operands, config)
    pointer_kernel.matmul_kernel[call.grid](
        *_tensors(operands), *call.scalars, **call.constants, **({} if INTERPRETED else call.options)
    )


def _tensors(operands: Operands) -> tuple[torch.Tensor | None, ...]:
    return operands.a, operands.b, operands.out, operands.bias


def _call_of(operands: Operands, config: Config) -> Call:
    a, b, out = operands.a, operands.b, operands.out
    strides = (*a.stride(), *b.stride(), *out.stride())
    vectors = (placement(a).vector, placement(b).vector, placement(out).vector)
    return call_for(operands.problem, config, strides, vectors)


@functools.lru_cache(maxsize=4096)
def call_for(problem: Problem, config: Config, strides: tuple[int, ...], vectors: tuple[int, int, int]) -> Call:
    """The launch of a config on operands of these strides.

    Args:
        problem: what is computed.
        config: of this kernel.
        strides: of A's two dimensions, B's and the output's, elements.
        vectors: of A, B and the output, see `Placement`.
    """
    m, n, k = problem.shape
    block_m, block_n, block_k = (int(config[name]) for name in _TILE)
    tiles_m, tiles_n = -(-m // block_m), -(-n // block_n)
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn = strides
    spans = (
        (block_m - 1) * stride_am + (block_k - 1) * stride_ak,
        (block_k - 1) * stride_bk + (block_n - 1) * stride_bn,
        (block_m - 1) * stride_cm + (block_n - 1) * stride_cn,
    )
    constants = {
        **{name: int(config[name]) for name in _TILE},
        "A_TRANSPOSED": stride_ak != 1 and stride_am == 1,
        "B_TRANSPOSED": stride_bn != 1 and stride_bk == 1,
        "A_VECTOR": vectors[0],
        "B_VECTOR": vectors[1],
        "C_VECTOR": vectors[2] if stride_cn == 1 else 1,
        "EVEN_K": k % block_k == 0,
        "WIDE": max(spans) >= _INT32_SPAN,
        "ACTIVATION": problem.activation,
        "PRECISION": "ieee" if problem.precision == "default" else problem.precision,
        "MAX_IMPRECISE": numerics.max_imprecise(problem, block_k),
    }
    options = {name: value for name, value in config.items() if name not in (*_TILE, "GROUP_SIZE_M")}
    # Beyond the last row of tiles a group is all of them; the kernel multiplies this by tiles_n in 32 bits.
    group = min(max(1, config.integer("GROUP_SIZE_M", 1)), tiles_m)
    # Triton 3.9 warns unless told: contraction into fused multiply-adds is what every figure was measured with.
    return Call((tiles_m * tiles_n,), (m, n, k, *strides, group), constants, {**options, "enable_fp_fusion": True})


SPEC = KernelSpec(
    op="matmul",
    name=NAME,
    version=VERSION,
    supports=supports,
    space=space,
    default_config=default_config,
    make_inputs=make_operands,
    launch=launch,
    vendor=vendor,
    reference=numerics.reference,
    tolerance=numerics.tolerance,
    compile=compile_kernel,
    compile_class=compile_class,
    simplicity=simplicity,
    source_hash=source_hash,
    runtime_parameters=("GROUP_SIZE_M",),
)
