"""Every private name of torch and of Triton that the product uses, and what happens where one is missing.

The other modules of `tuner/` and `kernels/` take these names from here (tests/unit/test_compat.py). A name is looked
up when it is first asked for, so importing this module imports neither torch nor Triton. Each row names the releases
that the name was seen in. Public names, `triton.knobs` among them, and the public attributes of a CompiledKernel
(`metadata`, `src`, `asm`, `hash`, `function`) are used directly.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tuner.errors import TunerError

_REQUIRED = object()
_TORCH: dict[str, tuple[str, Any]] = {
    # The guards by which TorchDynamo chooses a compiled program. Without them no call is remembered: every call is
    # checked and looked up. Their behaviour is tested before the first use, see `call_cache`.
    "TensorGuards": ("torch:_C._dynamo.guards.TensorGuards", None),  # torch 2.9 to 2.13
    # How programs of TorchInductor allocate, in half the time of torch.empty, which takes its place. CUDA builds only.
    "empty_strided_cuda": ("torch:_C._dynamo.guards._empty_strided_cuda", None),  # torch 2.9 to 2.13
    # torch.cuda.current_device without the test whether CUDA was initialized; the public function takes its place.
    "cuda_get_device": ("torch:_C._cuda_getDevice", None),  # torch 2.9 to 2.13, CUDA builds only
    # A tensor with the negative bit, to test the guards with. Without it no call is remembered.
    "neg_view": ("torch:_neg_view", None),  # torch 2.9 to 2.13
    # Whether a tensor is one of torch's zeros without memory (tangents of torch.func). Without it none is taken to be.
    "is_zerotensor": ("torch:_is_zerotensor", lambda _: False),  # torch 2.9 to 2.13
    # Whether forward-mode derivatives are on inside of a dual level. Without it they are taken to be.
    "is_fwd_grad_enabled": ("torch:_C._is_fwd_grad_enabled", lambda: True),  # torch 2.9 to 2.13
    # Whether torch.func has wrapped a tensor. Nothing can replace them: a kernel given a wrapper reads address 0.
    "is_functorch_wrapped_tensor": ("torch:_C._functorch.is_functorch_wrapped_tensor", _REQUIRED),  # torch 2.9 to 2.13
    "is_batchedtensor": ("torch:_C._functorch.is_batchedtensor", _REQUIRED),  # torch 2.9 to 2.13
    "is_gradtrackingtensor": ("torch:_C._functorch.is_gradtrackingtensor", _REQUIRED),  # torch 2.9 to 2.13
    # The modes in which make_fx and FakeTensorMode record operators. Without these names a launch there is an error of
    # torch's.
    "get_dispatch_mode": ("torch:_C._get_dispatch_mode", lambda _: None),  # torch 2.9 to 2.13
    "proxy_mode_key": ("torch:_C._TorchDispatchModeKey.PROXY", None),  # torch 2.9 to 2.13
    "fake_mode_key": ("torch:_C._TorchDispatchModeKey.FAKE", None),  # torch 2.9 to 2.13
    # torch's GEMMs that have no public function. Without one the library counts as having no such product.
    "scaled_mm": ("torch:_scaled_mm", None),  # torch 2.9 to 2.13
    "scaled_mm_v2": ("torch:ops.aten._scaled_mm_v2.out", None),  # torch 2.10 to 2.13
    "int_mm": ("torch:_int_mm", None),  # torch 2.9 to 2.13
    "grouped_mm": ("torch:_grouped_mm", None),  # torch 2.9 to 2.13
    # TorchInductor's options by mode, for `tuner bench`. Nothing replaces it: that contest reports the error.
    "list_mode_options": ("torch._inductor:list_mode_options", _REQUIRED),  # torch 2.9 to 2.13
}
_TRITON: dict[str, tuple[str, Any]] = {
    # The active driver: current device, stream and target. Nothing can be launched without it.
    "driver": ("triton.runtime.driver:driver", _REQUIRED),  # Triton 3.6 to 3.9
    # What a launch gives back, and what it is made of. Shipped binaries and the compile cache need all three.
    "CompiledKernel": ("triton.compiler:CompiledKernel", _REQUIRED),  # Triton 3.6 to 3.9
    "ASTSource": ("triton.compiler:ASTSource", _REQUIRED),  # Triton 3.6 to 3.9
    "make_backend": ("triton.compiler:make_backend", _REQUIRED),  # Triton 3.6 to 3.9
    # What a listener of compiles is told, where a kernel was found in Triton's cache.
    "CompileTimer": ("triton.compiler.compiler:CompileTimer", _REQUIRED),  # Triton 3.6 to 3.9
    # Triton's cache on disk, the hash of Triton itself, and the environment variables that are part of a kernel's key.
    "get_cache_manager": ("triton.runtime.cache:get_cache_manager", _REQUIRED),  # Triton 3.6 to 3.9
    "triton_key": ("triton.runtime.cache:triton_key", _REQUIRED),  # Triton 3.6 to 3.9
    "get_cache_invalidating_env_vars": (
        "triton._C.libtriton:get_cache_invalidating_env_vars",
        _REQUIRED,
    ),  # Triton 3.6 to 3.9
    # What fails before anything ran. Without them such an error would end a call that another config could serve.
    "CompilationError": ("triton.compiler.errors:CompilationError", _REQUIRED),  # Triton 3.6 to 3.9
    "OutOfResources": ("triton.runtime.errors:OutOfResources", _REQUIRED),  # Triton 3.6 to 3.9
    "PTXASError": ("triton.runtime.errors:PTXASError", _REQUIRED),  # Triton 3.6 to 3.9
    # The class whose attributes others read of a decorated kernel, and by which torch knows one.
    "Autotuner": ("triton.runtime:Autotuner", _REQUIRED),  # Triton 3.6 to 3.9
    # The class of what `triton.heuristics` returns, which a decorated kernel may lie below.
    "Heuristics": ("triton.runtime:Heuristics", _REQUIRED),  # Triton 3.6 to 3.9
    # A driver that owns no device, by which `tuner` compiles for any GPU.
    "GPUTarget": ("triton.backends.compiler:GPUTarget", _REQUIRED),  # Triton 3.6 to 3.9
    "DriverBase": ("triton.backends.driver:DriverBase", _REQUIRED),  # Triton 3.6 to 3.9
    # Encodes a TMA descriptor as NVIDIA's driver takes it. Used only with launchers that `driver_launch` knows.
    "make_tensordesc_arg": ("triton.backends.nvidia.driver:make_tensordesc_arg", _REQUIRED),  # Triton 3.6 to 3.9
}
_NVIDIA_LAUNCHER = "triton.backends.nvidia.driver"
_OWN_FUNCTION = ("3.6.",)
"""Tritons that compile a C function for each signature; it takes all arguments in a row."""
_SHARED_FUNCTION = ("3.7.", "3.8.", "3.9.")
"""Tritons with one C function for all kernels, which is told the types of the arguments in its last parameter."""
FORWARD_LEVEL = "_current_level"
"""The entry of `forward_ad_state` that is -1 outside of forward-mode differentiation. torch 2.9 to 2.13."""


def __getattr__(name: str) -> Any:
    """A name of the tables above.

    Raises:
        AttributeError: the tables have no such name.
        TunerError: the installed torch or Triton lacks it, and nothing can take its place.
    """
    place, fallback = _TORCH.get(name) or _TRITON.get(name) or (None, None)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = pkgutil.resolve_name(place)
    except (ImportError, AttributeError) as e:
        if isinstance(e, ImportError) and e.name in ("torch", "triton"):
            raise  # the package itself is not installed
        if fallback is _REQUIRED:
            tested = "torch 2.9 to 2.13" if name in _TORCH else "Triton 3.6 to 3.9"
            raise TunerError(f"{place.replace(':', '.')} is not there: expected {tested}; install one of them") from e
        found = fallback
    return globals().setdefault(name, found)


def forward_ad_state() -> Mapping[str, Any]:
    """The variables of torch's forward-mode differentiation, which are read at every call: see FORWARD_LEVEL.

    Where this torch has no such variable, every call is taken to be inside of a level and runs the checked path.
    """
    from torch.autograd import forward_ad

    state = vars(forward_ad)
    return state if FORWARD_LEVEL in state else {FORWARD_LEVEL: 0}


@dataclass(frozen=True, slots=True)
class DriverLaunch:
    """The C function beneath `CompiledKernel.run`.

    Attributes:
        function: called with the grid, the stream, `fixed` and the kernel's arguments.
        fixed: what stands between the stream and the kernel's arguments.
        in_a_list: whether the kernel's arguments are one list without constexprs; else they follow one by one, and a
            constexpr's place is filled.
    """

    function: Any
    fixed: tuple[Any, ...]
    in_a_list: bool


def driver_launch(kernel: Any, ranks: Sequence[int | None]) -> DriverLaunch | None:
    """The C function that launches a compiled kernel; None where this Triton's launcher is unknown or does more.

    Without it a launch goes through `CompiledKernel.run`, whose signature is the same in Triton 3.6 to 3.9.

    Args:
        kernel: a CompiledKernel that has run.
        ranks: for each argument, constexprs included, the rank of a TMA descriptor; None for any other argument.
    """
    import triton

    metadata = kernel.metadata
    if type(kernel.run).__module__ != _NVIDIA_LAUNCHER:
        return None
    if metadata.global_scratch_size or metadata.profile_scratch_size or getattr(kernel.run, "gsan_enabled", False):
        return None  # the launcher allocates memory at each launch
    described = sum(rank is not None for rank in ranks)
    if "tensordesc_meta" not in metadata._fields or len(metadata.tensordesc_meta or ()) != described:
        return None  # a descriptor that is not encoded on the host
    if not all(isinstance(kind, str) for kind in kernel.src.signature.values()):
        return None  # a tuple among the arguments
    if triton.__version__.startswith(_OWN_FUNCTION):
        return _own_function(kernel)
    return _shared_function(kernel, ranks) if triton.__version__.startswith(_SHARED_FUNCTION) else None


def _own_function(kernel: Any) -> DriverLaunch | None:
    launcher = kernel.run
    function = launcher.launch
    if kernel.metadata.tensordesc_meta:
        # What is there encodes descriptors at each call, then calls the C function.
        function = inspect.getclosurevars(function).nonlocals.get("launcher")
    if function is None:
        return None
    flags = (launcher.launch_cooperative_grid, launcher.launch_pdl)
    fixed = (kernel.function, *flags, None, None, kernel.packed_metadata, None, None, None)
    return DriverLaunch(function, fixed, in_a_list=False)


def _shared_function(kernel: Any, ranks: Sequence[int | None]) -> DriverLaunch:
    """Make a launcher for the arguments as the device takes them: without constexprs, with encoded descriptors."""
    types: list[str] = []
    for kind, rank in zip(kernel.src.signature.values(), ranks, strict=True):
        if rank is not None:
            types += ["nvTmaDesc", *["i32"] * rank, *["i64"] * rank]
        elif kind != "constexpr":
            types.append(kind)
    source = SimpleNamespace(fn=kernel.src.fn, constants={}, signature={str(at): kind for at, kind in enumerate(types)})
    active = __getattr__("driver").active
    launcher = active.launcher_cls(source, kernel.metadata._replace(tensordesc_meta=None))
    flags = (launcher.launch_cooperative_grid, launcher.launch_pdl)
    annotations = (launcher.arg_annotations, launcher.kernel_signature)
    fixed = (kernel.function, *flags, kernel.packed_metadata, None, None, None, None, None, *annotations)
    return DriverLaunch(launcher.launch, fixed, in_a_list=True)
