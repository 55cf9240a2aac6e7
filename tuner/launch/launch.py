"""Launches of jit functions: run, compiled without a GPU, and compared by the binary that they need."""

from __future__ import annotations

import hashlib
import inspect
import json
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tuner.bounded import make_room
from tuner.kernel.config import Config, Value
from tuner.launch import binaries as shipped
from tuner.launch import compat, compile_cache, cuda
from tuner.launch.plan import recording
from tuner.problem import dtype

TILE = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K")
_COMPILER = (
    "num_warps",
    "num_stages",
    "num_ctas",
    "maxnreg",
    "launch_pdl",
    "matrix_instr_nonkdim",
    "waves_per_eu",
    "kpack",
)
_INT32_SPAN = 2**31
_BUFFER_OPS_BYTES = 2**31 - 1


_interpreting = threading.RLock()
"""Held while Triton's interpreter runs, which keeps one program's place in its grid for all threads of a process."""
_MOST_KEYS = 4096
_keys: dict[Hashable, str] = {}
"""The keys of launches, by what they are made of. Most calls differ in sizes alone, which no binary knows."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of one jit function.

    Attributes:
        function: The jit function.
        grid: The number of programs along one to three axes.
        arguments: Everything before the constexprs, in the function's order.
        constants: The constexpr arguments by name.
        options: The compiler's options: num_warps, num_stages and so on.
        concurrent: Whether the next launch's programs are to run beside this one's, see `cuda.ask_for_shared`.
    """

    function: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: Mapping[str, Any]
    options: Mapping[str, Any]
    concurrent: bool = False

    @property
    def key(self) -> str:
        """The key of a shipped kernel: everything that the binary depends on except the source."""
        classes, constants, options = _argument_classes(self), self.constants, self.options
        # True and 1 are equal, but make other binaries.
        values = (*constants.values(), *options.values())
        known = (self.function.__name__, classes, *constants, *options, *values, *map(type, values))
        key = _keys.get(known)
        if key is None:
            key = shipped.key_of(_specialization(self))
            make_room(_keys, _MOST_KEYS)
            _keys[known] = key
        return key


def compiler_options(config: Config) -> dict[str, Value]:
    """The parameters of a config that Triton's compiler takes; all others are the kernel's."""
    options = {name: value for name, value in config.items() if name in _COMPILER}
    # Triton 3.9 warns unless told: contraction into fused multiply-adds is what every figure was measured with.
    return {**options, "enable_fp_fusion": True}


def run(launches: Iterable[Launch]) -> None:
    """Launch in order on the current device and stream. An active recording of this thread gets each launch.

    Raises:
        NotShippedError: the process is strict, and one of them does not ship; then none of them was launched.
    """
    seen = recording()
    find = None if seen is None else seen.find
    for launch, found in [(launch, None if find is None else find(launch)) for launch in launches]:
        if found is None:
            kernel = _launch(launch)
        else:
            kernel = found
            values = (launch.constants[parameter.name] for parameter in launch.function.params[len(launch.arguments) :])
            kernel[(*launch.grid, 1, 1)[:3]](*launch.arguments, *values)
        if launch.concurrent:
            cuda.ask_for_shared(kernel)
        if seen is not None:
            seen.launches.append((launch, kernel))


def _launch(launch: Launch) -> Any:
    compile_cache.install(launch.function)
    if isinstance(launch.function, compat.JITFunction):
        return launch.function[launch.grid](*launch.arguments, **launch.constants, **launch.options)
    with _interpreting:  # its functions take none of the compiler's options
        return launch.function[launch.grid](*launch.arguments, **launch.constants)


def compile_launches(launches: Iterable[Launch]) -> Any:
    """Compile what `run` would launch, for the active driver's target.

    Returns the CompiledKernel that takes the most shared memory, of equals the last one: where several are launched, it
    is the one that a config is about.

    The arguments may be tensors without memory: Triton's cache key is the same, and the process that launches finds the
    binary. Under a recording that finds shipped kernels these are loaded onto the device, and nothing is compiled.
    """
    kernels: list[Any] = []
    seen = recording()
    for launch in launches:
        if seen is not None and seen.find is not None:
            compiled = seen.find(launch)
            _ = compiled and compiled.run  # Triton loads a binary where this is read first
        else:
            compile_cache.install(launch.function)
            compiled = launch.function.warmup(*launch.arguments, **launch.constants, **launch.options, grid=launch.grid)
        if seen is not None:
            seen.launches.append((launch, compiled))
        kernels.append(compiled)
    found = [each for each in kernels if each is not None]
    return max(reversed(found), key=lambda each: each.metadata.shared, default=None)


def binary_class(launches: Iterable[Launch]) -> str:
    """Everything that the binaries depend on, as canonical JSON: specializations of arguments, constants, options."""
    return json.dumps([_specialization(launch) for launch in launches], sort_keys=True, separators=(",", ":"))


def source_hash(parts: Sequence[Callable[..., Any] | Any]) -> str:
    """SHA-256 over the sources of modules, classes and functions."""
    return hashlib.sha256("\n".join(inspect.getsource(part) for part in parts).encode()).hexdigest()


def _specialization(launch: Launch) -> dict[str, Any]:
    return {
        "function": launch.function.__name__,
        "arguments": _argument_classes(launch),
        "constants": dict(launch.constants),
        "options": dict(launch.options),
    }


def _argument_classes(launch: Launch) -> tuple[Hashable, ...]:
    # Only AMD's backend depends on whether a 32-bit offset reaches all of a tensor.
    sized = "matrix_instr_nonkdim" in launch.options
    given = zip(launch.function.params, launch.arguments, strict=False)
    return tuple([_argument_class(parameter, argument, sized=sized) for parameter, argument in given])


def _argument_class(parameter: Any, argument: Any, *, sized: bool) -> Hashable:
    if argument is None:
        return None
    if hasattr(argument, "block_shape"):  # a descriptor, Triton's or Gluon's
        return (dtype.name_of(argument.base.dtype), *argument.block_shape)
    if isinstance(argument, torch.Tensor):
        large = sized and argument.untyped_storage().size() > _BUFFER_OPS_BYTES
        return (dtype.name_of(argument.dtype), argument.data_ptr() % 16 == 0, large)
    if argument == 1 and not parameter.do_not_specialize:
        return 1
    return "i32" if -_INT32_SPAN <= argument < _INT32_SPAN else "i64"
