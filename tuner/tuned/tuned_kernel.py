"""A kernel under `tuner.tuned`: launched as before, but by the config that a lookup returns."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakSet

from tuner.bounded import make_room
from tuner.errors import ConfigError, KernelError, UsageError
from tuner.hardware import device as devices
from tuner.hardware.device import Device
from tuner.kernel import KernelSpec, registry
from tuner.kernel.config import Config
from tuner.kernel.spec import sources_of
from tuner.launch import binaries, compat, compile_cache
from tuner.launch.binaries import NotShippedError
from tuner.lookup import lookup as lookups
from tuner.lookup import strict
from tuner.lookup.decision import Match
from tuner.problem import Problem
from tuner.tuned.arguments import Arguments
from tuner.tuned.first_launch import Zeroing, launch_first_that_runs
from tuner.tuned.key_reader import MOST_KEYS, KnownCalls
from tuner.tuned.options import Options
from tuner.tuned.origin import origin_of
from tuner.tuned.pruning import pruned
from tuner.tuned.signature import Signature, base_of
from tuner.tuned.source import source_hash
from tuner.tuned.triton_configs import ConfigList
from tuner.tuned.user_inputs import ArgumentsFactory, MakeInputs


class TunedKernel(compat.Autotuner):  # type: ignore[misc]  # Triton is not seen by the type checker
    """Launches a jit function by tuned configs: `kernel[grid](...)`, `kernel.run(..., grid=..., warmup=False)`.

    It is an `Autotuner` of Triton's for whoever asks or reads its attributes, and launches, looks up and compiles by
    its own methods. Nothing is measured by Triton's, so `configs_timings` is empty and `bench_time` 0.

    Attributes:
        fn: what was decorated; `base_fn` is the plain function below all decorators.
        arg_names: the names of its parameters.
        keys: the names of the parameters that form the key.
        best_config: the config of the latest launch; None before the first.
        cache: the `triton.Config` of each `tuner.Problem` that was launched.
        nargs: the positional arguments by name of a call whose key is new, while it is looked up; else None.
        spec: the KernelSpec for `tuner run`, tables and lookups; the decorator sets it.
        measure: measures a key that nobody tuned at its first launch; None unless `tune_on_miss` is set.
    """

    def __init__(self, fn: Any, options: Options, configs: Sequence[Any] | Mapping[str, Sequence[Any]] | None) -> None:
        """Check what can be checked without a call.

        Raises:
            UsageError: an option names no argument, a config cannot be stored, or there is no function under
                `triton.jit`, or what chooses its configs.
        """
        if fn is base_of(fn):
            raise UsageError(f"{options.name}: tuner.tuned is for functions under @triton.jit: put it below")
        below = fn
        while hasattr(below, "fn"):
            if isinstance(below, compat.Autotuner):
                its = "@tuner.tuned" if isinstance(below, TunedKernel) else "@triton.autotune"
                raise UsageError(f"{options.name}: {its} stands below, and tuner.tuned takes its place: remove it")
            below = below.fn
        self.options = options
        self.signature = Signature(options.name, fn, options.key, lambda: self.source_hash[:16])
        self.signature.check("reset_to_zero", options.reset_to_zero)
        self.signature.check("restore_value", options.restore_value)
        self.config_list = ConfigList(options.name, configs)
        self.cache: dict[Problem, Any] = {}
        self._known = KnownCalls(self.signature)
        self._pruned_by_values: dict[Problem, list[Any]] = {}
        self._zeroing = Zeroing(options.reset_to_zero)
        super().__init__(
            fn,
            list(self.signature.names),
            list(self.config_list.listed),
            list(self.signature.key),
            options.reset_to_zero,
            options.restore_value,
            pre_hook=options.pre_hook,
            post_hook=options.post_hook,
            prune_configs_by=dict(options.prune),
            do_bench=options.do_bench,
        )
        self.best_config: Any = None
        self.nargs: dict[str, Any] | None = None
        self.configs_timings: dict[Any, Any] = {}
        self.bench_time = 0.0
        self.reference_function: Callable[[dict[str, Any]], Any] | None = None
        self.spec: KernelSpec
        self.measure: Measure | None = None
        self.arguments_factory = ArgumentsFactory(self.signature, (*options.reset_to_zero, *options.restore_value))
        self._current_call = threading.local()
        self.__name__, self.__doc__ = self.base_fn.__name__, self.base_fn.__doc__
        self.__module__, self.__qualname__ = self.base_fn.__module__, self.base_fn.__qualname__
        _kernels.add(self)

    def __reduce__(self) -> str:
        # A kernel is pickled by reference, as the function that it takes the place of; a copy is the kernel itself.
        return str(self.__qualname__)

    def __repr__(self) -> str:
        return f"TunedKernel({self.options.name}: {self.__module__}:{self.__qualname__})"

    @property
    def configs(self) -> list[Any]:
        """The `triton.Config`s, each once. Others may take their place; what was looked up is then forgotten."""
        return self._configs

    @configs.setter
    def configs(self, configs: Sequence[Any] | None) -> None:
        self.config_list = ConfigList(self.options.name, configs)
        self._configs = list(self.config_list.listed)
        self._forget()

    @functools.cached_property
    def source_hash(self) -> str:
        """The hash of the kernel's source and of all that it calls."""
        return source_hash(self.fn)

    @functools.cached_property
    def checks_hash(self) -> str:
        """32 digits of a hash of the files of `reference` and `make_inputs`, by which results were right or wrong."""
        sources = sources_of((self.reference_function, self.arguments_factory.make_inputs))
        return hashlib.sha256("".join(sources.values()).encode()).hexdigest()[:32] if sources else ""

    __iter__ = None  # otherwise __getitem__ would make it an endless iterable

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """Return a function that launches on a grid, as Triton's own `kernel[grid]` does."""
        return self._launcher(grid, warmup=False)

    def __call__(self, *_args: Any, **_kwargs: Any) -> None:
        """Refuse as Triton does, because a kernel needs a grid."""
        raise UsageError(f"{self.options.name} needs a grid: {self.__name__}[grid](...)")

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        """Launch on a grid by the config of the arguments' key; with `warmup`, only compile."""
        return self._launcher(grid, warmup=warmup)(*args, **kwargs)

    def warmup(self, *args: Any, grid: Any = (1,), **kwargs: Any) -> list[Any]:
        """Compile for these arguments by the config that a launch would use; return the kernel in a list."""
        call = Arguments(grid, args, kwargs)
        device = devices.current()
        (config, *_), problem, match = self._looked_up(call, device)
        compile_cache.install(self.fn, self.shipped)
        try:
            return [self.fn.warmup(*args, grid=grid, **kwargs, **config.all_kwargs())]
        except NotShippedError as e:
            raise NotShippedError(strict.refusal(problem, device, match, e)) from None

    def _launcher(self, grid: Any, *, warmup: bool) -> Callable[..., Any]:
        readers, run = self._known.readers, self.fn.run

        # For a call whose key is known, these lines are the whole cost besides the launch.
        def launch(*args: Any, **kwargs: Any) -> Any:
            try:
                form = (len(args), *kwargs)
                reader = readers[form]
                config, meta, count = reader.known[reader.read(args, kwargs)]
            except (KeyError, AttributeError, TypeError):
                pass  # handled below, so that errors of the first launch are not chained to this one
            else:
                self.best_config = config
                if config.pre_hook is not None:
                    config.pre_hook({**self.signature.named(args, kwargs), "grid": grid, "warmup": warmup, **meta})
                try:
                    result = run(*args, grid=grid, warmup=warmup, **kwargs, **meta)
                except NotShippedError:
                    pass  # Triton specializes on more than the key: another config may have a binary for this call
                else:
                    if count is not None:
                        count()
                    return result
            return self._first(Arguments(grid, args, kwargs), warmup=warmup)

        return launch

    def make_inputs(self, function: MakeInputs) -> MakeInputs:
        """Decorate a function from a Problem to the `tuner.Arguments` to measure it on."""
        self.arguments_factory.make_inputs = function
        return function

    def reference(self, function: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
        """Decorate a function from a call's arguments by name to its correct outputs."""
        self.reference_function = function
        return function

    def kernel_spec(self, above: Sequence[Any] = ()) -> KernelSpec:
        """Return the spec, given the `triton.heuristics` decorators above this one, the outermost first."""
        self.arguments_factory.heuristics = [decorator.values for decorator in above]
        self.register()
        return self.spec

    @property
    def origin(self) -> str:
        """How another process imports the kernel with what `make_inputs` and `reference` gave it."""
        functions = (self.arguments_factory.make_inputs, self.reference_function)
        modules = [getattr(function, "__module__", None) for function in functions]
        return origin_of(self, self.base_fn, [*modules, self.options.module])

    def register(self) -> None:
        """Make the kernel known in this process, under the origin that it has now.

        When the decorator is applied, the kernel has no name yet, and `make_inputs` may come from elsewhere later.
        """
        before, origin = self.spec, self.origin
        if origin != before.origin:
            self.spec = replace(before, origin=origin)
        registry.add(self.spec, instead_of=None if self.spec is before else before)

    def candidates(self, problem: Problem) -> list[Any]:
        """Return the configs to try for a problem, which are those that `prune_configs_by` leaves.

        Raises:
            KernelError: pruning needs arguments, and there are none; or it fails.
        """
        if not self.options.prune:
            return self.configs
        if (call := self.current_call(problem)) is not None:
            return self._pruned(call)
        if problem not in self._pruned_by_values:
            try:
                return self._pruned(self.arguments_factory.shaped(problem))
            except KernelError:  # it may look at values; an error of the second attempt is reported
                self._pruned_by_values[problem] = self._pruned(self.arguments_factory.made(problem, "cpu", 0))
        return self._pruned_by_values[problem]

    def _pruned(self, call: Arguments) -> list[Any]:
        named = dict(zip(self.arg_names, call.args, strict=False))
        found = pruned(self.options.name, self.options.prune, self.configs, named, call.launch_kwargs())
        for config in found:
            self.config_list.add(config)  # early_config_prune may return configs of its own
        return found

    def current_call(self, problem: Problem) -> Arguments | None:
        """Return the call under way in this thread if it has this problem, else None."""
        of, call = getattr(self._current_call, "call", (None, None))
        return call if of == problem else None

    def pruned_for_call(self, problem: Problem) -> list[Config] | None:
        """Return what `prune_configs_by` leaves for the call under way; None where no such call has this problem."""
        if self.current_call(problem) is None or not self.options.prune:
            return None
        return [self.config_list.of(config) for config in self.candidates(problem)]

    def default_config(self, problem: Problem, _device: Device) -> Config:
        """Return the config where nobody tuned: `default`, or else the first config that is not pruned."""
        default = self.options.default
        if default is not None:
            return self.config_list.add(default(problem) if callable(default) else default)
        try:
            candidates = self.candidates(problem)
        except KernelError:
            candidates = self.configs
        return self.config_list.of(candidates[0])

    def in_order(self, problem: Problem) -> list[Config]:
        """Return the default config, then every other candidate."""
        default = self.default_config(problem, devices.INTERPRETER)
        return list(dict.fromkeys([default, *(self.config_list.of(config) for config in self.candidates(problem))]))

    def _first(self, call: Arguments, *, warmup: bool) -> Any:
        """Launch a call whose key is new, and remember its config unless other tables are named meanwhile."""
        device, sources = devices.current(), lookups.resolver()
        self.nargs = dict(zip(self.arg_names, call.args, strict=False))
        try:
            order, problem, match = self._looked_up(call, device)
        finally:
            self.nargs = None
        named = self.signature.named(call.args, call.kwargs)
        if not (warmup or self.user_defined_pre_hook or len(self.configs) == 1):
            self._zeroing.zero(problem, named)
        compile_cache.install(self.fn, self.shipped)
        try:
            kwargs = call.launch_kwargs(warmup=warmup)
            launch = functools.partial(self.fn.run, *call.args, **kwargs)
            config, result, missing = launch_first_that_runs(launch, self.options.name, {**named, **kwargs}, order)
        except NotShippedError as e:
            raise NotShippedError(strict.refusal(problem, device, match, e)) from None
        count = lookups.counter(problem, device)
        if missing is not None:
            count = strict.note(problem, device, match, str(config)) or count
        make_room(self.cache, MOST_KEYS)
        self.best_config = self.cache[problem] = config
        self._known.remember(call.args, call.kwargs, (config, config.all_kwargs(), count))
        if lookups.resolver() is not sources:
            self._forget()
        return result

    def _looked_up(self, call: Arguments, device: Device) -> tuple[list[Any], Problem, Match]:
        """Return the `triton.Config`s to try for a call, the lookup's first, the call's problem and the match."""
        if self._configs != list(self.config_list.listed):
            self.configs = self._configs  # changed in place
        if conflicts := sorted(call.kwargs.keys() & {name for c in self.configs for name in c.all_kwargs()}):
            raise ConfigError(f"{self.options.name}: {conflicts[0]} is given by the call and by configs: leave one out")
        problem = self.signature.problem(self.signature.named(call.args, call.kwargs))
        if self.best_config is None:
            self.register()  # by now the kernel has a name
        is_strict = not device.is_interpreter and strict.is_on()
        with self.calling(problem, call):
            if self.measure is None or is_strict:
                match = lookups.lookup(problem, device)
            else:
                match = lookups.resolver().answer(problem, device, is_measured=True)
            others = [match.config, *self.in_order(problem)]
            if is_strict:
                others[1:1] = lookups.near_configs(problem, device)
            elif self.measure is not None and match.rule != "exact":
                winner = self.measure(self, problem, call, device)
                others = others if winner is None else [winner, *others]
        return self.listed(others), problem, match

    @contextlib.contextmanager
    def calling(self, problem: Problem, call: Arguments) -> Iterator[None]:
        """Let `prune_configs_by` see a call while it is looked up."""
        registry.add(self.spec)  # of several kernels that one function makes, the one that is called is known
        self._current_call.call = problem, call
        try:
            yield
        finally:
            self._current_call.call = None, None

    def listed(self, configs: Iterable[Config]) -> list[Any]:
        """Return the `triton.Config`s of configs, each once; a lookup remembers answers that are listed no more."""
        return [self.config_list.find(config) for config in dict.fromkeys(configs) if config in self.config_list]

    def shipped(self) -> binaries.ShippedBinaries | None:
        """Return what ships for the kernel and the current device."""
        return binaries.shipped_binaries(self.options.name, devices.current().slug)

    def _forget(self) -> None:
        self.cache.clear()
        self._pruned_by_values.clear()
        self._known.forget()


def _forget_all() -> None:
    for kernel in list(_kernels):
        kernel._forget()


_kernels: WeakSet[TunedKernel] = WeakSet()
lookups.on_change(_forget_all)
Measure = Callable[[TunedKernel, Problem, Arguments, Device], Config | None]
