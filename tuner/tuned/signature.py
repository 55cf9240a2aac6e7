"""A kernel's parameters: which of them form its key, and which problem a call's arguments describe."""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from tuner.errors import ProblemError, UsageError
from tuner.problem import Problem
from tuner.problem import dtype as dtypes
from tuner.problem.generic_key import SOURCE, Extra, canonical
from tuner.tuned.arguments import memory_of
from tuner.tuned.source import function_below, source_hash

ALIGNMENT = 16
"""Triton specializes kernels on addresses (bytes) and integers that are multiples of this, to load wider."""
_SHOWN = 200
"""How many characters of a value an error shows."""
_log = logging.getLogger(__name__)


class Signature:
    """The parameters of a jit function.

    Attributes:
        op: the op of its problems.
        names: all parameters, in order.
        key: the parameters whose values distinguish problems.
        constexprs: the parameters that are compiled in.
        defaults: the values of parameters that a call may leave out.
    """

    def __init__(self, op: str, fn: Any, key: Sequence[str], source: Callable[[], str]) -> None:
        """Classify the parameters.

        Args:
            op: the kernel's name.
            fn: the decorated function.
            source: returns the word that says which kernel a problem is of; asked when the first problem is made,
                because what a kernel calls may be defined below it.
            key: names of the parameters whose values distinguish problems; a name that is no parameter is left out with
                a warning.
        """
        self.op, self._source = op, source
        parameters = inspect.signature(base_of(fn)).parameters
        self.names = tuple(parameters)
        self.constexprs = frozenset(name for name, parameter in parameters.items() if _is_constexpr(parameter))
        self.defaults = {n: p.default for n, p in parameters.items() if p.default is not inspect.Parameter.empty}
        self._plain = frozenset(_not_specialized(fn, self.names))
        self.key = tuple(name for name in key if name in self.names)
        if unknown := [name for name in key if name not in self.names]:
            # triton.autotune ignores such names silently, and Triton's own tutorial of grouped GEMMs has one.
            _log.warning("%s: its key names %s, which is no argument of it: left out", op, " and ".join(unknown))

    def check(self, option: str, names: Sequence[str]) -> None:
        """Raise UsageError where an option names something that is no parameter."""
        for name in names:
            if name not in self.names:
                raise UsageError(
                    f"{self.op}: {option} names {name!r}, which is no argument of the kernel: it has "
                    f"{', '.join(self.names)}"
                )

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return a call's arguments by name, as hooks and grids get them; like `triton.autotune`, without defaults."""
        return {**dict(zip(self.names, args, strict=False)), **kwargs}

    def problem(self, named: Mapping[str, Any]) -> Problem:
        """Return the problem of a call.

        Args:
            named: its arguments by name, without those that a config sets.

        Raises:
            ProblemError: no table can hold a value of the key.
        """
        extras: dict[str, Extra] = {}
        found: dict[str, str] = {}
        for name in self.names:
            value = named.get(name, self.defaults.get(name))
            tensor = memory_of(value)
            if tensor is not None:
                found[name] = dtypes.name_of(tensor.dtype)
                if value is tensor and tensor.data_ptr() % ALIGNMENT:
                    extras[f"{name}.aligned"] = False
            elif name in self.key:
                if name in named or name in self.defaults:
                    extras[name] = self._plain_value(name, value)
            elif type(value) is int and self.is_stride(name):
                if value == 1:
                    extras[f"{name}.one"] = True
                elif value % ALIGNMENT:
                    extras[f"{name}.aligned"] = False
        most = Counter(found.values()).most_common(1)
        usual = most[0][0] if most else "none"
        extras |= {f"{name}.dtype": dtype for name, dtype in found.items() if dtype != usual}
        return self.keyed(extras, usual)

    def keyed(self, extras: Mapping[str, Extra], dtype: str) -> Problem:
        """Return a problem of this kernel, as `Problem.keyed` does, and with the kernel's source."""
        return Problem.keyed(self.op, {**extras, SOURCE: self._source()}, dtype=dtype)

    def identifying(self, names: Iterable[str]) -> list[str]:
        """Return the names of those arguments that distinguish a call's problem."""
        return [name for name in names if name in self.names and (name in self.key or name not in self.constexprs)]

    def is_stride(self, name: str) -> bool:
        """Return whether a number is a stride; how Triton specializes it is part of the problem even outside the key.

        Only strides count: the specialization of a batch size or a seed would split one problem into several.
        """
        return "stride" in name.lower() and self.is_specialized(name)

    def is_specialized(self, name: str) -> bool:
        """Return whether Triton compiles another binary for a number that is 1 or a multiple of 16."""
        return name not in self._plain and name not in self.constexprs

    def _plain_value(self, name: str, value: Any) -> Extra:  # noqa: PLR0911  one a kind of value
        value = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
        if (plain := canonical(value)) is not None:
            return plain
        if value is None:
            return "none"
        if type(value).__name__ == "dtype":
            return dtypes.spelled(str(value))
        if isinstance(value, (tuple, list)):
            between = "x" if all(isinstance(part, int) for part in value) else ";"
            return between.join(str(self._plain_value(name, part)) for part in value)
        if isinstance(value, Enum):
            return f"{type(value).__qualname__}.{value.name}"
        if isinstance(value, bytes):
            return value.hex()
        if (function := function_below(value)) is not None:  # under triton.jit too
            return f"{function.__qualname__}@{source_hash(value)[:8]}"
        shown = f"{value!r:.{_SHOWN}}"
        raise ProblemError(
            f"{self.op}: {name} of the key is {shown}: expected a number, a string, a member of an enum, a dtype, a "
            "function, None, a tensor, or a tuple of such"
        )


def base_of(fn: Any) -> Any:
    """Return the plain function below Triton's decorators."""
    while not inspect.isfunction(fn):
        if not hasattr(fn, "fn"):
            raise UsageError(f"tuner.tuned is for functions under @triton.jit, found {fn!r}: put @triton.jit below it")
        fn = fn.fn
    return fn


def _is_constexpr(parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    return "constexpr" in (annotation if isinstance(annotation, str) else getattr(annotation, "__name__", ""))


def _not_specialized(fn: Any, names: Sequence[str]) -> list[str]:
    while not hasattr(fn, "params") and not hasattr(fn, "kwargs") and hasattr(fn, "fn"):
        fn = fn.fn
    if hasattr(fn, "params"):
        return [parameter.name for parameter in fn.params if parameter.do_not_specialize]
    given = (getattr(fn, "kwargs", None) or {}).get("do_not_specialize") or ()  # functions of the interpreter
    return [names[each] if isinstance(each, int) else each for each in given]
