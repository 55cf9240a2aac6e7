"""Under torch.compile: a kernel that is traced is given its config, so that TorchInductor has nothing to measure.

Dynamo reads an `Autotuner`'s list of configs and never calls its `run`. Here the traced call's kernel is replaced,
before Dynamo looks at it, by the same kernel with the one config that was chosen for the traced arguments.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tuner.errors import KernelError, TunerError, first_line
from tuner.hardware import device as devices
from tuner.launch import compat
from tuner.lookup import lookup as lookups
from tuner.startup.after_import import after_import

ChooseTraced = Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]
"""Given an `Autotuner`, and a traced call's positional and keyword arguments, returns its `triton.Config`, or None."""
_MODULE = "torch._higher_order_ops.triton_kernel_wrap"
_log = logging.getLogger(__name__)
_choosers: list[ChooseTraced] = []
_said: set[str] = set()
"""The kernels of which was said why nothing is chosen."""
_original: list[Any] = []
"""torch's own method while another is in its place."""
_awaited: list[str] = []
"""The module whose import is waited for, once it is."""


class TracedTensor:
    """What a key tells of a tensor that is traced: its address is taken to be aligned but for its offset."""

    def __init__(self, tensor: Any) -> None:
        """Read a fake tensor."""
        self.dtype, self.shape, self._tensor = tensor.dtype, tensor.shape, tensor

    def data_ptr(self) -> int:
        """Return the offset in bytes, where it is known."""
        offset = self._tensor.storage_offset()
        return int(offset * self._tensor.element_size()) if isinstance(offset, int) else 0

    def __getattr__(self, name: str) -> Any:
        """Return what the fake tensor has: a function that prunes may ask for strides or a device."""
        if name == "_tensor":  # of a copy that has none yet
            raise AttributeError(name)
        return getattr(self._tensor, name)


def ask(choose: ChooseTraced) -> None:
    """Ask a function about each `Autotuner` that is traced from here on."""
    if choose not in _choosers:
        _choosers.append(choose)
    if _MODULE in sys.modules:
        _put()
    elif not _awaited:
        _awaited.append(_MODULE)
        after_import(_MODULE, _put)


def stop_asking(choose: ChooseTraced) -> None:
    """Take a function back; with the last one, torch's method is its own again."""
    if choose in _choosers:
        _choosers.remove(choose)
    if not _choosers and _original:
        compat.TritonHOPifier.call_triton_kernel = _original.pop()


def choose_tuned(kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what a lookup answers for a traced call of a kernel under `tuner.tuned`; None for any other kernel."""
    if not hasattr(kernel, "config_list"):
        return None
    problem = kernel.signature.problem(kernel.signature.named(args, kwargs))
    return kernel.config_list.find(lookups.lookup(problem, devices.current()).config)


def _put() -> None:
    hopifier = compat.TritonHOPifier
    if hopifier is None or _original or not _choosers:
        return
    original = hopifier.call_triton_kernel
    _original.append(original)

    @functools.wraps(original)
    def call_triton_kernel(self: Any, variable: Any, args: Any, kwargs: Any, tx: Any) -> Any:
        import triton

        kernel = variable.kernel
        if isinstance(kernel, compat.Autotuner) and len(kernel.configs) > 1:
            config = _chosen(kernel, args, kwargs)
            if config is not None:
                alone = triton.autotune(configs=[config], key=[])(kernel.fn)
                variable = type(variable)(alone, None, variable.grid)
        return original(self, variable, args, kwargs, tx)

    hopifier.call_triton_kernel = call_triton_kernel


def _chosen(kernel: Any, args: Any, kwargs: Any) -> Any:
    """Ask; what cannot be chosen, because an argument or a table says too little, is TorchInductor's to measure."""
    try:
        given = [_value(each) for each in args], {name: _value(each) for name, each in kwargs.items()}
        return next(filter(None, (choose(kernel, *given) for choose in tuple(_choosers))), None)
    except KernelError as e:
        if (name := f"{kernel.base_fn.__module__}.{kernel.base_fn.__qualname__}") not in _said:
            _said.add(name)
            _log.warning("%s is left to TorchInductor: %s", name, first_line(e))
        return None
    except (TunerError, NotImplementedError):
        return None


def _value(argument: Any) -> Any:
    """Return what an argument is while it is traced: a tensor's stand-in, a size's hint, or a constant."""
    import torch

    if hasattr(argument, "as_python_constant") and argument.is_python_constant():
        return argument.as_python_constant()
    if hasattr(argument, "as_proxy"):
        argument = argument.as_proxy()
        argument = argument.node.meta["example_value"] if hasattr(argument, "node") else argument
    if isinstance(argument, torch.SymInt):
        return argument.node.hint
    return TracedTensor(argument) if isinstance(argument, torch.Tensor) else argument
