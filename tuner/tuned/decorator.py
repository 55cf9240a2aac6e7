"""The decorator `tuner.tuned`."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

from tuner.errors import UsageError
from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.launch import compat
from tuner.problem import Problem, generic_key
from tuner.tuned import pruning, traced
from tuner.tuned.arguments import Arguments
from tuner.tuned.options import Options
from tuner.tuned.signature import base_of
from tuner.tuned.spec import spec_of
from tuner.tuned.tuned_kernel import TunedKernel
from tuner.tuned.user_inputs import MakeInputs


def tuned(  # noqa: PLR0917  as triton.autotune has them
    configs: Sequence[Any] | Mapping[str, Sequence[Any]] | None,
    key: Sequence[str],
    prune_configs_by: Mapping[str, Any] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | None = None,
    pre_hook: Callable[..., Any] | None = None,
    post_hook: Callable[..., Any] | None = None,
    warmup: int | None = None,  # noqa: ARG001  protocol 1 measures: docs/tuned.md
    rep: int | None = None,  # noqa: ARG001
    use_cuda_graph: bool = False,  # noqa: ARG001
    do_bench: Callable[..., Any] | None = None,
    cache_results: bool = False,  # noqa: ARG001
    *,
    name: str | None = None,
    version: int = 1,
    default: Any = None,
    make_inputs: MakeInputs | None = None,
    reference: Callable[[dict[str, Any]], Any] | None = None,
    tolerance: float | None = None,
    tune_on_miss: bool = False,
) -> Callable[[Any], TunedKernel]:
    """Decorate a function under `triton.jit` in place of `triton.autotune`: configs are looked up, not measured.

    Args:
        configs: `triton.Config`s, or a mapping from parameters to values, of which every combination is a config; None
            is Triton's default config.
        key: names of arguments whose values distinguish problems; dtypes, alignments and the device always do.
        prune_configs_by: `early_config_prune`, `perf_model` and `top_k`, as in Triton.
        reset_to_zero, restore_value: names of arguments to zero or to restore before each measured launch. At run time,
            those of `reset_to_zero` are zeroed before the first launch of a key, unless there is only one config.
        pre_hook, post_hook: called before and after each measured launch, with the arguments by name.
        warmup, rep, use_cuda_graph, do_bench, cache_results: accepted and ignored, because protocol 1 measures.
        name: the kernel's name in databases and tables; by default the function's name.
        version: raise it when old timings no longer hold for the kernel.
        default: a `triton.Config` for problems that nobody tuned, or a function from the Problem to one. By default the
            nearest tuned key's config is used, and without one the first config that is not pruned.
        make_inputs: a function from a Problem to the `Arguments` to measure it on.
        reference: a function from a call's arguments by name to its outputs: a tensor, a tuple in the order of
            `Arguments.outputs`, or tensors by name. By default, results are compared with the default config's.
        tolerance: the largest accepted |out - expected| / (|expected| + r), where r is the root mean square of the
            whole output; by default it follows from the dtype (docs/tuned.md).
        tune_on_miss: measure a key that nobody tuned at its first launch, on copies of its arguments, and store the
            winner.

    Raises:
        UsageError: an option is invalid.
    """
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise UsageError(f"version must be an integer from 1 on, got {version!r}")
    if tolerance is not None and not _is_error(tolerance):
        raise UsageError(f"tolerance must be a number from 0 on, got {tolerance!r}")
    module = sys._getframe(1).f_globals.get("__name__")
    _let_heuristics_take_inputs()

    def decorate(fn: Any) -> TunedKernel:
        arguments = tuple(inspect.signature(base_of(fn)).parameters)
        pruning.check(name or base_of(fn).__name__, prune_configs_by or {})
        options = Options(
            name=name or base_of(fn).__name__,
            version=version,
            key=_names(key, arguments),
            prune=dict(prune_configs_by or {}),
            reset_to_zero=_names(reset_to_zero, arguments),
            restore_value=_names(restore_value, arguments),
            pre_hook=pre_hook,
            post_hook=post_hook,
            do_bench=do_bench,
            default=default,
            tolerance=tolerance,
            module=module,
        )
        if "dtype" in options.key:
            raise UsageError("key names 'dtype', which every key has: rename the argument, dt for instance")
        generic_key.check_op(options.name)
        kernel = TunedKernel(fn, options, configs)
        if default is not None and not callable(default):
            kernel.config_list.of(default)  # what is no config is an error here, and not at the first call
        kernel.arguments_factory.make_inputs, kernel.reference_function = make_inputs, reference
        kernel.spec = spec_of(kernel)
        kernel.measure = _measure if tune_on_miss else None
        kernel.register()
        traced.ask(traced.choose_tuned)
        return kernel

    return decorate


def _is_error(tolerance: Any) -> bool:
    is_number = isinstance(tolerance, Real) and not isinstance(tolerance, bool)
    return is_number and bool(0 <= tolerance < math.inf)


def _let_heuristics_take_inputs() -> None:
    """Let `@kernel.make_inputs` and `@kernel.reference` reach a kernel through `triton.heuristics` above it.

    What those decorators return is an object of Triton's, which knows nothing of what it wraps.
    """
    for name in ("make_inputs", "reference"):
        if not hasattr(compat.Heuristics, name):
            setattr(compat.Heuristics, name, property(lambda self, name=name: getattr(self.fn, name)))  # type: ignore[misc]


def _names(given: Sequence[str] | None, arguments: Sequence[str]) -> tuple[str, ...]:
    """Return a list of names; one string is the name of an argument, or as for Triton one name a letter."""
    return (given,) if isinstance(given, str) and given in arguments else tuple(given or ())


def _measure(kernel: TunedKernel, problem: Problem, arguments: Arguments, device: Device) -> Config | None:
    from tuner.tuned.on_miss import tune  # the whole sweep: only for who asked for it

    return tune(kernel, problem, arguments, device)
