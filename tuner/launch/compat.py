"""Every private name of torch and of Triton that the product uses, and what happens where one is missing.

The other modules of `tuner/` and `kernels/` take these names from here (tests/unit/test_compat.py). A name is looked
up when it is first asked for, so importing this module imports neither torch nor Triton. Each row names the releases
that the name was seen in. Public names, `triton.knobs` among them, and the public attributes of a CompiledKernel
(`metadata`, `src`, `asm`, `hash`, `function`) are used directly.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
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
    # The handle of a device's current stream. Triton's driver takes its place, which asks the same function.
    "cuda_stream_of": ("torch:_C._cuda_getCurrentRawStream", None),  # torch 2.9 to 2.13, CUDA builds only
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
    # How many modes torch dispatches to, and how many see torch's functions. Without the first no plan is run, and
    # without the second no operator's.
    "count_dispatch_modes": ("torch:_C._len_torch_dispatch_stack", lambda: 1),  # torch 2.9 to 2.13
    "count_function_modes": ("torch:_C._len_torch_function_stack", lambda: 1),  # torch 2.9 to 2.13
    # These modes, and whether torch skips them. Without the first, modes see launches and no operators, but for those
    # that record; without the others none is taken to be skipped.
    "dispatch_modes": ("torch.utils._python_dispatch:_get_current_dispatch_mode_stack", list),  # torch 2.9 to 2.13
    "is_key_excluded": ("torch:_C._dispatch_tls_is_dispatch_key_excluded", lambda _: False),  # torch 2.9 to 2.13
    "python_key": ("torch:_C.DispatchKey.Python", None),  # torch 2.9 to 2.13
    # The modes in which make_fx and FakeTensorMode record operators. Without these names a launch there is an error of
    # torch's.
    "get_dispatch_mode": ("torch:_C._get_dispatch_mode", lambda _: None),  # torch 2.9 to 2.13
    "proxy_mode_key": ("torch:_C._TorchDispatchModeKey.PROXY", None),  # torch 2.9 to 2.13
    "fake_mode_key": ("torch:_C._TorchDispatchModeKey.FAKE", None),  # torch 2.9 to 2.13
    # The hooks of all modules. Without them none is seen.
    "global_forward_hooks": ("torch.nn.modules.module:_global_forward_hooks", {}),  # torch 2.9 to 2.13
    "global_forward_pre_hooks": ("torch.nn.modules.module:_global_forward_pre_hooks", {}),  # torch 2.9 to 2.13
    # Whether an operator is cast under autocast. Without it those that the newest torch casts are taken to be.
    "has_kernel_for": ("torch:_C._dispatch_has_kernel_for_dispatch_key", lambda *_: True),  # torch 2.9 to 2.13
    # The mode in which `tuner model` sees the products of a forward pass. Nothing can replace it.
    "TorchDispatchMode": ("torch.utils._python_dispatch:TorchDispatchMode", _REQUIRED),  # torch 2.9 to 2.13
    # torch's GEMMs that have no public function. Without one the library counts as having no such product.
    "scaled_mm": ("torch:_scaled_mm", None),  # torch 2.9 to 2.13
    "scaled_mm_v2": ("torch:ops.aten._scaled_mm_v2.out", None),  # torch 2.10 to 2.13
    "int_mm": ("torch:_int_mm", None),  # torch 2.9 to 2.13
    "grouped_mm": ("torch:_grouped_mm", None),  # torch 2.9 to 2.13
    # TorchInductor's options by mode, for `tuner bench`. Nothing replaces it: that contest reports the error.
    "list_mode_options": ("torch._inductor:list_mode_options", _REQUIRED),  # torch 2.9 to 2.13
    # By which Dynamo and make_fx turn a traced launch into an operator. Without it TorchInductor measures configs.
    "TritonHOPifier": (
        "torch._higher_order_ops.triton_kernel_wrap:TritonHOPifier",
        None,
    ),  # torch 2.11 to 2.13
}
_TRITON: dict[str, tuple[str, Any]] = {
    # The active driver: current device, stream and target. Nothing can be launched without it.
    "driver": ("triton.runtime.driver:driver", _REQUIRED),  # Triton 3.6 to 3.9
    # Where Triton makes a driver when it is first asked for one, by MAKES_DRIVER. Without it its own becomes active, of
    # which a C compiler builds a part.
    "driver_module": ("triton.runtime.driver", None),  # Triton 3.6 to 3.9
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
    # What Triton's own errors derive from. It is public, but importing it imports Triton.
    "TritonError": ("triton.errors:TritonError", _REQUIRED),  # Triton 3.6 to 3.9
    # What fails before anything ran. Without them such an error would end a call that another config could serve.
    "CompilationError": ("triton.compiler.errors:CompilationError", _REQUIRED),  # Triton 3.6 to 3.9
    "OutOfResources": ("triton.runtime.errors:OutOfResources", _REQUIRED),  # Triton 3.6 to 3.9
    "PTXASError": ("triton.runtime.errors:PTXASError", _REQUIRED),  # Triton 3.6 to 3.9
    # The class whose attributes others read of a decorated kernel, and by which torch knows one; `tuner.adopt` puts
    # methods in the place of those of AUTOTUNER_ASKS.
    "Autotuner": ("triton.runtime:Autotuner", _REQUIRED),  # Triton 3.6 to 3.9
    # The class of what `triton.heuristics` returns, which a decorated kernel may lie below.
    "Heuristics": ("triton.runtime:Heuristics", _REQUIRED),  # Triton 3.6 to 3.9
    # The class of what `triton.jit` returns; `tuner.adopt` puts a method in the place of COMPILES.
    "JITFunction": ("triton.runtime:JITFunction", _REQUIRED),  # Triton 3.6 to 3.9
    # A driver that owns no device, by which `tuner` compiles for any GPU.
    "GPUTarget": ("triton.backends.compiler:GPUTarget", _REQUIRED),  # Triton 3.6 to 3.9
    "DriverBase": ("triton.backends.driver:DriverBase", _REQUIRED),  # Triton 3.6 to 3.9
    # Triton's driver of NVIDIA's GPUs, whose module `nvidia_driver` builds late. Without them its own is used.
    "backends": ("triton.backends:backends", _REQUIRED),  # Triton 3.6 to 3.9
    "CudaDriver": ("triton.backends.nvidia.driver:CudaDriver", _REQUIRED),  # Triton 3.6 to 3.9
    "CudaLauncher": ("triton.backends.nvidia.driver:CudaLauncher", _REQUIRED),  # Triton 3.6 to 3.9
    "CudaUtils": ("triton.backends.nvidia.driver:CudaUtils", _REQUIRED),  # Triton 3.6 to 3.9
    # What `triton.set_allocator` set: makes the memory that a kernel needs for itself.
    "allocator": ("triton.runtime._allocation:_allocator", _REQUIRED),  # Triton 3.6 to 3.9
}
AUTOTUNER_ASKS = ("prune_configs", "check_disk_cache", "_bench")
"""The methods that `Autotuner.run` calls for a key it has not seen, and at no other time. Triton 3.6 to 3.9."""
COMPILES = "_do_compile"
"""The method that `JITFunction.run` and `preload` call for a key that they have not seen, and at no other time. Triton
3.6 to 3.9; all give it the same arguments, and call `self.compile` in it. Without it captures keep no binaries, and of
kernels that no `Autotuner` chooses for, none is served by a binary."""
MAKES_DRIVER = "_create_driver"
"""The function of `driver_module` that makes the driver, given nothing. Triton 3.6 to 3.9."""
OVERLOAD_CALLS = "_op"
"""The attribute of an operator's overload that its call calls, with the same arguments. torch 2.9 to 2.13. Without it
each goes through torch's dispatcher."""
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
