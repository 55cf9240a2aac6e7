"""An adopted kernel: what lookups and the offline tuner know of a library's `Autotuner`.

The library is not touched. Beside its `Autotuner` stands a kernel as `tuner.tuned` makes it, of the same function,
configs, key and options; it says what the problem of a call is, and it is what is tuned.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from tuner.kernel.config import Config
from tuner.problem import Problem, generic_key
from tuner.tuned.arguments import memory_of
from tuner.tuned.key_reader import hashable
from tuner.tuned.options import Options
from tuner.tuned.signature import base_of
from tuner.tuned.spec import spec_of
from tuner.tuned.triton_configs import ConfigList
from tuner.tuned.tuned_kernel import TunedKernel

_MOST_WARPS = 32


class WideList(ConfigList):
    """A library's configs, and their neighbours, which `tuner run --widen` tries and lookups serve.

    Neighbours are made when a config is asked for that is not listed.
    """

    @functools.cached_property
    def neighbours(self) -> tuple[Any, ...]:
        """The `triton.Config`s with half and twice the warps, a stage less and a stage more, that are not listed."""
        import triton

        found: dict[Config, Any] = {}
        for each in self.listed:
            fixed = {name: getattr(each, name) for name in ("num_ctas", "maxnreg", "pre_hook", "ir_override")}
            for warps in (each.num_warps // 2, each.num_warps, each.num_warps * 2):
                for stages in (each.num_stages - 1, each.num_stages, each.num_stages + 1):
                    if 1 <= warps <= _MOST_WARPS and stages >= 1:
                        config = triton.Config(each.kwargs, num_warps=warps, num_stages=stages, **fixed)
                        found.setdefault(self.of(config), config)
        for config in found.values():
            self.add(config)
        return tuple(config for config in found.values() if config not in self.listed)

    def __contains__(self, config: Config) -> bool:
        return super().__contains__(config) or bool(self.neighbours and super().__contains__(config))

    def find(self, config: Config) -> Any:
        """Return the `triton.Config` of a config, of a neighbour with the hook of the listed one."""
        self.__contains__(config)  # makes a neighbour known
        return super().find(config)


def is_of(autotuner: Any, libraries: Iterable[str]) -> bool:
    """Return whether the plain function below an `Autotuner` stands in one of these packages or modules."""
    module = str(base_of(autotuner).__module__)
    return any(module == library or module.startswith(f"{library}.") for library in libraries)


def op_of(autotuner: Any) -> str:
    """Return the op of an autotuner's problems: its function's module and qualified name, with "-" for each dot.

    Two functions of one name in two modules are two ops. An identifier holds no "-", so the name can be read back.
    """
    base = base_of(autotuner)
    return f"{base.__module__}.{base.__qualname__}".replace("<locals>", "locals").replace(".", "-")


def kernel_of(autotuner: Any) -> TunedKernel:
    """Return the kernel that stands for an autotuner in lookups, in the registry and in the sweep; made once.

    It has the same function (`fn`), configs, key and options, and `spec`, `source_hash`, `signature` and `config_list`
    as any kernel under `tuner.tuned`. It has no `make_inputs`: who measures it sets `arguments_factory.make_inputs`.
    Where the autotuner's list of configs was changed meanwhile, it is made anew.

    Args:
        autotuner: an object of `triton.runtime.Autotuner` or of a subclass, not below `triton.heuristics`.

    Raises:
        TunerError: it cannot be kept in tables, for instance because two of its configs differ in their hooks alone.
    """
    known = _kernels.get(autotuner)
    if known is not None and known.fn is autotuner.fn and known.configs == list(dict.fromkeys(autotuner.configs)):
        return known
    options = options_of(autotuner)
    generic_key.check_op(options.name)
    made = _kernels[autotuner] = TunedKernel(autotuner.fn, options, list(autotuner.configs))
    made.config_list = WideList(options.name, made.configs)
    made.spec = spec_of(made)
    made.register()
    return made


def problem_of(autotuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Problem:
    """Return the problem of a call of an autotuner: its key and dtypes, and what `tuner.tuned` adds to every key.

    That is the hash of the kernel's source and of all that it calls, which addresses are unaligned, and how strides are
    specialized (docs/tuned.md, "The key").

    Args:
        autotuner: see `kernel_of`.
        args, kwargs: what `Autotuner.run` was given; `grid` and other words that are no arguments are left out.

    Raises:
        TunerError: see `kernel_of`; or no table can hold a value of the key.
    """
    signature = kernel_of(autotuner).signature
    return signature.problem(signature.named(args, kwargs))


def zeroes(autotuner: Any) -> bool:
    """Return whether an autotuner may change arguments when its `pre_hook` is asked to reset them."""
    has_hook = getattr(autotuner, "user_defined_pre_hook", True)
    return bool(has_hook or getattr(autotuner, "reset_to_zero", True))


def triton_key(autotuner: Any, named: Mapping[str, Any]) -> Hashable:
    """Return the key under which Triton keeps the config of a call: no alignment, stride or source is part of it.

    Args:
        autotuner: what is called.
        named: the call's arguments by name; others are left out.
    """
    arguments = {name: value for name, value in named.items() if name in autotuner.arg_names}
    values = [_part(arguments[name]) for name in autotuner.keys if name in arguments]
    return (*values, *(str(value.dtype) for value in arguments.values() if hasattr(value, "dtype")))


def _part(value: Any) -> Hashable:
    kind = str(type(value))
    if memory_of(value) is not None:  # it is not to be kept
        return kind
    part = hashable(value)
    return kind if part.__hash__ is None else part


def options_of(autotuner: Any) -> Options:
    """Return what an autotuner was given, as the options of a kernel under `tuner.tuned`."""
    prune = {
        "early_config_prune": autotuner.early_config_prune,
        "perf_model": autotuner.perf_model,
        "top_k": autotuner.configs_top_k if autotuner.perf_model is not None else None,
    }
    return Options(
        name=op_of(autotuner),
        version=1,
        key=tuple(name for name in dict.fromkeys(autotuner.keys) if name in autotuner.arg_names),
        prune={name: value for name, value in prune.items() if value is not None},
        reset_to_zero=tuple(autotuner.reset_to_zero),
        restore_value=tuple(autotuner.restore_value),
        pre_hook=autotuner.pre_hook if autotuner.user_defined_pre_hook else None,
        post_hook=autotuner.post_hook if autotuner.user_defined_post_hook else None,
    )


_kernels: WeakKeyDictionary[Any, TunedKernel] = WeakKeyDictionary()
