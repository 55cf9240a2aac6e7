"""The `bmm_pointer` kernel: each program computes one tile of one product, from operands with any strides."""

from __future__ import annotations

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernels.base import numerics
from tuner.kernels.base.interpreted import launch_interpreted
from tuner.kernels.base.operands import Operands
from tuner.kernels.base.program import Operation
from tuner.kernels.batched import jit as bmm_kernel
from tuner.kernels.batched.operands import batch_of, make_operands, placement, vendor
from tuner.kernels.batched.space import POINTER, config_of, pointer, share, supports_pointer
from tuner.kernels.cost import model as cost
from tuner.kernels.gemm import launches
from tuner.kernels.gemm.pointer import default as pointer_default
from tuner.kernels.gemm.pointer import tile as pointer_tile
from tuner.kernels.gemm.spec import gemm_spec, sources_of
from tuner.kernels.space.tile_resources import shared_bytes
from tuner.launch.launch import Launch
from tuner.problem import Problem

VERSION = 1
_FEW_STAGES = 2
BMM = Operation("bmm", make_operands, vendor, numerics.reference, launch_interpreted, numerics.tolerance)


def program(operands: Operands, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    a, b, out = operands.a, operands.b, operands.out
    view = launches.view_of(operands, placement)
    (tiles,), group, constants, options = _parts(view, config)
    arguments = (a, b, out, operands.bias, *view.shape, *a.stride(), *b.stride(), *out.stride(), group)
    grid = (view.products * tiles,)
    return (Launch(bmm_kernel.pointer_kernel, grid, arguments, constants, options),)


_parts = launches.parts_of(bmm_kernel.pointer_kernel)


def default_config(problem: Problem, device: Device) -> Config:
    """The `pointer` kernel's default for one product on its share of the device.

    Unaligned operands get few stages on Hopper: more programs reside, and hide each other's loads
    (docs/decisions.md, 181).
    """
    few = device.features.wgmma and not problem.aligned  # what was timed, on an H200
    most = _FEW_STAGES if few else pointer_default.MOST_STAGES
    single = pointer_default.default_config(problem, share(device, batch_of(problem)), most_stages=most)
    return config_of(single, pointer(problem, device))


SPEC = gemm_spec(
    BMM,
    POINTER,
    VERSION,
    program,
    supports=supports_pointer,
    space=pointer,
    default_config=default_config,
    shared_bytes=shared_bytes,
    estimate_us=lambda config, problem, device: cost.tiled(
        config, problem, device, by_tma=False, products=batch_of(problem)
    ),
    sources=sources_of(bmm_kernel, pointer_tile, program, placement),
)
