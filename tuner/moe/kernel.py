"""The kernels of vLLM and SGLang as KernelSpecs of the op `fused_moe`.

They are registered when `register` is called, and not by an entry point, because a serving process needs none of them.
Worker processes import a kernel by its origin, `tuner.moe.kernel:vllm`. The origin names a recording of routing too, so
that workers can read it.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from urllib.parse import quote, unquote

from tuner.errors import TunerError
from tuner.hardware.device import Device
from tuner.kernel import KernelSpec, registry
from tuner.kernel.config import Config
from tuner.moe import launch, routing
from tuner.moe import space as spaces
from tuner.moe.inputs import ExpertInputs, reference
from tuner.moe.layer import OP, PACKAGES, Layer, layer_of
from tuner.moe.package import load
from tuner.problem import Problem

_registered: dict[str, KernelSpec] = {}


def register(package: str, recording: Path | None = None, layer: Layer | None = None) -> KernelSpec:
    """Register a package's kernel in this process and its workers; to register the same again changes nothing.

    Args:
        package: "vllm" or "sglang".
        recording: a file of recorded routing; its name is `routing.record`'s answer.
        layer: the layer that the recording is of.

    Raises:
        KernelError: the package is not installed, or its version has another kernel.
        ProblemError: the recording cannot be read, or does not fit the layer.
    """
    name = package
    if recording is not None and layer is not None:
        routing.record(recording, layer.experts, layer.top_k)
        arguments = json.dumps([str(recording.absolute()), layer.experts, layer.top_k])
        name += "|" + quote(arguments, safe="").replace(".", "%2E")  # a reference is split at its dots
    origin, before = f"{__name__}:{name}", _registered.get(package)
    if before is None or before.origin != origin:
        spec = _registered[package] = _spec(package, origin)
        registry.add(spec, instead_of=before)
    return _registered[package]


def __getattr__(name: str) -> KernelSpec:
    """Register a kernel by its name in an origin, as worker processes do."""
    package, _, arguments = name.partition("|")
    if package not in PACKAGES:
        raise AttributeError(name)
    if not arguments:
        return register(package)
    file, experts, top_k = json.loads(unquote(arguments))
    return register(package, Path(file), Layer(experts, 1, 1, top_k))


def _spec(package: str, origin: str) -> KernelSpec:
    return KernelSpec(
        op=OP,
        name=package,
        # The number follows from the source, so that timings of another source do not count.
        version=int(load(package).source_hash[:7], 16) + launch.VERSION,
        supports=functools.partial(_unsupported, package),
        space=spaces.space,
        default_config=default_config,
        make_inputs=ExpertInputs,
        launch=launch.launch,
        reference=reference,
        tolerance=lambda _problem: 1.0,
        compile=launch.compile_all,
        compile_class=launch.compile_class,
        simplicity=lambda config: (config.integer("num_stages"), config.integer("num_warps")),
        source_hash=lambda: load(package).source_hash,
        shared_bytes=spaces.shared_bytes,
        estimate_us=spaces.estimate_us,
        origin=origin,
        bytes_moved=_bytes_moved,
    )


@functools.lru_cache(maxsize=256)
def default_config(problem: Problem, device: Device) -> Config:
    """Return the config that the package uses where it finds no file."""
    package, layer = str(problem["package"]), layer_of(problem)
    parameters = load(package).default_parameters(layer, problem.m, shared_bytes=device.shared_bytes)
    config = spaces.config_of(package, parameters)
    only = dict(problem.extras).get("block_m")
    return spaces.canonical(config if only is None else config.replace(BLOCK_SIZE_M=int(only)), problem, device)


def _unsupported(package: str, problem: Problem, device: Device) -> str | None:
    try:
        layer = layer_of(problem)
        routing.check(str(problem["routing"]))
        if problem["package"] != package:
            return f"the problem is of {problem['package']}"
        load(package).kernel_of(layer)
    except TunerError as e:
        return str(e)
    if device.vendor == "amd":
        return "it is launched as on NVIDIA: AMD is not tried"
    if layer.dtype == "fp8_w8a8" and not device.is_interpreter and not device.features.fp8:
        return f"no fp8 on {device.arch}: it needs sm_89 or newer"
    return None


def _bytes_moved(problem: Problem) -> int:
    """Return the bytes of tokens, results and the weights of every expert that has tokens."""
    one, active = spaces.average(problem)
    layer, draws = layer_of(problem), int(problem["draws"])
    weights = active * problem.n * problem.k * layer.weight_bits // 8
    rows = problem.m * layer.top_k * 2 * problem.n + problem.m * problem.k * 2
    scale = 3 if problem["gemm"] == "both" else 2
    return (weights + rows) * draws * scale // 2 if one.m else 0
