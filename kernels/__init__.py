"""Triton kernels of the ops `matmul`, `bmm`, `grouped_mm`, `vector_add` and `softmax`, and the ops themselves.

An op's module is imported when the op is first asked for: who multiplies matrices imports no softmax.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuner.kernels.bmm import bmm
    from tuner.kernels.grouped_mm import grouped_mm
    from tuner.kernels.matmul import matmul
    from tuner.kernels.padding import pad_weight
    from tuner.kernels.softmax import softmax
    from tuner.kernels.vector_add import vector_add

__all__ = ["bmm", "grouped_mm", "matmul", "pad_weight", "softmax", "vector_add"]


class _Ops(types.ModuleType):
    """This package. An op's module bears the op's name: what is seen under it is the function."""

    def __getattr__(self, name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        module = importlib.import_module(f"{self.__name__}.{'padding' if name == 'pad_weight' else name}")
        return self.__dict__.setdefault(name, getattr(module, name))

    def __setattr__(self, name: str, value: Any) -> None:
        # Whoever imports a submodule has the import system put it here, over the function.
        if name in __all__ and isinstance(value, types.ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Ops
